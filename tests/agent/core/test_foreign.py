"""The adoption of an engine that no agent started, as its agent decides it: this very process, durably, or nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.agent.core.state import CommandArrived, Ended, Follow, StopEngine
from backend.contract.commands import AdoptForeign, ChangeDrain, StartDrain
from backend.contract.entities import ProcessIdentity
from backend.contract.envelopes import payload_digest
from backend.contract.plans import Plan, sealed
from backend.contract.reports import ForeignProcess
from backend.contract.words import LoadGeneration, NodeId, OpId, Port, ReplicaId, UnixMs
from tests.agent.core.world import World
from tests.factories import GENERATION, make_plan

NODE = NodeId("tiny-1/0")
PROCESS = ForeignProcess(
    pid=4711,
    program="llama-server",
    user="bob",
    ports=(Port(8080),),
    model="/models/tiny.gguf",
    memory=700,
    start_ticks=81_234,
    boot_id="boot-1",
    engine="llamacpp",
    role="leader",
    ranks=1,
    devices=("CPU",),
    address="127.0.0.1",
    answers="ready",
)


def a_plan(replica: str = "tiny-1", generation: int = GENERATION, port: int = 8080) -> Plan:
    return make_plan(replica, generation, ("host-a",), first_port=port, memory=1)


def adopt(
    world: World, found: ForeignProcess | None = PROCESS, op: str = "adopt-1", plan: Plan | None = None, **fields: Any
) -> None:
    values: dict[str, Any] = {"pid": 4711, "start_ticks": 81_234, "boot_id": "boot-1", "by": "alice", "why": "it runs"}
    command = AdoptForeign(op_id=OpId(op), plan=plan or a_plan(), **{**values, **fields})
    world.event(CommandArrived(1, command, payload_digest(command), world.capacity(), found))


@pytest.mark.adoption("an adoption is durable with who and why before its engine is followed, and outlives the agent")
def test_an_adoption_is_recorded_before_anything_follows_from_it() -> None:
    world = World()
    world.hold_sync = True
    adopt(world)
    assert world.take(Follow) == []
    world.hold_sync = False
    world.sync()
    assert world.take(Follow) == [Follow(NODE, LoadGeneration(GENERATION), True)]
    assert world.answer("adopt-1").status == "succeeded"
    shard = world.durable.shards[NODE]
    assert shard.identity == ProcessIdentity(4711, 81_234, "boot-1", "adopt-1")
    assert shard.taken_over is not None
    assert (shard.taken_over.by, shard.taken_over.why, shard.taken_over.started_by) == ("alice", "it runs", "bob")
    assert (shard.state, shard.endpoint, shard.ports) == ("ready", "http://127.0.0.1:8080", (8080,))
    (record,) = [each for each in world.records if each.kind == "foreign.adopted"]
    assert (record.by, record.level) == ("alice", "warn")
    assert "it runs" in record.words
    world.restart()
    assert world.state.entities.shards[NODE] == shard
    assert world.is_quiet()


@pytest.mark.adoption("what an adopted engine holds is counted as it was measured, and nothing is derived")
def test_what_it_holds_is_counted_and_its_bound_is_never_compared() -> None:
    world = World(memory=1000)
    adopt(world)
    bound = world.state.entities.shards[NODE].bound
    assert (bound.memory, bound.derived, bound.compared) == (700, False, 0)
    world.reserve(make_plan("tiny-2", GENERATION + 1, ("host-a",), first_port=18_010, memory=400), op="large")
    refusal = world.answer("large-reserve").first_error
    assert "CPU of host-a has 300 bytes left and the plan needs 400" in refusal
    assert "tiny-1/0 (ready)" in refusal


@pytest.mark.adoption(
    "a pid that was given out again, or a process that ended, is not adopted: both identities are said"
)
@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "it has ended, or is none"),
        (msgspec.structs.replace(PROCESS, start_ticks=99_999), "its number was given out again"),
        (msgspec.structs.replace(PROCESS, boot_id="boot-2"), "its number was given out again"),
        (msgspec.structs.replace(PROCESS, ports=(Port(9090),)), "listens on port 9090, the plan says port 8080"),
        (msgspec.structs.replace(PROCESS, engine="vllm"), "is a leader of vllm, the plan adopts a leader of llamacpp"),
        (msgspec.structs.replace(PROCESS, role="worker"), "is a worker of llamacpp"),
    ],
    ids=["ended", "other start", "other boot", "other port", "other engine", "worker"],
)
def test_another_process_than_was_seen_is_not_adopted(found: ForeignProcess | None, said: str) -> None:
    world = World()
    adopt(world, found)
    answer = world.answer("adopt-1")
    assert answer.status == "rejected"
    assert said in answer.first_error
    assert "81234" in answer.first_error or found is not None
    assert (world.durable.shards, world.durable.loads) == ({}, {})
    assert world.take(Follow) == []
    assert world.is_quiet()


def test_a_process_a_port_a_name_and_an_old_number_are_taken_once() -> None:
    world = World()
    adopt(world)
    adopt(world, op="again", plan=a_plan("tiny-2", GENERATION + 1))
    assert "is tiny-1/0 of host-a already" in world.answer("again").first_error
    other = msgspec.structs.replace(PROCESS, pid=5, start_ticks=5)
    adopt(world, other, "port", a_plan("tiny-2", GENERATION + 1), pid=5, start_ticks=5)
    assert "port 8080 of host-a is used by tiny-1/0" in world.answer("port").first_error
    elsewhere = msgspec.structs.replace(other, ports=(Port(8081),))
    adopt(world, elsewhere, "name", a_plan("tiny-1", GENERATION + 1, 8081), pid=5, start_ticks=5)
    assert "knows a tiny-1 already: tiny-1/0 is ready" in world.answer("name").first_error


def test_a_plan_that_is_not_one_shard_here_or_was_edited_is_refused() -> None:
    world = World()
    adopt(world, plan=make_plan(hosts=("host-b",), first_port=8080))
    assert "is not of one shard on host-a" in world.answer("adopt-1").first_error
    adopt(world, op="ring", plan=make_plan(hosts=("host-a", "host-a"), first_port=8080))
    assert "is not of one shard on host-a" in world.answer("ring").first_error
    adopt(world, op="edited", plan=msgspec.structs.replace(a_plan(), replica=ReplicaId("tiny-9")))
    assert "the plan was edited" in world.answer("edited").first_error
    odd = msgspec.structs.replace(a_plan(), replica=ReplicaId("../x"))
    adopt(world, op="odd", plan=sealed(odd))
    assert "is no replica id" in world.answer("odd").first_error


def test_the_same_command_again_has_the_same_outcome_once() -> None:
    world = World()
    adopt(world)
    world.effects = []
    adopt(world, None)
    assert world.answer("adopt-1").status == "succeeded"
    assert world.take(Follow) == []


@pytest.mark.adoption("an adopted engine drains by its own counters: unknown is never zero, and three zeros stop it")
def test_it_is_drained_by_its_own_counters_and_its_holds_end_on_proof() -> None:
    world = World()
    adopt(world)
    world.effects = []
    world.command(
        StartDrain(
            op_id=OpId("drain"),
            replica=ReplicaId("tiny-1"),
            load_generation=LoadGeneration(GENERATION),
            by="alice",
            why="done",
            deadline_seconds=60.0,
        )
    )
    for _ in range(5):
        world.counted(a_plan(), 0, None)
    assert world.take(StopEngine) == [], "what it queues is unknown"
    for _ in range(3):
        world.counted(a_plan(), 0, 0)
    assert world.take(StopEngine) == [StopEngine(NODE, LoadGeneration(GENERATION))]
    world.event(Ended(NODE, LoadGeneration(GENERATION), None, None, "exit unknown", ()))
    held = {hold.kind: hold.until for hold in world.state.entities.holds.values()}
    assert held["device"] == "its process and what it started are gone"
    world.gone(a_plan(), 0)
    assert world.state.entities.holds == {}
    assert world.state.entities.drains[ReplicaId("tiny-1")].outcome == "done"
    assert world.is_quiet()


def test_its_drain_is_cancelled_like_any_other_and_its_end_fails_it() -> None:
    world = World()
    adopt(world)
    drain = StartDrain(
        op_id=OpId("drain"),
        replica=ReplicaId("tiny-1"),
        load_generation=LoadGeneration(GENERATION),
        by="alice",
        why="",
        deadline_seconds=60.0,
    )
    world.command(drain)
    world.command(ChangeDrain(op_id=OpId("cancel"), replica=ReplicaId("tiny-1"), by="alice", action="cancel"))
    assert world.state.entities.shards[NODE].state == "ready"
    world.event(Ended(NODE, LoadGeneration(GENERATION), None, None, "exit unknown", ()))
    assert world.state.entities.shards[NODE].state == "failed"
    assert world.state.entities.shards[NODE].since_unix_ms == UnixMs(world.wall)
