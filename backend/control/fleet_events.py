"""What reaches the fleet state besides the links: operations, catalog, answers, time and faults."""

from __future__ import annotations

import msgspec

from backend.contract.words import OpId, UnixMs
from backend.control.drift_lens import Header
from backend.control.link_events import AnyLinkEvent
from backend.control.views import Acknowledgement, Answer, ModelView, OperationView


class FleetEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The base: when this process knew it, in monotonic seconds and wall-clock milliseconds."""

    at: float
    unix_ms: UnixMs


class OperationsRead(FleetEvent, frozen=True, kw_only=True):
    """Every operation of this home's ledger."""

    operations: dict[OpId, OperationView]


class CatalogRead(FleetEvent, frozen=True, kw_only=True):
    """The catalog, or why there is none."""

    models: dict[str, ModelView]
    words: str


class AcknowledgementsRead(FleetEvent, frozen=True, kw_only=True):
    """Which drifts somebody knows of, by drift id; or why that cannot be read."""

    known: dict[str, Acknowledgement]
    words: str


class HeadersRead(FleetEvent, frozen=True, kw_only=True):
    """Model files whose headers were read just now, by ``drift_lens.header_key``."""

    headers: dict[str, Header]


class AnswerGiven(FleetEvent, frozen=True, kw_only=True):
    """What became of one request."""

    answer: Answer


class Ticked(FleetEvent, frozen=True, kw_only=True):
    """Time passed: leases may end, and drains count down."""


class Slept(FleetEvent, frozen=True, kw_only=True):
    """This machine was suspended: no silence before now counts."""

    seconds: float


class Faulted(FleetEvent, frozen=True, kw_only=True):
    """Something escaped from the backend."""

    words: str


AnyFleetEvent = (
    AnyLinkEvent
    | OperationsRead
    | CatalogRead
    | AcknowledgementsRead
    | HeadersRead
    | AnswerGiven
    | Ticked
    | Slept
    | Faulted
)
