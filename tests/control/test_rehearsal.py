"""Events in, what the console would have shown out: the same fold, with times, reasons and named bad lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.contract.endpoints import Agent, Outer
from backend.contract.entities import JournalRecord
from backend.contract.envelopes import encode, event_envelope
from backend.contract.events import Event, Heartbeat, JournalBatch, JournalGap, Reported
from backend.contract.reports import HostReport
from backend.contract.states import HostState
from backend.contract.words import HostId, UnixMs
from backend.control.event_file import EventLine, Head, frame_line, write
from backend.control.fleet import LEASE_SECONDS
from backend.control.rehearsal import Rehearsed, Shown
from backend.control.rehearsing import RehearsalRefused, rehearse_file
from tests.control.factories import (
    A,
    B,
    a_leader,
    a_plan,
    a_record,
    a_shard,
    changed,
    entities_of,
    killed,
    report_of,
    welcome_of,
)

BEGAN = UnixMs(1_764_412_800_000)
CATALOG = (
    '[models.tiny]\npath = "tiny.gguf"\n[models.tiny.profiles.two-host]\nranks = 3\nhosts = ["host-a", "host-b"]\n'
)


class Written:
    """A file of events, written line by line, and what a rehearsal makes of it."""

    def __init__(self, place: Path) -> None:
        self.path = place / "events.jsonl"
        self.catalog = place / "catalog.toml"
        self.catalog.write_text(CATALOG)
        self.lines: list[bytes] = []
        self.shown: list[Shown] = []

    def head(self, **fields: Any) -> None:
        hosts = {A: "unix:/a.sock", B: "unix:/b.sock"}
        self.lines.append(write(Head(**{"format": 1, "hosts": hosts, "started_unix_ms": BEGAN, **fields})))

    def say(self, at: float, host: HostId, event: Event) -> None:
        envelope = event_envelope(
            event,
            source=Agent(host),
            target=Outer(host, "recorder", 1),
            sequence=1,
            correlation_id="c",
            causation_id=None,
        )
        unix_ms = UnixMs(BEGAN + round(at * 1000))
        self.lines.append(frame_line(at, unix_ms, host, encode(envelope)))

    def report(self, at: float, report: HostReport) -> None:
        self.say(at, report.host, welcome_of(report))
        self.say(at, report.host, Reported(report=report))

    def records(self, at: float, host: HostId, *records: JournalRecord) -> None:
        self.say(at, host, JournalBatch(records=records, cursor="c"))

    def line(self, **fields: Any) -> None:
        self.lines.append(json.dumps(fields).encode() + b"\n")

    def end(self, at: float) -> None:
        self.lines.append(write(EventLine(at=at, end="the time was over")))

    def rehearse(self) -> Rehearsed:
        self.path.write_bytes(b"".join(self.lines))
        self.shown.clear()
        return rehearse_file(self.path, self.catalog, self.shown.append)

    def changes(self, what: str, subject: str) -> list[tuple[float, str, str]]:
        return [(s.at, s.before, s.after) for s in self.shown if (s.what, s.subject) == (what, subject)]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path)


def a_ring(written: Written) -> None:
    """Both hosts report a ring that serves."""
    plan = a_plan()
    written.head()
    written.report(0.1, report_of(A, entities_of(a_leader(), a_shard(1), plan=plan)))
    written.report(0.2, report_of(B, entities_of(a_shard(2), plan=plan)))


def test_states_are_shown_in_order_with_their_times_and_reasons(written: Written) -> None:
    a_ring(written)
    dead = changed(a_shard(2), state="failed", words="signal 9 (killed)", exit=killed())
    written.records(5.5, B, a_record(11, dead, kind="shard.failed", level="alarm"))
    written.end(9.0)
    rehearsed = written.rehearse()
    assert written.changes("host", "host-a") == [(0.1, "connecting", "live")]
    assert written.changes("replica", "tiny-1")[0] == (0.1, "", "recovering")
    assert written.changes("replica", "tiny-1")[1:] == [(0.2, "recovering", "ready"), (5.5, "ready", "failed")]
    failed = next(s for s in written.shown if s.after == "failed")
    assert "rank 2 on host-b: signal 9" in failed.words
    assert failed.unix_ms == BEGAN + 5500
    journal = [(s.at, s.kind, s.level) for s in written.shown if s.what == "journal" and s.kind == "shard.failed"]
    assert journal == [(5.5, "shard.failed", "alarm")]
    assert (rehearsed.bad, rehearsed.end) == ((), "the time was over")
    assert rehearsed.state.replicas[a_shard(0).replica].state.value == "failed"


def test_a_silent_host_is_unreachable_and_then_lost_when_its_lease_is_over(written: Written) -> None:
    a_ring(written)
    written.line(at=10.0, host="host-b", link="down", words="silent for 15 s")
    written.say(200.0, A, Heartbeat(head_seq=10, at_unix_ms=UnixMs(0)))
    written.end(200.0)
    written.rehearse()
    (_, down, lost) = written.changes("host", "host-b")
    assert down == (10.0, "live", "unreachable")
    assert lost[1:] == ("unreachable", "lost")
    assert LEASE_SECONDS + 10.0 <= lost[0] <= LEASE_SECONDS + 12.0
    reason = next(s.words for s in written.shown if s.after == "unreachable" and s.what == "host")
    assert reason == "silent for 15 s"


def test_a_silence_of_years_is_passed_in_few_steps(written: Written) -> None:
    a_ring(written)
    written.line(at=10.0, host="host-b", link="down", words="cut")
    written.line(at=1e8, host="host-a", link="note", words="awake")
    assert written.rehearse().bad == ()
    assert written.changes("host", "host-b")[-1][1:] == ("unreachable", "lost")


def test_drifts_come_and_go_with_both_values(written: Written) -> None:
    a_ring(written)
    wrong = changed(a_shard(2), release="build 2, commit ffffff0")
    written.records(3.0, B, a_record(11, wrong))
    written.records(4.0, B, a_record(12, a_shard(2)))
    written.end(5.0)
    written.rehearse()
    drifts = [s for s in written.shown if s.what == "drift" and s.at >= 3.0]
    assert [(s.at, s.before, s.after) for s in drifts] in (
        [(3.0, "", "open"), (4.0, "open", "")],
        [(3.0, "", "open"), (3.0, "", "open"), (4.0, "open", ""), (4.0, "open", "")],
    )
    assert "build 2, commit ffffff0" in drifts[0].words


def test_bad_lines_are_named_and_do_not_hide_those_behind_them(written: Written) -> None:
    a_ring(written)
    written.lines.append(b"{not json\n")
    written.line(at=1.0, host="host-z", link="down", words="x")
    written.line(at=1.0, host="host-a", link="sideways")
    written.line(at=1.0, host="host-a", frame={"type": "welcome"})
    written.line(at=1.0, host="host-a")
    written.line(at=1.0, link="down", words="x")
    written.line(at=2.0, host="host-b", link="down", words="cut")
    written.line(at=1.5, host="host-b", link="down", words="back in time")
    written.records(3.0, A, a_record(13))
    rehearsed = written.rehearse()
    found = {bad.number: bad.words for bad in rehearsed.bad}
    assert sorted(found) == [6, 7, 8, 9, 10, 11, 13, 14]
    assert "is no event" in found[6]
    assert "'host-z' is not in the head; it has host-a, host-b" in found[7]
    assert "sideways" in found[8]
    assert "its frame cannot be read" in found[9]
    assert found[10] == "has nothing; expected one of frame, link, slept, end"
    assert found[11] == "its link has no host"
    assert "time does not go back" in found[13]
    assert "records 11 to 12 of host-a are missing" in found[14]
    assert rehearsed.state.hosts[B].state is HostState.UNREACHABLE
    assert rehearsed.end == ""


def test_a_time_that_no_clock_has_is_a_bad_line(written: Written) -> None:
    written.head()
    written.line(at=1e306, host="host-a", link="note", words="far")
    written.line(at=1, unix_ms=10**400, host="host-a", link="note", words="late")
    written.line(at=1, unix_ms=-5, host="host-a", link="note", words="early")
    written.line(at=2, host="host-a", link="note", words="good")
    assert [bad.words for bad in written.rehearse().bad] == [
        "at is 1e+306; expected at most 316224000 seconds",
        "unix_ms is an integer of 1329 bits, outside 0..2^64-1",
        "unix_ms is -5, outside 0..2^64-1",
    ]
    assert [s.words for s in written.shown if s.what == "journal"] == ["good"]


def test_a_report_without_its_welcome_and_one_of_another_host_are_bad_lines(written: Written) -> None:
    written.head()
    written.say(0.1, A, Reported(report=report_of(A)))
    written.say(0.2, A, welcome_of(report_of(A)))
    written.say(0.3, A, Reported(report=report_of(B)))
    words = [bad.words for bad in written.rehearse().bad]
    assert words[0] == "a report of host-a without the welcome that comes before it"
    assert "report of host 'host-b', and its line says 'host-a'" in words[1]


def test_a_hand_written_file_needs_no_head_and_no_wall_clock(written: Written) -> None:
    written.line(at=0, host="host-a", link="refused", words="the agent there is of host 'host-q'")
    written.line(at=1, host="host-a", link="note", words="odd", kind="link.odd")
    written.line(at=2, slept=30)
    rehearsed = written.rehearse()
    assert rehearsed.bad == ()
    assert written.changes("host", "host-a") == [(0.0, "connecting", "refused")]
    assert [s.words for s in written.shown if s.kind == "link.odd"] == ["odd"]


def test_gaps_and_unknown_events_become_notes_as_they_do_live(written: Written) -> None:
    written.head()
    written.report(0.1, report_of(A))
    written.say(0.5, A, JournalGap(first=11, last=20))
    written.records(0.6, A, a_record(21))
    envelope = json.loads(written.lines[-1])
    envelope["frame"]["body"] = {"type": "moonrise", "when": "now"}
    written.line(**{**envelope, "at": 2.0})
    rehearsed = written.rehearse()
    assert rehearsed.bad == ()
    notes = {s.kind: s.words for s in written.shown if s.what == "journal"}
    assert "records 11 to 20 were skipped" in notes["link.gap"]
    assert "moonrise" in notes["unknown.moonrise"]


def test_the_same_file_gives_the_same_rehearsal_every_time(written: Written) -> None:
    a_ring(written)
    written.line(at=10.0, host="host-b", link="down", words="cut")
    written.end(120.0)
    first, shown = written.rehearse(), list(written.shown)
    again = written.rehearse()
    assert (again, written.shown) == (first, shown)


def test_what_cannot_be_rehearsed_is_refused_with_the_reason(written: Written, tmp_path: Path) -> None:
    with pytest.raises(RehearsalRefused, match="no line of it names a host"):
        written.rehearse()
    with pytest.raises(RehearsalRefused, match="cannot be read"):
        rehearse_file(tmp_path / "none", written.catalog, written.shown.append)
    a_ring(written)
    written.catalog.write_text("[models")
    with pytest.raises(RehearsalRefused, match="catalog"):
        written.rehearse()
    written.catalog.write_text(CATALOG)
    written.lines[0] = msgspec.json.encode({"format": 7, "hosts": {"host-a": ""}}) + b"\n"
    assert written.rehearse().bad[0].words == "its format is 7; this ringtop reads 1"
