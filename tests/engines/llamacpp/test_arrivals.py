"""Requests that came during a drain are counted from the slots, and never more than came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend.engines.llamacpp.arrivals import Arrivals, count_arrivals
from backend.engines.llamacpp.census import Reading
from backend.engines.llamacpp.metrics import Census, SlotSeen


def reading(*tasks: int, queued: int | None = 0, slots_known: bool = True) -> Reading:
    slots = tuple(SlotSeen(index, task, 1) for index, task in enumerate(tasks)) if slots_known else None
    return Reading(0.0, Census(len(tasks), queued, 0, 0), slots, 0)


def counted(*readings: Reading) -> int | None:
    arrivals: Arrivals | None = None
    for each in readings:
        arrivals = count_arrivals(arrivals, each)
    return None if arrivals is None else arrivals.least


def test_what_ran_when_the_drain_began_did_not_arrive_since() -> None:
    assert counted(reading(7, 9), reading(7, 9), reading(9)) == 0


def test_every_newcomer_counts_once_however_often_it_is_seen() -> None:
    assert counted(reading(7), reading(7, 12), reading(12), reading(12, 15), reading(15), reading()) == 2


def test_who_waits_has_arrived_and_counts_no_second_time_in_its_slot() -> None:
    assert counted(reading(7, 9), reading(7, 9, queued=2), reading(9, 11, queued=1), reading(11, 12)) == 2


def test_who_still_waits_has_arrived_already() -> None:
    assert counted(reading(7, 9), reading(7, 9, queued=2)) == 2
    assert counted(reading(7, 9, queued=1), reading(7, 9, queued=3)) == 2


def test_who_waited_before_the_drain_is_no_newcomer_in_its_slot() -> None:
    assert counted(reading(7, 9, queued=1), reading(9, 11)) == 0


def test_before_the_slots_are_known_nothing_is() -> None:
    assert counted(reading(7, slots_known=False), reading(7, queued=None)) is None
    assert counted(reading(7), reading(7, 8, slots_known=False), reading(8)) == 1


@given(st.data())
def test_the_count_never_exceeds_what_came_and_never_falls(data: st.DataObject) -> None:
    """A made-up engine of two slots: requests come, wait, run, end and are cancelled in any order."""
    waiting, came, task = list(range(data.draw(st.integers(0, 3)))), 0, 100
    running: list[int] = []
    arrivals, least = count_arrivals(None, reading(*running, queued=len(waiting))), 0
    for _ in range(data.draw(st.integers(1, 30))):
        step = data.draw(st.sampled_from(["arrive", "start", "end", "cancel", "read"]))
        if step == "arrive":
            came, task = came + 1, task + 1
            waiting.append(task)
        elif step == "start" and waiting and len(running) < 2:
            running.append(waiting.pop(0))
        elif step == "end" and running:
            running.pop(data.draw(st.integers(0, len(running) - 1)))
        elif step == "cancel" and waiting:
            waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        elif step == "read":
            arrivals = count_arrivals(arrivals, reading(*running, queued=len(waiting)))
            assert arrivals is not None
            assert least <= arrivals.least <= came
            least = arrivals.least
