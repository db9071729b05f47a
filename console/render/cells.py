"""What every screen and every one-shot table is made of: cells of safe text, in columns or in lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Literal, NamedTuple

from console.render.glyphs import UNICODE, Glyphs
from console.safe_text import SafeText, cut, safe_text, width_of

Align = Literal["left", "right"]
_LEAST_WIDTH = 16
"""A text gets as many cells however deep its indent is."""


class Cell(NamedTuple):
    """A piece of text, the name of its style and where it stands in its column. Made by ``cell``."""

    text: SafeText
    style: str = "plain"
    align: Align = "left"


Line = tuple[Cell, ...]
"""Cells that are drawn one after another, without columns."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. ``drop`` 0 always stays; of the others the highest number goes first when width is short.

    A ``flex`` column takes what is left, but never less than ``least`` cells.
    """

    title: str
    align: Align = "left"
    drop: int = 0
    flex: bool = False
    least: int = 1


class Row(NamedTuple):
    """The cells of one entity, under the key of that entity."""

    key: str
    cells: Line


@dataclass(frozen=True, slots=True)
class Table:
    """Columns, rows, and what to say when there are none."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """How things are to be shown: glyphs, time zone (None: this machine's), and what time it is.

    ``now`` is in the monotonic seconds in which the fleet state stamps what it heard, ``now_ms`` wall-clock
    milliseconds. ``wide`` spells whole generations.
    """

    glyphs: Glyphs = UNICODE
    zone: tzinfo | None = None
    now: float = 0.0
    now_ms: int = 0
    wide: bool = False


def cell(text: object, style: str = "plain", align: Align = "left") -> Cell:
    """A cell of this text, whatever it holds: it is made safe here, once."""
    return Cell(safe_text(text if isinstance(text, str) else str(text)), style, align)


def right(text: object, style: str = "plain") -> Cell:
    """A right-aligned cell, as numbers are."""
    return cell(text, style, "right")


def line(*pieces: Cell | str) -> Line:
    """Cells one after another; plain strings become plain cells."""
    return tuple(piece if isinstance(piece, Cell) else cell(piece) for piece in pieces)


def wrapped(text: str, width: int, indent: int, style: str = "plain") -> list[Line]:
    """A long text over as many lines as it takes, each behind the same indent."""
    rows = broken(text, max(_LEAST_WIDTH, width - indent - 1))
    return [line(cell(" " * indent), cell(row, style)) for row in rows]


def broken(text: str, width: int, *, first: int = 0, most: int = 0, ellipsis: str = "…") -> list[str]:
    """A text as lines of at most ``width`` terminal cells, broken at blanks, a longer word anywhere.

    ``first`` cells of the first line are taken already. Of more than ``most`` lines, unless that is 0, the last one
    ends with the ellipsis.
    """
    safe = safe_text(text)
    width, room = max(1, width), max(0, width - first)
    if width_of(safe) <= room:
        return [safe]
    rows: list[str] = []
    row = ""
    for chunk in re.findall(r"\s*\S+", safe):
        if width_of(row) + width_of(chunk) <= room:
            row += chunk
            continue
        if row or room < width:
            rows.append(row)
            row, room = "", width
        row = chunk.lstrip() if rows else chunk
        while width_of(row) > room:
            head = cut(row, room, "") or row[0]
            rows.append(head)
            row = row[len(head) :]
    rows.append(row)
    if most and len(rows) > most:
        rows = [*rows[: most - 1], cut(f"{rows[most - 1]} {rows[most]}", width, ellipsis)]
    return rows


def folded(lines: Iterable[Line], width: int, indent: int) -> list[Line]:
    """Lines that are longer than ``width`` cells go on behind an indent, broken at blanks, each word in its style."""
    out: list[Line] = []
    for each in lines:
        if sum(width_of(piece.text) for piece in each) <= width:
            out.append(each)
            continue
        row: list[Cell] = []
        used = 0
        for piece in each:
            for word in _words(piece.text):
                taken = width_of(word)
                if row and used + width_of(word.rstrip()) > width and word.strip():
                    out.append(tuple(row))
                    row, used = [cell(" " * indent)], indent
                row.append(cell(word, piece.style))
                used += taken
        out.append(tuple(row))
    return out


def _words(text: str) -> list[str]:
    """A text cut behind each run of blanks."""
    return re.findall(r"\S+\s*|\s+", text)


def line_text(cells: Iterable[Cell]) -> str:
    """The words of a line without any style."""
    return "".join(piece.text for piece in cells)


def pad(piece: Cell, width: int, ellipsis: str = "…") -> str:
    """The text of a cell in exactly ``width`` terminal cells."""
    text = cut(piece.text, width, ellipsis)
    blank = " " * (width - width_of(text))
    return blank + text if piece.align == "right" else text + blank


def natural_widths(table: Table) -> tuple[int, ...]:
    """The width that every column would like, headings included."""
    widths = [width_of(column.title) for column in table.columns]
    for row in table.rows:
        for index, piece in enumerate(row.cells):
            widths[index] = max(widths[index], width_of(piece.text))
    return tuple(widths)


@dataclass(frozen=True, slots=True)
class Fit:
    """The width of every column, 0 for one that was dropped to make room, and the blanks between two."""

    widths: tuple[int, ...]
    gap: int

    @property
    def total(self) -> int:
        """What the columns take together."""
        return sum(self.widths) + self.gap * max(0, sum(1 for width in self.widths if width) - 1)


def fit_columns(columns: Sequence[Column], natural: Sequence[int], width: int) -> Fit:
    """Columns within ``width`` cells. Blanks between them are given up before a column is."""
    loose, tight = (_fit(columns, natural, width, gap) for gap in (2, 1))
    is_enough = loose.total <= width and loose.widths.count(0) == tight.widths.count(0)
    return loose if is_enough else tight


def _fit(columns: Sequence[Column], natural: Sequence[int], width: int, gap: int) -> Fit:
    wanted = [min(n, column.least) if column.flex else n for column, n in zip(columns, natural, strict=True)]
    wanted = [max(w, column.least) for column, w in zip(columns, wanted, strict=True)]
    shown = [True] * len(columns)

    def total() -> int:
        return sum(w for w, keep in zip(wanted, shown, strict=True) if keep) + gap * (sum(shown) - 1)

    for index in sorted(range(len(columns)), key=lambda i: -columns[i].drop):
        if total() <= width or columns[index].drop == 0:
            break
        shown[index] = False
    spare = max(0, width - total())
    for index, column in enumerate(columns):
        if column.flex and shown[index]:
            more = min(spare, max(0, natural[index] - wanted[index]))
            wanted[index] += more
            spare -= more
    return Fit(tuple(w if keep else 0 for w, keep in zip(wanted, shown, strict=True)), gap)


def text_lines(table: Table, width: int, *, glyphs: Glyphs = UNICODE) -> list[str]:
    """The table as plain lines for one-shot output: headings, then rows. Trailing blanks are left out."""
    fit = fit_columns(table.columns, natural_widths(table), width)
    heads = tuple(cell(column.title, "head", column.align) for column in table.columns)
    out = []
    for cells in (heads, *(row.cells for row in table.rows)):
        parts = [pad(piece, w, glyphs.ellipsis) for piece, w in zip(cells, fit.widths, strict=True) if w]
        out.append((" " * fit.gap).join(parts).rstrip())
    if not table.rows and table.empty:
        out.append(table.empty)
    return out
