"""Resume the recovery of a p4 agent that stopped at a condition; with the approval that its journal is moved aside."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input

from backend.api import OpId, Request, ResumeOperation
from console.actions import Danger
from console.screens.ownerless import OwnerlessDialog
from console.widgets.fields import Choice, Field, Toggle

_APPROVALS = (("", "as it was approved"), ("move", "move it aside, delete nothing"))


class ResumeRecovery(OwnerlessDialog):
    """As any resume; whoever approves that the journal is moved aside says why."""

    danger: Danger = "danger"

    def __init__(self, op_id: str) -> None:
        super().__init__("resume", op_id)

    def body(self) -> ComposeResult:
        """What will happen, then the approval and its reason."""
        yield from super().body()
        yield from self.labelled("its journal", Toggle(self.painter, _APPROVALS, id="move"))
        yield from self.labelled("why", Field(id="why", hint="the reason, needed for an approval"))

    @property
    def _approves(self) -> bool:
        return self.query_one("#move", Toggle).value == "move"

    @property
    def _why(self) -> str:
        return self.query_one("#why", Field).value.strip()

    def offered(self, choice: Choice) -> Choice:
        """An approval without a reason is none."""
        if self._approves and not self._why:
            return Choice(choice.id, choice.key, "Resume, once why is said", enabled=False, style=choice.style)
        return choice

    def request(self) -> Request:
        """The resume, with the approval where there is one."""
        why = self._why if self._approves else ""
        return ResumeOperation(operation=OpId(self._op_id), move_journal=self._approves, why=why)

    def on_toggle_changed(self, event: Toggle.Changed) -> None:
        """The approval needs a reason, or needs none any more."""
        self._rewrite()

    def on_input_changed(self, event: Input.Changed) -> None:
        """The reason may be there."""
        self._rewrite()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The reason is written: on to the choices. It confirms nothing."""
        event.stop()
        self.focus_next()
