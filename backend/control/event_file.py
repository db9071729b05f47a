"""The event format: what the links heard of a fleet, one JSON object per line. Read and written here; pure.

``docs/events.md`` has it for people. A file begins with a head (optional when it is written by hand); each further line
has ``at`` (seconds since the beginning, never going back), ``unix_ms``, and one of: ``host`` with the raw event
``frame`` as the wire has it, ``host`` with a ``link`` event, ``slept``, or ``end``, the last line of a closed file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from backend.contract.envelopes import decode_event
from backend.contract.events import AnyEvent, UnknownEvent
from backend.contract.frames import FrameError
from backend.contract.numbers import BadValue, check_u64
from backend.contract.words import HostId, UnixMs

FORMAT = 1
LONGEST_SECONDS = 10 * 366 * 86_400
"""How far from its beginning a line may be: no recording lasts for ten years."""


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: where and when it was recorded, and how each host was reached."""

    format: int
    context: str = ""
    label: str = ""
    hosts: dict[HostId, str] = {}
    started_unix_ms: UnixMs = UnixMs(0)
    ringtop: str = ""


class EventLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Any other line. ``kind`` and ``level`` belong to the link event ``note``; ``end`` says why it was closed."""

    at: float
    unix_ms: UnixMs = UnixMs(0)
    host: HostId = HostId("")
    frame: msgspec.Raw = msgspec.Raw()
    link: Literal["", "down", "refused", "note"] = ""
    words: str = ""
    kind: str = ""
    level: str = "warn"
    slept: float = 0.0
    end: str = ""


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """One line that could be read: its number, itself, and what its frame says, if it has one."""

    number: int
    line: EventLine
    event: AnyEvent | UnknownEvent | None = None


class BadLine(msgspec.Struct, frozen=True):
    """A line that cannot be used, and why."""

    number: int
    words: str


def frame_line(at: float, unix_ms: UnixMs, host: HostId, frame: str) -> bytes:
    """One frame as it came, in a line of its own: a frame is one JSON object, whose line ends are only white space."""
    raw = msgspec.Raw(frame.replace("\n", " ").replace("\r", " ").encode())
    return write(EventLine(at=round(at, 6), unix_ms=unix_ms, host=host, frame=raw))


def write(line: Head | EventLine) -> bytes:
    """One line with its end."""
    return msgspec.json.encode(line) + b"\n"


def read(lines: Iterator[bytes]) -> Iterator[Head | Heard | BadLine]:
    """Every line in order, the empty ones left out; a bad one does not hide those behind it."""
    latest = 0.0
    for number, data in enumerate(lines, start=1):
        if not data.strip():
            continue
        head = _read_head(data) if number == 1 else None
        found = head if head is not None else _read_line(number, data, latest)
        if isinstance(found, Heard):
            latest = found.line.at
        yield found


def _read_head(data: bytes) -> Head | BadLine | None:
    """The head; None for a line that is none."""
    try:
        head = msgspec.json.decode(data, type=Head)
    except (msgspec.DecodeError, ValueError):
        return None
    if head.format != FORMAT:
        return BadLine(1, f"its format is {head.format}; this ringtop reads {FORMAT}")
    return _bad_time(1, "started_unix_ms", head.started_unix_ms) or head


def _read_line(number: int, data: bytes, latest: float) -> Heard | BadLine:
    try:
        line = msgspec.json.decode(data, type=EventLine)
    except (msgspec.DecodeError, ValueError) as error:
        return BadLine(number, f"is no event: {error}")
    frame = bytes(line.frame)
    has = [name for name in ("link", "slept", "end") if getattr(line, name)] + (["frame"] if frame else [])
    if len(has) != 1:
        return BadLine(number, f"has {' and '.join(has) or 'nothing'}; expected one of frame, link, slept, end")
    if has[0] in ("frame", "link") and not line.host:
        return BadLine(number, f"its {has[0]} has no host")
    if line.at < latest:
        return BadLine(number, f"at is {line.at:g}, and the line before was at {latest:g}: time does not go back")
    if line.at > LONGEST_SECONDS:
        return BadLine(number, f"at is {line.at:g}; expected at most {LONGEST_SECONDS} seconds")
    if bad := _bad_time(number, "unix_ms", line.unix_ms):
        return bad
    if not frame:
        return Heard(number=number, line=line)
    try:
        return Heard(number=number, line=line, event=decode_event(frame.decode())[1])
    except (FrameError, UnicodeDecodeError) as error:
        return BadLine(number, f"its frame cannot be read: {error}")


def _bad_time(number: int, name: str, unix_ms: int) -> BadLine | None:
    try:
        check_u64(name, unix_ms)
    except BadValue as error:
        return BadLine(number, str(error))
    return None
