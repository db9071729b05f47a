"""The slot count outlives us: what was open when we were killed is spent, and near the end nothing is dialled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backend.engines.p4.dialling import DialPace
from backend.engines.p4.slots import CRITICAL_AT, WARN_AT, SlotCount, SlotsSpent, SlotsUnreadable


def on_disk(path: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_a_dial_is_on_disk_before_it_is_made_and_a_kill_makes_the_direct_ones_spent(tmp_path: Path) -> None:
    path = tmp_path / "p4" / "slots.json"
    count = SlotCount(path, "one")
    count.begin("a", "direct")
    count.begin("b", "hop")
    count.begin("c", "direct")
    count.end("c", returned=True)
    assert on_disk(path) == {"format": 1, "life": "one", "spent": 0, "open": {"a": "direct", "b": "hop"}}
    count.close()  # what a kill does to its lock
    again = SlotCount(path, "one")
    assert (again.spent, again.open) == (1, 0)
    again.begin("d", "direct")
    again.end("d", returned=False)
    again.end("d", returned=False)
    again.end("never begun", returned=False)
    assert (again.spent, again.open) == (2, 0)
    again.close()


def test_another_life_of_the_p4_agent_has_all_its_slots(tmp_path: Path) -> None:
    path = tmp_path / "slots.json"
    count = SlotCount(path, "one")
    count.begin("a", "direct")
    count.end("a", returned=False)
    count.begin("b", "direct")
    count.begin_life("one")
    assert count.spent == 1
    count.begin_life("two")
    count.end("b", returned=False)
    assert (count.spent, count.open, count.life) == (0, 0, "two")
    count.close()
    third = SlotCount(path, "three")
    assert third.spent == 0
    third.close()


def test_a_life_that_cannot_be_seen_takes_nothing_off_the_count(tmp_path: Path) -> None:
    path = tmp_path / "slots.json"
    count = SlotCount(path, None)
    count.begin("a", "direct")
    count.end("a", returned=False)
    assert on_disk(path)["life"] is None
    count.begin_life("one")
    assert (count.life, count.spent) == ("one", 1)
    count.close()
    blind = SlotCount(path, None)
    assert (blind.life, blind.spent) == ("one", 1)
    blind.begin_life("one")
    assert blind.spent == 1
    blind.begin_life("two")
    assert blind.spent == 0
    blind.close()


def test_one_process_keeps_the_count(tmp_path: Path) -> None:
    count = SlotCount(tmp_path / "slots.json", "one")
    with pytest.raises(SlotsUnreadable, match="another process"):
        SlotCount(tmp_path / "slots.json", "one")
    count.begin("a", "direct")
    count.close()
    count.close()
    other = SlotCount(tmp_path / "slots.json", "one")
    with pytest.raises(SlotsUnreadable, match="kept by this process no more"):
        count.end("a", returned=True)
    assert other.spent == 1
    other.close()


@pytest.mark.parametrize("text", ["", "{", '{"format":2,"life":"one","spent":0,"open":{}}', '{"spent":-1}', "[]"])
def test_a_count_that_cannot_be_read_is_never_taken_for_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "slots.json").write_text(text)
    with pytest.raises(SlotsUnreadable, match="not known how many slots"):
        SlotCount(tmp_path / "slots.json", "one")
    (tmp_path / "slots.json").unlink()
    SlotCount(tmp_path / "slots.json", "one").close()


def test_a_disk_that_takes_nothing_stops_the_dial(tmp_path: Path) -> None:
    count = SlotCount(tmp_path / "slots.json", "one")
    (tmp_path / "slots.new").mkdir()
    with pytest.raises(SlotsUnreadable, match="cannot be written"):
        count.begin("a", "direct")
    assert count.open == 0
    count.close()


def test_the_host_gauge_counts_when_it_is_the_greater_one(tmp_path: Path) -> None:
    seen: list[int | None] = [None]
    count = SlotCount(tmp_path / "slots.json", "one", lambda: seen[0])
    assert count.finding() is None
    seen[0] = WARN_AT
    warning = count.finding()
    assert warning is not None
    assert (warning.id, warning.severity) == ("p4.slots", "warn")
    count.begin("a", "hop")
    seen[0] = CRITICAL_AT
    with pytest.raises(SlotsSpent) as refusal:
        count.begin("b", "hop")
    assert refusal.value.finding.is_refusal
    assert "192: 0 spent for good and 1 open by our own count, sockets of its process 192" in str(refusal.value)
    assert "Start the p4 agent again" in refusal.value.finding.remedy
    count.close()


def test_a_dial_that_found_nobody_is_repeated_sooner_than_one_that_may_have_cost_a_slot() -> None:
    pace = DialPace()
    assert pace.wait(100.0) == 0
    waits = []
    for _ in range(12):
        pace.refused(100.0)
        waits.append(pace.wait(100.0))
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert waits[-1] == 30.0
    pace = DialPace()
    waits = []
    for _ in range(20):
        pace.lost(100.0, lived=1.0)
        waits.append(pace.wait(100.0))
    assert waits[:3] == [5.0, 10.0, 20.0]
    assert waits[-1] == 1800.0
    pace.lost(100.0, lived=61.0)
    assert pace.wait(100.0) == 5.0
    assert pace.wait(106.0) == 0
    pace.left()
    assert pace.wait(100.0) == 0
