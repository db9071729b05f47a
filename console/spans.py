"""Lengths of time as people type them."""

from __future__ import annotations

LONGEST_SECONDS = 30 * 86_400.0
SPAN_KEYS = r"[0-9:.smhdSMHD]*"
"""What a field for a length of time takes."""
SPAN_WORDS = "like 90s, 2m, 2:00, 1h or 3d, at most 30d"
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


def span_within(text: str) -> float | None:
    """Seconds of what ``parse_span`` reads, more than 0 and at most 30 days; None for anything else."""
    seconds = parse_span(text)
    return seconds if seconds is not None and 0 < seconds <= LONGEST_SECONDS else None
