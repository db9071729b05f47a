"""Shards that an engine's own agent runs: asked for instead of spawned, and gone when that agent says so."""

from __future__ import annotations

import msgspec

from backend.agent.core.state import (
    Adopted,
    Discovered,
    Ended,
    EngineSaw,
    Follow,
    JournalFailed,
    ProveGone,
    Spawned,
    SpawnFailed,
    StopEngine,
    Stuck,
    Ticked,
)
from backend.contract.commands import StartDrain, Unload
from backend.contract.entities import Canary, Resident
from backend.contract.findings import refuse
from backend.contract.plans import Plan, sealed
from backend.contract.reports import ResidentNode
from backend.contract.states import ShardState
from backend.contract.words import HostId, LoadGeneration, NodeGeneration, NodeId, OpId, ReplicaId, UnixMs
from backend.engines.driver import Confirmed, PhaseSeen, Proven, Published, Unfit, Unloaded
from backend.engines.p4.adoption import adopted
from tests.agent.core.world import World
from tests.factories import GENERATION, make_plan


def a_chain() -> Plan:
    """A head and a tail of an engine with an agent of its own, both on one host."""
    plan = make_plan(hosts=("host-a", "host-a"))
    roles = ("head", "tail")
    shards = tuple(msgspec.structs.replace(shard, role=role) for shard, role in zip(plan.shards, roles, strict=True))
    return sealed(msgspec.structs.replace(plan, engine="p4", shards=shards))


PLAN = a_chain()
NODE = NodeId("tiny-1/1")
WHO = Resident("tcp://10.0.0.7:4201", "tiny-1/1", NodeGeneration(GENERATION))


def asked_for(world: World, rank: int = 1) -> None:
    """The shard as it is once it is known whom the engine's agent will be asked to load."""
    if not world.state.entities.reservations:
        world.reserve(PLAN)
    world.load(PLAN, rank)
    who = Resident(WHO.address, f"tiny-1/{rank}", WHO.generation)
    world.event(Spawned(NodeId(f"tiny-1/{rank}"), PLAN.load_generation, who))


def test_nobody_is_asked_before_it_is_written_who() -> None:
    world = World()
    world.reserve(PLAN)
    world.load(PLAN, 1)
    world.hold_sync = True
    world.effects = []
    world.event(Spawned(NODE, PLAN.load_generation, WHO))
    assert not world.take(Follow), "the load would be asked for before the record"
    world.sync()
    assert world.take(Follow) == [Follow(NODE, PLAN.load_generation, False)]
    shard = world.durable.shards[NODE]
    assert shard.resident == WHO
    assert shard.identity is None


def test_a_stop_before_the_load_was_asked_for_asks_for_none() -> None:
    world = World()
    world.reserve(PLAN)
    world.load(PLAN, 1)
    world.unload(PLAN, 1)
    assert not world.take(StopEngine), "there is nothing to stop yet"
    world.event(Spawned(NODE, PLAN.load_generation, WHO))
    assert world.take(Follow) == [Follow(NODE, PLAN.load_generation, True)]
    assert world.take(StopEngine) == [StopEngine(NODE, PLAN.load_generation)]


def test_what_the_engine_confirmed_is_kept_and_told_with_the_result() -> None:
    world = World()
    asked_for(world)
    world.saw(PLAN, 1, PhaseSeen(ShardState.LOADING, "LOAD sent"))
    world.saw(PLAN, 1, Confirmed("451b89bae patch 1 wire 4", 137_935_244, "LOADED is as planned"))
    world.saw(PLAN, 1, PhaseSeen(ShardState.READY, "loaded"))
    shard = world.state.entities.shards[NODE]
    assert (shard.reported_release, shard.reported_result) == ("451b89bae patch 1 wire 4", 137_935_244)
    result = world.answer("op-load-1")
    assert result.status == "succeeded"
    assert result.value["release"] == "451b89bae patch 1 wire 4"


def test_its_end_is_what_the_engines_agent_says() -> None:
    world = World()
    asked_for(world)
    world.saw(PLAN, 1, Unfit(refuse("bound.differs", "rank 1", expected="1", found="2", remedy="Plan again.")))
    assert world.state_of(PLAN, 1) == "stopping"
    assert world.take(StopEngine)
    world.ended(PLAN, 1, code=None, signal=None)
    assert world.state_of(PLAN, 1) == "failed"
    held = [effect.hold.kind for effect in world.take(ProveGone)]
    assert held == ["ports"], "an agent that has no such node is the proof for its device"
    world.gone(PLAN, 1, "ports")
    assert world.answer("op-load-1").resource_state == "absent"
    assert world.is_quiet()


def test_a_busy_stage_is_said_aloud_and_stays() -> None:
    world = World()
    asked_for(world)
    world.saw(PLAN, 1, PhaseSeen(ShardState.LOADING, "LOAD sent"))
    world.saw(PLAN, 1, PhaseSeen(ShardState.READY, "loaded"))
    world.unload(PLAN, 1)
    world.event(Stuck(NODE, PLAN.load_generation, "unload is busy: requests 2"))
    assert world.state_of(PLAN, 1) == "stopping"
    assert world.state.entities.shards[NODE].words == "unload is busy: requests 2"
    assert not world.state.entities.holds, "a busy stage takes no device from the host"


def test_unloaded_by_its_drain_is_stopped_and_not_failed() -> None:
    world = World()
    asked_for(world, 1)
    world.saw(PLAN, 1, PhaseSeen(ShardState.LOADING, "LOAD sent"))
    world.saw(PLAN, 1, PhaseSeen(ShardState.READY, "loaded"))
    asked_for(world, 0)
    world.saw(PLAN, 0, PhaseSeen(ShardState.CONNECTING, "asks"))
    world.prove(PLAN)
    world.command(
        StartDrain(
            op_id=OpId("dr"),
            replica=ReplicaId("tiny-1"),
            load_generation=LoadGeneration(GENERATION),
            by="alice",
            why="upgrade",
            deadline_seconds=60.0,
        )
    )
    world.effects = []
    world.saw(PLAN, 0, Unloaded("nothing in flight"))
    world.ended(PLAN, 0, code=None, signal=None)
    world.gone(PLAN, 0, "ports")
    assert world.state_of(PLAN, 0) == "stopped"
    assert world.state_of(PLAN, 1) == "stopping", "the other stages of this host follow the head"


def test_after_a_restart_it_is_asked_about_and_not_spawned_again() -> None:
    world = World()
    asked_for(world)
    world.restart()
    world.event(Adopted(NODE, PLAN.load_generation, WHO))
    assert world.take(Follow) == [Follow(NODE, PLAN.load_generation, True)]
    assert world.durable.shards[NODE].resident == WHO


def test_a_restart_before_the_record_failed_without_anything_asked() -> None:
    world = World()
    world.reserve(PLAN)
    world.load(PLAN, 1)
    world.restart()
    world.event(SpawnFailed(NODE, PLAN.load_generation, "nothing was asked"))
    assert world.state_of(PLAN, 1) == "failed"
    assert not world.state.entities.holds


def somebody_elses() -> Discovered:
    node = ResidentNode(name="s0", generation=7, phase="loaded", replica="step37", rank=0, world_size=2)
    return Discovered(*adopted(HostId("host-a"), WHO.address, node, UnixMs(5)))


def test_what_somebody_else_loaded_is_kept_and_followed_once() -> None:
    world = World()
    world.event(somebody_elses())
    assert world.take(Follow) == [Follow(NodeId("step37-7/0"), LoadGeneration(7), True)]
    shard = world.durable.shards[NodeId("step37-7/0")]
    assert (shard.state, shard.canary, shard.bound.memory) == ("ready", None, 0)
    assert world.durable.highest_generation == 7
    world.event(somebody_elses())
    assert not world.take(Follow)
    assert world.is_quiet()


def test_nothing_is_taken_over_without_a_journal() -> None:
    world = World()
    world.event(JournalFailed("disk full"))
    world.event(somebody_elses())
    assert not world.state.entities.shards
    assert not world.take(Follow)


def test_it_is_proven_by_a_prompt_and_unloaded_without_a_hold() -> None:
    world = World()
    found = somebody_elses()
    world.event(found)
    canary = Canary(ok=True, seconds=0.1, at_unix_ms=UnixMs(6), words="")
    world.event(EngineSaw(found.shard.node_id, found.shard.load_generation, Proven(canary, "e", ())))
    assert world.durable.shards[found.shard.node_id].canary == canary
    world.command(
        Unload(
            op_id=OpId("un"),
            node_id=found.shard.node_id,
            node_generation=found.shard.node_generation,
            adapter_kind="p4",
            by="alice",
        )
    )
    world.event(Ended(found.shard.node_id, found.shard.load_generation, None, None, "unloaded it", ()))
    assert world.answer("un").resource_state == "absent"
    assert not world.durable.shards
    assert not world.durable.loads
    assert not world.durable.holds


def test_a_stop_at_the_deadline_cuts_nothing_of_an_engines_own_agent() -> None:
    world = World()
    asked_for(world, 0)
    world.saw(PLAN, 0, PhaseSeen(ShardState.CONNECTING, "asks"))
    world.prove(PLAN)
    world.command(
        StartDrain(
            op_id=OpId("dr"),
            replica=ReplicaId("tiny-1"),
            load_generation=LoadGeneration(GENERATION),
            by="alice",
            why="",
            deadline_seconds=5.0,
            at_deadline="stop",
        )
    )
    world.pass_time(6.0)
    world.event(Ticked())
    shard = world.state.entities.shards[NodeId("tiny-1/0")]
    assert shard.state == "stopping"
    assert "nothing there can be cut" in shard.words


def test_a_bridge_that_was_not_told_is_an_alarm_and_the_ring_stays() -> None:
    world = World()
    asked_for(world, 0)
    world.saw(PLAN, 0, PhaseSeen(ShardState.CONNECTING, "asks"))
    world.prove(PLAN)
    world.saw(PLAN, 0, Published(False, "the bridge's hook ended with exit 3"))
    assert world.records[-1].level == "alarm"
    assert world.state_of(PLAN, 0) == "ready"
    world.saw(PLAN, 0, Published(True, "the bridge has every stage"))
    assert (world.records[-1].kind, world.records[-1].level) == ("published", "info")
