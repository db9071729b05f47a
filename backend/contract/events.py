"""What an agent says. Events are open: unknown fields are dropped and an unknown type stays readable as raw text."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.entities import JournalRecord, Result
from backend.contract.reports import HostFacts, HostReport, HostVitals, Measurement, Presence
from backend.contract.words import HostId, OpId, UnixMs


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """The base of everything that an agent says."""


class Welcome(Event, frozen=True, kw_only=True, tag="welcome"):
    """The answer to hello: who answers, which life it is, and its clock beside the asker's."""

    host: HostId
    agent_epoch: str
    journal_id: str
    journal_epoch: int
    head_seq: int
    major: int
    minor: int
    agent_version: str
    read_only: bool
    asked_unix_ms: int
    answered_unix_ms: int


class Reported(Event, frozen=True, kw_only=True, tag="report"):
    """The whole report, once per connection."""

    report: HostReport


class Subscribed(Event, frozen=True, kw_only=True, tag="journal.subscribed"):
    """Answer to subscribe. ``outcome``: ok, gone (``oldest`` says from where) or diverged (``journal_epoch``)."""

    outcome: str
    from_seq: int = 0
    oldest: int = 0
    journal_epoch: int = 0


class JournalBatch(Event, frozen=True, kw_only=True, tag="journal.batch"):
    """At most 64 records in order. ``cursor`` names the last of them."""

    records: tuple[JournalRecord, ...]
    cursor: str


class JournalGap(Event, frozen=True, kw_only=True, tag="journal.gap"):
    """Records ``first``..``last`` were skipped for a console that lags; must-see records never are.

    ``words`` says why when it is for another reason: then they cannot be read, and must-see ones may be among them.
    """

    first: int
    last: int
    words: str = ""


class Measured(Event, frozen=True, kw_only=True, tag="measured"):
    """Measurements that changed, and host facts when they did.

    ``vitals`` is what moved of the facts that this connection was told last; ``facts`` are whole, for when anything
    else moved, and for a console of minor version 0, which knows no vitals.
    """

    measurements: tuple[Measurement, ...] = ()
    facts: HostFacts | None = None
    present: tuple[Presence, ...] | None = None
    vitals: HostVitals | None = None


class Heartbeat(Event, frozen=True, kw_only=True, tag="heartbeat"):
    """Every 5 s: the agent lives, and its journal ends at ``head_seq``."""

    head_seq: int
    at_unix_ms: UnixMs


class Accepted(Event, frozen=True, kw_only=True, tag="accepted"):
    """The intent of ``op_id`` is durable at ``seq``. Not success."""

    op_id: OpId
    seq: int


class Answered(Event, frozen=True, kw_only=True, tag="result"):
    """The one result of ``op_id``."""

    op_id: OpId
    command: str
    result: Result


class Refused(Event, frozen=True, kw_only=True, tag="refused"):
    """A frame that was not understood or not allowed, said aloud: what stands, and what to do.

    ``host`` is the id of the agent that refuses an introduction meant for another; empty for everything else.
    """

    op_id: str
    code: str
    words: str
    host: str = ""


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a type that only a newer agent knows, kept raw."""

    type: str
    raw: dict[str, Any]


AnyEvent = (
    Welcome | Reported | Subscribed | JournalBatch | JournalGap | Measured | Heartbeat | Accepted | Answered | Refused
)
