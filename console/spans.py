"""Lengths of time as people type them."""

from __future__ import annotations

LONGEST_SECONDS = 30 * 86_400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_span(text: str) -> float | None:
    """Seconds of ``90``, ``90s``, ``2m``, ``2:00``, ``1h`` or ``3d``; None for what is no length of time."""
    text = text.strip()
    unit = _UNITS.get(text[-1:].lower())
    digits = text[:-1] if unit else text
    seconds = 0.0
    try:
        for part in digits.split(":") if unit is None else [digits]:
            seconds = seconds * 60 + float(part)
    except ValueError:
        return None
    return seconds * (unit or 1.0)
