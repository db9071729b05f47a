"""Drain: a deadline and what happens at it, then the three numbers live. Leaving the dialog leaves the drain."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input

from backend.api import Answer, ChangeDrainRequest, FleetState, ReplicaId, ReplicaView, StartDrainRequest
from console.actions import Danger
from console.render.cells import Look, cell, line, wrapped
from console.render.drain import at_deadline_words, before_lines, cuts_words, live_lines
from console.screens.dialog import CANCEL, CLOSE, Dialog
from console.spans import SPAN_KEYS, SPAN_WORDS, span_within
from console.widgets.fields import Choice, Field, Toggle
from console.widgets.lines import LineView

DEFAULT_DEADLINE = "2:00"
EXTEND_SECONDS = 60.0


def find_replica(state: FleetState | None, replica: str) -> ReplicaView | None:
    """The replica of this name, if it is still there."""
    return None if state is None else state.replicas.get(ReplicaId(replica))


class DrainDialog(Dialog):
    """Start a drain of one replica, which is fixed when the dialog opens."""

    danger: Danger = "write"

    def __init__(self, replica: str) -> None:
        super().__init__((CANCEL, Choice("drain", "y", "Drain")))
        self._replica = replica

    def title_words(self) -> str:
        """Whom it empties."""
        return f"drain {self._replica}"

    def body(self) -> ComposeResult:
        """The numbers now, then deadline, what happens at it, and who closed admission."""
        yield LineView(self.painter, id="numbers", classes="lines")
        yield from self.labelled("deadline", Field(DEFAULT_DEADLINE, id="deadline", restrict=SPAN_KEYS))
        yield from self.labelled(
            "at the deadline", Toggle(self.painter, (("give-up", "give up"), ("stop", "stop it")), id="then")
        )
        yield from self.labelled("admission closed by", Field(id="gate", hint="nobody; or who keeps new requests away"))
        yield LineView(self.painter, id="effect", classes="lines")

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The numbers move while a person thinks."""
        view = find_replica(state, self._replica)
        if view is None:
            self.show_lines("#numbers", [line(cell(f" {self._replica} is no longer there.", "alarm"))])
        else:
            self.show_lines("#numbers", before_lines(view, look, self.text_width))
        seconds = span_within(self.query_one("#deadline", Field).value)
        self.choices.set_choices(
            (CANCEL, Choice("drain", "y", "Drain", enabled=view is not None and seconds is not None))
        )
        self.show_lines("#effect", wrapped(self._effect(seconds, view), self.text_width, 1))

    def _effect(self, seconds: float | None, view: ReplicaView | None) -> str:
        if seconds is None:
            return f"The deadline must be a time {SPAN_WORDS}."
        then = self.query_one("#then", Toggle).value
        gate = self.query_one("#gate", Field).value.strip()
        words = f"Stops {self._replica} when nothing is in flight. At the deadline: {at_deadline_words(then)}."
        if then == "stop":
            words += f" Now that would cut {cuts_words(view)}."
        return words if gate else f"{words} Admission stays open: new requests may keep it busy."

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say again what would happen."""
        self._rewrite()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes on to the next field and confirms nothing."""
        event.stop()
        self.focus_next()

    def on_toggle_changed(self, event: Toggle.Changed) -> None:
        """Say again what would happen."""
        self._rewrite()

    def taken(self, choice: Choice) -> None:
        """Start the drain, and follow it."""
        seconds = span_within(self.query_one("#deadline", Field).value)
        view = find_replica(self.console.state, self._replica)
        if seconds is None or view is None:
            return
        request = StartDrainRequest(
            replica=view.id,
            deadline_seconds=seconds,
            at_deadline="stop" if self.query_one("#then", Toggle).value == "stop" else "give-up",
            admission_closed_by=self.query_one("#gate", Field).value.strip(),
        )
        follow = DrainView(self._replica)
        if self.ask(request, follow.answered) is not None:
            self.app.switch_screen(follow)


class DrainView(Dialog):
    """A drain under way: in flight, oldest, left, and who counted."""

    def __init__(self, replica: str) -> None:
        super().__init__(self._choices_for("cuts ?"))
        self._replica = replica
        self._asks_force = False
        self._refused = ""

    def title_words(self) -> str:
        """Whom it empties."""
        return f"draining {self._replica}"

    def body(self) -> ComposeResult:
        """The numbers, and the question before a force."""
        yield LineView(self.painter, id="numbers", classes="lines")
        yield LineView(self.painter, id="question", classes="lines")

    @staticmethod
    def _choices_for(cuts: str) -> tuple[Choice, ...]:
        return (
            Choice("cancel", "escape", "back, the drain goes on"),
            Choice("extend", "e", "+1 min"),
            Choice("force", "f", f"force now ({cuts})"),
            Choice("stop-draining", "x", "cancel"),
        )

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """Draw the numbers again; choices that make no sense any more go away."""
        view = find_replica(state, self._replica)
        self.show_lines("#numbers", live_lines(view, self._replica, look, self.text_width))
        runs = view is not None and view.drain is not None and not view.drain.outcome
        if self._asks_force:
            words = f"Force stops {self._replica} now and cuts {cuts_words(view)}."
            self.show_lines("#question", wrapped(words, self.text_width, 1, "alarm"))
            self.choices.set_choices((CANCEL, Choice("force-now", "y", "Force now", enabled=runs, style="danger")))
            return
        self.show_lines("#question", wrapped(self._refused, self.text_width, 1, "alarm") if self._refused else [])
        if runs:
            count = "?" if view is None or view.in_flight is None else view.in_flight
            self.choices.set_choices(self._choices_for(f"cuts {count}"))
        else:
            self.choices.set_choices((CLOSE,))

    def answered(self, answer: Answer) -> None:
        """A refusal stays in the dialog that asked; what succeeds shows in the numbers."""
        self._refused = "" if answer.exit_code == 0 else answer.words or "It was refused without a word."
        self._rewrite()

    def taken(self, choice: Choice) -> None:
        """Change the drain; a force is asked for once more."""
        view = find_replica(self.console.state, self._replica)
        if view is None:
            return
        if choice.id == "force":
            self._asks_force = True
        elif choice.id == "force-now":
            self._asks_force = False
            self.console.submit(ChangeDrainRequest(replica=view.id, action="force"), self.answered)
        elif choice.id == "extend":
            longer = ChangeDrainRequest(replica=view.id, action="extend", extend_seconds=EXTEND_SECONDS)
            self.console.submit(longer, self.answered)
        else:
            self.console.submit(ChangeDrainRequest(replica=view.id, action="cancel"), self.answered)
        self._rewrite()
