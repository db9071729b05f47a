"""Drain a host: a cordon, then a drain of every replica with a rank there. Its ranks elsewhere are counted first."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input

from backend.api import Answer, CordonRequest, FleetState, HostId, HostView, ReplicaId, StartDrainRequest
from console.actions import Danger
from console.render.cells import Look, cell, line, wrapped
from console.render.cordon import cordon_lines, replicas_on, to_type
from console.render.drain import at_deadline_words
from console.render.values import plural
from console.screens.dialog import CANCEL, Dialog
from console.screens.drain import DEFAULT_DEADLINE
from console.screens.pages import OperationsScreen
from console.spans import SPAN_KEYS, SPAN_WORDS, span_within
from console.widgets.fields import Choice, Field, TypedName
from console.widgets.lines import LineView


class HostDrainDialog(Dialog):
    """One host, fixed when the dialog opens. What is drained are the replicas that were shown when it was confirmed."""

    danger: Danger = "danger"

    def __init__(self, host: str) -> None:
        super().__init__((CANCEL, Choice("drain", "", "Drain", enabled=False)))
        self._host = host
        self._shown: HostView | None = None
        self._replicas: tuple[ReplicaId, ...] = ()

    def title_words(self) -> str:
        """Which host."""
        return f"DRAIN HOST {self._host}"

    def body(self) -> ComposeResult:
        """The numbers, the deadline of each drain, and the name to type."""
        yield LineView(self.painter, id="numbers", classes="lines")
        yield from self.labelled("deadline", Field(DEFAULT_DEADLINE, id="deadline", restrict=SPAN_KEYS))
        yield from self.labelled("tab, type it", TypedName(id="name"))
        yield LineView(self.painter, id="effect", classes="lines")

    @property
    def _may_start(self) -> bool:
        view = self._shown
        is_typed = self.query_one("#name", TypedName).value == to_type(self._host, len(self._replicas))
        return view is not None and view.state.value == "live" and is_typed and self._seconds() is not None

    def _seconds(self) -> float | None:
        return span_within(self.query_one("#deadline", Field).value)

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The numbers move while a person types."""
        view = None if state is None else state.hosts.get(HostId(self._host))
        self._shown = view
        if state is None or view is None:
            self.show_lines("#numbers", [line(cell(f" {self._host} is no longer in this context.", "alarm"))])
            self.choices.set_choices((CANCEL,))
            return
        there = replicas_on(state, view.host)
        self._replicas = tuple(each.id for each in there if each.drain is None or each.drain.outcome)
        self.show_lines("#numbers", cordon_lines(state, view, look, self.text_width))
        self.show_lines("#effect", wrapped(self._effect(view), self.text_width, 1, "alarm"))
        label = f"Drain {plural(len(self._replicas), 'replica')}"
        label += " (enter in the field)" if self._may_start else ", once it is typed"
        self.choices.set_choices((CANCEL, Choice("drain", "", label, enabled=self._may_start, style="danger")))

    def _effect(self, view: HostView) -> str:
        """What would happen, or why it cannot."""
        if view.state.value != "live":
            return f"{view.host} is {view.state.value}, so that nobody there can be told. {view.words}"
        if self._seconds() is None:
            return f"The deadline must be a time {SPAN_WORDS}."
        count = len(self._replicas)
        return (
            f"{view.host} takes no new shards any more. {plural(count, 'replica')} there and on other hosts "
            f"{'is' if count == 1 else 'are'} drained. Each stops when nothing is in flight; at the deadline: "
            f"{at_deadline_words('give-up')}. To confirm, type {to_type(self._host, count)}."
        )

    def on_input_changed(self, event: Input.Changed) -> None:
        """The name may be complete."""
        self._rewrite()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter behind the whole name confirms; elsewhere it goes on to the next field."""
        event.stop()
        if self._may_start:
            self._start()
        else:
            self.focus_next()

    def taken(self, choice: Choice) -> None:
        """The choice that the typed name made possible."""
        if self._may_start:
            self._start()

    def _start(self) -> None:
        """The cordon first, so that nothing comes in behind the drains; they begin when it stands."""
        view, seconds, replicas = self._shown, self._seconds(), self._replicas
        if view is None or seconds is None or not self.is_current:
            return
        console, why = self.console, f"{view.host} is drained"

        def begin(answer: Answer | None) -> None:
            if answer is not None and answer.exit_code != 0:
                console.say(f"nothing is drained: {answer.words}", "message.alarm")
                return
            for replica in replicas:
                console.submit(StartDrainRequest(replica=replica, deadline_seconds=seconds, why=why))

        if view.entities.cordon is not None:
            begin(None)
        elif console.submit(CordonRequest(host=view.host, why=why, revision=view.revision), begin) is None:
            self.dismiss()
            return
        self.app.switch_screen(OperationsScreen())
