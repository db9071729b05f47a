"""How fields lie in p4's bytes: little-endian integers, and text with its length in front."""

from __future__ import annotations

from backend.contract.numbers import check_u64
from backend.contract.p4.errors import P4CodecError

U16_MAX = 2**16 - 1
U32_MAX = 2**32 - 1


class FieldReader:
    """Reads the fields of one body in order. Nothing is taken that the body does not hold."""

    def __init__(self, data: bytes, what: str, *, longest_text: int) -> None:
        self._data = data
        self._at = 0
        self._what = what
        self._longest_text = longest_text

    def take(self, size: int, field: str) -> bytes:
        """The next ``size`` bytes; raises P4CodecError when the body ends before."""
        left = len(self._data) - self._at
        if size > left:
            raise P4CodecError(f"the {self._what} ends inside {field}: {size} bytes are due and {left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def unsigned(self, size: int, field: str) -> int:
        """A little-endian unsigned integer of ``size`` bytes."""
        return int.from_bytes(self.take(size, field), "little")

    def text(self, field: str) -> str:
        """A text: u32 length in bytes, then UTF-8. The limit is looked at before the bytes are."""
        length = self.unsigned(4, f"the length of {field}")
        if length > self._longest_text:
            raise P4CodecError(f"{field} says it has {length} bytes; a text here has at most {self._longest_text}")
        raw = self.take(length, field)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise P4CodecError(f"{field} is not UTF-8: {error.reason} at byte {error.start}") from error

    def flag(self, field: str) -> bool:
        """Whether an optional field follows: a byte 0 or 1."""
        value = self.unsigned(1, f"the flag of {field}")
        if value > 1:
            raise P4CodecError(f"the flag of {field} is {value}; it is 0 (absent) or 1 (present)")
        return value == 1

    def end(self) -> None:
        """Raise P4CodecError when bytes are left after the last field."""
        left = len(self._data) - self._at
        if left:
            raise P4CodecError(f"{left} bytes follow the last field of the {self._what}")


def unsigned(value: int, size: int, field: str) -> bytes:
    """``value`` in ``size`` little-endian bytes; raises P4CodecError when it does not fit."""
    try:
        check_u64(field, value)
    except ValueError as error:
        raise P4CodecError(str(error)) from error
    if value >= 1 << 8 * size:
        raise P4CodecError(f"{field} is {value}, above {(1 << 8 * size) - 1}")
    return value.to_bytes(size, "little")


def utf8(value: str, field: str, longest: int) -> bytes:
    """``value`` as UTF-8 of at most ``longest`` bytes; raises P4CodecError otherwise."""
    if not isinstance(value, str):
        raise P4CodecError(f"{field} is {type(value).__name__}, not text")
    try:
        raw = value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise P4CodecError(f"{field} holds a lone surrogate, which UTF-8 has no bytes for") from error
    if len(raw) > longest:
        raise P4CodecError(f"{field} has {len(raw)} bytes; a text here has at most {longest}")
    return raw


def text(value: str, field: str, longest: int) -> bytes:
    """``value`` with its length in front."""
    raw = utf8(value, field, longest)
    return len(raw).to_bytes(4, "little") + raw


def flagged(raw: bytes | None) -> bytes:
    """An optional field: 0, or 1 and its bytes."""
    return b"\x00" if raw is None else b"\x01" + raw
