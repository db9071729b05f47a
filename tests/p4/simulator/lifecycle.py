"""Lifecycle payloads: u32 LE length, metadata JSON of at most 64 KiB, and the adapter's own opaque body."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal

from tests.p4.simulator.strict_json import BadJson, read_json, write_json
from tests.p4.simulator.wire import U64, Refused

MAX_METADATA = 64 * 1024
SCHEMA = 1

Kind = Literal["load", "unload", "result"]

_IDENTITY = ("schema", "node_id", "node_generation", "adapter_kind", "adapter_content_type")
_CAPACITIES = ("queue_capacity", "completion_capacity", "retained_capacity", "retained_bytes")
_OUTCOME = ("operation", "status", "resource_state")
_ERRORS = ("first_error", "cleanup_error")
_WORDS = {
    "operation": ("load", "unload"),
    "status": ("succeeded", "rejected", "failed"),
    "resource_state": ("absent", "present", "unknown"),
}


@dataclass(frozen=True, slots=True)
class Payload:
    """One payload: the members that are present, in the contract's order, and the adapter's body."""

    metadata: dict[str, Any]
    body: bytes = b""


def decode_payload(kind: Kind, raw: bytes) -> Payload:
    """The payload of an event. Raises Refused."""
    if len(raw) < 4:
        raise Refused("node lifecycle metadata length is incomplete")
    (length,) = struct.unpack_from("<I", raw)
    if length > MAX_METADATA:
        raise Refused("node lifecycle metadata is too large")
    if len(raw) < 4 + length:
        raise Refused("node lifecycle metadata is truncated")
    try:
        metadata = _members(kind, read_json(raw[4 : 4 + length]))
    except (BadJson, UnicodeEncodeError) as error:
        raise Refused(f"invalid lifecycle metadata: {error}") from None
    check(kind, metadata)
    return Payload(metadata, raw[4 + length :])


def encode_payload(kind: Kind, payload: Payload) -> bytes:
    """The bytes of a payload, members in the contract's order. Raises Refused."""
    required, optional = _fields(kind)
    present = {name: payload.metadata.get(name) for name in (*required, *optional)}
    metadata = {name: value for name, value in present.items() if value is not None}
    check(kind, metadata)
    text = write_json(metadata)
    if len(text) > MAX_METADATA:
        raise Refused("node lifecycle metadata is too large")
    return struct.pack("<I", len(text)) + text + payload.body


def check(kind: Kind, metadata: dict[str, Any]) -> None:
    """The rules on values. Raises Refused."""
    if metadata["schema"] != SCHEMA:
        raise Refused(f"node lifecycle schema {metadata['schema']} is not {SCHEMA}")
    if not all(metadata[name] for name in _IDENTITY[1:]):
        raise Refused("node lifecycle requires node, generation, adapter and adapter content type")
    capacities = [metadata.get(name) for name in _CAPACITIES]
    if kind == "load" and not all(capacities):
        raise Refused("node LOAD requires positive queue, completion and retained capacities")
    if kind == "unload" and any(value is not None for value in capacities):
        raise Refused("node UNLOAD must not carry allocation capacities")
    if kind == "result":
        errors = [metadata.get(name) for name in _ERRORS]
        if metadata["status"] == "succeeded" and any(error is not None for error in errors):
            raise Refused("successful lifecycle result cannot contain an error")
        if metadata["status"] != "succeeded" and not errors[0]:
            raise Refused("rejected or failed lifecycle result requires first_error")


def _fields(kind: Kind) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return ((*_IDENTITY, *_OUTCOME), _ERRORS) if kind == "result" else (_IDENTITY, _CAPACITIES)


def _members(kind: Kind, value: Any) -> dict[str, Any]:
    """Members by name of an object, or of an array in field order, which the engine takes too."""
    required, optional = _fields(kind)
    names = (*required, *optional)
    if isinstance(value, list):
        if not len(required) <= len(value) <= len(names):
            raise BadJson(f"invalid length {len(value)}")
        value = dict(zip(names, value, strict=False))
    if not isinstance(value, dict):
        raise BadJson("expected an object")
    for name in value:
        if name not in names:
            raise BadJson(f"unknown field `{name}`")
    for name in required:
        if name not in value:
            raise BadJson(f"missing field `{name}`")
    present = {name: value[name] for name in names if name in required or value.get(name) is not None}
    for name, member in present.items():
        _check_type(name, member)
    return present


def _check_type(name: str, value: Any) -> None:
    if name in _WORDS:
        if value not in _WORDS[name]:
            raise BadJson(f"unknown variant {value!r} of {name}")
    elif name in ("schema", "node_generation", *_CAPACITIES):
        most = 65535 if name == "schema" else U64
        if type(value) is not int or not 0 <= value <= most:
            raise BadJson(f"{name} is no integer from 0 to {most}: {value!r}")
    elif not isinstance(value, str):
        raise BadJson(f"{name} is no text: {value!r}")
    else:
        value.encode()
