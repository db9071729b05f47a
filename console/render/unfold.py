"""What a table had to cut of its last column, whole, for the lines that its panel has free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from console.render.cells import Fit, Line, Row, broken, cell, line
from console.safe_text import width_of

_LOUDNESS = {"alarm": 0, "state.alarm": 0, "state.warn": 1}
_CURSOR = 2
_INDENT = 3
MOST_LINES = 40
"""No panel shows more, so no more is written, however much is wrong."""


class Unfolded(NamedTuple):
    """Words that were cut, whole. The first ``loud`` lines are of what is wrong, the others of the cursor's row."""

    lines: tuple[Line, ...] = ()
    loud: int = 0


def unfolded(rows: Sequence[Row], fit: Fit, cursor: str | None, width: int) -> Unfolded:
    """The cut words of what is wrong, the worst first, then of the row under the cursor; each behind its row's key."""
    found = []
    for index, row in enumerate(rows):
        words = row.cells[-1]
        loudness = _LOUDNESS.get(words.style, _CURSOR)
        if (loudness < _CURSOR or row.key == cursor) and width_of(words.text) > fit.widths[-1]:
            found.append((loudness, row.key != cursor, index, row))
    lines: list[Line] = []
    loud = 0
    for loudness, _, _, row in sorted(found, key=lambda one: one[:3]):
        lines += _whole(row, width)
        loud = len(lines) if loudness < _CURSOR else loud
        if len(lines) >= MOST_LINES:
            break
    return Unfolded(tuple(lines), loud)


def _whole(row: Row, width: int) -> list[Line]:
    words, key = row.cells[-1], cell(f" {row.key}", "name")
    texts = broken(words.text, max(16, width - 1 - _INDENT), first=max(0, width_of(key.text) + 2 - _INDENT))
    first = line(key, "  ", cell(texts[0], words.style))
    return [first, *(line(" " * _INDENT, cell(text, words.style)) for text in texts[1:])]
