"""The line at the bottom that takes a filter or a ``:`` command. Keys typed here never reach an action."""

from __future__ import annotations

from textual.events import Key
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Input

from console.actions import command_names

KEPT_COMMANDS = 50


class PromptLine(Input):
    """One line: ``/`` for a filter, ``:`` for a command, with the commands of this session on the up key."""

    class Done(Message):
        """The line was closed. ``text`` is None when it was given up."""

        def __init__(self, kind: str, text: str | None, return_to: Widget) -> None:
            super().__init__()
            self.kind = kind
            self.text = text
            self.return_to = return_to

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, compact=True, select_on_focus=False)
        self.cursor_blink = False
        self.kind = "command"
        self.return_to: Widget = self
        self._said: list[str] = []
        self._at = 0

    def open(self, kind: str, text: str, return_to: Widget) -> None:
        """Ask for a filter or a command; the keys go back to ``return_to``."""
        self.kind, self.return_to = kind, return_to
        self._at = len(self._said)
        self.suggester = SuggestFromList(command_names()) if kind == "command" else None
        self.placeholder = (
            "words that a line must hold; !word leaves out" if kind == "filter" else "a command; esc gives up"
        )
        self.display = True
        self.value = text
        self.cursor_position = len(text)
        self.screen.set_focus(self)  # at once: the next key must not reach an action

    def on_key(self, event: Key) -> None:
        """Esc and a backspace too many give up; up and down go through what was said."""
        if event.key == "escape" or (event.key == "backspace" and not self.value):
            event.stop()
            event.prevent_default()
            self._close(None)
        elif self.kind == "command" and event.key in ("up", "down") and self._said:
            event.stop()
            event.prevent_default()
            self._at = max(0, min(len(self._said), self._at + (-1 if event.key == "up" else 1)))
            self.value = self._said[self._at] if self._at < len(self._said) else ""
            self.cursor_position = len(self.value)
        elif event.key in ("tab", "shift+tab"):
            event.stop()
            event.prevent_default()
            if self.kind == "command":
                self.action_cursor_right()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take what was typed."""
        event.stop()
        if self.kind == "command" and self.value:
            self._said = [*self._said, self.value][-KEPT_COMMANDS:]
        self._close(self.value)

    def _close(self, text: str | None) -> None:
        self.display = False
        self.post_message(self.Done(self.kind, text, self.return_to))
        self.value = ""
