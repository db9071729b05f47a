"""A journal that takes nothing more in this life: whoever waits is told at once, once, and that nobody knows."""

from __future__ import annotations

from backend.agent.core.state import JournalFailed, Send, Spawn
from backend.contract.events import Answered, Refused
from backend.contract.words import NodeId
from tests.agent.core.world import World
from tests.factories import make_plan

FENCED = JournalFailed("the journal is fenced: the sync failed. Restart the agent.", is_over=True)


def said(world: World) -> list[tuple[str, str, str]]:
    """What was sent since the last look: the operation, how it ended, and what is known of the resource."""
    ended: list[tuple[str, str, str]] = []
    for event in (sent.event for sent in world.take(Send)):
        assert isinstance(event, Answered), event
        assert "Restart the agent" in event.result.first_error
        ended.append((event.op_id, event.result.status, event.result.resource_state))
    return ended


def test_a_command_whose_intent_was_in_flight_is_answered_as_unknown_and_nothing_is_started() -> None:
    world, plan = World(), make_plan()
    world.reserve(plan)
    world.take(Send)
    world.hold_sync = True
    world.load(plan, 1)
    world.event(FENCED)
    assert said(world) == [("op-load-1", "failed", "unknown")]
    assert world.take(Spawn) == []
    world.event(FENCED)
    assert said(world) == [], "a second record failed, and its asker was told twice"


def test_a_load_that_runs_keeps_its_engine_and_its_asker_stops_waiting() -> None:
    world, plan = World(), make_plan()
    world.reserve(plan)
    world.load(plan, 1)
    world.spawned(plan, 1)
    world.effects = []
    world.event(FENCED)
    assert said(world) == [("op-load-1", "failed", "unknown")]
    world.load(plan, 1)
    assert said(world) == [("op-load-1", "failed", "unknown")], "asked again, it was given hope of an end"
    assert world.state.entities.shards[NodeId("tiny-1/1")].identity is not None


def test_what_was_durable_before_still_happens_and_is_not_answered_twice() -> None:
    world, plan = World(), make_plan()
    world.reserve(plan)
    world.take(Send)
    world.hold_sync = True
    world.load(plan, 1)
    world.event(FENCED)
    world.take(Send)
    world.hold_sync = False
    world.sync()  # its sync had returned; only the news of it came late
    assert len(world.take(Spawn)) == 1
    assert world.take(Send) == []


def test_a_result_that_is_durable_is_still_said_and_new_commands_are_refused() -> None:
    world, plan = World(), make_plan()
    world.reserve(plan)
    world.take(Send)
    world.event(FENCED)
    world.reserve(plan)
    assert world.answer("op-reserve").status == "succeeded"
    world.take(Send)
    world.load(plan, 1)
    (refused,) = (sent.event for sent in world.take(Send))
    assert isinstance(refused, Refused)
    assert refused.code == "E_JOURNAL"


def test_after_a_refusal_that_may_pass_nobody_is_told_that_it_is_over() -> None:
    world, plan = World(), make_plan()
    world.hold_sync = True
    world.reserve(plan)
    world.event(JournalFailed("the disk is full"))
    assert world.take(Send) == []
