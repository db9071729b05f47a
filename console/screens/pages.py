"""Screens that only show: help, ring, drift, host, shard, operations. Each is a pure function of the fleet state."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult

from backend.api import Answer, FleetState, LogRequest, ResumeOperation
from console.render.cells import Line, Look, line
from console.render.details import log_lines, shard_page
from console.render.operations import operation_lines, operation_table
from console.screens.dialog import Dialog
from console.widgets.fields import Choice
from console.widgets.grid import Grid
from console.widgets.lines import LineView

CLOSE = Choice("cancel", "escape", "Close")
Writer = Callable[[FleetState, Look, int], list[Line]]


class Page(Dialog):
    """Lines written anew from every state; j, k and space scroll."""

    is_tall = True

    def __init__(self, title: str, writer: Writer, choices: tuple[Choice, ...] = (CLOSE,)) -> None:
        super().__init__(choices)
        self._title = title
        self._writer = writer

    def title_words(self) -> str:
        """What the page shows."""
        return self._title

    def body(self) -> ComposeResult:
        """One view that takes the room there is."""
        yield LineView(self.painter, id="body", classes="fill")

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """Write the lines again; only those that differ are drawn."""
        if state is None:
            self.show_lines("#body", [line(" The backend has not reported yet.")])
            return
        self.show_lines("#body", self._writer(state, look, self.text_width))


class ShardPage(Page):
    """One shard, and on demand what its engine printed last."""

    def __init__(self, node_id: str) -> None:
        super().__init__(f"shard {node_id}", self._write, (CLOSE, Choice("log", "l", "read its log")))
        self._node_id = node_id
        self._log: list[str] = []

    def _write(self, state: FleetState, look: Look, width: int) -> list[Line]:
        out = shard_page(state, self._node_id, look, width)
        for text in self._log:
            out += log_lines(text, width)
        return out

    def taken(self, choice: Choice) -> None:
        """Ask the agent for the end of the log."""
        self._log = ["\n", "The log was asked for."]
        self.console.submit(LogRequest(node_id=self._node_id), self._answered)
        self._rewrite()

    def _answered(self, answer: Answer) -> None:
        if not self.stands:
            return
        text = str(answer.value.get("text", "")) if answer.exit_code == 0 else ""
        self._log = ["\n", text or answer.words or "The log is empty."]
        self._rewrite()


class OperationPage(Page):
    """One operation, followed while it runs."""

    def __init__(self, op_id: str, title: str = "") -> None:
        super().__init__(title or f"operation {op_id}", self._write)
        self._op_id = op_id

    def _write(self, state: FleetState, look: Look, width: int) -> list[Line]:
        view = next((each for each in state.operations.values() if each.id == self._op_id), None)
        is_ownerless = view is not None and view.state == "ownerless" and not state.read_only
        self.choices.set_choices((CLOSE, Choice("resume", "R", "resume it")) if is_ownerless else (CLOSE,))
        return operation_lines(state, self._op_id, look, width)

    def taken(self, choice: Choice) -> None:
        """Go on with an operation whose process is gone."""
        state = self.console.state
        view = (
            None
            if state is None
            else next((each for each in state.operations.values() if each.id == self._op_id), None)
        )
        if view is not None and view.state == "ownerless":
            self.console.submit(ResumeOperation(operation=view.id))


class OperationsScreen(Dialog):
    """All operations; enter follows one."""

    is_tall = True

    def __init__(self) -> None:
        super().__init__((CLOSE, Choice("show", "i", "show (enter)")))

    def title_words(self) -> str:
        """What the list holds."""
        return "operations"

    def body(self) -> ComposeResult:
        """A table of all operations."""
        grid = Grid(self.painter, id="operations")
        grid.add_class("fill")
        yield grid

    def opened(self) -> None:
        """The table has the keys."""
        self.set_focus(self.query_one(Grid))

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """Fill the table again."""
        if state is not None:
            self.query_one(Grid).set_table(operation_table(state, look))

    def taken(self, choice: Choice) -> None:
        """Show the operation under the cursor."""
        key = self.query_one(Grid).cursor_key
        if key is not None:
            self.app.push_screen(OperationPage(key))

    def other_key(self, key: str) -> None:
        """Move in the table, or show what is under the cursor."""
        grid = self.query_one(Grid)
        if key == "enter":
            self.taken(CLOSE)
        else:
            move_in_grid(grid, key)


def move_in_grid(grid: Grid, key: str) -> None:
    """Move the cursor by the keys that move everywhere."""
    if key in ("j", "down"):
        grid.move_cursor(1)
    elif key in ("k", "up"):
        grid.move_cursor(-1)
    elif key in ("pagedown", "space"):
        grid.move_page(1)
    elif key == "pageup":
        grid.move_page(-1)
    elif key in ("g", "home"):
        grid.move_to_end(first=True)
    elif key in ("G", "end"):
        grid.move_to_end(first=False)
