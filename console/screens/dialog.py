"""What all dialogs share: the context in the title, esc, choices by key, and deafness for a moment when dangerous."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Input

from backend.api import FleetState
from console.actions import Danger
from console.render.cells import Line, Look, cell, line
from console.widgets.fields import Choice, Choices
from console.widgets.lines import LineView

if TYPE_CHECKING:
    from console.app import ConsoleApp

DEAF_SECONDS = 0.3
"""A dangerous dialog takes no key for so long after it opened: it may have been meant for what was there before."""
CANCEL = Choice("cancel", "escape", "Cancel")


class Dialog(ModalScreen[None], inherit_bindings=False):
    """A box over the main screen. Subclasses give ``title_words``, compose ``body`` and answer ``taken``."""

    danger: Danger = "read"
    is_tall = False
    moves = "j k"
    """The keys that scroll or move here, for the line at the bottom."""

    @property
    def console(self) -> ConsoleApp:
        """The application, by its own type."""
        return cast("ConsoleApp", self.app)

    def __init__(self, choices: tuple[Choice, ...] = (CANCEL,)) -> None:
        super().__init__()
        self._first_choices = choices
        self._opened_at = time.monotonic()
        self._is_up = False

    @property
    def stands(self) -> bool:
        """It is on the screen with its parts; when the application ends they go before it does."""
        return self._is_up and bool(self.query("#dialog-title"))

    @property
    def is_deaf(self) -> bool:
        """Keys are not for this dialog yet."""
        return self.danger != "read" and time.monotonic() - self._opened_at < DEAF_SECONDS

    def title_words(self) -> str:
        """What the dialog is about."""
        raise NotImplementedError

    def body(self) -> ComposeResult:
        """The widgets between the title and the choices."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """Title, body, choices."""
        classes = (
            f"box danger-{self.danger} {'tall' if self.is_tall else ''} {'ascii' if self.painter.is_ascii else ''}"
        )
        with Vertical(classes=classes):
            yield LineView(self.painter, id="dialog-title")
            yield from self.body()
            yield Choices(self.painter, self._first_choices)

    @property
    def painter(self) -> Any:
        """What draws cells in the theme of this console."""
        return self.console.painter

    @property
    def choices(self) -> Choices:
        """The row of choices."""
        return self.query_one(Choices)

    def on_mount(self) -> None:
        """Title first, then the state, with the harmless choice in focus."""
        self._is_up = True
        self._opened_at = time.monotonic()  # a key cannot be meant for what was not drawn yet
        self.show_title()
        self.set_focus(self.choices)
        self.opened()
        self.refresh_state(self.console.state, self.console.look())

    def on_unmount(self) -> None:
        """Closed: the timer may still hold this dialog for one tick."""
        self._is_up = False

    def opened(self) -> None:
        """The widgets are there, Cancel has the keys. Subclasses label their fields here, or move the focus."""

    def show_title(self) -> None:
        """The context stands in every dialog, so that nobody confirms on the wrong fleet."""
        style = "danger" if self.danger == "danger" else "title"
        context = self.console.context_words()
        title = line(cell(f" {context} ", "context"), cell(f" {self.title_words()} ", style))
        self.query_one("#dialog-title", LineView).set_lines([title])

    @property
    def text_width(self) -> int:
        """How many cells the body has in a line."""
        return max(20, self.query_one("#dialog-title", LineView).size.width or self.app.size.width - 6)

    def show_lines(self, selector: str, lines: list[Line]) -> None:
        """Put lines into one of the views of the body."""
        self.query_one(selector, LineView).set_lines(lines)

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The fleet has another state, or a second has passed."""

    def taken(self, choice: Choice) -> None:
        """A choice other than cancel was taken."""

    def on_choices_taken(self, event: Choices.Taken) -> None:
        """Cancel closes; everything else is the subclass's."""
        event.stop()
        if event.choice.id == CANCEL.id:
            self.dismiss()
        else:
            self.taken(event.choice)

    def on_key(self, event: Key) -> None:
        """Keys that no field took: choices by their key, tab between the fields, scrolling."""
        if isinstance(self.focused, Input) and event.key not in ("escape", "tab", "shift+tab"):
            return  # the keys of a field are bindings of the framework, which it looks up when a key has bubbled
        event.stop()
        if event.key == "escape":
            self.dismiss()
        elif event.key == "tab":
            self.focus_next()
        elif event.key == "shift+tab":
            self.focus_previous()
        elif not self.choices.take_by_key(event.key):
            self.other_key(event.key)

    def on_resize(self) -> None:
        """Another width: the lines are written anew."""
        self.call_after_refresh(self._rewrite)

    def _rewrite(self) -> None:
        if self.stands:
            self.refresh_state(self.console.state, self.console.look())

    def other_key(self, key: str) -> None:
        """A key that is no choice: it scrolls the body when there is one."""
        scroll(self, key)


def scroll(dialog: Dialog, key: str) -> None:
    """Scroll the view ``#body`` by the keys that scroll everywhere."""
    views = dialog.query("#body").results(LineView)
    view = next(iter(views), None)
    if view is None:
        return
    page = max(1, view.size.height - 1)
    steps = {
        "j": 1,
        "down": 1,
        "k": -1,
        "up": -1,
        "pagedown": page,
        "space": page,
        "pageup": -page,
        "g": -100_000,
        "home": -100_000,
        "G": 100_000,
        "end": 100_000,
    }
    if key in steps:
        view.scroll_by(steps[key])
