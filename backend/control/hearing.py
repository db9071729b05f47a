"""What an agent's events tell: a live link and a rehearsal turn them into the same link events. Pure."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from backend.contract.events import (
    AnyEvent,
    Heartbeat,
    JournalBatch,
    JournalGap,
    Measured,
    UnknownEvent,
    Welcome,
)
from backend.contract.reports import HostReport
from backend.contract.words import HostId, UnixMs
from backend.control.link_events import AnyLinkEvent, BeatHeard, LinkUp, MeasuredHeard, Noted, RecordsHeard


class Moment(TypedDict):
    """Of which host something was heard, and when: the fields that every link event begins with."""

    host: HostId
    at: float
    unix_ms: UnixMs


class Sequence:
    """Up to which record the journal of one host has been heard, from its report on."""

    def __init__(self) -> None:
        self._next: int | None = None

    def begin(self, report: HostReport) -> None:
        """A report holds everything up to its own seq."""
        self._next = report.seq + 1

    def missing(self, batch: JournalBatch) -> tuple[int, int] | None:
        """The records that never came in front of this batch, first and last; None when it carries on, and is taken."""
        if not batch.records:
            return None
        first, last = batch.records[0].seq, batch.records[-1].seq
        if self._next is not None and first > self._next:
            return self._next, first - 1
        self._next = max(self._next or 0, last + 1)
        return None

    def skip(self, gap: JournalGap) -> None:
        """The agent itself says that it left records out."""
        self._next = max(self._next or 0, gap.last + 1)


def joined(welcome: Welcome, report: HostReport, asked_unix_ms: float, round_trip_ms: float, moment: Moment) -> LinkUp:
    """A connection with its report; the agent's clock is compared with the middle of the round trip."""
    return LinkUp(
        welcome=welcome,
        report=report,
        round_trip_ms=round_trip_ms,
        clock_offset_ms=round(welcome.answered_unix_ms - (asked_unix_ms + round_trip_ms / 2)),
        **moment,
    )


def told(event: AnyEvent | UnknownEvent, moment: Moment) -> AnyLinkEvent | None:
    """What the fleet state is told of an event; None for what only concerns whoever asked."""
    match event:
        case JournalBatch():
            return RecordsHeard(records=event.records, **moment)
        case Measured():
            return MeasuredHeard(measured=event, **moment)
        case Heartbeat():
            return BeatHeard(head_seq=event.head_seq, **moment)
        case JournalGap():
            why = event.words or "this console was too slow"
            words = f"records {event.first} to {event.last} were skipped: {why}"
            return Noted(kind="link.gap", words=words, **moment)
        case UnknownEvent():
            raw = msgspec.json.encode(event.raw).decode()[:500]
            return Noted(kind=f"unknown.{event.type}", words=raw, level="info", **moment)
        case _:
            return None
