"""One side of a hop connection, without its socket: attempts that wait for receipts, and receipts that are pinned."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import P4Event, decode_event
from backend.contract.p4.hops import (
    Data,
    Hello,
    HelloAck,
    HopFrame,
    Query,
    QueryResult,
    Receipt,
    ReceiptAck,
    ReceiptStatus,
)

_LONGEST_REFUSAL = 1000
"""Characters of a refusal; it may quote an event, and a detail has at most 4096 bytes."""
_REJECTIONS_KEPT = 64
"""Nobody acknowledges a rejection, so that only the newest are kept for a Query."""


class TooManyOutstanding(Exception):
    """No further event may leave before a receipt arrives; the message has both numbers."""


class Settled(msgspec.Struct, frozen=True):
    """What the peer said of one of our attempts; ``by_query`` when it was asked again."""

    attempt: int
    status: ReceiptStatus
    detail: str
    by_query: bool = False


class Heard(msgspec.Struct, frozen=True):
    """What one frame means: what to send now, an event to pass on, an attempt of ours that is settled."""

    answers: tuple[HopFrame, ...] = ()
    event: P4Event | None = None
    settled: Settled | None = None
    greeted: bool = False
    ignored: str = ""


class HopSide:
    """Our side of one hop connection. Its stores hold ``max_outstanding`` events each, and 64 rejections.

    ``refusal`` says why an event of the peer cannot be taken, or nothing.
    """

    def __init__(
        self,
        sender_id: str,
        generation: int,
        max_outstanding: int,
        max_receipt_bytes: int,
        *,
        refusal: Callable[[P4Event], str] = lambda event: "",
    ) -> None:
        self._refusal = refusal
        self._own = Hello(sender_id, generation, max_outstanding, max_receipt_bytes)
        self._peer: HelloAck | None = None
        self._attempt = 0
        self._waiting: dict[int, bytes] = {}
        self._pinned: dict[int, QueryResult] = {}
        self._rejected: dict[int, QueryResult] = {}

    @property
    def hello(self) -> Hello:
        """The frame that begins the connection."""
        return self._own

    @property
    def most_outstanding(self) -> int:
        """How many events may be without a receipt: the smaller of both sides' numbers."""
        theirs = self._own.max_outstanding if self._peer is None else self._peer.max_outstanding
        return min(self._own.max_outstanding, theirs)

    @property
    def outstanding(self) -> int:
        """Events without a receipt."""
        return len(self._waiting)

    @property
    def pinned(self) -> int:
        """Receipts that are kept for the peer."""
        return len(self._pinned) + len(self._rejected)

    def send(self, event: bytes) -> Data:
        """The next attempt, with these bytes. Raises TooManyOutstanding, and P4CodecError before the Hello's answer."""
        if self._peer is None:
            raise P4CodecError("nothing may be sent in hop mode before the peer answered Hello")
        if len(self._waiting) >= self.most_outstanding:
            raise TooManyOutstanding(
                f"{len(self._waiting)} events wait for a receipt, and the p4 agent and we allow {self.most_outstanding}"
            )
        self._attempt += 1
        data = Data(self._attempt, event)
        self._waiting[self._attempt] = data.digest
        return data

    def query(self, attempt: int, digest: bytes) -> Query:
        """The question what became of an attempt of ours."""
        return Query(self._own.sender_id, self._own.connection_generation, attempt, digest)

    def hear(self, frame: HopFrame) -> Heard:
        """Take one frame of the peer.

        Raises P4CodecError for a frame that the peer must not send, after which the connection is of no use.
        """
        if isinstance(frame, HelloAck):
            return self._greeted(frame)
        if self._peer is None or isinstance(frame, Hello):
            raise P4CodecError(f"the peer sent {type(frame).__name__} where only the answer to Hello can come")
        if isinstance(frame, Data):
            return self._delivered(frame)
        if isinstance(frame, (Receipt, QueryResult)):
            return self._settled(frame)
        if (frame.sender_id, frame.connection_generation) != (self._peer.sender_id, self._peer.connection_generation):
            words = f"{type(frame).__name__} of {frame.sender_id!r} number {frame.connection_generation}"
            if isinstance(frame, Query):
                answer = QueryResult(frame.attempt, frame.digest, ReceiptStatus.UNKNOWN, "receipt is not pinned")
                return Heard(answers=(answer,), ignored=words)
            return Heard(ignored=words)
        if isinstance(frame, ReceiptAck):
            return self._acknowledged(frame)
        return Heard(answers=(self._found(frame.attempt, frame.digest),))

    def _greeted(self, ack: HelloAck) -> Heard:
        if self._peer is not None:
            raise P4CodecError("the peer answered Hello twice")
        if ack.accepted_connection_generation != self._own.connection_generation:
            raise P4CodecError(
                f"the peer accepted connection generation {ack.accepted_connection_generation}, and we are "
                f"{self._own.connection_generation}"
            )
        self._peer = ack
        return Heard(greeted=True)

    def _delivered(self, data: Data) -> Heard:
        known = self._answered(data.attempt)
        if known is not None:
            found = self._found(data.attempt, data.digest)
            return Heard(answers=(Receipt(data.attempt, data.digest, found.status, found.detail),))
        event, refusal = self._taken(data)
        status = ReceiptStatus.REJECTED if refusal else ReceiptStatus.ACCEPTED_EXACT
        (self._rejected if refusal else self._pinned)[data.attempt] = QueryResult(
            data.attempt, data.digest, status, refusal
        )
        if len(self._rejected) > _REJECTIONS_KEPT:
            del self._rejected[min(self._rejected)]
        return Heard(answers=(Receipt(data.attempt, data.digest, status, refusal),), event=event, ignored=refusal)

    def _taken(self, data: Data) -> tuple[P4Event | None, str]:
        """The event of a new attempt, or why it is not taken."""
        if len(self._pinned) >= self._own.max_outstanding:
            return None, f"receipt store full: {len(self._pinned)} receipts were not acknowledged"
        try:
            event = decode_event(data.event)
        except P4CodecError as error:
            return None, error.reason
        refusal = self._refusal(event)[:_LONGEST_REFUSAL]
        return (None, refusal) if refusal else (event, "")

    def _settled(self, frame: Receipt | QueryResult) -> Heard:
        by_query = isinstance(frame, QueryResult)
        if self._waiting.get(frame.attempt, frame.digest) != frame.digest:
            raise P4CodecError(f"the receipt of attempt {frame.attempt} names other bytes than were sent under it")
        if not by_query and frame.attempt not in self._waiting:
            return Heard(ignored=f"receipt of attempt {frame.attempt}, which waits for none")
        settled = Settled(frame.attempt, frame.status, frame.detail, by_query)
        if by_query and frame.status is ReceiptStatus.UNKNOWN:
            return Heard(settled=settled)
        was_waiting = self._waiting.pop(frame.attempt, None) is not None
        if frame.status is not ReceiptStatus.ACCEPTED_EXACT or not was_waiting:
            return Heard(settled=settled)
        own = self._own
        ack = ReceiptAck(own.sender_id, own.connection_generation, frame.attempt, frame.digest)
        return Heard(answers=(ack,), settled=settled)

    def _acknowledged(self, ack: ReceiptAck) -> Heard:
        pinned = self._pinned.get(ack.attempt)
        if pinned is None or pinned.digest != ack.digest:
            return Heard(ignored=f"acknowledgement of attempt {ack.attempt}, of which no such receipt is pinned")
        del self._pinned[ack.attempt]
        return Heard()

    def _answered(self, attempt: int) -> QueryResult | None:
        return self._pinned.get(attempt) or self._rejected.get(attempt)

    def _found(self, attempt: int, digest: bytes) -> QueryResult:
        answered = self._answered(attempt)
        if answered is None:
            return QueryResult(attempt, digest, ReceiptStatus.UNKNOWN, "receipt is not pinned")
        if answered.digest != digest:
            return QueryResult(attempt, digest, ReceiptStatus.CONFLICT, "attempt digest differs")
        return answered
