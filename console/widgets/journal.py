"""The journal of all hosts: follows, or stands still on the line it was left at, however much arrives."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from rich.style import Style
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from backend.api import JournalLine
from console.render.cells import Look
from console.render.journal import NARROWEST, Widths, journal_cells, journal_text, matcher, widen
from console.widgets.paint import Painter

KEPT = 20_000
"""How many lines can be scrolled back; older ones are left to the agents' journals."""


class Journal(Widget, can_focus=True):
    """A view on the last lines. Its place is the index of the line on top, never a row number."""

    class Changed(Message):
        """Whether it follows, how much is new, or what is filtered has changed."""

        def can_replace(self, message: Message) -> bool:
            """Only the newest of several says anything."""
            return isinstance(message, Journal.Changed)

    def __init__(self, painter: Painter, *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._painter = painter
        self._lines: list[JournalLine] = []
        self._shown = self._lines
        self._anchor: int | None = None
        self._widths: Widths = NARROWEST
        self._base: Style | None = None
        self.look = Look()
        self.filter_text = ""
        self.new_count = 0

    @property
    def is_following(self) -> bool:
        """The last line is always the newest."""
        return self._anchor is None

    @property
    def last_index(self) -> int:
        """The index of the newest line held, 0 for none."""
        return self._lines[-1].index if self._lines else 0

    @property
    def shown(self) -> Sequence[JournalLine]:
        """The lines that the filter lets through."""
        return self._shown

    def visible_lines(self) -> Sequence[JournalLine]:
        """The lines that are on the screen now."""
        top = self._top()
        return self._shown[top : top + self.size.height]

    def extend(self, lines: Sequence[JournalLine]) -> None:
        """Take what arrived. Repaints only when some of it can be seen."""
        if not lines:
            return
        self._lines.extend(lines)
        test = matcher(self.filter_text)
        if test is None:
            fresh = lines
        else:
            fresh = [entry for entry in lines if test(journal_text(entry))]
            self._shown.extend(fresh)
        self._trim()
        if not fresh:
            return
        if self._anchor is not None:
            self.new_count += len(fresh)
            if self._top() + self.size.height > len(self._shown) - len(fresh):
                self.refresh()
            self.post_message(self.Changed())
            return
        self.refresh()

    def _trim(self) -> None:
        for lines in (self._lines,) if self._shown is self._lines else (self._lines, self._shown):
            if len(lines) > KEPT + KEPT // 4:
                del lines[: len(lines) - KEPT]

    def set_filter(self, text: str) -> None:
        """Show only lines that hold these words, from the newest back."""
        self.filter_text = text.strip()
        test = matcher(self.filter_text)
        self._shown = self._lines if test is None else [each for each in self._lines if test(journal_text(each))]
        self.follow()
        self.refresh()

    def _top(self) -> int:
        last = max(0, len(self._shown) - self.size.height)
        if self._anchor is None:
            return last
        return min(bisect_left(self._shown, self._anchor, key=lambda entry: entry.index), last)

    def follow(self) -> None:
        """Show the newest lines from now on."""
        self._anchor, self.new_count = None, 0
        self.refresh()
        self.post_message(self.Changed())

    def pause(self) -> None:
        """Stand still on what is shown now."""
        if self._anchor is None and self._shown:
            self._anchor, self.new_count = self._shown[self._top()].index, 0
            self.post_message(self.Changed())

    def toggle_follow(self) -> None:
        """Follow, or stand still."""
        if self.is_following:
            self.pause()
        else:
            self.follow()

    def move_cursor(self, count: int) -> None:
        """Move the place by so many lines; past the newest it follows again."""
        last = max(0, len(self._shown) - self.size.height)
        top = self._top() + count
        if top >= last:
            if not self.is_following:
                self.follow()
            return
        self.pause()
        self._anchor = self._shown[max(0, top)].index
        self.refresh()

    def move_page(self, pages: int) -> None:
        """Move by as many lines as are visible."""
        self.move_cursor(pages * max(1, self.size.height - 1))

    def move_to_end(self, *, first: bool) -> None:
        """Go to the oldest line held, or follow."""
        if first:
            self.move_cursor(-len(self._shown))
        else:
            self.follow()

    def notify_style_update(self) -> None:
        """The style sheet says something else: colours are read again."""
        self._base = None
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        """One record, or nothing."""
        if self._base is None:
            self._base = self.rich_style
        if y == 0:
            self._measure()
        index = self._top() + y
        cells = journal_cells(self._shown[index], self.look, self._widths) if index < len(self._shown) else ()
        return self._painter.strip(cells, self.size.width, self._base)

    def _measure(self) -> None:
        for entry in self.visible_lines():
            self._widths = widen(self._widths, entry)
