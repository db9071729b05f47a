"""What is done to an engine's own agent is written down first, done once, and its end is never guessed."""

from __future__ import annotations

from backend.agent.core.state import JournalFailed, Send, Started, Tend, Tended
from backend.contract.commands import BeginResident, EndResident, Expect, MoveResidentJournal
from backend.contract.entities import Result
from backend.contract.events import Refused
from backend.contract.words import OpId
from tests.agent.core.world import World

LIFE = "4711:81234"


def a_move(op: str = "r-census", epoch: str = "epoch") -> MoveResidentJournal:
    return MoveResidentJournal(
        op_id=OpId(op),
        engine="p4",
        by="alice",
        why="its census stops a restart",
        folder="/var/lib/p4/journal",
        aside="/var/lib/p4/journal.aside-1764412900000",
        files=26_510,
        bytes=8_100_123,
        expect=Expect(agent_epoch=epoch),
    )


def an_end(op: str = "r-end") -> EndResident:
    return EndResident(op_id=OpId(op), engine="p4", by="alice", life=LIFE)


def test_a_journal_is_moved_only_once_it_is_written_who_approved_what() -> None:
    world = World()
    world.hold_sync = True
    world.command(a_move())
    assert not world.take(Tend), "nothing before its record"
    world.sync()
    assert [effect.command for effect in world.take(Tend)] == [a_move()]
    record = world.records[-1]
    assert (record.kind, record.by) == ("resident.move_journal.accepted", "alice")
    assert record.words == (
        "alice approved moving the journal of the p4 agent aside, 26510 files and 8100123 bytes, from "
        "/var/lib/p4/journal to /var/lib/p4/journal.aside-1764412900000: its census stops a restart"
    )


def test_the_same_command_again_is_done_once_and_has_one_result() -> None:
    world = World()
    world.command(an_end())
    world.command(an_end(), conn=2)
    assert len(world.take(Tend)) == 1
    result = Result(status="succeeded", resource_state="present", value={"words": "it was run"})
    world.event(Tended(OpId("r-end"), result))
    assert world.durable.operations[OpId("r-end")].result == result
    world.effects = []
    world.command(an_end())
    assert world.answer("r-end") == result
    assert not world.take(Tend)


def test_two_deeds_at_once_are_refused_with_the_first_ones_name() -> None:
    world = World()
    world.command(an_end())
    world.effects = []
    world.command(BeginResident(op_id=OpId("other"), engine="p4", by="bob"))
    refusal = world.answer("other")
    assert refusal.status == "rejected"
    assert "resident.end by alice (r-end) is under way on host-a" in refusal.first_error
    assert not world.take(Tend)


def test_what_was_decided_against_another_life_of_this_agent_is_refused_with_both() -> None:
    world = World()
    world.command(a_move(epoch="an older one"))
    assert "agent_epoch an older one of host-a, which is now epoch" in world.answer("r-census").first_error
    assert not world.take(Tend)


def test_after_a_restart_its_end_is_unknown_and_said_so() -> None:
    world = World()
    world.command(a_move())
    world.restart()
    world.event(Started("1"))
    result = world.durable.operations[OpId("r-census")].result
    assert result is not None
    assert (result.status, result.resource_state) == ("failed", "unknown")
    assert "was started again while resident.move_journal was under way" in result.first_error
    assert not world.take(Tend), "it is not done again by itself"
    world.event(Tended(OpId("r-census"), Result(status="succeeded", resource_state="present")))
    assert world.durable.operations[OpId("r-census")].result == result, "one result, once"


def test_nothing_is_done_that_cannot_be_written_down() -> None:
    world = World()
    world.event(JournalFailed("no space left"))
    world.command(an_end())
    (refused,) = [send.event for send in world.take(Send)]
    assert isinstance(refused, Refused)
    assert refused.code == "E_JOURNAL"
    assert not world.take(Tend)
