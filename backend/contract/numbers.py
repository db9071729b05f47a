"""What fields may hold where ``msgspec.Meta`` cannot express it, each checked in one place."""

from __future__ import annotations

U64_MAX = 2**64 - 1


class BadValue(ValueError):
    """A value that its field may not hold; the message names the field, the value and what is expected."""


def check_u64(name: str, value: int, *, least: int = 0) -> int:
    """Return ``value`` when it is an unsigned 64-bit integer of at least ``least``.

    Raises BadValue naming the field, the value and the range. ``bool`` is no integer here.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValue(f"{name} is {value!r}, not an integer of {least}..2^64-1")
    if not least <= value <= U64_MAX:
        # Python refuses to print integers of thousands of digits, and with that would hide the field's name.
        words = value if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
        raise BadValue(f"{name} is {words}, outside {least}..2^64-1")
    return value


def check_port(name: str, value: int) -> int:
    """Return ``value`` when it is a TCP port (1..65535); raises BadValue otherwise."""
    if check_u64(name, value) > 65_535 or value == 0:
        raise BadValue(f"{name} is {value}, outside 1..65535")
    return value


def check_seconds(name: str, value: float, *, most: float) -> float:
    """Return ``value`` when it is a time above 0 and of at most ``most`` seconds; raises BadValue otherwise."""
    if not 0 < value <= most:
        raise BadValue(f"{name} is {value:.10g}; expected more than 0 and at most {most:.10g} seconds")
    return value


def check_text(name: str, value: str, why: str = "") -> str:
    """Return ``value`` when it says something; raises BadValue with ``why`` it has to otherwise."""
    if not value:
        raise BadValue(f"{name} is empty{f': {why}' if why else ''}")
    return value
