"""The adoption of one foreign engine: which model and profile it is, what speaks against that, and the confirmation."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input

from backend.api import AdoptForeignRequest, Answer, FleetState, ForeignFound, PlanForeign, foreign_of
from console.actions import Danger
from console.render.cells import Line, Look, line, wrapped
from console.render.foreign import adoption_plan_lines, foreign_words
from console.screens.dialog import CANCEL, CLOSE, Dialog
from console.screens.load import ChooseModel
from console.widgets.fields import Choice, Field
from console.widgets.lines import LineView


class ChooseProfile(ChooseModel):
    """Which model in which shape a foreign engine is; enter plans its adoption as the one under the cursor."""

    def __init__(self, foreign: ForeignFound) -> None:
        super().__init__()
        self._foreign = foreign

    def title_words(self) -> str:
        """What is asked."""
        return f"adopt {self._foreign.id}: as which model, in which shape?"

    def chosen(self, target: str) -> None:
        """Plan the adoption."""
        self.app.switch_screen(AdoptDialog(self._foreign, target))


class AdoptDialog(Dialog):
    """Adopt one process, which is fixed when the dialog opens: pid, start time, port, model, bytes held."""

    danger: Danger = "write"
    is_tall = True

    def __init__(self, foreign: ForeignFound, target: str) -> None:
        super().__init__()
        self._foreign = foreign
        self._target = target
        self._answer: Answer | None = None
        self._words = ""
        self._is_sent = False

    def title_words(self) -> str:
        """Whom, and as what."""
        return f"ADOPT {self._foreign.id} as {self._target}"

    def body(self) -> ComposeResult:
        """Who it is, what it becomes, what speaks against that, and the reason to write down."""
        yield LineView(self.painter, id="body", classes="fill")
        yield from self.labelled("tab: why", Field(id="why", hint="the reason, for the journal"))

    def opened(self) -> None:
        """Ask for the plan at once: planning changes nothing."""
        foreign = self._foreign
        self.ask(PlanForeign(host=foreign.host, pid=foreign.pid, target=self._target), self._planned)

    def _planned(self, answer: Answer) -> None:
        self._answer = answer
        if answer.plan is None:
            self._words = answer.words or "No plan came back, and no reason either."
        elif foreign_of(answer).start_ticks != self._foreign.start_ticks:
            self._words = f"pid {self._foreign.pid} is another process by now: nothing is adopted. Look again."
        self._rewrite()

    @property
    def _may_adopt(self) -> bool:
        plan = self._answer.plan if self._answer is not None else None
        return plan is not None and not plan.is_refused and not self._words and not self._is_sent

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The plan does not move."""
        out: list[Line] = wrapped(foreign_words(self._foreign, look), self.text_width, 1, "value")
        if self._words:
            out += [line(""), *wrapped(self._words, self.text_width, 1, "alarm" if not self._is_sent else "plain")]
        elif self._answer is None:
            out += wrapped("Planning: its agent is asked what it knows of it.", self.text_width, 1)
        elif self._answer.plan is not None:
            process, plan = foreign_of(self._answer), self._answer.plan
            out = adoption_plan_lines(process, plan, self._foreign.host, look, self.text_width)
        self.show_lines("#body", out)
        if self._is_sent:
            self.choices.set_choices((CLOSE,))
        else:
            self.choices.set_choices((CANCEL, Choice("adopt", "y", "Adopt", enabled=self._may_adopt)))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The reason is written: back to the choices."""
        event.stop()
        self.set_focus(self.choices)

    def taken(self, choice: Choice) -> None:
        """Adopt exactly what was read; its agent looks at the process once more first."""
        answer = self._answer
        if not self._may_adopt or answer is None or answer.plan is None:
            return
        request = AdoptForeignRequest(
            host=self._foreign.host,
            process=foreign_of(answer),
            plan=answer.plan,
            confirmed=answer.plan.digest,
            why=self.query_one("#why", Field).value.strip(),
        )
        self._is_sent = self.console.submit(request, self._adopted) is not None
        self._words = "Sent: its agent looks at it once more, and records it." if self._is_sent else ""
        self._rewrite()

    def _adopted(self, answer: Answer) -> None:
        self._words = answer.words
        self._is_sent = answer.exit_code == 0
        self._rewrite()
