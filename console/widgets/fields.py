"""What dialogs are filled in with: a row of choices, a toggle, and one-line inputs."""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style
from textual.events import Key, Paste
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from console.render.cells import Cell, cell, line_text
from console.safe_text import width_of
from console.widgets.paint import Painter


@dataclass(frozen=True, slots=True)
class Choice:
    """One way out of a dialog: its key, what it does, and whether it can be taken now."""

    id: str
    key: str
    label: str
    enabled: bool = True
    style: str = "choice"


class Choices(Widget, can_focus=True):
    """A row of choices, the harmless one first and in focus. Enter takes the one that is marked."""

    DEFAULT_CSS = "Choices { height: 1; width: 1fr; }"

    class Taken(Message):
        """A person took this choice."""

        def __init__(self, choice: Choice) -> None:
            super().__init__()
            self.choice = choice

    def __init__(self, painter: Painter, choices: tuple[Choice, ...]) -> None:
        super().__init__(markup=False)
        self._painter = painter
        self._choices = choices
        self._index = 0
        self._base: Style | None = None

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choices as they are offered now."""
        return self._choices

    def set_choices(self, choices: tuple[Choice, ...]) -> None:
        """Offer these. The mark goes back to the first unless the same choice is still there."""
        if choices == self._choices:
            return
        marked = self._choices[self._index].id if self._choices else ""
        self._choices = choices
        self._index = next((i for i, each in enumerate(choices) if each.id == marked and each.enabled), 0)
        self.refresh()

    def on_key(self, event: Key) -> None:
        """Arrows move the mark, enter takes what is marked."""
        if event.key in ("left", "right"):
            event.stop()
            step = 1 if event.key == "right" else -1
            usable = [index for index, each in enumerate(self._choices) if each.enabled]
            place = usable.index(self._index) if self._index in usable else 0
            self._index = usable[max(0, min(len(usable) - 1, place + step))]
            self.refresh()
        elif event.key == "enter":
            event.stop()
            self.post_message(self.Taken(self._choices[self._index]))

    def take_by_key(self, key: str) -> bool:
        """Take the choice with this key, if there is one that can be taken."""
        for choice in self._choices:
            if choice.enabled and choice.key == key:
                self.post_message(self.Taken(choice))
                return True
        return False

    def notify_style_update(self) -> None:
        """The style sheet says something else: colours are read again."""
        self._base = None
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        """Every choice with its key; the marked one in brackets, which is readable without colour.

        Blanks are given up before a choice is cut.
        """
        if self._base is None:
            self._base = self.rich_style
        cells = self._cells(" ")
        if width_of(line_text(cells).rstrip()) > self.size.width:
            cells = self._cells("")
        return self._painter.strip(cells, self.size.width, self._base)

    def _cells(self, pad: str) -> list[Cell]:
        cells = [cell(" ")]
        for index, choice in enumerate(self._choices):
            marked = index == self._index and self.has_focus
            words = f"{_key_words(choice.key)} {choice.label}".strip()
            style = "choice.off" if not choice.enabled else "choice.focus" if marked else choice.style
            cells += [cell(f"[{words}]" if marked else f"{pad}{words}{pad}", style), cell("  ")]
        return cells


def _key_words(key: str) -> str:
    return {"escape": "esc", "enter": ""}.get(key, key)


class Toggle(Widget, can_focus=True):
    """One of a few values; blank or an arrow goes to the next."""

    DEFAULT_CSS = "Toggle { height: 1; width: 1fr; }"

    class Changed(Message):
        """Another value is set."""

    def __init__(self, painter: Painter, options: tuple[tuple[str, str], ...], *, id: str | None = None) -> None:
        super().__init__(id=id, markup=False)
        self._painter = painter
        self._options = options
        self._index = 0

    @property
    def value(self) -> str:
        """The value that is set."""
        return self._options[self._index][0]

    def on_key(self, event: Key) -> None:
        """Go to the next value."""
        if event.key in ("space", "left", "right", "enter"):
            event.stop()
            self._index = (self._index + (-1 if event.key == "left" else 1)) % len(self._options)
            self.refresh()
            self.post_message(self.Changed())

    def render_line(self, y: int) -> Strip:
        """Every value, the one that is set in brackets."""
        cells: list[Cell] = []
        for index, (_, label) in enumerate(self._options):
            chosen = index == self._index
            style = ("choice.focus" if self.has_focus else "value") if chosen else "quiet"
            cells += [cell(f"[{label}]" if chosen else f" {label} ", style), cell(" ")]
        return self._painter.strip(cells, self.size.width, self.rich_style)


class Field(Input):
    """A one-line input that neither blinks nor draws a border."""

    DEFAULT_CSS = "Field { width: 1fr; }"

    def __init__(self, value: str = "", *, id: str | None = None, restrict: str | None = None, hint: str = "") -> None:
        super().__init__(value, placeholder=hint, id=id, restrict=restrict, compact=True, select_on_focus=False)
        self.cursor_blink = False


class TypedName(Field):
    """An input for a name that must be typed: what is pasted is not taken."""

    def _on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
