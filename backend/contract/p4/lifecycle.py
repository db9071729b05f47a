"""Lifecycle payloads: ``u32 metadata length | metadata JSON | the adapter's own bytes``.

They travel as the payload of events to and from a p4 agent. The adapter's bytes are opaque here.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from backend.contract.frames import FrameError, decode_tree, encode_frame
from backend.contract.numbers import U64_MAX
from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.layout import U16_MAX, utf8

LIFECYCLE_SCHEMA = 1
MAX_METADATA_BYTES = 64 * 1024

Operation = Literal["load", "unload"]
Status = Literal["succeeded", "rejected", "failed"]
ResourceState = Literal["absent", "present", "unknown"]
_NAMED = ("schema", "node_id", "node_generation", "adapter_kind", "adapter_content_type")
_CAPACITIES = ("queue_capacity", "completion_capacity", "retained_capacity", "retained_bytes")
_OUTCOME = ("operation", "status", "resource_state")
_ERRORS = ("first_error", "cleanup_error")
_WORDS = {
    "operation": get_args(Operation),
    "status": get_args(Status),
    "resource_state": get_args(ResourceState),
}


class NodeLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """LOAD: registers a node under its generation, with the sizes of its stores; all four are at least 1."""

    node_id: str
    node_generation: int
    adapter_kind: str
    adapter_content_type: str
    queue_capacity: int
    completion_capacity: int
    retained_capacity: int
    retained_bytes: int
    body: bytes = b""


class NodeUnload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """UNLOAD: takes a node away. It carries no sizes."""

    node_id: str
    node_generation: int
    adapter_kind: str
    adapter_content_type: str
    body: bytes = b""


class NodeResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a LOAD or UNLOAD ended.

    ``resource_state`` says what is left at the agent, whatever the status is: a success whose resource is absent can
    be said, and is shown as it was said. An error is there exactly when the status is not ``succeeded``.
    """

    node_id: str
    node_generation: int
    adapter_kind: str
    adapter_content_type: str
    operation: Operation
    status: Status
    resource_state: ResourceState
    first_error: str | None = None
    cleanup_error: str | None = None
    body: bytes = b""


Lifecycle = NodeLoad | NodeUnload | NodeResult


def decode_load(payload: bytes) -> NodeLoad:
    """Read the payload of a LOAD; raises P4CodecError."""
    members, body = _read(payload, (*_NAMED, *_CAPACITIES), optional=_CAPACITIES)
    _check_named(members)
    for field in _CAPACITIES:
        if not members[field]:
            raise P4CodecError(f"the LOAD has {field} {members[field]}; all four capacities are given and at least 1")
    return NodeLoad(**_without_schema(members), body=body)


def decode_unload(payload: bytes) -> NodeUnload:
    """Read the payload of an UNLOAD; raises P4CodecError."""
    members, body = _read(payload, (*_NAMED, *_CAPACITIES), optional=_CAPACITIES)
    _check_named(members)
    for field in _CAPACITIES:
        if members.pop(field) is not None:
            raise P4CodecError(f"the UNLOAD carries {field}; only a LOAD has capacities")
    return NodeUnload(**_without_schema(members), body=body)


def decode_result(payload: bytes) -> NodeResult:
    """Read the payload of a lifecycle result; raises P4CodecError."""
    members, body = _read(payload, (*_NAMED, *_OUTCOME, *_ERRORS), optional=_ERRORS)
    _check_named(members)
    _check_errors(members["status"], members["first_error"], members["cleanup_error"])
    return NodeResult(**_without_schema(members), body=body)


def encode_lifecycle(value: Lifecycle) -> bytes:
    """The payload of a LOAD, UNLOAD or result; raises P4CodecError for what a peer would refuse."""
    members = {"schema": LIFECYCLE_SCHEMA}
    for field in type(value).__struct_fields__:
        member = getattr(value, field)
        if field == "body" or (member is None and field in _ERRORS):
            continue
        members[field] = _checked(field, member)
    _check_named(members)
    if isinstance(value, NodeLoad) and not all(getattr(value, field) for field in _CAPACITIES):
        raise P4CodecError(f"the LOAD has a capacity of 0; {', '.join(_CAPACITIES)} are at least 1")
    if isinstance(value, NodeResult):
        _check_errors(value.status, value.first_error, value.cleanup_error)
    metadata = encode_frame(members).encode()
    if len(metadata) > MAX_METADATA_BYTES:
        raise P4CodecError(f"the metadata has {len(metadata)} bytes; at most {MAX_METADATA_BYTES} are read")
    return len(metadata).to_bytes(4, "little") + metadata + value.body


def _read(payload: bytes, fields: tuple[str, ...], *, optional: tuple[str, ...]) -> tuple[dict[str, Any], bytes]:
    """Every field by name (None where an optional one is absent), and the bytes after the metadata."""
    if len(payload) < 4:
        raise P4CodecError(f"{len(payload)} bytes are no lifecycle payload: the length of the metadata has 4")
    length = int.from_bytes(payload[:4], "little")
    if length > MAX_METADATA_BYTES:
        raise P4CodecError(f"the metadata says it has {length} bytes; at most {MAX_METADATA_BYTES} are read")
    if length > len(payload) - 4:
        raise P4CodecError(f"the metadata says it has {length} bytes, and {len(payload) - 4} follow")
    tree = _tree(payload[4 : 4 + length])
    members = _by_name(tree, fields, required=len(fields) - len(optional))
    return {field: _member(members, field, field in optional) for field in fields}, payload[4 + length :]


def _tree(metadata: bytes) -> Any:
    try:
        return decode_tree(metadata.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise P4CodecError(f"the metadata is not UTF-8: {error.reason} at byte {error.start}") from error
    except FrameError as error:
        raise P4CodecError(f"the metadata is refused: {error}") from error


def _by_name(tree: Any, fields: tuple[str, ...], *, required: int) -> dict[str, Any]:
    """The members of an object, or of an array in field order, which a p4 agent reads as well."""
    if isinstance(tree, list):
        if not required <= len(tree) <= len(fields):
            raise P4CodecError(f"the metadata is an array of {len(tree)}; {required}..{len(fields)} members are read")
        return dict(zip(fields, tree, strict=False))
    if not isinstance(tree, dict):
        raise P4CodecError(f"the metadata is {type(tree).__name__}, not an object")
    for name in tree:
        if name not in fields:
            raise P4CodecError(f"the metadata has the unknown member {name!r}; known: {', '.join(fields)}")
    return tree


def _member(members: dict[str, Any], field: str, is_optional: bool) -> Any:
    value = members.get(field)
    if value is None and is_optional:
        return None
    if field not in members:
        raise P4CodecError(f"the metadata lacks {field}")
    return _checked(field, value)


def _checked(field: str, value: Any) -> Any:
    """``value`` when it has the type and range of this field."""
    if field in _WORDS:
        if value not in _WORDS[field]:
            raise P4CodecError(f"{field} is {value!r}; it is {', '.join(_WORDS[field])}")
        return value
    if field in ("schema", "node_generation", *_CAPACITIES):
        most = U16_MAX if field == "schema" else U64_MAX
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise P4CodecError(f"{field} is {value!r}, not an integer of 0..{most}")
        return value
    utf8(value, field, MAX_METADATA_BYTES)
    return value


def _check_named(members: dict[str, Any]) -> None:
    if members["schema"] != LIFECYCLE_SCHEMA:
        raise P4CodecError(f"the metadata has schema {members['schema']}; this codec speaks {LIFECYCLE_SCHEMA}")
    for field in _NAMED[1:]:
        if not members[field]:
            raise P4CodecError(f"{field} is {members[field]!r}; node, generation, adapter and content type are named")


def _check_errors(status: str, first_error: str | None, cleanup_error: str | None) -> None:
    if status == "succeeded":
        if first_error is not None or cleanup_error is not None:
            raise P4CodecError(f"the result succeeded and carries the error {(first_error or cleanup_error)!r}")
    elif not first_error:
        raise P4CodecError(f"the result is {status} and has no first_error that says why")


def _without_schema(members: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in members.items() if field != "schema"}
