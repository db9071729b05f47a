"""Illnesses and failures in the core: each change is journaled once, and a slot that keeps failing is set aside."""

from __future__ import annotations

import msgspec

from backend.agent.core.health import JOURNAL_DAMAGED
from backend.agent.core.state import DropNote, GlassBroken, HealthSeen, JournalFailed
from backend.contract.plans import Plan
from backend.contract.reports import Illness
from backend.contract.words import NodeId, UnixMs
from tests.agent.core.world import World
from tests.factories import GENERATION, make_plan

LOW = Illness("disk low", "900 MiB free", UnixMs(5), subject="/state")
VERY_LOW = msgspec.structs.replace(LOW, words="100 MiB free", refuses_loads=True)
WORKER = NodeId("tiny-1/1")


def kinds(world: World) -> list[tuple[str, str]]:
    return [(record.kind, record.level) for record in world.records]


def test_an_illness_is_journaled_when_it_begins_when_its_degree_changes_and_when_it_ends() -> None:
    world = World()
    for illnesses in ((LOW,), (LOW,), (VERY_LOW,), (VERY_LOW,), (LOW,), (), ()):
        world.event(HealthSeen(illnesses))
    assert kinds(world) == [("illness", "warn"), ("illness", "alarm"), ("illness", "warn"), ("illness.over", "info")]
    assert world.records[1].words == "disk low: 100 MiB free"
    assert world.records[-1].words == "no longer disk low (/state)"


def test_other_words_of_the_same_degree_are_no_news() -> None:
    world = World()
    world.event(HealthSeen((LOW,)))
    world.event(HealthSeen((msgspec.structs.replace(LOW, words="800 MiB free"),)))
    assert len(world.records) == 1


def test_a_journal_that_cannot_be_written_is_not_written_to_and_told_afterwards() -> None:
    world = World()
    damaged = Illness(JOURNAL_DAMAGED, "fenced", UnixMs(1), True)
    world.event(HealthSeen((damaged, LOW)))
    assert world.records == []
    world.event(HealthSeen((LOW,)))
    assert kinds(world) == [("illness", "warn")]
    world.event(JournalFailed("no disk"))
    world.event(HealthSeen(()))
    assert len(world.records) == 1


def test_a_broken_glass_is_an_alarm_in_the_journal_before_its_note_goes() -> None:
    world = World()
    world.hold_sync = True
    world.event(GlassBroken("17-4.json", "emergency stop past the agent by alice: tiny-1/0: stopped", "alice"))
    assert world.take(DropNote) == []
    world.hold_sync = False
    world.sync()
    assert world.take(DropNote) == [DropNote("17-4.json")]
    assert (world.records[-1].kind, world.records[-1].level, world.records[-1].by) == ("break_glass", "alarm", "alice")


def worker_plan(number: int) -> Plan:
    """The load of one number: on this host it has rank 1 alone, with a port of its own."""
    hosts = ("host-b", "host-a", "host-b")
    return make_plan(generation=GENERATION + number, hosts=hosts, first_port=18_000 + 4 * number)


def fail(world: World, times: int, apart: float = 60.0, first: int = 0) -> None:
    """Load the worker and let it die, again and again, each time under a new generation and new ports."""
    for number in range(first, first + times):
        plan = worker_plan(number)
        world.reserve(plan, op=f"op{number}")
        world.load(plan, 1, op=f"op{number}")
        world.spawned(plan, 1)
        world.ended(plan, 1)
        world.gone(plan, 1)
        world.pass_time(apart)


def refusal(world: World, number: int) -> str:
    world.reserve(worker_plan(number), op=f"try{number}")
    return world.answer(f"try{number}-reserve").first_error


def test_a_slot_that_fails_three_times_in_ten_minutes_is_quarantined_and_says_why() -> None:
    world = World()
    fail(world, 2)
    assert refusal(world, 50) == ""
    world = World()
    fail(world, 3)
    assert ("quarantined", "alarm") in kinds(world)
    assert "E_REFUSED: tiny-1/1 is quarantined on host-a: it failed 3 times within 10 min" in refusal(world, 50)
    assert "signal 9 (killed)" in refusal(world, 51)


def test_failures_further_apart_are_no_flapping() -> None:
    world = World()
    fail(world, 5, apart=400.0)
    assert refusal(world, 50) == ""


def test_a_quarantine_outlives_time_and_the_agent_and_ends_with_an_unload() -> None:
    world = World()
    fail(world, 3)
    world.pass_time(7200)
    world.restart()
    assert "quarantined" in refusal(world, 50)
    world.unload(make_plan(generation=GENERATION + 2), 1)
    assert world.state.entities.failing == {}
    assert refusal(world, 51) == ""


def test_an_unload_of_a_slot_that_was_dismissed_before_clears_it_as_well() -> None:
    world = World()
    fail(world, 2)
    world.unload(make_plan(generation=GENERATION + 1), 1, op="a")
    fail(world, 3, first=2)
    world.state = msgspec.structs.replace(
        world.state, entities=msgspec.structs.replace(world.state.entities, shards={})
    )
    world.unload(make_plan(), 1, op="b")
    assert world.state.entities.failing == {}


def test_a_stop_that_was_asked_for_is_no_failure() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.unload(plan, 1)
    world.ended(plan, 1, signal=15)
    world.gone(plan, 1)
    assert world.state.entities.failing == {}
