"""What all dialogs share: the context in the title, esc, choices by key, and deafness for a moment when dangerous."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input

from backend.api import Answer, FleetState, OpId, Request
from console.actions import Danger
from console.render.cells import Cell, Line, Look, cell, line
from console.render.values import plural
from console.widgets.fields import Choice, Choices
from console.widgets.grid import Grid
from console.widgets.lines import LineView
from console.widgets.paint import Painter

if TYPE_CHECKING:
    from console.app import ConsoleApp

DEAF_SECONDS = 0.3
"""A dangerous dialog takes no key for so long after it opened: it may have been meant for what was there before."""
CANCEL = Choice("cancel", "escape", "Cancel")
CLOSE = Choice("cancel", "escape", "Close")
_FRAME_ROWS = 5
"""Border, title, the line that says what is below, and the choices: they stand however long the body is."""
_SHARE = 0.96
"""How much of the screen's height a box takes at most, as in the style sheet."""
_TO_THE_END = 1_000_000


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

    def labelled(self, words: str, *fields: Widget, id: str | None = None) -> ComposeResult:
        """A row of the body: the words that say what it is, and its fields."""
        with Horizontal(classes="field", id=id):
            yield LineView(self.painter, classes="label", lines=[line(cell(f" {words}", "head"))])
            yield from fields

    def compose(self) -> ComposeResult:
        """Title, body, choices."""
        classes = (
            f"box danger-{self.danger} {'tall' if self.is_tall else ''} {'ascii' if self.painter.is_ascii else ''}"
        )
        with Vertical(classes=classes):
            yield LineView(self.painter, id="dialog-title")
            with VerticalScroll(id="inside", can_focus=False):
                yield from self.body()
            yield LineView(self.painter, id="more")
            yield Choices(self.painter, self._first_choices)

    @property
    def painter(self) -> Painter:
        """What draws cells in the theme of this console."""
        return self.console.painter

    @property
    def choices(self) -> Choices:
        """The row of choices."""
        return self.query_one(Choices)

    def on_mount(self) -> None:
        """Title first, then the state, with the harmless choice in focus."""
        if not self.query("#dialog-title"):
            return  # the application ends, and what it was about to show gets no parts any more
        self._is_up = True
        self._opened_at = time.monotonic()  # a key cannot be meant for what was not drawn yet
        self._keep_choices_in_sight()
        self.show_title()
        self.set_focus(self.choices)
        self.opened()
        self.refresh_state(self.console.state, self.console.look())

    def on_unmount(self) -> None:
        """Closed: the timer may still hold this dialog for one tick."""
        self._is_up = False

    def opened(self) -> None:
        """The widgets are there, Cancel has the keys. Subclasses ask for what they show here, or move the focus."""

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
        self.call_after_refresh(self.show_more)

    @property
    def _scroller(self) -> LineView | VerticalScroll:
        """What scrolls: the view that takes the room there is, else the whole body."""
        views = self.query("#body").results(LineView)
        return next(iter(views), None) or self.query_one("#inside", VerticalScroll)

    @property
    def hidden_below(self) -> int:
        """How many lines of the body stand below the last visible one."""
        scroller = self._scroller
        if isinstance(scroller, LineView):
            return scroller.hidden_below
        return max(0, round(scroller.max_scroll_y - scroller.scroll_y))

    def show_more(self) -> None:
        """Say how much is below, above the choices: what is confirmed should have been read."""
        if not self.stands:
            return
        hidden = self.hidden_below
        words = f" {plural(hidden, 'more line')} below: j or space" if hidden else ""
        self.query_one("#more", LineView).set_lines([line(cell(words, "key"))])
        self.console.dialog_keys_changed()

    def footer(self) -> Line:
        """The keys that work here and now, for the line at the bottom."""
        keys = []
        if self.query(Input):
            keys.append(("tab", "fields"))
        if self.stands and self.can_move:
            keys.append((self.moves, "move"))
        pieces = [piece for key, word in (*keys, ("esc", "closes")) for piece in _key_cells(key, word)]
        return line(cell(" "), *pieces)

    @property
    def can_move(self) -> bool:
        """There is something to move in, or to scroll."""
        scroller = self._scroller
        top = scroller.top if isinstance(scroller, LineView) else scroller.scroll_y
        return bool(self.query(Grid)) or top > 0 or self.hidden_below > 0

    def _keep_choices_in_sight(self) -> None:
        """A body that is longer than the screen scrolls; title and choices never leave it."""
        if not self.is_tall:
            rows = int(self.app.size.height * _SHARE) - _FRAME_ROWS
            self.query_one("#inside").styles.max_height = max(1, rows)

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The fleet has another state, or a second has passed."""

    def ask(self, request: Request, on_answer: Callable[[Answer], None] | None = None) -> OpId | None:
        """Submit a request. Where it is refused, which is said at the bottom, nothing is left to wait for here."""
        if not self.is_current:
            return None  # it was confirmed twice, and the first one is under way
        op_id = self.console.submit(request, on_answer)
        if op_id is None:
            self.call_later(self._close)
        return op_id

    def _close(self) -> None:
        self.dismiss()

    def taken(self, choice: Choice) -> None:
        """A choice other than cancel was taken."""

    def dismiss(self, result: None = None) -> AwaitComplete:
        """Close this dialog; one that is closed already stays so: the framework would close what is on top instead."""
        return super().dismiss(result) if self.is_current else AwaitComplete()

    def on_choices_taken(self, event: Choices.Taken) -> None:
        """Cancel closes; everything else is the subclass's. A second one that was on its way says nothing new."""
        event.stop()
        if not self.is_current:
            return
        if event.choice.id == CANCEL.id:
            self.dismiss()
        else:
            self.taken(event.choice)

    def on_key(self, event: Key) -> None:
        """Keys that no field took: choices by their key, tab between the fields, scrolling."""
        if isinstance(self.focused, Input) and event.key not in ("escape", "tab", "shift+tab"):
            return  # the keys of a field are bindings of the framework, which it looks up when a key has bubbled
        event.stop()
        if not self.is_current:
            return  # it was pressed twice, and the first one has closed this
        if event.key == "escape":
            self.dismiss()
        elif event.key == "tab":
            self.focus_next()
        elif event.key == "shift+tab":
            self.focus_previous()
        elif not self.choices.take_by_key(event.key):
            self.other_key(event.key)

    def on_descendant_focus(self) -> None:
        """A field that was below has scrolled into sight."""
        self.call_after_refresh(self.show_more)

    def on_resize(self) -> None:
        """Another size: the lines are written anew."""
        if self.stands:
            self._keep_choices_in_sight()
        self.call_after_refresh(self._rewrite)

    def _rewrite(self) -> None:
        if self.stands:
            self.refresh_state(self.console.state, self.console.look())

    def other_key(self, key: str) -> None:
        """A key that is no choice: it scrolls the body."""
        scroller = self._scroller
        page = max(1, scroller.size.height - 1)
        steps = {
            "j": 1,
            "down": 1,
            "k": -1,
            "up": -1,
            "pagedown": page,
            "space": page,
            "pageup": -page,
            "g": -_TO_THE_END,
            "home": -_TO_THE_END,
            "G": _TO_THE_END,
            "end": _TO_THE_END,
        }
        if key not in steps:
            return
        if isinstance(scroller, LineView):
            scroller.scroll_by(steps[key])
        else:
            scroller.scroll_to(y=scroller.scroll_y + steps[key], animate=False)
        self.call_after_refresh(self.show_more)


def _key_cells(key: str, word: str) -> tuple[Cell, Cell]:
    return cell(key, "key"), cell(f" {word}  ", "footer")
