"""JSON in the payloads of p4's events."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.frames import MAX_EVENT_CHARS, FrameError, decode_frame
from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import P4Event


def json_payload(event: P4Event) -> dict[str, Any]:
    """The JSON object in a payload, by the rules of every frame; up to 16 MiB. Raises P4CodecError."""
    try:
        return decode_frame(event.payload.decode("utf-8"), MAX_EVENT_CHARS)
    except UnicodeDecodeError as error:
        raise P4CodecError(f"the payload of {event.payload_content_type} is not UTF-8: {error.reason}") from error
    except FrameError as error:
        raise P4CodecError(f"the payload of {event.payload_content_type}: {error}") from error


def write_json(tree: dict[str, Any]) -> bytes:
    """A JSON object as a payload."""
    return msgspec.json.encode(tree)
