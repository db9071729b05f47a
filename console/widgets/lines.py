"""Lines of cells that can be scrolled; with one line it is a bar. Repaints only the lines that changed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from console.render.cells import Line
from console.widgets.paint import Painter


class LineView(Widget):
    """A column of lines. Its height follows the lines where the style sheet says ``height: auto``."""

    DEFAULT_CSS = "LineView { height: 1; width: 1fr; }"

    def __init__(
        self,
        painter: Painter,
        *,
        id: str | None = None,
        classes: str | None = None,
        fill: str = "",
        lines: Sequence[Line] = (),
    ) -> None:
        super().__init__(id=id, classes=classes, markup=False)
        self._painter = painter
        self._fill = fill
        self._lines = tuple(lines)
        self._base: Style | None = None
        self.top = 0

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines as they were set."""
        return self._lines

    def set_lines(self, lines: Sequence[Line]) -> None:
        """Show these lines; the place stays, as far as there are lines."""
        old, self._lines = self._lines, tuple(lines)
        self.top = max(0, min(self.top, len(self._lines) - 1))
        if len(old) != len(self._lines) and self.styles.height is not None and self.styles.height.is_auto:
            self.refresh(layout=True)
            return
        if not self.size:  # not laid out yet, but its blank lines may be cached already
            self.refresh()
        for y in range(self.size.height):
            index = self.top + y
            if old[index : index + 1] != self._lines[index : index + 1]:
                self.refresh(Region(0, y, self.size.width, 1))

    def scroll_by(self, count: int) -> None:
        """Move by so many lines, within the lines that there are."""
        last = max(0, len(self._lines) - max(1, self.size.height))
        top = max(0, min(last, self.top + count))
        if top != self.top:
            self.top = top
            self.refresh()

    def keep_in_sight(self, top: int, bottom: int) -> None:
        """Scroll no further than it takes to see these lines, the first of them in any case."""
        height = max(1, self.size.height)
        if top < self.top:
            self.scroll_by(top - self.top)
        elif bottom > self.top + height:
            self.scroll_by(min(bottom - height, top) - self.top)

    @property
    def hidden_below(self) -> int:
        """How many lines stand below the last visible one."""
        return max(0, len(self._lines) - self.top - self.size.height)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as there are lines."""
        return max(1, len(self._lines))

    def notify_style_update(self) -> None:
        """The style sheet says something else: colours are read again."""
        self._base = None
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        """One row of the widget."""
        if self._base is None:
            self._base = self.rich_style
        index = self.top + y
        cells = self._lines[index] if index < len(self._lines) else ()
        return self._painter.strip(cells, self.size.width, self._base, fill=self._fill)
