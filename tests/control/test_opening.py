"""The opening of the journal: what hosts tell of their past in the first second is shown in the order of time."""

from __future__ import annotations

from backend.contract.entities import JournalRecord
from backend.contract.words import AgentAddress, HostId, UnixMs
from backend.control.fleet import Fleet, empty_fleet, fold_event
from backend.control.fleet_events import AnyFleetEvent, Ticked
from backend.control.link_events import LinkDown, RecordsHeard
from backend.control.views import JournalLine
from tests.control.factories import A, B, report_of, up


def a_fleet(*hosts: HostId) -> Fleet:
    return empty_fleet("test", "TEST", {host: AgentAddress("unix:/x") for host in hosts}, read_only=False)


def told(host: HostId, at: float, *records: tuple[int, int]) -> RecordsHeard:
    """Records as (seq, wall clock)."""
    made = tuple(JournalRecord(kind="note", words="w", at_unix_ms=UnixMs(when), seq=seq) for seq, when in records)
    return RecordsHeard(host=host, at=at, unix_ms=UnixMs(5000), records=made)


def shown(fleet: Fleet, *events: AnyFleetEvent) -> tuple[Fleet, list[JournalLine]]:
    lines: list[JournalLine] = []
    for event in events:
        fleet, more = fold_event(fleet, event)
        lines += more
    return fleet, lines


def in_words(lines: list[JournalLine]) -> list[tuple[str, int]]:
    return [(line.host, line.record.seq) for line in lines]


PAST = (
    up(report_of(A, seq=3), at=1.0),
    told(A, 1.1, (1, 10), (2, 30)),
    up(report_of(B, seq=2), at=1.2),
    told(B, 1.3, (1, 20), (2, 40)),
    told(A, 1.4, (3, 50)),
)


def test_the_past_of_all_hosts_is_merged_by_time_as_soon_as_it_is_complete() -> None:
    fleet, lines = shown(a_fleet(A, B), *PAST[:-1])
    assert lines == []
    assert fleet.state.journal_head == 0
    fleet, lines = shown(fleet, PAST[-1])
    assert in_words(lines) == [(A, 1), (B, 1), (A, 2), (B, 2), (A, 3)]
    assert [line.index for line in lines] == [1, 2, 3, 4, 5]
    assert fleet.state.journal_head == 5


def test_after_the_opening_lines_are_shown_as_they_arrive() -> None:
    fleet, _ = shown(a_fleet(A, B), *PAST)
    _, lines = shown(fleet, told(A, 2.0, (4, 90)), told(B, 2.1, (3, 60)))
    assert in_words(lines) == [(A, 4), (B, 3)]
    assert [line.index for line in lines] == [6, 7]


def test_a_host_that_is_late_holds_the_others_back_for_one_second_only() -> None:
    fleet, lines = shown(a_fleet(A, B), *PAST[:2], Ticked(at=1.9, unix_ms=UnixMs(1)))
    assert lines == []
    _, lines = shown(fleet, Ticked(at=2.0, unix_ms=UnixMs(1)))
    assert in_words(lines) == [(A, 1), (A, 2)]


def test_a_silent_host_holds_nobody_back() -> None:
    _, lines = shown(
        a_fleet(A, B),
        LinkDown(host=B, at=1.0, unix_ms=UnixMs(60), words="no route"),
        up(report_of(A, seq=1), at=1.1),
        told(A, 1.2, (1, 10)),
    )
    assert [(line.host, line.record.kind) for line in lines] == [(A, "note"), (B, "link.unreachable")]


def test_records_of_one_host_never_change_places_although_its_clock_was_set_back() -> None:
    _, lines = shown(
        a_fleet(A, B),
        up(report_of(A, seq=2), at=1.0),
        up(report_of(B, seq=1), at=1.0),
        told(A, 1.1, (1, 100), (2, 50)),
        told(B, 1.2, (1, 70)),
    )
    assert in_words(lines) == [(B, 1), (A, 1), (A, 2)]
