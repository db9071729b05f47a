"""Lengths of time in words, the same everywhere: on the screen, in journals, in refusals."""

from __future__ import annotations

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def duration(seconds: float) -> str:
    """A length of time as a person says it: ``0.3 ms``, ``0.4 s``, ``41 s``, ``6 min 10 s``, ``2 h``, ``3 d 4 h``.

    At most two units, the smaller one left out where it is 0. What is not 0 never reads as 0.
    """
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 9.95:
        return _short(seconds)
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return _two(whole // _MINUTE, "min", f"{whole % _MINUTE:02d} s")
    if whole < _DAY:
        return _two(whole // _HOUR, "h", f"{whole % _HOUR // _MINUTE:02d} min")
    return _two(whole // _DAY, "d", f"{whole % _DAY // _HOUR} h")


def _short(seconds: float) -> str:
    """Under ten seconds: one decimal, and milliseconds where that would hide the value."""
    if seconds >= 0.0995 or seconds == 0:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    milliseconds = seconds * 1000
    if milliseconds < 0.05:
        return "under 0.1 ms"
    return f"{milliseconds:.1f} ms".replace(".0 ", " ") if milliseconds < 9.95 else f"{milliseconds:.0f} ms"


def _two(count: int, unit: str, rest: str) -> str:
    return f"{count} {unit}" if not int(rest.split()[0]) else f"{count} {unit} {rest}"
