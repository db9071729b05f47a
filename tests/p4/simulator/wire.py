"""Events of the contract as bytes: addresses, endpoints, the P4E3 body, and the order in which a body is refused."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, replace
from enum import IntEnum

MAGIC = b"P4E3"
VERSION = 3
MAX_ENVELOPE = 256 * 1024
MAX_TEXT = 256 * 1024
MAX_PAYLOAD = 2 * 1024**3
U64 = 2**64 - 1


class Refused(ValueError):
    """A body that the contract does not admit; the text is the first rule that it breaks."""


class Class(IntEnum):
    """What an event is for."""

    CONTROL = 0
    DATA = 1
    OUTPUT = 2
    TELEMETRY = 3


@dataclass(frozen=True, slots=True)
class Address:
    """Where an agent is reached; the text is its identity, whatever is dialled."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """An agent itself."""

    agent: Address


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """One registered node of an agent."""

    agent: Address
    node: str
    generation: int


@dataclass(frozen=True, slots=True)
class OuterEnd:
    """A caller, behind the agent that it is connected to."""

    agent: Address
    channel: str
    generation: int


Endpoint = AgentEnd | NodeEnd | OuterEnd


@dataclass(frozen=True, slots=True)
class Event:
    """One event, decoded."""

    event_id: str
    correlation_id: str
    source: Endpoint
    target: Endpoint
    return_route: OuterEnd | None
    kind: Class
    sequence: int
    content_type: str
    payload: bytes = b""
    causation_id: str | None = None
    deadline: int | None = None
    adapter: str | None = None
    version: int = VERSION


def parse_address(text: str) -> Address:
    """The address of a text. The port is split from the right, so that IPv6 literals survive."""
    scheme, mark, rest = text.partition("://")
    if not mark:
        raise Refused("address must be scheme://host:port")
    if scheme != "tcp":
        raise Refused(f"unknown address scheme {scheme}")
    host, mark, port = rest.rpartition(":")
    if not mark:
        raise Refused("address must carry a port")
    if not host:
        raise Refused("address must carry a host")
    if not re.fullmatch(r"\+?[0-9]+", port, re.ASCII) or len(port.lstrip("+0")) > 5 or int(port) > 65535:
        raise Refused("address port must be a number")
    if int(port) == 0:
        raise Refused("address port must not be zero")
    return Address(host, int(port))


class _Envelope:
    """Reads the fields of an envelope in order."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.at = 0

    def take(self, count: int) -> bytes:
        if len(self.body) - self.at < count:
            raise Refused("truncated event envelope")
        self.at += count
        return self.body[self.at - count : self.at]

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "little")

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def text(self) -> str:
        length = self.u32()
        if length > MAX_TEXT:
            raise Refused("event text field too large")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise Refused("event text must be UTF-8") from None

    def present(self, what: str) -> bool:
        flag = self.u8()
        if flag > 1:
            raise Refused(f"unknown {what} flag")
        return flag == 1

    def optional_text(self) -> str | None:
        return self.text() if self.present("optional text") else None

    def address(self) -> Address:
        return parse_address(self.text())

    def outer(self) -> OuterEnd:
        return OuterEnd(self.address(), self.text(), self.u64())

    def endpoint(self) -> Endpoint:
        match self.u8():
            case 0:
                return AgentEnd(self.address())
            case 1:
                return NodeEnd(self.address(), self.text(), self.u64())
            case 2:
                return self.outer()
            case _:
                raise Refused("unknown endpoint kind")

    def event_class(self) -> Class:
        value = self.u8()
        if value > Class.TELEMETRY:
            raise Refused("unknown event class")
        return Class(value)


def decode_event(body: bytes) -> Event:
    """The event of one frame body. Raises Refused with the first rule that it breaks."""
    if len(body) < 12 or body[:4] != MAGIC:
        raise Refused("event frame magic mismatch")
    envelope_length, payload_length = struct.unpack_from("<II", body, 4)
    if envelope_length > MAX_ENVELOPE or payload_length > MAX_PAYLOAD:
        raise Refused("event frame declares an impossible length")
    if len(body) != 12 + envelope_length + payload_length:
        raise Refused("event frame length mismatch")
    read = _Envelope(body[12 : 12 + envelope_length])
    event = Event(
        version=read.u16(),
        event_id=read.text(),
        correlation_id=read.text(),
        causation_id=read.optional_text(),
        source=read.endpoint(),
        target=read.endpoint(),
        return_route=read.outer() if read.present("return-route") else None,
        kind=read.event_class(),
        sequence=read.u64(),
        deadline=read.u64() if read.present("optional number") else None,
        adapter=read.optional_text(),
        content_type=read.text(),
    )
    if read.at != envelope_length:
        raise Refused("trailing event envelope bytes")
    check(event)
    return replace(event, payload=body[12 + envelope_length :])


def check(event: Event) -> None:
    """The rules on values, in the contract's order. Raises Refused."""
    if event.version != VERSION:
        raise Refused(f"event protocol version {event.version} is not {VERSION}")
    if not (event.event_id and event.correlation_id and event.content_type):
        raise Refused("event, correlation and content-type identity are required")
    if event.causation_id == "":
        raise Refused("causation identity cannot be empty")
    if event.adapter == "":
        raise Refused("adapter kind cannot be empty")
    if event.deadline == 0:
        raise Refused("event deadline cannot be zero")
    for end in (event.source, event.target):
        _check_end(end)
    if event.return_route is None:
        raise Refused("event requires an explicit OUTER return route")
    _check_end(event.return_route)
    if any(isinstance(end, OuterEnd) and end != event.return_route for end in (event.source, event.target)):
        raise Refused("OUTER endpoint differs from the event return route")


def _check_end(end: Endpoint) -> None:
    match end:
        case NodeEnd(node=""):
            raise Refused("node endpoint requires a node id")
        case NodeEnd(generation=0):
            raise Refused("node endpoint requires a generation")
        case OuterEnd(channel=""):
            raise Refused("outer endpoint requires a channel")
        case OuterEnd(generation=0):
            raise Refused("outer endpoint requires a connection generation")
        case _:
            pass


def encode_event(event: Event) -> bytes:
    """The frame body of an event. Raises Refused for one that a peer would not decode."""
    check(event)
    assert event.return_route is not None
    envelope = b"".join(
        (
            struct.pack("<H", event.version),
            _text(event.event_id),
            _text(event.correlation_id),
            _optional(event.causation_id),
            _end(event.source),
            _end(event.target),
            b"\x01" + _end(event.return_route)[1:],
            bytes((event.kind,)),
            struct.pack("<Q", event.sequence),
            b"\x00" if event.deadline is None else b"\x01" + struct.pack("<Q", event.deadline),
            _optional(event.adapter),
            _text(event.content_type),
        )
    )
    if len(envelope) > MAX_ENVELOPE or len(event.payload) > MAX_PAYLOAD:
        raise Refused("event frame declares an impossible length")
    return MAGIC + struct.pack("<II", len(envelope), len(event.payload)) + envelope + event.payload


def _text(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > MAX_TEXT:
        raise Refused("event text field too large")
    return struct.pack("<I", len(raw)) + raw


def _optional(value: str | None) -> bytes:
    return b"\x00" if value is None else b"\x01" + _text(value)


def _end(end: Endpoint) -> bytes:
    address = _text(str(end.agent))
    match end:
        case AgentEnd():
            return b"\x00" + address
        case NodeEnd():
            return b"\x01" + address + _text(end.node) + struct.pack("<Q", end.generation)
        case OuterEnd():
            return b"\x02" + address + _text(end.channel) + struct.pack("<Q", end.generation)
