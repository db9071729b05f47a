"""Screens that only show: help, ring, host, shard, operations. Each is a pure function of the fleet state."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult

from backend.api import Answer, FleetState, LogRequest, Request
from console.render.cells import Line, Look, cell, line
from console.render.details import log_lines, shard_page
from console.render.operations import find_operation, head_lines, operation_lines, operation_table, step_lines
from console.screens.dialog import CLOSE, Dialog
from console.screens.ownerless import OwnerlessDialog
from console.screens.resume_recovery import ResumeRecovery
from console.widgets.fields import Choice
from console.widgets.grid import Grid
from console.widgets.lines import LineView

TAKEN_BACK = ("load", "drain", "reload")
_RESUME, _ROLL_BACK, _SETTLE = (
    Choice("resume", "R", "resume"),
    Choice("roll-back", "B", "roll back"),
    Choice("settle", "S", "settle"),
)
OFFERED = {True: (_RESUME, _ROLL_BACK, _SETTLE), False: (_RESUME, _SETTLE)}
"""What is offered for an operation without an owner; what was stopped by an unload cannot be brought back."""
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
        self._log = ""

    def _write(self, state: FleetState, look: Look, width: int) -> list[Line]:
        out = shard_page(state, self._node_id, look, width)
        if self._log:
            out += [line(""), line(cell(" what it printed last", "head")), *log_lines(self._log, width)]
        return out

    def taken(self, choice: Choice) -> None:
        """Ask the agent for the end of the log."""
        if self.ask(LogRequest(node_id=self._node_id), self._answered) is not None:
            self._show_log("The log was asked for.")

    def _answered(self, answer: Answer) -> None:
        if self.stands:
            text = str(answer.value.get("text", "")) if answer.exit_code == 0 else ""
            self._show_log(text or answer.words or "The log is empty.")

    def _show_log(self, text: str) -> None:
        """Below everything else; its end is what is read first, so it comes into sight."""
        self._log = text
        self._rewrite()
        self.other_key("end")


class OperationPage(Page):
    """One operation: how it stands above, its steps below, the last one in sight unless somebody scrolls back."""

    def __init__(self, op_id: str, title: str = "") -> None:
        super().__init__(title or f"operation {op_id}", self._write)
        self._op_id = op_id
        self._is_following = True

    def body(self) -> ComposeResult:
        """How it stands, then its steps."""
        yield LineView(self.painter, id="head", classes="lines")
        yield LineView(self.painter, id="body", classes="fill")

    def _write(self, state: FleetState, look: Look, width: int) -> list[Line]:
        view = find_operation(state, self._op_id)
        if view is None:
            self.show_lines("#head", operation_lines(state, self._op_id, look, width))
            return []
        is_ours = view.state == "ownerless" and not state.read_only
        self.choices.set_choices((CLOSE, *OFFERED[view.kind in TAKEN_BACK]) if is_ours else (CLOSE,))
        self.show_lines("#head", [*head_lines(view, look, width, offer="Any operator may act on it."), line("")])
        return step_lines(view, look, width, whole=view.state not in ("running", "ownerless"))

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """Write it again, and go on showing the last step when that was in sight."""
        super().refresh_state(state, look)
        if self._is_following:
            self.call_after_refresh(self._to_the_end)

    def _to_the_end(self) -> None:
        if self._is_following and self.is_attached:
            super().other_key("end")

    def other_key(self, key: str) -> None:
        """Scroll; back from the end it stands still, at the end it follows again."""
        super().other_key(key)
        self._is_following = self.query_one("#body", LineView).hidden_below == 0

    def taken(self, choice: Choice) -> None:
        """Resume, roll back or settle an operation whose process is gone; each asks once more."""
        state = self.console.state
        view = find_operation(state, self._op_id) if state is not None else None
        if view is not None and view.state == "ownerless":
            is_recovery = view.kind == "recovery" and choice.id == "resume"
            self.app.push_screen(ResumeRecovery(view.id) if is_recovery else OwnerlessDialog(choice.id, view.id))


def start(dialog: Dialog, request: Request, title: str) -> None:
    """Submit a request that becomes an operation, and follow that in the place of the dialog that confirmed it."""
    op_id = dialog.ask(request)
    if op_id is not None:
        dialog.app.switch_screen(OperationPage(op_id, title))


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
