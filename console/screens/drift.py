"""Drift: every pair of values that should be equal and is not, one of them under the cursor to be acknowledged."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input

from backend.api import AcknowledgeDrift, Answer, CheckModels, Drift, FleetState, ReopenDrift, ReplicaId
from console.actions import Danger
from console.render.cells import Line, Look, line, wrapped
from console.render.drift import chosen_of, one_drift, title_lines
from console.screens.dialog import CANCEL, CLOSE, Dialog
from console.screens.reload import ReloadDialog
from console.spans import SPAN_KEYS, SPAN_WORDS, span_within
from console.widgets.fields import Choice, Field
from console.widgets.lines import LineView

DEFAULT_SPAN = "1h"
_STEPS = {"down": 1, "j": 1, "up": -1, "pagedown": 3, "space": 3, "pageup": -3, "home": -10_000, "end": 10_000}


def drifting_replica(state: FleetState, drift: Drift) -> str | None:
    """The replica that a drift is about, by itself or by one of its shards; None for a host's."""
    name = drift.subject.partition("/")[0]
    return name if ReplicaId(name) in state.replicas else None


class DriftScreen(Dialog):
    """All drifts, open ones first. ``k`` acknowledges here, ``R`` reloads; the arrows move."""

    is_tall = True
    moves = "arrows"

    def __init__(self) -> None:
        super().__init__((CLOSE,))
        self._chosen: str | None = None
        self._said = ""

    def title_words(self) -> str:
        """What it shows."""
        return "drift"

    def body(self) -> ComposeResult:
        """The counts, which stay, and the drifts, which scroll."""
        yield LineView(self.painter, id="counts", classes="lines")
        yield LineView(self.painter, id="body", classes="fill")

    @property
    def can_move(self) -> bool:
        """The cursor moves between drifts."""
        return self.console.state is not None and bool(self.console.state.drifts)

    @property
    def _drift(self) -> Drift | None:
        state = self.console.state
        return None if state is None else chosen_of(state.drifts, self._chosen)

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """Write them again; the cursor stays on its drift."""
        if state is None:
            self.show_lines("#counts", [line(" The backend has not reported yet.")])
            return
        chosen = chosen_of(state.drifts, self._chosen)
        self._chosen = chosen.id if chosen is not None else None
        counts = title_lines(state, look, self.text_width)
        counts += wrapped(self._said, self.text_width, 1, "note") if self._said else []
        self.show_lines("#counts", counts)
        self._offer(state, chosen)
        out: list[Line] = []
        top = bottom = 0
        for drift in state.drifts:
            is_chosen = drift is chosen
            top = len(out) if is_chosen else top
            keys = self._keys(state, drift) if is_chosen else ()
            out += one_drift(drift, look, self.text_width, is_chosen=is_chosen, keys=keys)
            bottom = len(out) if is_chosen else bottom
        self.show_lines("#body", out)
        self.query_one("#body", LineView).keep_in_sight(top, bottom)

    @staticmethod
    def _remedies(state: FleetState, drift: Drift) -> list[Choice]:
        """What can be done about a drift from here: reload what drifts, acknowledge it or open it again."""
        if state.read_only:
            return []
        known = Choice("acknowledge", "k", "acknowledge") if drift.is_open else Choice("reopen", "o", "open again")
        replica = drifting_replica(state, drift)
        return [known] if replica is None else [Choice("reload", "R", f"reload {replica}"), known]

    def _keys(self, state: FleetState, drift: Drift) -> tuple[tuple[str, str], ...]:
        return tuple((each.key, each.label) for each in self._remedies(state, drift))

    def _offer(self, state: FleetState, chosen: Drift | None) -> None:
        choices = [CLOSE, *(self._remedies(state, chosen) if chosen is not None else ())]
        if state.replicas:
            choices.append(Choice("files", "c", "check model files"))
        self.choices.set_choices(tuple(choices))

    def taken(self, choice: Choice) -> None:
        """Acknowledge the drift under the cursor, open it again, or have the model files read again."""
        drift = self._drift
        if choice.id == "files":
            if self.console.submit(CheckModels(), self._answered) is not None:
                self._said = "The model files of what runs are being read."
        elif choice.id == "reopen" and drift is not None:
            self.console.submit(ReopenDrift(drift=drift.id), self._answered)
        elif choice.id == "acknowledge" and drift is not None:
            self.app.push_screen(AcknowledgeDialog(drift))
        elif choice.id == "reload" and drift is not None and self.console.state is not None:
            replica = drifting_replica(self.console.state, drift)
            if replica is not None:
                self.app.push_screen(ReloadDialog(replica, plan_of="now"))
        self._rewrite()

    def _answered(self, answer: Answer) -> None:
        self._said = answer.words
        self._rewrite()

    def other_key(self, key: str) -> None:
        """Move the cursor."""
        state = self.console.state
        if key not in _STEPS or state is None or not state.drifts:
            return
        ids = [drift.id for drift in state.drifts]
        at = ids.index(self._chosen) if self._chosen in ids else 0
        self._chosen = ids[max(0, min(len(ids) - 1, at + _STEPS[key]))]
        self._rewrite()


class AcknowledgeDialog(Dialog):
    """Say why one drift may stay, and for how long."""

    danger: Danger = "write"

    def __init__(self, drift: Drift) -> None:
        super().__init__((CANCEL, Choice("acknowledge", "y", "Acknowledge", enabled=False)))
        self._drift = drift
        self._refused = ""

    def title_words(self) -> str:
        """Which one."""
        return f"acknowledge {self._drift.id}"

    def body(self) -> ComposeResult:
        """The drift, the note and the time."""
        yield LineView(self.painter, id="drift", classes="lines")
        yield from self.labelled("why", Field(id="note", hint="why it may stay as it is"))
        yield from self.labelled("for how long", Field(DEFAULT_SPAN, id="span", restrict=SPAN_KEYS))
        yield LineView(self.painter, id="effect", classes="lines")

    def opened(self) -> None:
        """The note has the keys, for without one there is nothing to confirm."""
        self.set_focus(self.query_one("#note", Field))

    @property
    def _note(self) -> str:
        return self.query_one("#note", Field).value.strip()

    @property
    def _seconds(self) -> float | None:
        return span_within(self.query_one("#span", Field).value)

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """What would be acknowledged, and what is still missing."""
        self.show_lines("#drift", one_drift(self._drift, look, self.text_width))
        words = "It leaves the header's count until then, and opens again when its values change. tab, then y."
        if self._seconds is None:
            words = f"The time must be {SPAN_WORDS}."
        elif not self._note:
            words = "Write why, for whoever reads it next."
        effect = wrapped(self._refused or words, self.text_width, 1, "alarm" if self._refused else "note")
        self.show_lines("#effect", effect)
        enabled = bool(self._note) and self._seconds is not None
        self.choices.set_choices((CANCEL, Choice("acknowledge", "y", "Acknowledge", enabled=enabled)))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say again what would happen."""
        self._rewrite()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes on to the next field and confirms nothing."""
        event.stop()
        self.focus_next()

    def taken(self, choice: Choice) -> None:
        """Write it down."""
        seconds = self._seconds
        if seconds is None or not self._note:
            return
        request = AcknowledgeDrift(drift=self._drift.id, note=self._note, seconds=seconds)
        self.ask(request, self._answered)

    def _answered(self, answer: Answer) -> None:
        """A refusal stays in the dialog that asked."""
        if answer.exit_code == 0:
            self.dismiss()
        else:
            self._refused = answer.words
            self._rewrite()
