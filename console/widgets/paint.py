"""The one place where cells become what the framework draws. Text is never parsed here: a cell is drawn as it is."""

from __future__ import annotations

from collections.abc import Iterable

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from console.render.cells import Cell
from console.render.glyphs import ASCII, UNICODE, Glyphs
from console.safe_text import SafeText, ascii_only, cut, width_of
from console.theming import Palette


class Painter:
    """Turns cells into strips in the styles of one theme, with or without Unicode."""

    def __init__(self, palette: Palette, *, is_ascii: bool = False) -> None:
        self.palette = palette
        self.is_ascii = is_ascii
        self._styles: dict[str, Style] = {}

    @property
    def glyphs(self) -> Glyphs:
        """The signs that this terminal can show."""
        return ASCII if self.is_ascii else UNICODE

    def style(self, name: str) -> Style:
        """The style of this name in the theme."""
        style = self._styles.get(name)
        if style is None:
            style = self._styles[name] = self.palette.style(name)
        return style

    def segment(self, text: str, style: str, base: Style, over: Style | None = None) -> Segment:
        """One segment: base, then its own style, then what lies over the whole line."""
        look = base + self.style(style)
        return Segment(ascii_only(text) if self.is_ascii else text, look if over is None else look + over)

    def strip(
        self, cells: Iterable[Cell], width: int, base: Style, *, fill: str = "", over: Style | None = None
    ) -> Strip:
        """Cells one after another in exactly ``width`` cells of terminal; what does not fit ends with an ellipsis."""
        segments = []
        room = width
        for piece in cells:
            if not isinstance(piece.text, SafeText):
                raise TypeError(f"text reached the screen unchecked: {piece.text!r}")
            text = cut(piece.text, room, self.glyphs.ellipsis)
            segments.append(self.segment(text, piece.style, base, over))
            room -= width_of(text)
            if room <= 0:
                break
        blank = base + self.style(fill) if fill else base
        return Strip(Segment.simplify(segments)).adjust_cell_length(width, blank if over is None else blank + over)
