"""Ranges that ``msgspec.Meta`` cannot express, each checked in one place."""

from __future__ import annotations

U64_MAX = 2**64 - 1


def check_u64(name: str, value: int, *, least: int = 0) -> int:
    """Return ``value`` when it is an unsigned 64-bit integer of at least ``least``.

    Raises ValueError naming the field, the value and the range. ``bool`` is no integer here.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}, not an integer of {least}..2^64-1")
    if not least <= value <= U64_MAX:
        # Python refuses to print integers of thousands of digits, and with that would hide the field's name.
        words = value if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
        raise ValueError(f"{name} is {words}, outside {least}..2^64-1")
    return value


def check_port(name: str, value: int) -> int:
    """Return ``value`` when it is a TCP port (1..65535); raises ValueError otherwise."""
    if check_u64(name, value) > 65_535 or value == 0:
        raise ValueError(f"{name} is {value}, outside 1..65535")
    return value
