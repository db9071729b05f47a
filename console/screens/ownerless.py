"""Resume, roll back or settle an operation whose process is gone: what that does, and what came of it."""

from __future__ import annotations

from textual.app import ComposeResult

from backend.api import Answer, FleetState, OpId, Request, ResumeOperation, RollBackOperation, SettleOperation
from console.actions import Danger
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.operations import find_operation, roll_back_words
from console.screens.dialog import CANCEL, CLOSE, Dialog
from console.widgets.fields import Choice
from console.widgets.lines import LineView

_TITLES = {"resume": "resume", "roll-back": "roll back", "settle": "settle"}
_RESUMES = "It goes on from its last step, in a new process. Commands that were sent already are not done twice."
_SETTLES = (
    "It is closed by what the fleet says of its ranks. Nothing is sent and nothing stops. Refused while a rank still "
    "moves or a host of it does not answer."
)


class OwnerlessDialog(Dialog):
    """One of the three, for one operation; both are fixed when the dialog opens."""

    danger: Danger = "write"

    def __init__(self, action: str, op_id: str) -> None:
        super().__init__((CANCEL, self._choice(action)))
        self._action = action
        self._op_id = op_id
        self._answer: Answer | None = None
        self._waits = False

    @staticmethod
    def _choice(action: str) -> Choice:
        style = "danger" if action == "roll-back" else "choice"
        return Choice(action, "y", _TITLES[action].capitalize(), style=style)

    def title_words(self) -> str:
        """What is done to which operation."""
        return f"{_TITLES[self._action]} {self._op_id}"

    def body(self) -> ComposeResult:
        """What will happen; then what happened."""
        yield LineView(self.painter, id="effect", classes="lines")

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The numbers may move while a person thinks; an operation that somebody else took is no longer ours."""
        view = find_operation(state, self._op_id) if state is not None else None
        is_ours = view is not None and view.state == "ownerless" and self._answer is None and not self._waits
        self.choices.set_choices((CANCEL, self.offered(self._choice(self._action))) if is_ours else (CLOSE,))
        self.show_lines("#effect", self._lines(state))

    def offered(self, choice: Choice) -> Choice:
        """The choice as it can be taken now."""
        return choice

    def _lines(self, state: FleetState | None) -> list[Line]:
        if self._waits:
            return [line(" Asked.")]
        if self._answer is not None:
            return self._answer_lines(self._answer)
        view = find_operation(state, self._op_id) if state is not None else None
        if state is None or view is None or view.state != "ownerless":
            word = "no longer there" if view is None else view.state
            return [line(cell(f" It is {word}: nothing is left to do here.", "state.warn"))]
        words = roll_back_words(view, state) if self._action == "roll-back" else ""
        words = words or (_RESUMES if self._action == "resume" else _SETTLES)
        return wrapped(words, self.text_width, 1, "alarm" if self._action == "roll-back" else "plain")

    def _answer_lines(self, answer: Answer) -> list[Line]:
        if answer.exit_code != 0:
            return wrapped(answer.words or "It was refused without a word.", self.text_width, 1, "alarm")
        if self._action != "settle":
            return [line(" It has a process again. The page below follows it.")]
        out = [each for text in answer.value.get("lines", []) for each in wrapped(str(text), self.text_width, 1)]
        return [*out, *wrapped(f"Settled: {answer.words}", self.text_width, 1, "value")]

    def taken(self, choice: Choice) -> None:
        """Ask for it."""
        if self._waits or self._answer is not None:
            return
        if self.ask(self.request(), self._answered) is not None:
            self._waits = True
            self._rewrite()

    def request(self) -> Request:
        """What is asked of the backend."""
        op_id = OpId(self._op_id)
        requests: dict[str, Request] = {
            "resume": ResumeOperation(operation=op_id),
            "roll-back": RollBackOperation(operation=op_id),
            "settle": SettleOperation(operation=op_id),
        }
        return requests[self._action]

    def _answered(self, answer: Answer) -> None:
        self._answer, self._waits = answer, False
        self._rewrite()
