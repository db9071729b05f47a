"""Unload: stops a replica now. Its name must be typed, and what it serves is said first."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input

from backend.api import FleetState, StartUnload
from console.actions import Danger
from console.render.cells import Look, cell, line, wrapped
from console.render.drain import before_lines, cuts_words
from console.render.words import ENDED
from console.screens.dialog import CANCEL, Dialog
from console.screens.drain import find_replica
from console.screens.pages import start
from console.widgets.fields import Choice, TypedName
from console.widgets.lines import LineView


class UnloadDialog(Dialog):
    """Stop one replica, which is fixed when the dialog opens."""

    danger: Danger = "danger"

    def __init__(self, replica: str) -> None:
        super().__init__((CANCEL, Choice("unload", "", "Unload", enabled=False)))
        self._replica = replica

    def title_words(self) -> str:
        """Whom it stops."""
        return f"UNLOAD {self._replica}"

    def body(self) -> ComposeResult:
        """The numbers, what would be cut, and the name to type."""
        yield LineView(self.painter, id="numbers", classes="lines")
        yield LineView(self.painter, id="effect", classes="lines")
        yield from self.labelled("tab, type its name", TypedName(id="name"))

    @property
    def _is_typed(self) -> bool:
        return self.query_one("#name", TypedName).value == self._replica

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The numbers move while a person types."""
        view = find_replica(state, self._replica)
        if view is None:
            self.show_lines("#numbers", [line(cell(f" {self._replica} is no longer there.", "alarm"))])
            words = "There is nothing to unload."
        elif view.state.value in ENDED:
            self.show_lines("#numbers", [line(f" {self._replica} is {view.state.value}.")])
            words = "No process is left. It is dismissed: its records leave the screen, the journals keep them."
        else:
            self.show_lines("#numbers", before_lines(view, look, self.text_width))
            words = f"Every rank stops now. This cuts {cuts_words(view)}. D drains instead."
        self.show_lines("#effect", wrapped(words, self.text_width, 1, "alarm"))
        enabled = view is not None and self._is_typed
        label = "Unload (enter in the name)" if enabled else "Unload, once the name is typed"
        self.choices.set_choices((CANCEL, Choice("unload", "", label, enabled=enabled, style="danger")))

    def on_input_changed(self, event: Input.Changed) -> None:
        """The name may be complete."""
        self._rewrite()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter behind the whole name confirms; behind anything else it does nothing."""
        event.stop()
        if self._is_typed:
            self._unload()

    def taken(self, choice: Choice) -> None:
        """The choice that the typed name made possible."""
        if self._is_typed:
            self._unload()

    def _unload(self) -> None:
        view = find_replica(self.console.state, self._replica)
        if view is None:
            return
        start(self, StartUnload(replica=view.id), f"unload {self._replica}")
