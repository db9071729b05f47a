"""P4H1 hop frames: events with receipts, on a connection that began with a Hello.

Body: ``P4H1 | version u16 = 1 | reserved u16 = 0 | kind u8 | fields``. A receipt that says accepted means only that
the agent's broker holds these exact bytes in a queue; it is no execution and no reply.
"""

from __future__ import annotations

import hashlib
from enum import Enum

import msgspec

from backend.contract.numbers import U64_MAX
from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.layout import U32_MAX, FieldReader, text, unsigned

HOP_VERSION = 1
MAX_HOP_TEXT_BYTES = 4096
"""The longest sender id and the longest detail, in UTF-8 bytes."""

_MAGIC = b"P4H1"
_DIGEST_BYTES = 32


class ReceiptStatus(Enum):
    """What became of an attempt. Unknown never allows to send it again under another attempt."""

    ACCEPTED_EXACT = "accepted_exact"
    REJECTED = "rejected"
    CONFLICT = "conflict"
    UNKNOWN = "unknown"


class Hello(msgspec.Struct, frozen=True, tag_field="kind", tag="hello", forbid_unknown_fields=True):
    """The first frame of a hop connection. ``max_outstanding`` bounds the Data without a Receipt, both ways."""

    sender_id: str
    connection_generation: int
    max_outstanding: int
    max_receipt_bytes: int


class HelloAck(msgspec.Struct, frozen=True, tag_field="kind", tag="hello_ack", forbid_unknown_fields=True):
    """The answer to it: the same number back, and the same facts of the other side."""

    accepted_connection_generation: int
    sender_id: str
    connection_generation: int
    max_outstanding: int
    max_receipt_bytes: int


class Data(msgspec.Struct, frozen=True, tag_field="kind", tag="data", forbid_unknown_fields=True):
    """One event under the number of an attempt. Its digest travels with it and is checked when it is read."""

    attempt: int
    event: bytes

    @property
    def digest(self) -> bytes:
        """SHA-256 of the event's bytes."""
        return hashlib.sha256(self.event).digest()


class Receipt(msgspec.Struct, frozen=True, tag_field="kind", tag="receipt", forbid_unknown_fields=True):
    """The answer to a Data."""

    attempt: int
    digest: bytes
    status: ReceiptStatus
    detail: str = ""


class ReceiptAck(msgspec.Struct, frozen=True, tag_field="kind", tag="receipt_ack", forbid_unknown_fields=True):
    """The receipt arrived and need not be kept; names the sender of the Data."""

    sender_id: str
    connection_generation: int
    attempt: int
    digest: bytes


class Query(msgspec.Struct, frozen=True, tag_field="kind", tag="query", forbid_unknown_fields=True):
    """Asks what became of an attempt; names the sender of the Data."""

    sender_id: str
    connection_generation: int
    attempt: int
    digest: bytes


class QueryResult(msgspec.Struct, frozen=True, tag_field="kind", tag="query_result", forbid_unknown_fields=True):
    """The answer to a Query."""

    attempt: int
    digest: bytes
    status: ReceiptStatus
    detail: str = ""


HopFrame = Hello | HelloAck | Data | Receipt | ReceiptAck | Query | QueryResult

_KINDS: tuple[type[HopFrame], ...] = (Hello, HelloAck, Data, Receipt, ReceiptAck, Query, QueryResult)
_STATUSES = (ReceiptStatus.ACCEPTED_EXACT, ReceiptStatus.REJECTED, ReceiptStatus.CONFLICT, ReceiptStatus.UNKNOWN)


def is_hop_frame(body: bytes) -> bool:
    """Whether a body claims to be a hop frame: by its first four bytes alone."""
    return body[:4] == _MAGIC


def decode_hop(body: bytes) -> HopFrame:
    """Read one body; raises P4CodecError. The event in a Data is not looked into, but its digest is."""
    if not is_hop_frame(body):
        raise P4CodecError(f"{len(body)} bytes beginning {body[:4]!r} are no hop frame: those begin with P4H1")
    fields = FieldReader(body, "hop frame", longest_text=MAX_HOP_TEXT_BYTES)
    fields.take(4, "the magic")
    version = fields.unsigned(2, "the version")
    if version != HOP_VERSION:
        raise P4CodecError(f"the hop frame has version {version}; this codec speaks {HOP_VERSION}")
    reserved = fields.unsigned(2, "the reserved bits")
    if reserved:
        raise P4CodecError(f"the reserved bits of the hop frame are {reserved}, and only 0 is known")
    kind = fields.unsigned(1, "the kind")
    if not 1 <= kind <= len(_KINDS):
        raise P4CodecError(f"the kind of the hop frame is {kind}; it is 1..{len(_KINDS)}")
    frame = _read_fields(fields, _KINDS[kind - 1])
    fields.end()
    _check_values(frame)
    return frame


def encode_hop(frame: HopFrame) -> bytes:
    """One body; raises P4CodecError for what a peer would refuse."""
    parts = [
        _MAGIC,
        unsigned(HOP_VERSION, 2, "the version"),
        unsigned(0, 2, "the reserved bits"),
        unsigned(_KINDS.index(type(frame)) + 1, 1, "the kind"),
        *_written_fields(frame),
    ]
    _check_values(frame)
    return b"".join(parts)


def _read_fields(fields: FieldReader, kind: type[HopFrame]) -> HopFrame:
    if kind is Hello:
        return Hello(
            fields.text("sender_id"),
            fields.unsigned(8, "connection_generation"),
            fields.unsigned(4, "max_outstanding"),
            fields.unsigned(8, "max_receipt_bytes"),
        )
    if kind is HelloAck:
        return HelloAck(
            fields.unsigned(8, "accepted_connection_generation"),
            fields.text("sender_id"),
            fields.unsigned(8, "connection_generation"),
            fields.unsigned(4, "max_outstanding"),
            fields.unsigned(8, "max_receipt_bytes"),
        )
    if kind is Data:
        return _read_data(fields)
    if kind is Receipt or kind is QueryResult:
        return kind(
            fields.unsigned(8, "attempt"),
            fields.take(_DIGEST_BYTES, "digest"),
            _read_status(fields),
            fields.text("detail"),
        )
    assert kind is ReceiptAck or kind is Query
    return kind(
        fields.text("sender_id"),
        fields.unsigned(8, "connection_generation"),
        fields.unsigned(8, "attempt"),
        fields.take(_DIGEST_BYTES, "digest"),
    )


def _read_data(fields: FieldReader) -> Data:
    attempt = fields.unsigned(8, "attempt")
    digest = fields.take(_DIGEST_BYTES, "digest")
    data = Data(attempt, fields.take(fields.unsigned(4, "the length of event"), "event"))
    if data.digest != digest:
        raise P4CodecError(f"the data says sha256 {digest.hex()}, and its event has {data.digest.hex()}")
    return data


def _read_status(fields: FieldReader) -> ReceiptStatus:
    code = fields.unsigned(1, "status")
    if not 1 <= code <= len(_STATUSES):
        raise P4CodecError(f"the status is {code}; it is 1 accepted, 2 rejected, 3 conflict or 4 unknown")
    return _STATUSES[code - 1]


def _written_fields(frame: HopFrame) -> list[bytes]:
    if isinstance(frame, Hello):
        return _written_limits(frame)
    if isinstance(frame, HelloAck):
        echo = unsigned(frame.accepted_connection_generation, 8, "accepted_connection_generation")
        return [echo, *_written_limits(frame)]
    if isinstance(frame, Data):
        return [
            unsigned(frame.attempt, 8, "attempt"),
            frame.digest,
            unsigned(len(frame.event), 4, "the length of event"),
            frame.event,
        ]
    if isinstance(frame, (Receipt, QueryResult)):
        return [
            unsigned(frame.attempt, 8, "attempt"),
            _digest(frame.digest),
            unsigned(_STATUSES.index(frame.status) + 1, 1, "status"),
            text(frame.detail, "detail", MAX_HOP_TEXT_BYTES),
        ]
    return [
        text(frame.sender_id, "sender_id", MAX_HOP_TEXT_BYTES),
        unsigned(frame.connection_generation, 8, "connection_generation"),
        unsigned(frame.attempt, 8, "attempt"),
        _digest(frame.digest),
    ]


def _written_limits(frame: Hello | HelloAck) -> list[bytes]:
    return [
        text(frame.sender_id, "sender_id", MAX_HOP_TEXT_BYTES),
        unsigned(frame.connection_generation, 8, "connection_generation"),
        unsigned(frame.max_outstanding, 4, "max_outstanding"),
        unsigned(frame.max_receipt_bytes, 8, "max_receipt_bytes"),
    ]


def _digest(digest: bytes) -> bytes:
    if len(digest) != _DIGEST_BYTES:
        raise P4CodecError(f"the digest has {len(digest)} bytes, not {_DIGEST_BYTES}")
    return digest


def _check_values(frame: HopFrame) -> None:
    """Identities are not empty; generations, attempts and limits begin at 1."""
    kind = str(type(frame).__struct_config__.tag)
    if isinstance(frame, Data) and not frame.event:
        raise P4CodecError("the data holds no event")
    if not isinstance(frame, (Data, Receipt, QueryResult)) and not frame.sender_id:
        raise P4CodecError(f"sender_id of the {kind} is empty")
    counted = (
        "accepted_connection_generation",
        "connection_generation",
        "attempt",
        "max_outstanding",
        "max_receipt_bytes",
    )
    for field in counted:
        if getattr(frame, field, 1) == 0:
            most = U32_MAX if field == "max_outstanding" else U64_MAX
            raise P4CodecError(f"{field} of the {kind} is 0, outside 1..{most}")
