"""Reload: the plan of loading a replica again, and its name to type. What is confirmed is the plan's digest."""

from __future__ import annotations

from typing import Literal

from textual.app import ComposeResult
from textual.widgets import Input

from backend.api import Answer, FleetState, PlanReload, ReplicaId, StartReload
from console.actions import Danger
from console.render.cells import Line, Look, wrapped
from console.render.plan import short
from console.render.reload import reload_lines
from console.screens.dialog import CANCEL, Dialog
from console.screens.pages import start
from console.widgets.fields import Choice, TypedName
from console.widgets.lines import LineView

DEADLINE_SECONDS = 120.0
AT_DEADLINE: Literal["give-up"] = "give-up"


class ReloadDialog(Dialog):
    """Reload one replica, which is fixed when the dialog opens; ``p`` plans by the other profile."""

    danger: Danger = "write"
    is_tall = True

    def __init__(self, replica: str, plan_of: Literal["last", "now"] = "last") -> None:
        super().__init__()
        self._replica = replica
        self._plan_of = plan_of
        self._answer: Answer | None = None

    def title_words(self) -> str:
        """Whom, and the plan's digest once there is one."""
        plan = self._answer.plan if self._answer is not None else None
        return f"reload {self._replica}" + (f"   plan {short(plan.digest)}" if plan is not None else "")

    def body(self) -> ComposeResult:
        """The plan as lines that scroll, and the name to type."""
        yield LineView(self.painter, id="body", classes="fill")
        yield from self.labelled("tab, type its name", TypedName(id="name"))

    def opened(self) -> None:
        """Ask for the plan at once: planning changes nothing."""
        self._ask()

    def _ask(self) -> None:
        self._answer = None
        request = PlanReload(replica=ReplicaId(self._replica), plan_of=self._plan_of)
        asked = self._plan_of
        self.ask(request, lambda answer: self._planned(answer, asked))

    def _planned(self, answer: Answer, asked: str) -> None:
        if not self.stands or asked != self._plan_of:
            return
        self._answer = answer
        self.show_title()
        self._rewrite()

    @property
    def _may_start(self) -> bool:
        plan = self._answer.plan if self._answer is not None else None
        return plan is not None and not plan.is_refused and self.query_one("#name", TypedName).value == self._replica

    def _choices_now(self) -> tuple[Choice, ...]:
        by = Choice("plan-of", "p", "by the catalog" if self._plan_of == "last" else "by its record")
        plan = self._answer.plan if self._answer is not None else None
        if plan is None:
            return (CANCEL, by)
        if plan.is_refused:
            return (CANCEL, Choice("reload", "", "Reload (refused)", enabled=False), by)
        label = "Reload (enter in the name)" if self._may_start else "Reload, once the name is typed"
        return (CANCEL, Choice("reload", "", label, enabled=self._may_start), by)

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The plan does not move; what the hosts have free does."""
        lines: list[Line] = wrapped("Planning: every host is asked what it has.", self.text_width, 1)
        if self._answer is not None:
            lines = reload_lines(
                self._answer, state, look, self.text_width, deadline=DEADLINE_SECONDS, at_deadline=AT_DEADLINE
            )
        self.choices.set_choices(self._choices_now())
        self.show_lines("#body", lines)

    def on_input_changed(self, event: Input.Changed) -> None:
        """The name may be complete."""
        self._rewrite()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter behind the whole name confirms; behind anything else it does nothing."""
        event.stop()
        self._start()

    def taken(self, choice: Choice) -> None:
        """Start exactly the plan that was read, or plan by the other profile."""
        if choice.id == "plan-of":
            self._plan_of = "now" if self._plan_of == "last" else "last"
            self._ask()
            self._rewrite()
        else:
            self._start()

    def _start(self) -> None:
        answer = self._answer
        if not self._may_start or answer is None or answer.plan is None:
            return
        request = StartReload(
            replica=ReplicaId(self._replica),
            load_generation=answer.value["load_generation"],
            plan=answer.plan,
            confirmed=answer.plan.digest,
            deadline_seconds=DEADLINE_SECONDS,
            at_deadline=AT_DEADLINE,
        )
        start(self, request, f"reload {self._replica}")
