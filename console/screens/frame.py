"""The lines around the panels of the main screen: header, banner, what is wrong with hosts, rules, and the bottom."""

from __future__ import annotations

from collections.abc import Iterable

from backend.api import FleetState
from console.actions import Selection
from console.render.bars import banner_words, footer_line, header_line, message_lines, rule_line
from console.render.cells import Line, Look, cell, line, line_text
from console.render.trouble import trouble_lines
from console.safe_text import cut, safe_text, width_of
from console.widgets.lines import LineView
from console.widgets.paint import Painter

_FILTER_CELLS = 30
"""What a filter takes of the line at the bottom; the keys take the rest."""


class Frame:
    """One bar a line, each drawn only when its words differ. The screen says where they stand."""

    def __init__(self, painter: Painter, panels: Iterable[str]) -> None:
        self.header = LineView(painter, id="header", fill="header")
        self.banner = LineView(painter, id="banner", fill="banner")
        self.trouble = LineView(painter, id="trouble", classes="lines")
        self.footer = LineView(painter, id="footer")
        self.rules = {name: LineView(painter, id=f"{name}-rule") for name in panels}
        self._message: tuple[str, str] | None = None

    def draw_top(self, state: FleetState | None, stamp: float, look: Look, width: int) -> None:
        """Which fleet this is, and what is wrong with the console itself."""
        self.header.set_lines([header_line(state, look, width)])
        words = banner_words(state, stamp, look)
        self.banner.display = bool(words)
        self.banner.set_lines([line(cell(f" {words}", "banner"))])

    def draw_trouble(self, state: FleetState, look: Look, width: int, *, is_said: bool) -> None:
        """What is wrong with hosts, unless their panel is there and says all of it."""
        lines = [] if is_said else trouble_lines(state, width, look.glyphs.ellipsis)
        self.trouble.display = bool(lines)
        self.trouble.set_lines(lines)

    def draw_rule(
        self, name: str, title: str, look: Look, width: int, *, note: str, focused: bool, note_style: str = "note"
    ) -> None:
        """The rule above one panel; ``width`` is that of the screen, for as long as the rule has none of its own."""
        wide = self.rules[name].size.width or width
        self.rules[name].set_lines([rule_line(title, look, wide, note=note, focused=focused, note_style=note_style)])

    def say(self, words: str, style: str) -> None:
        """One sentence in the place of the keys, until it is forgotten."""
        self._message = (words, style)

    def forget(self) -> bool:
        """The sentence makes room for the keys; whether there was one."""
        said, self._message = self._message is not None, None
        return said

    def draw_footer(
        self, state: FleetState | None, selection: Selection, look: Look, width: int, *, keys: Line | None, only: str
    ) -> None:
        """What was said last, else the ``keys`` of a dialog, else those that work now behind the filter in use."""
        if self._message is not None:
            words, style = self._message
            self.footer.set_lines(message_lines(words, style, look, width))
        elif keys is not None:
            self.footer.set_lines([keys])
        else:
            ellipsis = look.glyphs.ellipsis
            lead = line(cell(f" only {cut(safe_text(only), _FILTER_CELLS, ellipsis)} ", "state.warn")) if only else ()
            room = width - width_of(line_text(lead))
            self.footer.set_lines([(*lead, *footer_line(state, selection, room))])
