"""What one link tells the fleet state. ``at`` is monotonic seconds of this process, ``unix_ms`` the wall clock."""

from __future__ import annotations

import msgspec

from backend.contract.entities import JournalRecord
from backend.contract.events import Measured, Welcome
from backend.contract.reports import HostReport
from backend.contract.words import HostId, UnixMs


class LinkEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The base: which host, and when this process knew it."""

    host: HostId
    at: float
    unix_ms: UnixMs


class LinkUp(LinkEvent, frozen=True, kw_only=True):
    """A connection with its report. ``clock_offset_ms`` is the agent's clock minus ours."""

    welcome: Welcome
    report: HostReport
    round_trip_ms: float
    clock_offset_ms: int


class LinkDown(LinkEvent, frozen=True, kw_only=True):
    """No connection: why, and when the next try is, in words."""

    words: str


class LinkRefused(LinkEvent, frozen=True, kw_only=True):
    """Somebody answers there, and it must not be talked to: another host, or another major version."""

    words: str


class RecordsHeard(LinkEvent, frozen=True, kw_only=True):
    """Journal records in order."""

    records: tuple[JournalRecord, ...]


class MeasuredHeard(LinkEvent, frozen=True, kw_only=True):
    """New measurements."""

    measured: Measured


class BeatHeard(LinkEvent, frozen=True, kw_only=True):
    """The agent lives."""

    head_seq: int


class Noted(LinkEvent, frozen=True, kw_only=True):
    """Something for the journal pane that is no record of the agent: a gap, a frame that cannot be read."""

    kind: str
    words: str
    level: str = "warn"


AnyLinkEvent = LinkUp | LinkDown | LinkRefused | RecordsHeard | MeasuredHeard | BeatHeard | Noted
