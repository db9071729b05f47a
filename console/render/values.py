"""One formatter per kind of value: numbers, bytes, generations, durations, ages, times. None is always ``?``."""

from __future__ import annotations

from datetime import datetime

from backend.api import duration as length
from console.render.cells import Cell, Look, cell, right

OVERDUE_SECONDS = 15.0
"""A value that was observed longer ago than this says how old it is."""

_STEPS = (
    (15, "15 s"),
    (30, "30 s"),
    (60, "1 min"),
    (120, "2 min"),
    (300, "5 min"),
    (600, "10 min"),
    (1800, "30 min"),
    (3600, "1 h"),
    (7200, "2 h"),
    (21_600, "6 h"),
    (43_200, "12 h"),
    (86_400, "1 d"),
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_UNITS = ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K"))


def number(value: int | None) -> str:
    """A count with its thousands grouped by blanks."""
    return "?" if value is None else f"{value:,}".replace(",", " ")


def rate(value: float | None) -> str:
    """A rate with one decimal."""
    return "?" if value is None else f"{value:.1f}"


def size(value: int | None) -> str:
    """Bytes in the unit that leaves one decimal: ``9.8G``; below 1 KiB whole bytes: ``12B``."""
    if value is None:
        return "?"
    for unit, letter in _UNITS:
        if value >= unit:
            return f"{value / unit:.1f}{letter}"
    return f"{value}B"


def generation(value: int | None, look: Look) -> str:
    """A generation; its last four digits where width is short."""
    if value is None:
        return "?"
    text = str(value)
    return text if look.wide or len(text) <= 5 else f"{look.glyphs.ellipsis}{text[-4:]}"


def duration(seconds: float | None) -> str:
    """A length of time as a person says it: ``0.4 s``, ``41 s``, ``6 min 10 s``, ``3 h 05 min``."""
    return "?" if seconds is None else length(seconds)


def countdown(milliseconds: int | None) -> str:
    """Time left, counted down in seconds: ``1:42``, ``2:00:00``."""
    if milliseconds is None:
        return "?"
    whole = max(0, milliseconds) // 1000
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{whole % 3600 // 60:02d}:{whole % 60:02d}"


def clock(unix_ms: int | None, look: Look, *, seconds: bool = True) -> str:
    """A wall-clock time in the viewer's zone, behind its day unless that is today: ``12:04:31``, ``28 Nov 12:04``."""
    if not unix_ms:
        return "--:--:--" if seconds else "--:--"
    try:
        moment = datetime.fromtimestamp(unix_ms / 1000, tz=look.zone)
    except (OverflowError, ValueError, OSError):  # a host may say any number
        return "??:??:??" if seconds else "??:??"
    today = datetime.fromtimestamp(look.now_ms / 1000, tz=look.zone).date() if look.now_ms else moment.date()
    if moment.date() == today:
        day = ""
    else:
        day = f"{moment.day} {_MONTHS[moment.month - 1]} {'' if moment.year == today.year else f'{moment.year} '}"
    return day + moment.strftime("%H:%M:%S" if seconds else "%H:%M")


def ago(unix_ms: int | None, look: Look) -> str:
    """How long ago a wall-clock time was, in coarse steps, or ``now``."""
    if not unix_ms:
        return "?"
    seconds = (look.now_ms - unix_ms) / 1000
    return f"{coarse(seconds)} ago" if seconds >= OVERDUE_SECONDS else "just now"


def coarse(seconds: float) -> str:
    """A length of time rounded down to a step, so that a value on screen seldom changes."""
    if seconds >= 172_800:
        return f"{int(seconds // 86_400)} d"
    words = "under 15 s"
    for least, step in _STEPS:
        if seconds >= least:
            words = step
    return words


def is_overdue(observed_at: float, look: Look) -> bool:
    """Something was observed, and that was too long ago. 0 means never observed, which is unknown, not old."""
    return observed_at > 0 and look.now - observed_at > OVERDUE_SECONDS


def age_note(observed_at: float, look: Look) -> str:
    """``15 s old`` for an overdue value, else nothing."""
    return f"{coarse(look.now - observed_at)} old" if is_overdue(observed_at, look) else ""


def agreement(verdict: str, other: str, look: Look) -> Cell:
    """Equal is quiet, different is loud: ``=``, ``≠ value`` or ``?``."""
    if verdict == "equal":
        return cell("=", "quiet")
    if verdict == "differs":
        return cell(f"{look.glyphs.differs} {other}".rstrip(), "alarm")
    return cell("?", "unknown")


def counted(text: str, *, is_old: bool = False) -> Cell:
    """A right-aligned value: unknown and overdue ones are dimmed."""
    if text == "?":
        return right(text, "unknown")
    return right(text, "old" if is_old else "plain")


def plural(count: int, word: str, many: str = "") -> str:
    """``1 drift``, ``2 drifts``."""
    return f"{count} {word if count == 1 else many or word + 's'}"
