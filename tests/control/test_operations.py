"""Operations against stand-in agents: what is sent in which order, and what is taken back when something fails."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.contract.commands import (
    ChangeDrain,
    Check,
    Load,
    ProbeDial,
    ProbeListen,
    Release,
    Reserve,
    StartDrain,
    Unload,
)
from backend.contract.entities import Drain, Result
from backend.contract.findings import refuse
from backend.contract.frames import tree_of
from backend.contract.plans import PhaseBound, Plan
from backend.contract.words import AgentAddress, HostId, NodeId, OpId, UnixMs
from backend.control.contexts import Context
from backend.control.ledger import Operation, create, ledger_path
from backend.control.ledger_views import read_operation
from backend.control.operations import conduct as conduct_module
from backend.control.operations import load as load_module
from backend.control.operations import run_operation, spawn_operation
from backend.control.operations import unload as unload_module
from backend.control.operations.dialling import dials_of
from backend.control.operations.load import targets_of
from backend.control.views import OperationView
from tests.control.factories import GENERATION, REPLICA, B, a_leader, a_plan, a_shard
from tests.control.stand_in_agent import StandInAgent, agents, failed, rejected, wait_for

OP = OpId("load-1-ab")


class World:
    """Two agents, a context that reaches them, and its ledger."""

    def __init__(self, place: Path) -> None:
        self.a = StandInAgent("host-a", place / "a.sock")
        self.b = StandInAgent("host-b", place / "b.sock")
        self.context = Context(
            name="test",
            label="TEST",
            home=place,
            catalog_path=place / "catalog.toml",
            hosts={agent.host: AgentAddress(f"unix:{agent.socket}") for agent in (self.a, self.b)},
        )
        lines = "\n".join(f'{host} = "{address}"' for host, address in self.context.hosts.items())
        (place / "contexts.toml").write_text(f"[contexts.test.hosts]\n{lines}\n")

    def write(self, kind: str = "load", plan: Plan | None = None, **options: Any) -> None:
        plan = plan or a_plan()
        operation = Operation(
            op_id=OP,
            kind=kind,
            subject=REPLICA,
            by="alice",
            context="test",
            load_generation=GENERATION,
            targets=targets_of(plan),
            options=options,
            started_unix_ms=UnixMs(5),
            plan=plan if kind == "load" else None,
        )
        create(self.context.ledger_folder, operation).close()

    async def run(self) -> int:
        return await asyncio.to_thread(run_operation, self.context, OP)

    def view(self) -> OperationView:
        return read_operation(ledger_path(self.context.ledger_folder, OP))

    def heard(self, kind: type[Any]) -> list[Any]:
        return [*self.a.commands(kind), *self.b.commands(kind)]

    async def serving(self) -> None:
        """A whole replica as it runs."""
        await self.a.record("ready", shard=a_leader())
        await self.a.record("ready", shard=a_shard(1))
        await self.b.record("ready", shard=a_shard(2))


@pytest.fixture
async def world(place: Path) -> AsyncIterator[World]:
    world = World(place)
    async with agents(world.a, world.b):
        yield world


def steps(view: OperationView, what: str) -> list[str]:
    return [step.words for step in view.steps if step.what == what]


def steps_of(world: World, what: str) -> list[str]:
    """Which targets have this step in the ledger."""
    return [step.target for step in world.view().steps if step.what == what]


# --- load ---------------------------------------------------------------------------------------------------------


async def test_a_load_reserves_checks_dials_and_loads_workers_before_the_leader(world: World) -> None:
    world.write()
    assert await world.run() == 0
    greetings = ("Hello", "Subscribe")
    kinds = [name for name in (type(command).__name__ for command in world.a.heard) if name not in greetings]
    assert kinds == ["Reserve", "Check", "ProbeDial", "Load", "Load"]
    assert [command.node_id for command in world.a.commands(Load)] == ["tiny-1/1", "tiny-1/0"]
    (load,) = world.b.commands(Load)
    assert (load.op_id, load.reservation, load.fence) == (f"{OP}-load-2", f"{OP}-reserve-host-b", GENERATION)
    assert world.a.commands(Reserve)[0].expect.agent_epoch == "epoch-host-a"
    (listen,), (dial,) = world.b.commands(ProbeListen), world.a.commands(ProbeDial)
    assert (listen.address, listen.port, listen.nonce) == (dial.address, dial.port, dial.nonce)
    view = world.view()
    assert (view.state, view.exit_code) == ("succeeded", 0)
    assert view.words.startswith(f"tiny-1 is ready at generation {GENERATION}, http://")
    assert not world.heard(Release), "the loads took the reservations over"
    assert await world.run() == 0, "an operation that has ended says the same again"
    assert len(world.heard(Load)) == 3


async def test_the_first_refused_reservation_releases_the_rest_and_nothing_starts(world: World) -> None:
    world.b.rules["reserve"] = lambda command: rejected("E_CONFLICT: tiny-1/2 is reserved by bob (operation load-9)")
    world.write()
    assert await world.run() == 2
    assert [command.reservation for command in world.a.commands(Release)] == [f"{OP}-reserve-host-a"]
    assert not world.heard(Load)
    assert not world.heard(Check)
    view = world.view()
    assert view.state == "refused"
    assert "host-b did not reserve: E_CONFLICT: tiny-1/2 is reserved by bob" in view.words


async def test_every_host_is_heard_out_before_a_load_is_refused(world: World) -> None:
    def finds(host: str) -> Any:
        finding = refuse("release.differs", host, expected="build 1", found="build 2", remedy="Install one.")
        value = {"findings": [tree_of(finding)]}
        return lambda command: Result(status="succeeded", resource_state="absent", value=value)

    world.a.rules["check"], world.b.rules["check"] = finds("host-a"), finds("host-b")
    world.write()
    assert await world.run() == 2
    view = world.view()
    assert "release.differs host-a" in view.words
    assert "release.differs host-b" in view.words
    assert len(world.heard(Release)) == 2
    assert not world.heard(ProbeListen)
    assert not world.heard(Load)


async def test_an_address_that_cannot_be_dialled_refuses_the_load_with_the_remedy(world: World) -> None:
    value = {"answered": False, "words": "connection refused"}
    world.a.rules["probe.dial"] = lambda command: Result(status="succeeded", resource_state="absent", value=value)
    world.write()
    assert await world.run() == 2
    words = world.view().words
    assert "host-a reaches 127.0.0.1:18002 of host-b" in words
    assert "connection refused" in words
    assert "Set advertise in host-b's agent.toml" in words
    assert not world.heard(Load)


async def test_one_hosts_refusal_does_not_hide_what_a_dial_finds_at_another(world: World) -> None:
    finding = refuse("model.missing", "host-a", expected="tiny.gguf", found="nothing", remedy="Copy it.")
    value = {"findings": [tree_of(finding)]}
    world.b.rules["check"] = lambda command: Result(status="succeeded", resource_state="absent", value=value)
    plan = a_plan()
    third = msgspec.structs.replace(plan.shards[1], host=HostId("host-b"))
    assert dials_of(msgspec.structs.replace(plan, shards=(plan.shards[0], third, plan.shards[2])), {B}) == []
    assert [worker.rank for _, worker in dials_of(plan, set())] == [2]
    world.write()
    assert await world.run() == 2
    assert not world.heard(ProbeListen), "a host that has refused is not dialled"


async def test_a_host_that_cannot_listen_at_its_own_address_is_told_so(world: World) -> None:
    deaf = {"heard": False, "words": "port 18002 at 127.0.0.1 is in use by another process"}
    silent = {"answered": False, "words": "connection refused"}
    world.b.rules["probe.listen"] = lambda command: Result(status="succeeded", resource_state="absent", value=deaf)
    world.a.rules["probe.dial"] = lambda command: Result(status="succeeded", resource_state="absent", value=silent)
    world.write()
    assert await world.run() == 2
    words = world.view().words
    assert "address.unlistenable tiny-1/2: host-b could not listen there: port 18002 at 127.0.0.1 is in use" in words
    assert "Free the port" in words


async def test_a_nonce_says_whom_it_is_for_and_is_never_used_twice(world: World) -> None:
    world.write()
    assert await world.run() == 0
    (listen,) = world.b.commands(ProbeListen)
    assert listen.nonce.startswith("host-b rank 2-")
    assert len(listen.nonce) > len("host-b rank 2-") + 12


async def test_a_rank_that_never_answers_is_named_with_its_phase_and_the_formula_of_the_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begins(command: Any) -> None:
        await world.b.record("loading", shard=a_shard(2, "loading", words="3 of 9 layers"))

    def silence(command: Any) -> None:
        running.append(asyncio.get_running_loop().create_task(begins(command)))

    running: list[asyncio.Task[None]] = []
    world.b.rules["load"] = silence
    monkeypatch.setattr(load_module, "SLACK_SECONDS", 0.5)
    world.write(plan=msgspec.structs.replace(a_plan(), phases=(PhaseBound("loading", 1.0, "1 GB at 1 GB/s"),)))
    assert await world.run() == 3
    assert "rank 2 on host-b: host-b gave no answer to load" in world.view().words
    assert "which is loading 1 s (1 GB at 1 GB/s) + 0.5 s on the way" in world.view().words
    assert "its agent last said: loading, 3 of 9 layers" in world.view().words


def _answers_while_it_loads(world: World, running: list[asyncio.Task[None]]) -> Any:
    """A worker whose LOAD has succeeded while it still says that it loads, as it does until its next look."""

    def answers(command: Any) -> Result:
        shard = a_shard(2, "loading", words="leader attached")
        running.append(asyncio.get_running_loop().create_task(world.b.record("loading", shard=shard)))
        return Result(status="succeeded", resource_state="present")

    return answers


async def test_a_load_is_done_when_every_rank_says_so_and_not_when_the_leader_does(world: World) -> None:
    running: list[asyncio.Task[None]] = []
    world.b.rules["load"] = _answers_while_it_loads(world, running)
    world.write()
    run = asyncio.create_task(world.run())
    await wait_for(lambda: any(command.node_id == "tiny-1/0" for command in world.a.commands(Load)))
    await wait_for(lambda: "tiny-1/0" in steps_of(world, "loaded"))
    assert world.view().state == "running"
    await world.b.record("ready", shard=a_shard(2))
    assert await run == 0


async def test_a_rank_that_never_says_that_it_is_ready_is_unknown_and_left_running(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[asyncio.Task[None]] = []
    world.b.rules["load"] = _answers_while_it_loads(world, running)
    monkeypatch.setattr(load_module, "READY_SECONDS", 0.3)
    world.write()
    assert await world.run() == 3
    assert "not every rank says within 0.3 s that it is ready: rank 2 on host-b: loading, leader" in world.view().words
    assert not world.heard(Unload), "a ring that answered its canary is not taken down for that"


async def test_one_failed_rank_takes_the_others_back_and_keeps_every_ranks_words_and_log(world: World) -> None:
    world.b.rules["load"] = lambda command: failed("signal 9 (out of memory)", log_tail=["ggml: out of memory"])
    world.write()
    assert await world.run() == 5
    view = world.view()
    assert "rank 2 on host-b: signal 9 (out of memory)" in view.words
    assert [command.node_id for command in world.heard(Unload)] == ["tiny-1/1"], "the leader was never sent"
    assert world.a.entities.shards[NodeId("tiny-1/1")].state == "stopped"
    lines = {step.what: step.lines for step in view.steps if step.lines}
    assert lines["failed"] == ("ggml: out of memory",)
    assert lines["log"] == ("the log of tiny-1/1", "its end")
    assert view.unknown_targets == 0
    assert len(world.heard(Release)) == 2


async def test_a_leader_that_fails_takes_the_workers_back_and_an_ended_shard_is_not_dismissed(world: World) -> None:
    async def end_worker() -> None:
        await world.b.end_shard(NodeId("tiny-1/2"), "failed", "signal 9 (killed)")

    pending: list[asyncio.Task[None]] = []

    def leader_fails(command: Load) -> Result | None:
        if not command.node_id.endswith("/0"):
            raise AssertionError("only the leader has this rule")
        pending.append(asyncio.create_task(end_worker()))
        return failed("rank 2 of its generation is gone")

    obey = world.a._obey

    async def load_or_fail(command: Any) -> Result | None:
        if isinstance(command, Load) and command.node_id.endswith("/0"):
            return leader_fails(command)
        return await obey(command)

    world.a._obey = load_or_fail  # type: ignore[method-assign]
    world.write()
    assert await world.run() == 5
    assert [command.node_id for command in world.heard(Unload)] == ["tiny-1/1"]
    assert world.b.entities.shards[NodeId("tiny-1/2")].state == "failed", "its words stay readable"
    await asyncio.gather(*pending)


async def test_survivors_are_kept_when_that_was_asked(world: World) -> None:
    world.b.rules["load"] = lambda command: failed("signal 9 (killed)")
    world.write(keep_on_failure=True)
    assert await world.run() == 5
    assert not world.heard(Unload)
    assert "kept as asked: rank 1" in world.view().words


async def test_a_load_stays_rolling_back_until_every_target_is_proven_absent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unload_module, "_RETRY_SECONDS", 0.1)
    world.a.rules["load"] = lambda command: failed("signal 9 (killed)")
    stuck = {"on": True}

    def unload(command: Any) -> Result | None:
        return (
            failed("it survived KILL", "present")
            if stuck["on"]
            else Result(status="succeeded", resource_state="absent")
        )

    world.b.rules["unload"] = unload
    world.write()
    running = asyncio.create_task(world.run())
    await wait_for(lambda: world.view().phase == "rolling back" and len(world.b.commands(Unload)) >= 2)
    view = world.view()
    assert (view.state, view.unknown_targets) == ("running", 1)
    assert "it survived KILL" in " ".join(steps(view, "unload"))
    stuck["on"] = False
    assert await running == 5
    assert world.view().unknown_targets == 0
    ids = [command.op_id for command in world.b.commands(Unload)]
    assert len(ids) == len(set(ids)), "a failed stop is asked anew, not answered from memory"


async def test_a_host_that_does_not_answer_ends_a_load_before_anything_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct_module, "CONNECT_SECONDS", 1.0)
    await world.b.stop()
    world.write()
    assert await world.run() == 4
    assert "nothing was started; host-b: no agent at" in world.view().words
    assert not world.heard(Reserve)


async def test_an_operation_whose_process_was_killed_is_ownerless_and_can_be_continued(world: World) -> None:
    world.a.rules["load"] = lambda command: None
    world.write()
    process = spawn_operation(world.context, OP)
    try:
        assert os.getsid(process.pid) == process.pid, "a session of its own"
        await wait_for(lambda: len(world.heard(Load)) >= 2)
        os.kill(process.pid, signal.SIGHUP)
        await wait_for(lambda: "loaded" in [step.what for step in world.view().steps])
        assert world.view().state == "running"
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
    assert world.view().state == "ownerless"
    del world.a.rules["load"]
    assert await world.run() == 0
    assert world.view().state == "succeeded"
    assert len(world.heard(Reserve)) == 2, "what was reserved is not reserved again"
    assert {command.op_id for command in world.heard(Load)} == {f"{OP}-load-{rank}" for rank in (0, 1, 2)}
    assert world.a.entities.shards.keys() == {"tiny-1/0", "tiny-1/1"}


async def test_a_host_that_the_context_does_not_have_is_refused_by_name(world: World) -> None:
    world.context.hosts.pop(B)
    world.write()
    assert await world.run() == 2
    assert "in context test there is no host 'host-b'; known: host-a" in world.view().words


# --- unload -------------------------------------------------------------------------------------------------------


async def test_an_unload_stops_the_leader_before_the_workers(world: World) -> None:
    await world.serving()
    world.write("unload", why="maintenance")
    assert await world.run() == 0
    assert [command.node_id for command in world.a.commands(Unload)] == ["tiny-1/0", "tiny-1/1"]
    assert world.a.commands(Unload)[0].why == "maintenance"
    assert {shard.state for agent in (world.a, world.b) for shard in agent.entities.shards.values()} == {"stopped"}


async def test_an_unload_with_a_silent_host_stops_the_rest_and_says_which_may_still_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct_module, "CONNECT_SECONDS", 1.0)
    await world.serving()
    await world.b.stop()
    world.write("unload")
    assert await world.run() == 4
    assert "rank 2 on host-b may still run" in world.view().words
    assert world.a.entities.shards[NodeId("tiny-1/0")].state == "stopped"


async def test_a_shard_that_was_not_stopped_is_named_with_its_agents_words(world: World) -> None:
    await world.serving()
    world.b.rules["unload"] = lambda command: rejected("E_FENCED: tiny-1/2 is at generation 9")
    world.write("unload")
    assert await world.run() == 5
    assert "rank 2 on host-b was not stopped: E_FENCED: tiny-1/2 is at generation 9" in world.view().words


# --- drain --------------------------------------------------------------------------------------------------------

DRAIN: dict[str, Any] = {"deadline_seconds": 60.0, "at_deadline": "stop", "admission_closed_by": "", "why": "fan"}


async def end_drain(agent: StandInAgent, outcome: str) -> None:
    drain: Drain = agent.entities.drains[REPLICA]
    await agent.record("drained", drain=msgspec.structs.replace(drain, outcome=outcome))


async def test_a_drain_is_kept_at_every_agent_and_the_workers_follow_the_leader(world: World) -> None:
    await world.serving()
    world.write("drain", **DRAIN)
    running = asyncio.create_task(world.run())
    await wait_for(lambda: world.view().phase == "draining")
    assert {drain.why for drain in world.heard(StartDrain)} == {"fan"}
    assert len(world.heard(StartDrain)) == 2
    assert not world.heard(Unload)
    await world.a.end_shard(NodeId("tiny-1/0"), "stopped", "exit 0")
    await end_drain(world.a, "done")
    assert await running == 0
    # The workers are stopped, and the leader, which ended by itself, is dismissed.
    assert {command.node_id for command in world.heard(Unload)} == {"tiny-1/0", "tiny-1/1", "tiny-1/2"}


@pytest.mark.parametrize(("outcome", "code"), [("given up", 3), ("cancelled", 5)])
async def test_a_drain_that_ends_otherwise_ends_everywhere_and_stops_nothing(
    world: World, outcome: str, code: int
) -> None:
    await world.serving()
    world.write("drain", **DRAIN)
    running = asyncio.create_task(world.run())
    await wait_for(lambda: world.view().phase == "draining")
    await end_drain(world.a, outcome)
    assert await running == code
    assert [command.action for command in world.b.commands(ChangeDrain)] == ["cancel"]
    assert not world.heard(Unload)
    assert f"serves on: the drain was {outcome}" in world.view().words


async def test_a_drain_that_one_agent_refuses_is_cancelled_at_those_that_began(world: World) -> None:
    await world.serving()
    world.b.rules["drain.start"] = lambda command: rejected("E_CONFLICT: tiny-1 is draining already, by bob")
    world.write("drain", **DRAIN)
    assert await world.run() == 2
    assert "by bob" in world.view().words
    assert [command.action for command in world.a.commands(ChangeDrain)] == ["cancel"]
    assert not world.b.commands(ChangeDrain)
