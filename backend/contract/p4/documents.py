"""The JSON form of p4's bytes, for people and scripts: ``ringtop p4 decode`` prints it, ``encode`` reads it.

It is the form of the interoperability vectors: ``{"event": …, "payload_hex": …}``, ``{"frame": …}``, and
``{"kind": "load", "metadata": …, "opaque_hex": …}``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec

from backend.contract.frames import FrameError, decode_frame
from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import MAX_ENVELOPE_BYTES, P4Event, decode_event, encode_event
from backend.contract.p4.framing import MAX_BODY_BYTES
from backend.contract.p4.hops import Data, HopFrame, decode_hop, encode_hop
from backend.contract.p4.lifecycle import (
    LIFECYCLE_SCHEMA,
    Lifecycle,
    NodeLoad,
    NodeResult,
    NodeUnload,
    decode_load,
    decode_result,
    decode_unload,
    encode_lifecycle,
)

DocumentKind = Literal["event", "hop", "load", "unload", "result"]
MAX_DOCUMENT_CHARS = 2 * MAX_BODY_BYTES + 4 * MAX_ENVELOPE_BYTES
"""Longest text of a document: the hex of the longest body, and all that is said around it."""
DOCUMENT_KINDS: tuple[DocumentKind, ...] = get_args(DocumentKind)

_LIFECYCLES: dict[str, tuple[type[Lifecycle], Callable[[bytes], Lifecycle]]] = {
    "load": (NodeLoad, decode_load),
    "unload": (NodeUnload, decode_unload),
    "result": (NodeResult, decode_result),
}


def read_document(kind: DocumentKind, data: bytes) -> dict[str, Any]:
    """The JSON tree of a body or payload; raises P4CodecError."""
    if kind == "event":
        event = decode_event(data)
        fields = msgspec.to_builtins(msgspec.structs.replace(event, payload=b""))
        del fields["payload"], fields["return_route"]["kind"]
        return {"event": fields, "payload_hex": event.payload.hex()}
    if kind == "hop":
        return {"frame": _frame_tree(decode_hop(data))}
    value = _LIFECYCLES[kind][1](data)
    members = {name: getattr(value, name) for name in type(value).__struct_fields__ if name != "body"}
    metadata = {name: member for name, member in members.items() if member is not None}
    return {"kind": kind, "metadata": {"schema": LIFECYCLE_SCHEMA, **metadata}, "opaque_hex": value.body.hex()}


def parse_document(text: str) -> dict[str, Any]:
    """The tree of a document's JSON text, read by the rules of every frame; raises P4CodecError."""
    try:
        return decode_frame(text, MAX_DOCUMENT_CHARS)
    except FrameError as error:
        raise P4CodecError(str(error)) from error


def write_document(kind: DocumentKind, document: dict[str, Any]) -> bytes:
    """The bytes of such a tree; raises P4CodecError for a tree of another shape and for what p4 would refuse."""
    if kind == "event":
        _only(document, "event", "payload_hex")
        fields = dict(_member(document, "event"))
        fields["return_route"] = {"kind": "outer", **_member(fields, "return_route")}
        event = _convert(fields, P4Event, "event")
        if "payload" in fields:
            raise P4CodecError("event.payload: the payload is written in hex, as payload_hex beside the event")
        return encode_event(msgspec.structs.replace(event, payload=_hex(document, "payload_hex")))
    if kind == "hop":
        _only(document, "frame")
        return encode_hop(_frame(dict(_member(document, "frame"))))
    _only(document, "kind", "metadata", "opaque_hex")
    if document.get("kind", kind) != kind:
        raise P4CodecError(f"the document is of kind {document['kind']!r}, and {kind} was asked for")
    return encode_lifecycle(_lifecycle(kind, dict(_member(document, "metadata")), _hex(document, "opaque_hex")))


def _lifecycle(kind: str, metadata: dict[str, Any], body: bytes) -> Lifecycle:
    schema = metadata.pop("schema", LIFECYCLE_SCHEMA)
    if schema != LIFECYCLE_SCHEMA:
        raise P4CodecError(f"metadata.schema is {schema!r}; this codec speaks {LIFECYCLE_SCHEMA}")
    if "body" in metadata:
        raise P4CodecError("metadata.body: the adapter's bytes are written as opaque_hex beside the metadata")
    value: Lifecycle = _convert(metadata, _LIFECYCLES[kind][0], "metadata")
    return msgspec.structs.replace(value, body=body)


def _frame_tree(frame: HopFrame) -> dict[str, Any]:
    tree: dict[str, Any] = {"kind": type(frame).__struct_config__.tag}
    if isinstance(frame, Data):
        return {**tree, "attempt": frame.attempt, "digest": frame.digest.hex(), "event_hex": frame.event.hex()}
    for field in type(frame).__struct_fields__:
        value = getattr(frame, field)
        tree[field] = value.hex() if isinstance(value, bytes) else msgspec.to_builtins(value)
    return tree


def _frame(fields: dict[str, Any]) -> HopFrame:
    digest = _hex(fields, "digest") if "digest" in fields else None
    if fields.get("kind") != "data":
        frame: HopFrame = _convert(fields if digest is None else {**fields, "digest": digest}, HopFrame, "frame")
        return frame
    fields["event"] = _hex(fields, "event_hex")
    del fields["event_hex"]
    fields.pop("digest", None)
    data: Data = _convert(fields, Data, "frame")
    if digest is not None and digest != data.digest:
        raise P4CodecError(f"frame.digest is {digest.hex()}, and the event's sha256 is {data.digest.hex()}")
    return data


def _convert(tree: Any, to: Any, what: str) -> Any:
    try:
        return msgspec.convert(tree, to, strict=True, builtin_types=(bytes,))
    except (msgspec.ValidationError, ValueError) as error:
        raise P4CodecError(f"{what}: {error}") from error


def _member(tree: dict[str, Any], name: str) -> dict[str, Any]:
    value = tree.get(name)
    if not isinstance(value, dict):
        raise P4CodecError(f"{name} is {'missing' if name not in tree else type(value).__name__}, not an object")
    return value


def _only(tree: dict[str, Any], *known: str) -> None:
    for name in tree:
        if name not in known:
            raise P4CodecError(f"the document has the unknown member {name!r}; known: {', '.join(known)}")


def _hex(tree: dict[str, Any], name: str) -> bytes:
    value = tree.get(name)
    if not isinstance(value, str):
        raise P4CodecError(f"{name} is {'missing' if name not in tree else type(value).__name__}, not text in hex")
    try:
        return bytes.fromhex(value)
    except ValueError as error:
        raise P4CodecError(f"{name} is not hex: {error}") from error
