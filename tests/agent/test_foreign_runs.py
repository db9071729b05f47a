"""Engines that a person adopted, as real processes: found with all they started, stopped, and nobody beside them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from backend.agent import foreign, foreign_runs
from backend.agent.core.state import Adopted, Ended
from backend.agent.devices import GpuReading
from backend.agent.foreign import find_foreign
from backend.agent.foreign_runs import Tree
from backend.agent.foreign_watch import ForeignWatch
from backend.agent.process_identity import boot_id, see_process
from backend.contract.entities import Entities, ProcessIdentity
from backend.contract.reports import DeviceFacts, ForeignProcess
from backend.contract.words import NodeId
from backend.engines.driver import StopStep
from tests.agent.core.world import World
from tests.agent.run_world import until
from tests.engines.stand_in_engine import SGLANG, SGLANG_LINE, VLLM, VLLM_LINE, StandInEngine
from tests.factories import make_plan

ELSEWHERE = 1
TERM, KILL = 15, 9
Start = Callable[..., StandInEngine]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(foreign, "YOUNG_SECONDS", 0.0)
    monkeypatch.setattr(foreign_runs, "LEFT_SECONDS", 0.2)
    made: list[StandInEngine] = []

    def start(line: tuple[str, ...], answers: dict[str, tuple[int, object]], head: str = "alone") -> StandInEngine:
        made.append(StandInEngine(tmp_path / str(len(made)), line, answers, head))
        return made[-1]

    yield start
    for each in made:
        each.close()


def found(engine: StandInEngine, tmp_path: Path, gpus: GpuReading | None = None) -> ForeignProcess:
    processes = find_foreign(Entities(), tmp_path, ELSEWHERE, gpus=gpus).processes
    (mine,) = [each for each in processes if each.pid in (engine.pid, engine.child)]
    return mine


def identity_of(pid: int) -> ProcessIdentity:
    seen = see_process(pid)
    assert seen is not None
    return ProcessIdentity(pid, seen.start_ticks, boot_id(), "adopted")


def is_gone(pid: int) -> bool:
    seen = see_process(pid)
    return seen is None or seen.is_gone


@pytest.mark.adoption(
    "vLLM, SGLang and p4 (stand-ins) are found by command line and listening port, once with all they started"
)
def test_engines_are_found_once_with_their_port_model_and_all_that_they_started(
    stand_in: Start, tmp_path: Path
) -> None:
    engine = stand_in(VLLM_LINE, VLLM, "fork")
    seen = found(engine, tmp_path)
    assert (seen.pid, seen.engine, seen.role, seen.ranks) == (engine.pid, "vllm", "leader", 1)
    assert (seen.ports, seen.address, seen.model) == ((engine.port,), "127.0.0.1", "org/big")
    assert (seen.start_ticks, seen.boot_id) == (identity_of(engine.pid).start_ticks, boot_id())
    assert seen.devices == ("CPU",), "no driver on this machine lists anybody"
    other = stand_in(SGLANG_LINE, SGLANG)
    seen = found(other, tmp_path)
    assert (seen.engine, seen.ports, seen.model) == ("sglang", (other.port,), "org/big")
    broker = stand_in(("p4-agent", "127.0.0.1:1"), {})
    seen = found(broker, tmp_path)
    assert (seen.engine, seen.role, seen.ports, seen.model) == ("p4", "broker", (broker.port,), "")


@pytest.mark.adoption("the devices of a foreign engine are those whose driver (injected) lists it or what it started")
def test_an_injected_driver_tells_devices_and_bytes_and_one_without_owners_leaves_them_unknown(
    stand_in: Start, tmp_path: Path
) -> None:
    engine = stand_in(VLLM_LINE, VLLM, "fork")
    devices = tuple(DeviceFacts(name=f"CUDA{n}", uuid=f"GPU-{n}", kind="cuda", total=9, free=1) for n in range(3))
    owners = {"GPU-0": {engine.pid: 5, 1: 7}, "GPU-1": {engine.child: 6}, "GPU-2": {1: 7}}
    seen = found(engine, tmp_path, GpuReading(devices, owners))
    assert (seen.devices, seen.device_memory, seen.holds) == (("CUDA0", "CUDA1"), 11, 11)
    unsaid = found(engine, tmp_path, GpuReading(devices, {**owners, "GPU-1": {engine.child: -1}}))
    assert (unsaid.devices, unsaid.device_memory) == (("CUDA0", "CUDA1"), None)
    assert found(engine, tmp_path, GpuReading(devices, {})).devices == (), "unknown is not the CPU"


async def test_the_watch_adds_what_the_port_answers_and_forgets_who_is_gone(stand_in: Start, tmp_path: Path) -> None:
    engine = stand_in(VLLM_LINE, VLLM)
    watch = ForeignWatch(tmp_path, (), ELSEWHERE)
    seen: ForeignProcess | None = None
    async with asyncio.timeout(30):
        while seen is None or not seen.answers:
            await watch.look(Entities())
            seen = next((each for each in watch.processes(Entities()) if each.pid == engine.pid), None)
            await asyncio.sleep(0.02)
    assert (seen.answers, seen.served, seen.release) == ("ready", ("big",), "0.32.0")
    now = watch.find_now(engine.pid, Entities())
    assert now is not None
    assert msgspec.structs.replace(now, memory=seen.memory) == seen
    engine.close()
    await watch.look(Entities())
    assert engine.pid not in {each.pid for each in watch.processes(Entities())}
    assert watch.find_now(engine.pid, Entities()) is None


@pytest.mark.adoption(
    "an adopted engine is ended by TERM, grace and KILL of it and what it left, proven; nobody beside"
)
async def test_a_stop_ends_the_process_and_what_it_leaves_behind_and_nobody_beside_it(stand_in: Start) -> None:
    engine, neighbour = stand_in(VLLM_LINE, VLLM, "fork"), stand_in(SGLANG_LINE, SGLANG)
    outcome = await foreign_runs.stop(Tree(identity_of(engine.pid)), (StopStep(TERM, 0.5), StopStep(KILL, 0.5)))
    assert outcome.stopped
    assert is_gone(engine.pid)
    assert is_gone(engine.child), "it ignores TERM, and would have kept its device"
    assert not is_gone(neighbour.pid)


async def test_what_outlives_the_engine_is_remembered_and_ended_too(stand_in: Start) -> None:
    engine = stand_in(VLLM_LINE, VLLM, "fork")
    tree = Tree(identity_of(engine.pid))
    assert {each.pid for each in tree.look()} == {engine.pid, engine.child}
    engine.kill()
    assert {each.pid for each in tree.look()} == {engine.child}, "it has another parent now, and is still known"
    outcome = await foreign_runs.stop(tree, (StopStep(TERM, 5.0), StopStep(KILL, 5.0)))
    assert outcome.stopped
    assert is_gone(engine.child)


async def test_one_that_ignores_term_is_killed_after_its_grace(stand_in: Start) -> None:
    engine = stand_in(VLLM_LINE, VLLM, "deaf")
    outcome = await foreign_runs.stop(Tree(identity_of(engine.pid)), (StopStep(TERM, 0.3), StopStep(KILL, 5.0)))
    assert outcome.stopped
    assert is_gone(engine.pid)


@pytest.mark.adoption("a pid that another process has by now is never signalled")
async def test_a_reused_pid_is_never_signalled(stand_in: Start) -> None:
    engine = stand_in(VLLM_LINE, VLLM)
    known = identity_of(engine.pid)
    for other in (
        msgspec.structs.replace(known, start_ticks=known.start_ticks - 1),
        msgspec.structs.replace(known, boot_id="another boot"),
    ):
        outcome = await foreign_runs.stop(Tree(other), (StopStep(TERM, 0.2), StopStep(KILL, 0.2)))
        assert outcome.stopped, "the process that is named is gone"
        assert not is_gone(engine.pid)


def test_after_a_restart_it_is_found_by_its_identity_or_its_exit_is_unknown(stand_in: Start) -> None:
    engine = stand_in(VLLM_LINE, VLLM)
    world = World()
    world.bring_up(make_plan())
    shard = world.state.entities.shards[NodeId("tiny-1/0")]
    known = identity_of(engine.pid)
    assert isinstance(foreign_runs.found_again(shard, known), Adopted)
    engine.close()
    until(lambda: is_gone(engine.pid), "its end")
    ended = foreign_runs.found_again(shard, known)
    assert isinstance(ended, Ended)
    assert (ended.code, ended.signal) == (None, None)
    assert "unknown" in ended.words


def test_a_process_of_an_adopted_engine_is_no_stranger_and_its_session_mates_are(
    stand_in: Start, tmp_path: Path
) -> None:
    engine = stand_in(VLLM_LINE, VLLM, "fork")
    world = World()
    world.bring_up(make_plan())
    shard = world.state.entities.shards[NodeId("tiny-1/0")]
    mine = msgspec.structs.replace(shard, identity=identity_of(engine.pid))
    entities = msgspec.structs.replace(world.state.entities, shards={mine.node_id: mine})
    left = {each.pid for each in find_foreign(entities, tmp_path, ELSEWHERE).processes}
    assert not left & {engine.pid, engine.child}
    assert os.getsid(engine.child) == engine.pid
