"""The console's door: three calls, a thread behind them, and nothing that is silent when it breaks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.api import (
    Answer,
    Backend,
    ChangeDrainRequest,
    LogRequest,
    MakePlan,
    PlanUnreadable,
    ReplicaId,
    Request,
    ResumeOperation,
    StartDrainRequest,
    StartLoad,
    StartUnload,
    SubmitRefused,
    TestRequest,
    plan_digest,
    read_plan,
    write_plan,
)
from backend.contract.commands import ChangeDrain, InspectModel, StartDrain, Unload
from backend.contract.entities import Result
from backend.contract.frames import tree_of
from backend.contract.models import BlockFacts, ModelFacts
from backend.contract.states import HostState, ReplicaState
from backend.contract.words import Bytes, NodeId, OpId
from backend.control.fleet import fold_event
from backend.control.fleet_events import AnyFleetEvent
from backend.control.link_ends import LinkSettings
from tests.control.factories import REPLICA, a_plan
from tests.control.stand_in_agent import agents, rejected, wait_for
from tests.control.test_operations import World

CATALOG = """
[models.tiny]
path = "tiny.gguf"
aliases = ["t"]
[models.tiny.profiles.two-host]
ranks = 3
hosts = ["host-a", "host-b"]
"""
QUICK = LinkSettings(open=5.0, floor=0.2, ceiling=0.3, silence=5.0)


class Console:
    """A backend and what a console does with it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def answer(self, request: Request) -> Answer:
        op_id = self.backend.submit(request)
        await wait_for(lambda: op_id in self.backend.state().answers and self.backend.state().answers[op_id].done)
        return self.backend.state().answers[op_id]

    async def ended(self, op_id: str) -> int | None:
        def view() -> Any:
            return self.backend.state().operations.get(OpId(op_id))

        await wait_for(lambda: view() is not None and view().ended_unix_ms is not None)
        code: int | None = view().exit_code
        return code


@pytest.fixture
def unstarted(place: Path) -> World:
    world = World(place)
    world.context.catalog_path.write_text(CATALOG)
    return world


@pytest.fixture
async def world(unstarted: World) -> AsyncIterator[World]:
    async with agents(unstarted.a, unstarted.b):
        yield unstarted


@pytest.fixture
async def console(world: World) -> AsyncIterator[Console]:
    backend = Backend(world.context, who="alice", settings=QUICK)
    backend.start()
    try:
        assert await asyncio.to_thread(backend.wait_settled, 20)
        yield Console(backend)
    finally:
        await asyncio.to_thread(backend.stop)
    assert backend.state().fault is None


@pytest.fixture
def alone(unstarted: World) -> Iterator[Backend]:
    """A backend whose agents do not answer."""
    backend = Backend(unstarted.context, who="alice", settings=QUICK)
    backend.start()
    yield backend
    backend.stop()


def test_the_door_opens_without_websockets_httpx_or_a_terminal_library() -> None:
    code = (
        "import sys, backend.api; names = {'websockets', 'httpx', 'textual', 'rich'}; "
        "print(sorted(names & {name.partition('.')[0] for name in sys.modules}))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "[]"


# --- following ----------------------------------------------------------------------------------------------------


async def test_the_state_follows_every_host_and_the_journal_numbers_what_arrives(
    world: World, console: Console
) -> None:
    backend = console.backend
    await world.serving()
    await wait_for(lambda: REPLICA in backend.state().replicas and backend.state().replicas[REPLICA].ranks_ready == 3)
    assert backend.state().replicas[REPLICA].state is ReplicaState.READY
    assert {host.state for host in backend.state().hosts.values()} == {HostState.LIVE}
    lines = backend.journal(0, 100)
    assert [line.index for line in lines] == [1, 2, 3]
    assert {line.host for line in lines} == {"host-a", "host-b"}
    assert backend.journal(2, 100) == lines[2:]
    assert backend.journal(0, 1) == lines[:1]
    assert backend.journal(3, 100) == ()
    await wait_for(lambda: "tiny" in backend.state().models)
    assert backend.state().models["tiny"].aliases == ("t",)
    assert time.monotonic() - backend.stamp() < 2.0


async def test_a_host_that_goes_is_unreachable_and_one_that_returns_is_live(world: World, console: Console) -> None:
    backend = console.backend
    await world.b.stop()
    await wait_for(lambda: backend.state().hosts[world.b.host].state is HostState.UNREACHABLE)
    assert "next try" in backend.state().hosts[world.b.host].words
    await world.b.start()
    await wait_for(lambda: backend.state().hosts[world.b.host].state is HostState.LIVE)
    kinds = [line.record.kind for line in backend.journal(0, 100)]
    assert kinds == ["link.unreachable", "link.live"]


async def test_a_catalog_that_breaks_is_said_and_the_last_good_one_stays(world: World, console: Console) -> None:
    backend = console.backend
    await wait_for(lambda: "tiny" in backend.state().models)
    before = backend.state().models
    world.context.catalog_path.write_text("[models.tiny]\n")
    await wait_for(lambda: "has no path" in backend.state().catalog_words)
    assert "as it was before that edit stays in use" in backend.state().catalog_words
    assert backend.state().models == before
    world.context.catalog_path.write_text(CATALOG)
    await wait_for(lambda: not backend.state().catalog_words)
    assert backend.state().models == before


# --- what is not taken --------------------------------------------------------------------------------------------


def test_a_read_only_context_takes_no_write_and_answers_questions(unstarted: World) -> None:
    context = msgspec.structs.replace(unstarted.context, read_only=True)
    backend = Backend(context, settings=QUICK)
    backend.start()
    try:
        with pytest.raises(SubmitRefused, match="context test is read-only"):
            backend.submit(StartUnload(replica=REPLICA))
        backend.submit(MakePlan(target="tiny"))
    finally:
        backend.stop()


def test_what_escapes_is_shown_as_a_fault_and_written_down(unstarted: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = fold_event

    def breaks(fleet: Any, event: AnyFleetEvent) -> Any:
        if type(event).__name__ == "OperationsRead":
            raise ZeroDivisionError("a bug")
        return real(fleet, event)

    monkeypatch.setattr("backend.control.reach.fold_event", breaks)
    backend = Backend(unstarted.context, settings=QUICK)
    backend.start()
    deadline = time.monotonic() + 20
    while backend.state().fault is None and time.monotonic() < deadline:
        time.sleep(0.02)
    fault = backend.state().fault
    assert fault is not None
    assert "ZeroDivisionError('a bug')" in fault
    assert "Traceback" in (unstarted.context.home / "backend-fault.log").read_text()
    with pytest.raises(SubmitRefused, match="the backend has stopped"):
        backend.submit(MakePlan(target="tiny"))


async def test_a_loop_that_stands_still_takes_nothing(console: Console) -> None:
    loop = console.backend._loop
    assert loop is not None
    may_go_on = threading.Event()
    loop.call_soon_threadsafe(may_go_on.wait, 60.0)
    await wait_for(lambda: time.monotonic() - console.backend.stamp() > 2.2)
    with pytest.raises(SubmitRefused, match=r"has not answered since \d+\.\d s"):
        console.backend.submit(MakePlan(target="tiny"))
    may_go_on.set()
    await wait_for(lambda: time.monotonic() - console.backend.stamp() < 1.0)
    console.backend.submit(MakePlan(target="tiny"))


def test_a_backend_that_was_never_started_takes_nothing(unstarted: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.control.backend._STOP_SECONDS", 0.1)
    with pytest.raises(SubmitRefused, match="since its start"):
        Backend(unstarted.context).submit(MakePlan(target="tiny"))


# --- plans --------------------------------------------------------------------------------------------------------


def a_model() -> ModelFacts:
    return ModelFacts(
        path="/models/tiny.gguf",
        file_bytes=Bytes(1000),
        expected_bytes=Bytes(1000),
        header_digest="d",
        architecture="llama",
        name="tiny",
        n_layer=4,
        n_embd=64,
        n_head=4,
        n_head_kv=4,
        key_length=16,
        value_length=16,
        n_vocab=256,
        context_train=512,
        blocks=tuple(BlockFacts(n, Bytes(100)) for n in range(4)),
        output_bytes=Bytes(100),
        token_embd_bytes=Bytes(100),
        has_output=True,
        tensor_types=("F32",),
    )


async def test_a_plan_reads_the_models_header_at_the_leaders_host(world: World, console: Console) -> None:
    value = {"model": tree_of(a_model())}
    world.a.rules["model.inspect"] = lambda command: Result(status="succeeded", resource_state="absent", value=value)
    answer = await console.answer(MakePlan(target="t"))
    assert answer.plan is not None
    assert answer.plan.model_facts == a_model()
    assert [command.path for command in world.a.commands(InspectModel)] == ["tiny.gguf"]
    assert not world.b.commands(InspectModel)
    assert answer.plan.replica == "tiny-1"
    assert answer.plan.digest == plan_digest(answer.plan)
    assert answer.exit_code == (2 if answer.plan.is_refused else 0)
    assert all(finding.words in answer.words for finding in answer.plan.findings if finding.severity == "refuse")


async def test_a_model_that_nobody_knows_is_refused_with_what_there_is(console: Console) -> None:
    answer = await console.answer(MakePlan(target="tinny"))
    assert (answer.exit_code, answer.plan) == (2, None)
    assert "'tinny'" in answer.words
    assert "tiny" in answer.words


async def test_without_an_agent_nothing_can_be_planned(alone: Backend) -> None:
    answer = await Console(alone).answer(MakePlan(target="tiny"))
    assert answer.exit_code == 4
    assert "no agent answers" in answer.words
    assert "host-a" in answer.words


def test_a_saved_plan_is_read_back_and_an_edited_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_plan(a_plan(), path)
    assert read_plan(path) == a_plan()
    path.write_text(path.read_text().replace('"tiny.gguf"', '"other.gguf"'))
    with pytest.raises(PlanUnreadable, match="it was edited"):
        read_plan(path)
    path.write_text("{}")
    with pytest.raises(PlanUnreadable, match="is no plan of ringtop"):
        read_plan(path)


# --- operations ---------------------------------------------------------------------------------------------------


async def test_a_load_runs_in_its_own_process_and_is_followed_by_its_ledger(world: World, console: Console) -> None:
    await wait_for(lambda: console.backend.state().hosts[world.a.host].facts is not None)
    plan = a_plan()
    answer = await console.answer(StartLoad(plan=plan, confirmed=plan.digest))
    assert (answer.exit_code, answer.words) == (0, answer.op_id)
    assert await console.ended(answer.op_id) == 0
    await wait_for(lambda: console.backend.state().replicas[REPLICA].state is ReplicaState.READY)
    assert console.backend.state().operations[answer.op_id].by == "alice"


async def test_only_the_plan_that_was_confirmed_is_loaded(world: World, console: Console) -> None:
    plan = a_plan()
    answer = await console.answer(StartLoad(plan=plan, confirmed="0" * 64))
    assert answer.exit_code == 2
    assert "confirmed was 00000000" in answer.words
    edited = msgspec.structs.replace(plan, model_path="other.gguf")
    answer = await console.answer(StartLoad(plan=edited, confirmed=edited.digest))
    assert answer.exit_code == 2
    assert "its content gives" in answer.words
    assert console.backend.state().operations == {}


async def test_a_plan_whose_facts_have_moved_is_refused_and_says_which(world: World, console: Console) -> None:
    fact = msgspec.structs.replace(a_plan().facts[0], agent_epoch="an-older-life")
    plan = a_plan(facts=(fact,))
    answer = await console.answer(StartLoad(plan=plan, confirmed=plan.digest))
    assert answer.exit_code == 2
    assert "plan.stale host-a" in answer.words


async def test_an_unload_names_every_shard_of_every_generation(world: World, console: Console) -> None:
    await world.serving()
    await wait_for(lambda: REPLICA in console.backend.state().replicas)
    await wait_for(lambda: len(console.backend.state().replicas[REPLICA].shards) == 3)
    answer = await console.answer(StartUnload(replica=REPLICA, why="maintenance"))
    assert await console.ended(answer.op_id) == 0
    assert {command.by for command in world.heard(Unload)} == {"alice"}
    await wait_for(lambda: console.backend.state().replicas[REPLICA].state is ReplicaState.STOPPED)


async def test_a_replica_that_is_not_there_is_refused_with_those_that_are(console: Console) -> None:
    for request in (
        StartUnload(replica=ReplicaId("x-1")),
        StartDrainRequest(replica=ReplicaId("x-1"), deadline_seconds=60),
        ChangeDrainRequest(replica=ReplicaId("x-1"), action="force"),
        TestRequest(replica=ReplicaId("x-1")),
    ):
        answer = await console.answer(request)
        assert (answer.exit_code, answer.words) == (2, "there is no replica 'x-1'; known: none")
    answer = await console.answer(LogRequest(node_id="x-1/0"))
    assert (answer.exit_code, answer.words) == (2, "no host has the shard x-1/0")


async def test_a_drain_begins_everywhere_and_can_be_changed_by_anybody(world: World, console: Console) -> None:
    await world.serving()
    await wait_for(lambda: len(console.backend.state().hosts[world.b.host].entities.shards) == 1)
    await wait_for(lambda: console.backend.state().replicas[REPLICA].ranks_ready == 3)
    answer = await console.answer(StartDrainRequest(replica=REPLICA, deadline_seconds=60, at_deadline="stop"))
    await wait_for(lambda: len(world.heard(StartDrain)) == 2)
    await wait_for(lambda: console.backend.state().operations[answer.op_id].phase == "draining")
    await wait_for(lambda: console.backend.state().hosts[world.b.host].entities.drains)
    extended = await console.answer(ChangeDrainRequest(replica=REPLICA, action="extend", extend_seconds=30))
    assert extended.words == "extend was taken by host-a, host-b"
    forced = await console.answer(ChangeDrainRequest(replica=REPLICA, action="force"))
    assert forced.words == "force was taken by host-a", "the leader goes first"
    assert [command.action for command in world.b.commands(ChangeDrain)] == ["extend"]
    await world.a.end_shard(NodeId("tiny-1/0"), "stopped", "exit 0")
    assert await console.ended(answer.op_id) == 0


async def test_a_question_is_answered_by_the_agent_that_has_the_shard(world: World, console: Console) -> None:
    await world.serving()
    await wait_for(lambda: REPLICA in console.backend.state().replicas)
    await wait_for(lambda: console.backend.state().replicas[REPLICA].ranks_ready == 3)
    answer = await console.answer(TestRequest(replica=REPLICA, prompt="one two three"))
    assert answer.value == {"prompt": "one two three", "text": "four", "seconds": 0.1}
    answer = await console.answer(LogRequest(node_id="tiny-1/2"))
    assert answer.value["text"].startswith("the log of tiny-1/2")
    world.a.rules["replica.test"] = lambda command: rejected("E_STATE: tiny-1/0 is draining")
    answer = await console.answer(TestRequest(replica=REPLICA))
    assert (answer.exit_code, answer.words) == (2, "host-a: E_STATE: tiny-1/0 is draining")


async def test_only_an_ownerless_operation_is_resumed(world: World, console: Console) -> None:
    world.write()
    backend = console.backend
    await wait_for(lambda: backend.state().operations.get(OpId("load-1-ab")) is not None)
    assert backend.state().operations[OpId("load-1-ab")].state == "ownerless"
    answer = await console.answer(ResumeOperation(operation=OpId("load-1-ab")))
    assert answer.exit_code == 0
    assert await console.ended("load-1-ab") == 0
    answer = await console.answer(ResumeOperation(operation=OpId("load-1-ab")))
    assert answer.words == "load-1-ab is succeeded; only an ownerless operation can be resumed"
