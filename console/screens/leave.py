"""Quit: says what goes on without the console. Nothing stops by leaving."""

from __future__ import annotations

from textual.app import ComposeResult

from backend.api import FleetState
from console.render.cells import Look
from console.render.operations import quit_lines
from console.screens.dialog import Dialog
from console.widgets.fields import Choice
from console.widgets.lines import LineView


class QuitDialog(Dialog):
    """Leave, or stay."""

    def __init__(self) -> None:
        super().__init__((Choice("cancel", "escape", "Stay"), Choice("quit", "q", "Quit")))

    def title_words(self) -> str:
        """What is asked."""
        return "leave the console?"

    def body(self) -> ComposeResult:
        """What goes on."""
        yield LineView(self.painter, id="goes-on", classes="lines")

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """Operations may end while a person thinks."""
        self.show_lines("#goes-on", quit_lines(state, self.text_width))

    def taken(self, choice: Choice) -> None:
        """Leave."""
        self.console.leave()
