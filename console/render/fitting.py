"""How the rows of the main screen are shared out. Pure."""

from __future__ import annotations

FEWEST_ROWS, UPPER_SHARE = 4, 0.4
"""The replicas take the rows that they need: at least these, at most this share of the screen."""
FEWEST_JOURNAL_ROWS, LOWER_SHARE = 5, 3 / 7
"""The panel below takes this share of the rest, or what it needs as far as the journal keeps these rows."""


def upper_height(lines: int, screen: int) -> int:
    """The height of the replicas with their headings, for so many rows and words."""
    return 1 + min(max(lines, FEWEST_ROWS), max(FEWEST_ROWS, int(screen * UPPER_SHARE)))


def lower_height(lines: int, room: int) -> int:
    """The height of a panel above the journal with its rule and headings; 0 where its share is enough."""
    wanted = min(2 + lines, room - FEWEST_JOURNAL_ROWS - 1)
    return wanted if wanted > room * LOWER_SHARE else 0
