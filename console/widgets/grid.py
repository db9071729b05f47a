"""A table whose cursor stands on an entity, never on a row number. Repaints only the cells that changed."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.events import Resize
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from console.render.cells import Fit, Line, Row, Table, cell, fit_columns, line_text, natural_widths, pad
from console.render.journal import matcher
from console.render.unfold import unfolded
from console.widgets.paint import Painter

ARRIVAL_SECONDS = 2.0
"""So long after the first row the others of a fleet arrive, and nobody can have chosen one: the cursor stays on top."""
KEPT_FOR_NOTES = 2
"""Lines that stay free of rows where something is wrong, so that its words stand whole even in a full panel."""


class Grid(Widget, can_focus=True):
    """Rows under the keys of their entities. When the entity under the cursor goes, its neighbour gets the cursor.

    In the first moments, until it is moved, the cursor stands on the first row: which was first is chance.
    One that ``unfolds`` shows on its free lines what it had to cut of the last column of rows that are wrong.
    """

    class Moved(Message):
        """The cursor stands on another entity."""

        def __init__(self, grid: Grid, key: str | None) -> None:
            super().__init__()
            self.grid = grid
            self.key = key

    def __init__(self, painter: Painter, *, id: str | None = None, unfolds: bool = False) -> None:
        super().__init__(id=id, markup=False)
        self._painter = painter
        self._unfolds = unfolds
        self._notes: tuple[Line, ...] = ()
        self._loud_lines = 0
        self._table = Table((), ())
        self._rows: tuple[Row, ...] = ()
        self._natural: tuple[int, ...] = ()
        self._measured: dict[str, Row] = {}
        self._fit = Fit((), 1)
        self._fit_width = 0
        self._top = 0
        self._base: Style | None = None
        self._began_at: float | None = None
        self._is_chosen = False
        self.cursor_key: str | None = None
        self.filter_text = ""

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows that the filter lets through."""
        return self._rows

    @property
    def hidden_rows(self) -> int:
        """How many rows do not fit on the screen; none before it has its place there."""
        return 0 if not self.size else max(0, len(self._rows) - self._room)

    @property
    def notes_height(self) -> int:
        """How many lines it takes to show whole what was cut of rows that are wrong."""
        return self._loud_lines

    def has_unfolded(self, key: str) -> bool:
        """The last column of this row was cut, and stands whole below the rows."""
        return self.is_whole and any(line_text(note[:1]).strip() == key for note in self._notes)

    @property
    def is_whole(self) -> bool:
        """Every row is in sight, and every word of what is wrong."""
        return len(self._rows) + len(self._notes) < self.size.height

    @property
    def _room(self) -> int:
        return max(1, self.size.height - 1 - min(self._loud_lines, KEPT_FOR_NOTES))

    def set_table(self, table: Table) -> None:
        """Show these rows. The cursor stays on its entity, wherever that stands now."""
        before, before_top, before_cursor = self._rows, self._top, self.cursor_key
        if table.columns != self._table.columns:
            self._natural = ()
        is_other_shape = table.columns != self._table.columns or (not table.rows and table.empty != self._table.empty)
        self._table = table
        self._rows = self._filtered(table.rows)
        self._keep_cursor(before)
        is_other_shape = self._measure() or is_other_shape
        self._write_notes(len(before))
        if is_other_shape or self._top != before_top or (not before) != (not self._rows):
            self.refresh()
        else:
            self._refresh_changed(before, before_cursor)
        if self.cursor_key != before_cursor:
            self.post_message(self.Moved(self, self.cursor_key))

    def set_filter(self, text: str) -> None:
        """Show only rows that hold these words."""
        self.filter_text = text.strip()
        self.set_table(self._table)
        self.refresh()

    def _filtered(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        test = matcher(self.filter_text)
        return rows if test is None else tuple(row for row in rows if test(_row_text(row)))

    def _keep_cursor(self, before: Sequence[Row]) -> None:
        keys = [row.key for row in self._rows]
        if keys and self._is_arriving():
            self.cursor_key = keys[0]
        elif self.cursor_key not in keys:
            was = next((index for index, row in enumerate(before) if row.key == self.cursor_key), 0)
            self.cursor_key = keys[min(was, len(keys) - 1)] if keys else None
        self._show_cursor()

    def _is_arriving(self) -> bool:
        """The first rows came a moment ago, and nobody has moved the cursor since."""
        now = time.monotonic()
        if self._began_at is None:
            self._began_at = now
        return not self._is_chosen and now - self._began_at < ARRIVAL_SECONDS

    def _show_cursor(self) -> None:
        index = self._cursor_index()
        last_top = max(0, len(self._rows) - self._room)
        self._top = min(max(self._top, index - self._room + 1), max(0, index), last_top) if index >= 0 else 0

    def _cursor_index(self) -> int:
        return next((index for index, row in enumerate(self._rows) if row.key == self.cursor_key), -1)

    def _measure(self) -> bool:
        """Work out the columns again; widths only grow, so that values stay where they are. True when they moved."""
        if len(self._natural) != len(self._table.columns):
            self._natural, self._measured = natural_widths(Table(self._table.columns, ())), {}
        fresh = tuple(row for row in self._table.rows if self._measured.get(row.key) is not row)
        self._measured = {row.key: row for row in self._table.rows}
        natural = tuple(map(max, natural_widths(Table(self._table.columns, fresh)), self._natural))
        self._natural = natural
        fit = fit_columns(self._table.columns, natural, self.size.width - 1) if natural else Fit((), 1)
        moved, self._fit = fit != self._fit, fit
        self._fit_width = self.size.width
        return moved

    def _write_notes(self, rows_before: int) -> None:
        """What is cut, whole, below the rows; drawn anew where it or its place differs."""
        if not self._unfolds or not self._fit.widths:
            return
        notes, loud = unfolded(self._rows, self._fit, self.cursor_key, self.size.width)
        has_moved = bool(notes) and rows_before != len(self._rows)
        if loud != self._loud_lines:
            self._loud_lines = loud
            self._show_cursor()
            self.refresh()
        if notes != self._notes or has_moved:
            self._notes = notes
            top = 1 + min(rows_before, len(self._rows), self._room)
            self.refresh(Region(0, top, self.size.width, max(0, self.size.height - top)))

    def _note(self, y: int) -> Line:
        """A line below the rows; the last one in sight says when there is more."""
        index = y - 1 - min(len(self._rows), self._room)
        if not 0 <= index < len(self._notes):
            return ()
        is_cut = y == self.size.height - 1 and index + 1 < len(self._notes)
        note = self._notes[index]
        return (*note, cell(f" {self._painter.glyphs.ellipsis}", "note")) if is_cut else note

    def _refresh_changed(self, before: Sequence[Row], before_cursor: str | None) -> None:
        for y in range(self._room):
            index = self._top + y
            old = before[index] if index < len(before) else None
            new = self._rows[index] if index < len(self._rows) else None
            if old is None or new is None:
                if old is not new:
                    self.refresh(Region(0, y + 1, self.size.width, 1))
            elif (old.key == before_cursor) != (new.key == self.cursor_key):
                self.refresh(Region(0, y + 1, self.size.width, 1))
            elif old.cells is not new.cells:
                self._refresh_cells(y + 1, old, new)

    def _refresh_cells(self, y: int, old: Row, new: Row) -> None:
        x, first, end = 1, -1, 0
        for width, one, other in zip(self._fit.widths, old.cells, new.cells, strict=True):
            if width and one != other:
                first, end = (x if first < 0 else first), x + width
            x += width + self._fit.gap if width else 0
        if first >= 0:
            self.refresh(Region(first, y, end - first, 1))

    def move_cursor(self, count: int) -> None:
        """Move the cursor by so many rows, within the rows that there are."""
        index = self._cursor_index()
        if index >= 0:
            self._stand_on(max(0, min(len(self._rows) - 1, index + count)))

    def move_page(self, pages: int) -> None:
        """Move by as many rows as are visible."""
        self.move_cursor(pages * self._room)

    def move_to_end(self, *, first: bool) -> None:
        """Move to the first or to the last row."""
        self.move_cursor(-len(self._rows) if first else len(self._rows))

    def select(self, key: str) -> bool:
        """Put the cursor on this entity; False when it is not among the rows."""
        index = next((index for index, row in enumerate(self._rows) if row.key == key), None)
        if index is None:
            return False
        self._stand_on(index)
        return True

    def _stand_on(self, index: int) -> None:
        was, top = self._cursor_index(), self._top
        self._is_chosen = True
        if index == was:
            return
        self.cursor_key = self._rows[index].key
        self._show_cursor()
        self._write_notes(len(self._rows))
        if self._top != top:
            self.refresh()
        else:
            for each in (was, index):
                self.refresh(Region(0, each - top + 1, self.size.width, 1))
        self.post_message(self.Moved(self, self.cursor_key))

    def refresh_cursor(self) -> None:
        """The keys came or went: the line under the cursor looks different."""
        index = self._cursor_index()
        if index >= 0:
            self.refresh(Region(0, index - self._top + 1, self.size.width, 1))

    def on_resize(self, event: Resize) -> None:
        """Another height: the cursor must be in sight, and no more rows above it are left out than must be."""
        top = self._top
        self._show_cursor()
        if self._top != top:
            self.refresh()

    def notify_style_update(self) -> None:
        """The style sheet says something else: colours are read again."""
        self._base = None
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        """The headings, or one row."""
        if self._base is None:
            self._base = self.rich_style
        base, width = self._base, self.size.width
        if width != self._fit_width:  # another width: columns are worked out anew, from what is shown now
            self._natural = ()
            self._measure()
            self._write_notes(len(self._rows))
        if y == 0:
            heads = Row("", tuple(cell(each.title, "head", each.align) for each in self._table.columns))
            return Strip(self._segments(heads, " ", base, None)).adjust_cell_length(width, base)
        index = self._top + y - 1
        if index >= len(self._rows) or y > self._room:
            if y == 1:
                return self._painter.strip((cell(" "), cell(self._empty_words(), "note")), width, base)
            return self._painter.strip(self._note(y), width, base)
        row = self._rows[index]
        if row.key != self.cursor_key:
            return Strip(self._segments(row, " ", base, None)).adjust_cell_length(width, base)
        over = self._painter.style("cursor" if self.has_focus else "cursor.idle")
        sign = self._painter.glyphs.cursor
        return Strip(self._segments(row, sign, base, over)).adjust_cell_length(width, base + over)

    def _empty_words(self) -> str:
        return f"Nothing here matches {self.filter_text}; esc shows all." if self._table.rows else self._table.empty

    def _segments(self, row: Row, sign: str, base: Style, over: Style | None) -> list[Segment]:
        painter = self._painter
        segments = [painter.segment(sign, "key" if sign.strip() else "plain", base, over)]
        gap = ""
        for piece, width in zip(row.cells, self._fit.widths, strict=False):
            if width:
                segments.append(
                    painter.segment(gap + pad(piece, width, painter.glyphs.ellipsis), piece.style, base, over)
                )
                gap = " " * self._fit.gap
        return list(Segment.simplify(segments))


def _row_text(row: Row) -> str:
    return " ".join(line_text((piece,)) for piece in row.cells)
