"""One decoder for every JSON text that comes from outside.

msgspec alone lets duplicate keys, NaN-like literals and integers beyond u64 through in places, so a frame is first
read into a plain tree under our own rules and then converted to its type. A frame that is to the byte what this
release would write itself needs no tree: nothing that is refused is ever written (``Mirror``).
"""

from __future__ import annotations

import json
import re
from typing import Any, Generic, TypeVar

import msgspec

from backend.contract.numbers import U64_MAX

T = TypeVar("T")

MAX_FRAME_CHARS = 1 << 20
"""Longest frame that an agent accepts: 1 MiB of text."""
MAX_EVENT_CHARS = 1 << 24
"""Longest frame that a console accepts: 16 MiB, for the report of an agent with many loads."""
MAX_DEPTH = 32
"""Deepest accepted nesting of objects and arrays."""
_MIN_I64 = -(2**63)


class FrameError(ValueError):
    """A frame that is refused; the message names the offending field or value.

    It is cut at 1000 characters: it may quote the frame, and travels back in one.
    """

    def __init__(self, words: str) -> None:
        super().__init__(words if len(words) <= 1000 else f"{words[:1000]}…")


def decode_frame(text: str, limit: int = MAX_FRAME_CHARS) -> dict[str, Any]:
    """Read one JSON object by the rules of ``decode_tree``; any other top level is refused too. Raises FrameError."""
    tree = decode_tree(text, limit)
    if not isinstance(tree, dict):
        raise FrameError(f"the frame is {type(tree).__name__}, not an object")
    return tree


def decode_tree(text: str, limit: int = MAX_FRAME_CHARS) -> Any:
    """Read one JSON value, refusing what must never be guessed at.

    Refused: anything but ``str``, text over ``limit`` characters, duplicate keys, nesting over 32, NaN and infinities,
    integers outside -2^63..2^64-1, ``-0`` and lone surrogates. Raises FrameError.
    """
    if not isinstance(text, str):
        raise FrameError(f"a frame is text, not {type(text).__name__}")
    if len(text) > limit:
        raise FrameError(f"the frame has {len(text)} characters, more than {limit}")
    _check_depth(text)
    try:
        tree = _DECODER.decode(text)
        text.encode()
        if "\\u" in text:
            json.dumps(tree, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise FrameError("the frame holds a lone surrogate") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise FrameError(f"the frame is not JSON: {error}") from error
    return tree


def convert(tree: object, to: type[T], what: str) -> T:
    """Turn a tree from ``decode_frame`` into a typed value; raises FrameError naming ``what`` and the field."""
    try:
        return msgspec.convert(tree, to, strict=True)
    except (msgspec.ValidationError, ValueError) as error:
        raise FrameError(f"{what}: {error}") from error


class Mirror(Generic[T]):
    """Reads a frame that this release would have written itself, to the byte: twenty times as fast as the rules.

    What such a frame holds cannot be refused: a written frame has no key twice, no NaN and no lone surrogate, and its
    depth and its longest number are looked at. Of any other frame nothing is said here: ``decode_frame`` decides.
    """

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind, strict=True)

    def read(self, text: str, limit: int = MAX_FRAME_CHARS) -> T | None:
        """The value, or None when the frame must be read by the rules."""
        if not isinstance(text, str) or len(text) > limit:
            return None
        try:
            data = text.encode()
            value = self._decoder.decode(data)
            is_own = _ENCODER.encode(value) == data
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            return None  # whatever is wrong with it, the rules find it again and name it
        # msgspec reads and writes integers of any size, so long ones are left to the rules
        return value if is_own and _is_shallow(data) and not _has_long_number(data) else None


def encode_frame(value: object) -> str:
    """One JSON text for the wire, field order as declared."""
    return msgspec.json.encode(value).decode()


def tree_of(value: object) -> Any:
    """The plain tree (dicts, lists, numbers, text) of a struct, as it would travel."""
    return msgspec.to_builtins(value)


def _is_shallow(data: bytes) -> bool:
    """Whether valid JSON nests at most 32 deep, without a look at each character in Python.

    Where no string holds a bracket, quotes come in pairs between brackets; one that does leaves a quote over, and then
    the strings are taken out first.
    """
    brackets = data.translate(_TO_SQUARE, _NOT_STRUCTURE).replace(b'""', b"")
    if b'"' in brackets or b"\\" in brackets:
        brackets = _STRING.sub(b"", data).translate(_TO_SQUARE, _NOT_STRUCTURE)
    for _ in range(MAX_DEPTH):
        if not brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return not brackets


def _has_long_number(data: bytes) -> bool:
    """Whether a number outside of the strings has as many digits as one that is out of range."""
    if _LONG_NUMBER not in data.translate(_TO_ZERO):
        return False
    return _LONG_NUMBER in _STRING.sub(b"", data).translate(_TO_ZERO)


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise FrameError(f"the frame nests deeper than {MAX_DEPTH}")
        elif char in "]}":
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise FrameError(f"the key {key!r} appears twice in one object")
            seen.add(key)
    return tree


def _integer(digits: str) -> int:
    if digits == "-0":
        raise FrameError("-0 is no integer: its sign would be lost")
    if len(digits) > 20:
        raise FrameError(f"the integer {digits[:24]}… is outside -2^63..2^64-1")
    value = int(digits)
    if not _MIN_I64 <= value <= U64_MAX:
        raise FrameError(f"the integer {digits} is outside -2^63..2^64-1")
    return value


def _float(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise FrameError(f"the number {digits[:24]} is not finite")
    return value


def _constant(name: str) -> float:
    raise FrameError(f"{name} is not a number here")


_ENCODER = msgspec.json.Encoder()
_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
"""Digits of the least number that may be out of range."""
_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"\\'))
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)
