"""How shards end: asked, unasked, and what is held until it is proven free."""

from __future__ import annotations

from backend.agent.core.state import Adopted, DriveBroke, Follow, Send, StopEngine
from backend.contract.entities import ProcessIdentity
from backend.contract.events import Answered
from backend.contract.states import ShardState
from backend.contract.words import LoadGeneration, NodeId
from backend.engines.driver import LeaderGone, PeerLost, PhaseSeen
from tests.agent.core.world import World
from tests.factories import GENERATION, make_plan


def test_ports_and_memory_stay_held_until_the_proof() -> None:
    world = World(memory=2500)
    plan = make_plan()
    world.bring_up(plan)
    world.ended(plan, 1)
    again = make_plan("tiny-2", GENERATION + 5, hosts=("host-a",), first_port=18_001, memory=400)
    world.reserve(again, op="again")
    assert "held after tiny-1/1" in world.answer("again-reserve").first_error
    world.gone(plan, 1)
    world.reserve(again, op="after")
    assert world.answer("after-reserve").status == "succeeded"


def test_an_exit_that_nobody_asked_for_is_a_failure_with_its_words() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.ended(plan, 1)
    shard = world.state.entities.shards[NodeId("tiny-1/1")]
    assert (shard.state, shard.words) == ("failed", "signal 9 (killed)")
    assert shard.exit is not None
    assert shard.exit.log_tail == ("last line",)
    assert world.records[-1].level == "alarm"


def test_an_exit_code_of_zero_is_a_failure_too_when_nobody_asked() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.ended(plan, 1, code=0, signal=None)
    assert world.state_of(plan, 1) == "failed"


def test_a_lost_rank_stops_the_leader_at_once_and_is_named() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.saw(plan, 0, PeerLost(2, "host-b closed its socket"))
    assert [stop.node_id for stop in world.take(StopEngine)] == ["tiny-1/0"]
    world.ended(plan, 0, code=0, signal=None)
    shard = world.state.entities.shards[NodeId("tiny-1/0")]
    assert shard.state == "failed"
    assert "rank 2 of its generation is gone: host-b closed its socket" in shard.words


def test_a_worker_without_a_leader_is_stopped_after_its_grace() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.saw(plan, 1, LeaderGone("no leader for 60 s"))
    assert len(world.take(StopEngine)) == 1
    world.ended(plan, 1, signal=15)
    assert world.state_of(plan, 1) == "failed"


def test_a_broken_drive_is_said_and_leaves_what_serves_alone() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.event(DriveBroke(NodeId("tiny-1/1"), plan.load_generation, "KeyError: 'x'"))
    assert world.state_of(plan, 1) == "ready"
    assert (world.records[-1].level, "KeyError" in world.records[-1].words) == ("alarm", True)
    assert world.take(StopEngine) == []


def test_a_broken_drive_ends_a_start_that_nobody_could_see_through() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.load(plan, 1)
    world.spawned(plan, 1)
    world.event(DriveBroke(NodeId("tiny-1/1"), plan.load_generation, "KeyError: 'x'"))
    assert [stop.node_id for stop in world.take(StopEngine)] == ["tiny-1/1"]


def test_unload_ends_when_the_group_is_proven_gone() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.unload(plan, 1)
    world.ended(plan, 1, signal=15)
    assert world.state_of(plan, 1) == "stopped"
    world.gone(plan, 1)
    result = world.answer("un-1")
    assert (result.status, result.resource_state) == ("succeeded", "absent")
    assert NodeId("tiny-1/1") not in world.state.entities.shards
    assert world.is_quiet()


def test_unload_of_what_is_gone_succeeds_as_absent() -> None:
    world = World()
    world.unload(make_plan(), 1)
    assert world.answer("un-1").resource_state == "absent"


def test_unload_names_the_generation_that_it_saw() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.unload(plan, 1, generation=GENERATION - 3)
    assert "E_FENCED" in world.answer("un-1").first_error
    assert world.state_of(plan, 1) == "ready"


def test_unload_dismisses_what_has_ended_and_the_load_record_goes_with_the_last() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    for rank in (0, 1):
        world.ended(plan, rank)
        world.gone(plan, rank)
    assert world.state.entities.loads
    for rank in (0, 1):
        world.unload(plan, rank)
    assert world.state.entities.shards == {}
    assert world.state.entities.loads == {}
    assert world.state.entities.highest_generation == GENERATION


def test_an_unload_of_what_has_ended_waits_for_the_proof() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.ended(plan, 1)
    world.unload(plan, 1)
    assert not [s for s in world.effects if isinstance(s, Send) and isinstance(s.event, Answered)]
    world.gone(plan, 1)
    assert world.answer("un-1").status == "succeeded"
    assert NodeId("tiny-1/1") not in world.state.entities.shards


def test_an_unload_during_a_load_ends_both_commands() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.load(plan, 1)
    world.spawned(plan, 1)
    world.unload(plan, 1)
    world.ended(plan, 1, signal=15)
    world.gone(plan, 1)
    assert world.answer("op-load-1").status == "failed"
    assert "unloaded by alice" in world.answer("op-load-1").first_error
    assert world.answer("un-1").status == "succeeded"


def test_an_unload_before_the_process_is_recorded_stops_it_as_soon_as_it_is() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.load(plan, 1)
    world.unload(plan, 1)
    assert world.take(StopEngine) == []
    world.spawned(plan, 1)
    assert len(world.take(StopEngine)) == 1


def test_after_a_restart_a_process_that_lives_is_followed_again_and_nothing_is_written() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.restart()
    before = len(world.records)
    node = NodeId("tiny-1/1")
    world.event(Adopted(node, LoadGeneration(GENERATION), ProcessIdentity(1001, 7, "boot", "nonce")))
    assert world.take(Follow) == [Follow(node, LoadGeneration(GENERATION), True)]
    assert len(world.records) == before
    assert world.state_of(plan, 1) == "ready"


def test_late_events_of_an_older_generation_change_nothing() -> None:
    world = World()
    old = make_plan()
    world.bring_up(old)
    for rank in (0, 1):
        world.ended(old, rank)
        world.gone(old, rank)
    new = make_plan(generation=GENERATION + 10)
    world.bring_up(new, op="new")
    world.ended(old, 1)
    world.saw(old, 1, PhaseSeen(ShardState.CONNECTING, "late"))
    world.gone(old, 1)
    assert world.state_of(new, 1) == "ready"
    assert world.is_quiet()
