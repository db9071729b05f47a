"""Hop frames of the contract as bytes: the P4H1 body of an acknowledged connection."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from enum import IntEnum

from tests.p4.simulator.wire import Refused

MAGIC = b"P4H1"
VERSION = 1
MAX_TEXT = 4096


class Status(IntEnum):
    """What a receipt says; accepted means queued, not carried out."""

    ACCEPTED = 1
    REJECTED = 2
    CONFLICT = 3
    UNKNOWN = 4


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of whoever dials."""

    sender: str
    generation: int
    max_outstanding: int
    max_receipt_bytes: int


@dataclass(frozen=True, slots=True)
class HelloAck:
    """The answer to a Hello, echoing its generation."""

    accepted_generation: int
    sender: str
    generation: int
    max_outstanding: int
    max_receipt_bytes: int


@dataclass(frozen=True, slots=True)
class Data:
    """One event under way."""

    attempt: int
    event: bytes
    digest: bytes = field(default=b"")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an attempt at the receiver's queue."""

    attempt: int
    digest: bytes
    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer to a Query, shaped like a Receipt."""

    attempt: int
    digest: bytes
    status: Status
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReceiptAck:
    """The original sender lets go of an attempt."""

    sender: str
    generation: int
    attempt: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Query:
    """The original sender asks after an attempt."""

    sender: str
    generation: int
    attempt: int
    digest: bytes


Frame = Hello | HelloAck | Data | Receipt | ReceiptAck | Query | QueryResult


class _Fields:
    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 4

    def take(self, count: int) -> bytes:
        if len(self.body) - self.at < count:
            raise Refused("truncated hop frame")
        self.at += count
        return self.body[self.at - count : self.at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def text(self) -> str:
        length = self.number(4)
        if length > MAX_TEXT:
            raise Refused("hop text field too large")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise Refused("hop text field is not UTF-8") from None

    def status(self) -> Status:
        value = self.number(1)
        try:
            return Status(value)
        except ValueError:
            raise Refused("unknown hop receipt status") from None

    def data(self) -> Data:
        attempt, digest, length = self.number(8), self.take(32), self.number(4)
        event = self.take(length)
        if hashlib.sha256(event).digest() != digest:
            raise Refused("hop data digest mismatch")
        return Data(attempt, event, digest)

    def frame(self) -> Frame:
        match self.number(1):
            case 1:
                return Hello(self.text(), self.number(8), self.number(4), self.number(8))
            case 2:
                return HelloAck(self.number(8), self.text(), self.number(8), self.number(4), self.number(8))
            case 3:
                return self.data()
            case 4:
                return Receipt(self.number(8), self.take(32), self.status(), self.text())
            case 5:
                return ReceiptAck(self.text(), self.number(8), self.number(8), self.take(32))
            case 6:
                return Query(self.text(), self.number(8), self.number(8), self.take(32))
            case 7:
                return QueryResult(self.number(8), self.take(32), self.status(), self.text())
            case _:
                raise Refused("unknown hop frame kind")


def decode_hop(body: bytes) -> Frame | None:
    """The frame of a body, or None for a body that is not a hop frame. Raises Refused."""
    if body[:4] != MAGIC:
        return None
    read = _Fields(body)
    if read.number(2) != VERSION:
        raise Refused("unsupported hop frame version")
    if read.number(2) != 0:
        raise Refused("hop frame reserved bits are nonzero")
    frame = read.frame()
    if read.at != len(body):
        raise Refused("trailing hop frame bytes")
    check(frame)
    return frame


def check(frame: Frame) -> None:
    """The rules on values. Raises Refused."""
    match frame:
        case Hello():
            if not all((frame.sender, frame.generation, frame.max_outstanding, frame.max_receipt_bytes)):
                raise Refused("hop hello requires positive identity and limits")
        case HelloAck():
            numbers = (frame.accepted_generation, frame.generation, frame.max_outstanding, frame.max_receipt_bytes)
            if not frame.sender or not all(numbers):
                raise Refused("hop hello ACK requires positive generation and limits")
        case Data():
            if not frame.attempt or not frame.event:
                raise Refused("hop data requires an attempt and Event bytes")
        case Receipt() | QueryResult():
            if not frame.attempt:
                raise Refused("hop receipt requires an attempt and bounded detail")
        case ReceiptAck():
            if not all((frame.sender, frame.generation, frame.attempt)):
                raise Refused("hop receipt ACK requires identity, generation and attempt")
        case Query():
            if not all((frame.sender, frame.generation, frame.attempt)):
                raise Refused("hop query requires identity, generation and attempt")


def encode_hop(frame: Frame) -> bytes:
    """The body of a frame. Raises Refused for one that a peer would not decode."""
    check(frame)
    match frame:
        case Hello():
            kind = 1
            fields = _text(frame.sender) + struct.pack(
                "<QIQ", frame.generation, frame.max_outstanding, frame.max_receipt_bytes
            )
        case HelloAck():
            kind = 2
            fields = struct.pack("<Q", frame.accepted_generation) + _text(frame.sender)
            fields += struct.pack("<QIQ", frame.generation, frame.max_outstanding, frame.max_receipt_bytes)
        case Data():
            kind = 3
            digest = hashlib.sha256(frame.event).digest()
            if frame.digest and frame.digest != digest:
                raise Refused("hop data digest mismatch")
            fields = struct.pack("<Q", frame.attempt) + digest + struct.pack("<I", len(frame.event)) + frame.event
        case Receipt() | QueryResult():
            kind = 4 if isinstance(frame, Receipt) else 7
            fields = struct.pack("<Q", frame.attempt) + frame.digest + bytes((frame.status,)) + _text(frame.detail)
        case ReceiptAck() | Query():
            kind = 5 if isinstance(frame, ReceiptAck) else 6
            fields = _text(frame.sender) + struct.pack("<QQ", frame.generation, frame.attempt) + frame.digest
    return MAGIC + struct.pack("<HHB", VERSION, 0, kind) + fields


def _text(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > MAX_TEXT:
        raise Refused("hop text field too large")
    return struct.pack("<I", len(raw)) + raw
