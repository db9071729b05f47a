"""Rule 18 and the operation behind ``adopt --apply``: every shard is read again before it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.api import Answer, Backend, StartAdopt
from backend.contract.commands import Hello, Unload
from backend.contract.entities import LoadRecord, Resident
from backend.contract.words import HostId, NodeGeneration, OpId, UnixMs
from backend.control.adopting import stop_options, targets_to_stop
from backend.control.adoption import classify
from backend.control.adoption_document import AdoptionDocument
from backend.control.keeper_answers import keeper_stop_options, shard_to_stop
from backend.control.ledger import Operation, create, ledger_path
from backend.control.ledger_views import read_operation
from backend.control.operations import run_operation
from backend.control.operations.settle import conclude
from backend.control.requests import StopShard
from backend.control.views import OperationView
from tests.adoption.world import NEWER, process, running
from tests.control.factories import a_plan
from tests.control.stand_in_agent import agents, failed, wait_for
from tests.control.test_backend import CATALOG, QUICK
from tests.control.test_operations import World

STRAY_LEADER = running(0, load_generation=NEWER, host=HostId("host-b"))
STRAY_WORKER = running(1, "loading", load_generation=NEWER, host=HostId("host-b"))
OP = OpId("adopt-1-ab")


@pytest.fixture
async def world(place: Path) -> AsyncIterator[World]:
    """A ring that serves on host-a, and a leader and a worker of another generation on host-b."""
    world = World(place)
    (place / "catalog.toml").write_text(CATALOG)
    async with agents(world.a, world.b):
        for rank in range(3):
            await world.a.record("ready", shard=running(rank, host=HostId("host-a")))
        for stray in (STRAY_LEADER, STRAY_WORKER):
            await world.b.record("ready", shard=stray)
        yield world


@pytest.fixture
async def backend(world: World) -> AsyncIterator[Backend]:
    backend = Backend(world.context, who="alice", settings=QUICK)
    backend.start()
    try:
        await wait_for(lambda: backend.state().models and len(backend.state().replicas) == 1)
        await wait_for(lambda: all(host.state.value == "live" for host in backend.state().hosts.values()))
        yield backend
    finally:
        await asyncio.to_thread(backend.stop)


async def answer_of(backend: Backend, request: StartAdopt | StopShard) -> Answer:
    op_id = backend.submit(request)
    await wait_for(lambda: op_id in backend.state().answers and backend.state().answers[op_id].done)
    return backend.state().answers[op_id]


async def ended(backend: Backend, op_id: OpId) -> OperationView:
    await wait_for(lambda: (view := backend.state().operations.get(op_id)) is not None and view.ended_unix_ms)
    return backend.state().operations[op_id]


def write(world: World, document: AdoptionDocument) -> None:
    """The operation as ``StartAdopt`` decides it, on disk and not started."""
    request = StartAdopt(document=document, confirmed=document.digest)
    operation = Operation(
        op_id=OP,
        kind="adopt",
        subject="2 shards",
        by="alice",
        context="test",
        load_generation=None,
        targets=targets_to_stop(document.stoppable),
        options=stop_options(request, document.stoppable),
        started_unix_ms=UnixMs(5),
    )
    create(world.context.ledger_folder, operation).close()


async def run(world: World) -> OperationView:
    await asyncio.to_thread(run_operation, world.context, OP)
    return read_operation(ledger_path(world.context.ledger_folder, OP))


@pytest.mark.adoption("apply stops exactly what the document names, leaders first, in an operation with a ledger")
async def test_r24_apply_stops_exactly_what_the_document_names(world: World, backend: Backend) -> None:
    document = classify(backend.state())
    assert [each.id for each in document.stoppable] == ["tiny-1/0@host-b", "tiny-1/1@host-b"]
    answer = await answer_of(backend, StartAdopt(document=document, confirmed=document.digest, why="left over"))
    view = await ended(backend, answer.op_id)
    assert (view.kind, view.state, view.words) == ("adopt", "succeeded", "2 shards gone")
    assert [command.node_id for command in world.b.commands(Unload)] == ["tiny-1/0", "tiny-1/1"]
    assert {(c.node_generation, c.by, c.why) for c in world.b.commands(Unload)} == {(NEWER, "alice", "left over")}
    assert world.a.commands(Unload) == [], "what serves is left alone"
    await wait_for(lambda: not classify(backend.state()).stoppable)
    again = await answer_of(backend, StartAdopt(document=document, confirmed=document.digest))
    assert again.exit_code == 2
    assert "the document no longer holds" in again.words


@pytest.mark.adoption("one stray is stopped alone")
async def test_r24_one_stray_is_stopped_alone(world: World, backend: Backend) -> None:
    document = classify(backend.state())
    request = StartAdopt(document=document, confirmed=document.digest, only="tiny-1/1@host-b")
    answer = await answer_of(backend, request)
    view = await ended(backend, answer.op_id)
    assert (view.subject, view.state) == ("tiny-1/1@host-b", "succeeded")
    assert [command.node_id for command in world.b.commands(Unload)] == ["tiny-1/1"]


@pytest.mark.adoption(
    "before a stop the shard is read again from its agent: another pid, ticks, generation or nonce is left alone"
)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"identity": process(77, "nonce-0")}, "pid 4077"),
        ({"identity": msgspec.structs.replace(process(0), start_ticks=9)}, "start ticks 9"),
        ({"identity": process(0, "another")}, "nonce another"),
        ({"load_generation": NEWER + 1}, f"generation {NEWER + 1}"),
    ],
    ids=["pid", "start ticks", "nonce", "generation"],
)
async def test_r18_another_process_in_its_place_is_left_alone(
    world: World, backend: Backend, change: dict[str, Any], said: str
) -> None:
    write(world, classify(backend.state()))
    changes = {**change, "node_generation": change["load_generation"]} if "load_generation" in change else change
    await world.b.record("moved", shard=msgspec.structs.replace(STRAY_WORKER, **changes))
    view = await run(world)
    assert (view.state, view.exit_code) == ("refused", 2)
    assert f"tiny-1/1@host-b not stopped: document {view.options['digest'][:8]} names" in view.words
    assert said in view.words
    assert [command.node_id for command in world.b.commands(Unload)] == ["tiny-1/0"]


NODE = Resident("tcp://10.77.0.2:52001", "tiny-1/1", NodeGeneration(NEWER))
ASKED = msgspec.structs.replace(STRAY_WORKER, identity=None, resident=NODE, engine="p4")


@pytest.mark.adoption("a stray that p4 runs is stopped by its address, node and generation, and only that one")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        (
            {"resident": msgspec.structs.replace(NODE, address="tcp://10.77.0.9:52001")},
            "node tiny-1/1 at tcp://10.77.0.9",
        ),
        ({"resident": msgspec.structs.replace(NODE, name="s1")}, "node s1 at tcp://10.77.0.2"),
        ({"load_generation": NEWER + 1, "node_generation": NEWER + 1}, f"generation {NEWER + 1}, node tiny-1/1"),
        ({"identity": process(77)}, "pid 4077"),
    ],
    ids=["the same", "address", "node", "generation", "a process"],
)
async def test_r18_a_node_of_an_engines_own_agent_is_stopped_by_its_generation(
    world: World, backend: Backend, change: dict[str, Any], said: str
) -> None:
    await world.b.record("asked", shard=ASKED)
    await wait_for(lambda: any(each.address for each in classify(backend.state()).stoppable))
    document = classify(backend.state())
    (asked,) = [each for each in document.stoppable if each.address]
    assert (asked.kind, asked.node, asked.pid) == ("stray", "tiny-1/1", 0)
    assert asked.identity == f"generation {NEWER}, node tiny-1/1 at tcp://10.77.0.2:52001"
    write(world, document)
    if change:
        await world.b.record("moved", shard=msgspec.structs.replace(ASKED, **change))
    view = await run(world)
    unloads = [(c.node_id, c.node_generation, c.adapter_kind) for c in world.b.commands(Unload)]
    if not change:
        assert view.state == "succeeded"
        assert ("tiny-1/1", NEWER, "p4") in unloads
        return
    assert (view.state, view.exit_code) == ("refused", 2)
    assert said in view.words
    assert [node for node, _, _ in unloads] == ["tiny-1/0"], "another one in its place is left alone"


def judged() -> StopShard:
    """The stray leader as a keeper judged it."""
    return StopShard(
        host=HostId("host-b"),
        node_id=STRAY_LEADER.node_id,
        generation=STRAY_LEADER.load_generation,
        identity=STRAY_LEADER.identity,
        why="a stray for its whole grace",
    )


@pytest.mark.adoption("a stop by the keeper reads the shard again on a connection of its own, and stops exactly that")
async def test_r18_the_keepers_stop_reads_the_shard_again(world: World, backend: Backend) -> None:
    before = len(world.b.commands(Hello))
    answer = await answer_of(backend, judged())
    view = await ended(backend, answer.op_id)
    assert (view.kind, view.subject, view.state) == ("adopt", "tiny-1/0@host-b", "succeeded")
    heard = [type(command).__name__ for command in world.b.heard if isinstance(command, Hello | Unload)][before:]
    assert heard == ["Hello", "Unload"]
    (command,) = world.b.commands(Unload)
    assert (command.node_id, command.node_generation, command.why) == ("tiny-1/0", NEWER, judged().why)


@pytest.mark.adoption("what the keeper judged is left alone when another process is in its place by then")
async def test_r18_the_keeper_leaves_another_process_alone(world: World, backend: Backend) -> None:
    other = msgspec.structs.replace(judged(), identity=process(9))
    answer = await answer_of(backend, other)
    assert answer.exit_code == 2
    assert "Look again" in answer.words
    without = await answer_of(backend, msgspec.structs.replace(judged(), identity=None))
    assert without.exit_code == 2
    create(
        world.context.ledger_folder,
        Operation(
            op_id=OP,
            kind="adopt",
            subject="tiny-1/0@host-b",
            by="keeper alice",
            context="test",
            load_generation=NEWER,
            targets=(shard_to_stop(backend.state(), judged()),),
            options=keeper_stop_options(shard_to_stop(backend.state(), judged()), judged()),
            started_unix_ms=UnixMs(5),
        ),
    ).close()
    await world.b.record("moved", shard=msgspec.structs.replace(STRAY_LEADER, identity=process(77)))
    view = await run(world)
    assert (view.state, view.exit_code) == ("refused", 2)
    assert "the keeper's decision names generation" in view.words
    assert "pid 4077" in view.words
    assert world.b.commands(Unload) == []


@pytest.mark.adoption("the second group is read again on a fresh connection, after the leaders are gone")
async def test_r18_it_is_read_on_a_fresh_connection(world: World, backend: Backend) -> None:
    write(world, classify(backend.state()))
    before = len(world.b.commands(Hello))
    view = await run(world)
    assert view.state == "succeeded"
    heard = [type(command).__name__ for command in world.b.heard if isinstance(command, Hello | Unload)][before:]
    assert heard == ["Hello", "Unload", "Hello", "Unload"]


@pytest.mark.adoption("what is gone already is no failure, and what was not stopped is told with the worst code")
async def test_r22_what_is_gone_succeeds_and_what_failed_is_told(world: World, backend: Backend) -> None:
    document = classify(backend.state())
    write(world, document)
    await world.b.record("dismissed", drop_shards=(STRAY_LEADER.node_id,))
    world.b.rules["unload"] = lambda command: failed("its group is still there", "present")
    view = await run(world)
    assert (view.state, view.exit_code) == ("failed", 5)
    assert view.words == "tiny-1/1@host-b not stopped: its group is still there"
    assert "gone already" in "\n".join(step.words for step in view.steps)
    await world.b.record("ready", shard=msgspec.structs.replace(STRAY_WORKER, state="ready"))
    await wait_for(lambda: backend.state().hosts[world.b.host].entities.shards[STRAY_WORKER.node_id].state == "ready")
    gone = msgspec.structs.replace(view, state="ownerless", exit_code=None, ended_unix_ms=None)
    assert conclude(gone, backend.state()).words == "rank 1 of 2 shards still runs"


@pytest.mark.adoption("a host that does not answer is told: its shard may still run")
async def test_r17_a_silent_host_is_told(world: World, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    write(world, classify(backend.state()))
    monkeypatch.setattr("backend.control.operations.conduct.CONNECT_SECONDS", 0.5)
    await world.b.stop()
    view = await run(world)
    assert view.exit_code == 4
    assert "tiny-1/0@host-b may still run" in view.words


@pytest.mark.adoption("the plan of the load record is no catalog: what it names is never unclaimed in any console")
async def test_r09_a_load_record_is_enough(world: World, backend: Backend) -> None:
    await world.a.record("load", load=_load_record())
    (world.context.home / "catalog.toml").write_text(CATALOG.replace("tiny", "other"))
    await wait_for(lambda: "other" in backend.state().models)
    await wait_for(lambda: backend.state().hosts[world.a.host].entities.loads)
    assert {each.kind for each in classify(backend.state()).stoppable} == {"stray"}


def _load_record() -> LoadRecord:
    return LoadRecord(OpId("load-1-reserve"), "alice", a_plan(), UnixMs(1))
