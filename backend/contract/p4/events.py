"""P4E3 events: who says what to whom, as structs and as bytes.

Body: ``P4E3 | envelope length u32 | payload length u32 | envelope | payload``, little-endian, no padding. Rules that
look at several fields are checked after the whole envelope was read, in the contract's order, and before any byte of
an event is written: what ``encode_event`` writes, ``decode_event`` and a p4 agent read.
"""

from __future__ import annotations

import msgspec

from backend.contract.envelopes import Class
from backend.contract.p4.addresses import P4Address, parse_address
from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.layout import FieldReader, flagged, text, unsigned

PROTOCOL_VERSION = 3
"""The only version that is read or written; its documents call it version 2."""
MAX_ENVELOPE_BYTES = 256 * 1024
"""The longest envelope, and the longest single text in one."""
MAX_PAYLOAD_BYTES = 2 * 1024**3
"""The longest payload that the contract knows; what an agent retains is far less (256 MiB in its stores)."""

_MAGIC = b"P4E3"
_HEADER_BYTES = 12
_CLASSES: tuple[Class, ...] = ("control", "data", "output", "telemetry")


class P4Agent(msgspec.Struct, frozen=True, tag_field="kind", tag="agent", forbid_unknown_fields=True):
    """A p4 agent, by its advertised address. INSPECT, LOAD and UNLOAD go here."""

    agent: P4Address


class P4Node(msgspec.Struct, frozen=True, tag_field="kind", tag="node", forbid_unknown_fields=True):
    """A loaded stage at its agent, under its node generation. Sessions and prompts go here."""

    agent: P4Address
    node: str
    generation: int


class P4Outer(msgspec.Struct, frozen=True, tag_field="kind", tag="outer", forbid_unknown_fields=True):
    """A client behind the agent that it dialled: one channel and one number for each connection."""

    ingress_agent: P4Address
    channel: str
    connection_generation: int


P4Endpoint = P4Agent | P4Node | P4Outer


class P4Event(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}, forbid_unknown_fields=True):
    """One event.

    ``event_id`` is unique for ever. ``sequence`` rises per source and correlation. ``deadline_unix_ms`` is an admission
    fence, never an interrupt. ``return_route`` is where answers go; an end that is an Outer must be equal to it.
    """

    event_id: str
    correlation_id: str
    source: P4Endpoint
    target: P4Endpoint
    return_route: P4Outer
    class_: Class
    sequence: int
    payload_content_type: str
    payload: bytes = b""
    causation_id: str | None = None
    deadline_unix_ms: int | None = None
    adapter_kind: str | None = None
    protocol_version: int = PROTOCOL_VERSION


def decode_event(body: bytes) -> P4Event:
    """Read one body (without the u32 length in front of it on a socket); raises P4CodecError."""
    envelope, payload = _split(body)
    fields = FieldReader(envelope, "event envelope", longest_text=MAX_ENVELOPE_BYTES)
    version = fields.unsigned(2, "protocol_version")
    event_id = fields.text("event_id")
    correlation_id = fields.text("correlation_id")
    causation_id = fields.text("causation_id") if fields.flag("causation_id") else None
    source = _read_endpoint(fields, "source")
    target = _read_endpoint(fields, "target")
    return_route = _read_outer(fields, "return_route") if fields.flag("return_route") else None
    class_code = fields.unsigned(1, "class")
    if class_code >= len(_CLASSES):
        raise P4CodecError(f"the class is {class_code}; it is 0 control, 1 data, 2 output or 3 telemetry")
    sequence = fields.unsigned(8, "sequence")
    deadline = fields.unsigned(8, "deadline_unix_ms") if fields.flag("deadline_unix_ms") else None
    adapter_kind = fields.text("adapter_kind") if fields.flag("adapter_kind") else None
    content_type = fields.text("payload_content_type")
    fields.end()
    _check_identities(version, event_id, correlation_id, content_type, causation_id, adapter_kind, deadline)
    _check_ends(source, target, return_route)
    assert return_route is not None  # just checked
    return P4Event(
        event_id=event_id,
        correlation_id=correlation_id,
        source=source,
        target=target,
        return_route=return_route,
        class_=_CLASSES[class_code],
        sequence=sequence,
        payload_content_type=content_type,
        payload=payload,
        causation_id=causation_id,
        deadline_unix_ms=deadline,
        adapter_kind=adapter_kind,
    )


def encode_event(event: P4Event) -> bytes:
    """One body; addresses are written in p4's own spelling. Raises P4CodecError for what p4 would refuse."""
    envelope = b"".join(
        (
            unsigned(event.protocol_version, 2, "protocol_version"),
            _text(event.event_id, "event_id"),
            _text(event.correlation_id, "correlation_id"),
            flagged(None if event.causation_id is None else _text(event.causation_id, "causation_id")),
            _write_endpoint(event.source, "source"),
            _write_endpoint(event.target, "target"),
            flagged(_write_outer(event.return_route, "return_route")),
            _write_class(event.class_),
            unsigned(event.sequence, 8, "sequence"),
            flagged(
                None if event.deadline_unix_ms is None else unsigned(event.deadline_unix_ms, 8, "deadline_unix_ms")
            ),
            flagged(None if event.adapter_kind is None else _text(event.adapter_kind, "adapter_kind")),
            _text(event.payload_content_type, "payload_content_type"),
        )
    )
    check_event(event)
    if len(envelope) > MAX_ENVELOPE_BYTES:
        raise P4CodecError(f"the envelope has {len(envelope)} bytes; a p4 agent reads at most {MAX_ENVELOPE_BYTES}")
    if len(event.payload) > MAX_PAYLOAD_BYTES:
        raise P4CodecError(f"the payload has {len(event.payload)} bytes; p4 knows at most {MAX_PAYLOAD_BYTES}")
    lengths = len(envelope).to_bytes(4, "little") + len(event.payload).to_bytes(4, "little")
    return b"".join((_MAGIC, lengths, envelope, event.payload))


def check_event(event: P4Event) -> None:
    """Raise P4CodecError unless every rule on the values of an event holds."""
    _check_identities(
        event.protocol_version,
        event.event_id,
        event.correlation_id,
        event.payload_content_type,
        event.causation_id,
        event.adapter_kind,
        event.deadline_unix_ms,
    )
    _check_ends(event.source, event.target, event.return_route)


def _split(body: bytes) -> tuple[bytes, bytes]:
    if len(body) < _HEADER_BYTES or body[:4] != _MAGIC:
        raise P4CodecError(f"{len(body)} bytes beginning {body[:4]!r} are no event: 12 or more, from P4E3 on, are one")
    envelope = int.from_bytes(body[4:8], "little")
    payload = int.from_bytes(body[8:12], "little")
    if envelope > MAX_ENVELOPE_BYTES or payload > MAX_PAYLOAD_BYTES:
        raise P4CodecError(
            f"the event says {envelope} bytes of envelope and {payload} of payload; at most {MAX_ENVELOPE_BYTES} and "
            f"{MAX_PAYLOAD_BYTES} are allowed"
        )
    due = _HEADER_BYTES + envelope + payload
    if due != len(body):
        raise P4CodecError(f"the event says it has {due} bytes in all, and the body has {len(body)}")
    return body[_HEADER_BYTES : _HEADER_BYTES + envelope], body[_HEADER_BYTES + envelope :]


def _read_endpoint(fields: FieldReader, name: str) -> P4Endpoint:
    kind = fields.unsigned(1, f"the kind of {name}")
    if kind == 0:
        return P4Agent(parse_address(fields.text(f"{name}.agent")))
    if kind == 1:
        return P4Node(
            parse_address(fields.text(f"{name}.agent")),
            fields.text(f"{name}.node"),
            fields.unsigned(8, f"{name}.generation"),
        )
    if kind == 2:
        return _read_outer(fields, name)
    raise P4CodecError(f"the kind of {name} is {kind}; it is 0 agent, 1 node or 2 outer")


def _read_outer(fields: FieldReader, name: str) -> P4Outer:
    return P4Outer(
        parse_address(fields.text(f"{name}.ingress_agent")),
        fields.text(f"{name}.channel"),
        fields.unsigned(8, f"{name}.connection_generation"),
    )


def _write_endpoint(endpoint: P4Endpoint, name: str) -> bytes:
    if isinstance(endpoint, P4Agent):
        return b"\x00" + _address(endpoint.agent, f"{name}.agent")
    if isinstance(endpoint, P4Node):
        return b"".join(
            (
                b"\x01",
                _address(endpoint.agent, f"{name}.agent"),
                _text(endpoint.node, f"{name}.node"),
                unsigned(endpoint.generation, 8, f"{name}.generation"),
            )
        )
    return b"\x02" + _write_outer(endpoint, name)


def _write_outer(outer: P4Outer, name: str) -> bytes:
    return b"".join(
        (
            _address(outer.ingress_agent, f"{name}.ingress_agent"),
            _text(outer.channel, f"{name}.channel"),
            unsigned(outer.connection_generation, 8, f"{name}.connection_generation"),
        )
    )


def _write_class(name: Class) -> bytes:
    if name not in _CLASSES:
        raise P4CodecError(f"the class is {name!r}; it is control, data, output or telemetry")
    return bytes((_CLASSES.index(name),))


def _text(value: str, field: str) -> bytes:
    return text(value, field, MAX_ENVELOPE_BYTES)


def _address(value: P4Address, field: str) -> bytes:
    return _text(parse_address(value), field)


def _check_identities(
    version: int,
    event_id: str,
    correlation_id: str,
    content_type: str,
    causation_id: str | None,
    adapter_kind: str | None,
    deadline: int | None,
) -> None:
    if version != PROTOCOL_VERSION:
        raise P4CodecError(f"the event has protocol_version {version}; this codec speaks {PROTOCOL_VERSION}")
    named = {"event_id": event_id, "correlation_id": correlation_id, "payload_content_type": content_type}
    for field, value in named.items():
        if not value:
            raise P4CodecError(f"{field} is empty")
    for field, optional in {"causation_id": causation_id, "adapter_kind": adapter_kind}.items():
        if optional == "":
            raise P4CodecError(f"{field} is empty; leave it out instead")
    if deadline == 0:
        raise P4CodecError("deadline_unix_ms is 0; leave it out instead")


def _check_ends(source: P4Endpoint, target: P4Endpoint, return_route: P4Outer | None) -> None:
    _check_endpoint(source, "source")
    _check_endpoint(target, "target")
    if return_route is None:
        raise P4CodecError("the event has no return_route, so that nobody would hear of it")
    _check_endpoint(return_route, "return_route")
    for name, end in (("source", source), ("target", target)):
        if isinstance(end, P4Outer) and _identity(end) != _identity(return_route):
            raise P4CodecError(
                f"{name} is the outer {_described(end)} and return_route is {_described(return_route)}; an outer end "
                "is always the return route itself"
            )


def _check_endpoint(endpoint: P4Endpoint, name: str) -> None:
    if isinstance(endpoint, P4Node):
        if not endpoint.node:
            raise P4CodecError(f"{name}.node is empty; every node has an id")
        if endpoint.generation == 0:
            raise P4CodecError(f"{name}.generation is 0; generations begin at 1")
    elif isinstance(endpoint, P4Outer):
        if not endpoint.channel:
            raise P4CodecError(f"{name}.channel is empty; every connection has one")
        if endpoint.connection_generation == 0:
            raise P4CodecError(f"{name}.connection_generation is 0; connections are counted from 1")


def _identity(outer: P4Outer) -> tuple[P4Address, str, int]:
    return parse_address(outer.ingress_agent), outer.channel, outer.connection_generation


def _described(outer: P4Outer) -> str:
    return f"{outer.channel!r} number {outer.connection_generation} at {outer.ingress_agent}"
