"""The envelope of ``ringtop.v1``: the p4 event contract's fields by the same names, around one body."""

from __future__ import annotations

import hashlib
from typing import Any, Literal, get_args

import msgspec

from backend.contract.commands import AnyCommand, Command
from backend.contract.endpoints import Agent, Endpoint
from backend.contract.events import AnyEvent, Event, UnknownEvent
from backend.contract.frames import MAX_EVENT_CHARS, FrameError, Mirror, convert, decode_frame, encode_frame
from backend.contract.numbers import check_u64

SUBPROTOCOL = "ringtop.v1"
MAJOR = 1
MINOR = 1
PROTOCOL_VERSION = f"{MAJOR}.{MINOR}"

Class = Literal["control", "data", "output", "telemetry"]


class Envelope(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}, forbid_unknown_fields=True):
    """One frame. ``sequence`` rises per source; ``deadline_unix_ms`` is an admission fence, not an interrupt."""

    protocol_version: str
    event_id: str
    correlation_id: str
    source: Endpoint
    target: Endpoint
    class_: Class
    sequence: int
    body: Any
    causation_id: str | None = None
    deadline_unix_ms: int | None = None
    adapter_kind: str | None = None

    def __post_init__(self) -> None:
        check_u64("sequence", self.sequence)
        if not self.event_id or not self.correlation_id:
            raise ValueError("event_id and correlation_id are not empty")
        if self.deadline_unix_ms is not None:
            check_u64("deadline_unix_ms", self.deadline_unix_ms, least=1)


class OpenEnvelope(msgspec.Struct, frozen=True, kw_only=True, rename={"class_": "class"}):
    """The same fields as an agent sends them: members, endpoints and classes that only a newer one knows pass."""

    protocol_version: str
    event_id: str
    correlation_id: str
    source: Any
    target: Any
    class_: str
    sequence: int
    body: Any
    causation_id: str | None = None
    deadline_unix_ms: int | None = None
    adapter_kind: str | None = None


class _CommandFrame(Envelope, frozen=True, kw_only=True):
    """A whole command frame in one type, for the mirror."""

    body: AnyCommand


class _EventFrame(OpenEnvelope, frozen=True, kw_only=True):
    """A whole event frame in one type, for the mirror."""

    body: AnyEvent


_OWN_COMMANDS: Mirror[_CommandFrame] = Mirror(_CommandFrame)
_OWN_EVENTS: Mirror[_EventFrame] = Mirror(_EventFrame)
_COMMANDS = {kind.__struct_config__.tag: kind for kind in get_args(AnyCommand)}
_EVENTS = {kind.__struct_config__.tag: kind for kind in get_args(AnyEvent)}


def encode(envelope: Envelope) -> str:
    """One text frame."""
    return encode_frame(envelope)


def command_envelope(command: Command, *, source: Endpoint, target: Agent, sequence: int) -> Envelope:
    """Wrap a command. The target's type says it: a command can only be addressed to an agent."""
    return Envelope(
        protocol_version=PROTOCOL_VERSION,
        event_id=f"{command.op_id}:{sequence}",
        correlation_id=command.op_id,
        source=source,
        target=target,
        class_="control",
        sequence=sequence,
        body=command,
        adapter_kind=getattr(command, "adapter_kind", None),
    )


def event_envelope(
    event: Event, *, source: Endpoint, target: Endpoint, sequence: int, correlation_id: str, causation_id: str | None
) -> Envelope:
    """Wrap something an agent says."""
    kind = type(event).__struct_config__.tag
    telemetry = kind in ("measured", "heartbeat")
    return Envelope(
        protocol_version=PROTOCOL_VERSION,
        event_id=f"{correlation_id}:{sequence}",
        correlation_id=correlation_id,
        causation_id=causation_id,
        source=source,
        target=target,
        class_="telemetry" if telemetry else "output",
        sequence=sequence,
        body=event,
    )


def decode_command(text: str) -> tuple[Envelope, AnyCommand]:
    """Read a command frame, closed: raises FrameError naming an unknown type, field or value.

    A target that is not an Agent is refused here with code ``target.not_agent`` in the words, so that a command sent
    to the node it creates can never be forwarded or dropped.
    """
    own = _OWN_COMMANDS.read(text)
    envelope: Envelope = own or convert(decode_frame(text), Envelope, "envelope")
    if envelope.protocol_version.partition(".")[0] != str(MAJOR):
        raise FrameError(f"protocol_version is {envelope.protocol_version}; this agent speaks {PROTOCOL_VERSION}")
    if not isinstance(envelope.target, Agent):
        raise FrameError(
            f"target.not_agent: the command is addressed to {envelope.target}. A node does not exist before its "
            "load and is never a command's target; address the agent of its host."
        )
    if own is not None:
        return own, own.body
    body = envelope.body
    if not isinstance(body, dict):
        raise FrameError("body is no object")
    kind = body.get("type")
    known = _COMMANDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise FrameError(f"the command type {kind!r} is unknown; known: {', '.join(sorted(map(str, _COMMANDS)))}")
    return envelope, convert(body, known, f"command {kind}")


def decode_event(text: str) -> tuple[OpenEnvelope, AnyEvent | UnknownEvent]:
    """Read an agent's frame, open: an unknown type comes back as UnknownEvent. Raises FrameError for broken ones."""
    own = _OWN_EVENTS.read(text, MAX_EVENT_CHARS)
    if own is not None:
        return own, own.body
    envelope = convert(decode_frame(text, MAX_EVENT_CHARS), OpenEnvelope, "envelope")
    body = envelope.body
    if not isinstance(body, dict):
        raise FrameError("body is no object")
    kind = body.get("type")
    known = _EVENTS.get(kind) if isinstance(kind, str) else None
    if known is None:
        return envelope, UnknownEvent(type=str(kind), raw=body)
    return envelope, convert(body, known, f"event {kind}")


def command_type(command: Command) -> str:
    """The wire name of a command."""
    return str(type(command).__struct_config__.tag)


def payload_digest(command: Command) -> str:
    """sha256 of a command with its id: the same id with another payload is refused by the agent."""
    return hashlib.sha256(msgspec.json.encode(command, order="sorted")).hexdigest()
