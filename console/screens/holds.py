"""Pause, hold down and resume: what a person decides about a replica or a model, and the keeper obeys."""

from __future__ import annotations

from typing import Literal

from textual.app import ComposeResult
from textual.widgets import Input

from backend.api import Answer, FleetState, HoldSubject, ResumeSubject, StartUnload
from console.actions import Danger
from console.render.cells import Look, wrapped
from console.render.holds import down_words, held_lines, holds_table, pause_words, replicas_of, resume_line
from console.screens.dialog import CANCEL, CLOSE, Dialog
from console.screens.pages import OperationPage, OperationsScreen, move_in_grid
from console.spans import SPAN_KEYS, SPAN_WORDS, span_within
from console.widgets.fields import Choice, Field, TypedName
from console.widgets.grid import Grid
from console.widgets.lines import LineView

_NO_TIME = f"The time must be {SPAN_WORDS}; empty holds until somebody resumes it."


class HoldDialog(Dialog):
    """Hold one replica or model, which is fixed when the dialog opens. Subclasses say how, and what it does."""

    kind: Literal["paused", "down"] = "paused"

    def __init__(self, subject: str) -> None:
        super().__init__((CANCEL, self.choice(enabled=True)))
        self.subject = subject
        self.refused = ""

    def choice(self, *, enabled: bool) -> Choice:
        """What confirms."""
        raise NotImplementedError

    def effect(self, state: FleetState, seconds: float | None) -> str:
        """What will happen, in words."""
        raise NotImplementedError

    def answered(self, answer: Answer) -> None:
        """It is held at the agents now, or it was refused."""
        raise NotImplementedError

    def body(self) -> ComposeResult:
        """For how long and why, then what happens."""
        yield LineView(self.painter, id="held", classes="lines")
        yield from self.labelled(
            "for how long", Field(id="lasts", hint="until it is resumed; or 90s, 2h, 3d", restrict=SPAN_KEYS)
        )
        yield from self.labelled("why", Field(id="why", hint="for everybody who looks"))
        yield LineView(self.painter, id="effect", classes="lines")

    @property
    def _lasts(self) -> float | Literal["wrong"] | None:
        text = self.query_one("#lasts", Field).value.strip()
        if not text:
            return None
        return span_within(text) or "wrong"

    @property
    def may_hold(self) -> bool:
        """Everything that must be said is said."""
        return self._lasts != "wrong"

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """What it cuts moves while a person thinks."""
        if state is None:
            return
        lasts = self._lasts
        self.choices.set_choices((CANCEL, self.choice(enabled=self.may_hold)))
        self.show_lines("#held", held_lines(state, self.subject, look, self.text_width))
        if self.refused:
            self.show_lines("#effect", wrapped(self.refused, self.text_width, 1, "alarm"))
        elif lasts == "wrong":
            self.show_lines("#effect", wrapped(_NO_TIME, self.text_width, 1, "alarm"))
        else:
            style = "alarm" if self.kind == "down" else "plain"
            self.show_lines("#effect", wrapped(self.effect(state, lasts), self.text_width, 1, style))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say again what would happen."""
        self.refused = ""
        self._rewrite()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter behind the whole name confirms; in the other fields it goes on to the next and confirms nothing."""
        event.stop()
        if event.input.id == "name":
            self.hold()
        else:
            self.focus_next()

    def taken(self, choice: Choice) -> None:
        """Write it down at the agents."""
        self.hold()

    def hold(self) -> None:
        """Ask for it; what comes of it is said here."""
        lasts = self._lasts
        if lasts == "wrong" or not self.may_hold:
            return
        why = self.query_one("#why", Field).value.strip()
        request = HoldSubject(subject=self.subject, kind=self.kind, seconds=lasts, why=why)
        self.ask(request, self._answered)

    def _answered(self, answer: Answer) -> None:
        if answer.exit_code == 0:
            self.answered(answer)
            return
        self.refused = answer.words or "It was refused without a word."
        if self.stands:
            self._rewrite()
        else:
            self.console.say(self.refused, "message.alarm")


class PauseDialog(HoldDialog):
    """The keeper leaves it alone; nothing stops."""

    danger: Danger = "write"

    def title_words(self) -> str:
        """Whom."""
        return f"pause {self.subject}"

    def choice(self, *, enabled: bool) -> Choice:
        """One key: nothing stops by it."""
        return Choice("hold", "y", "Pause", enabled=enabled)

    def effect(self, state: FleetState, seconds: float | None) -> str:
        """What the keeper does no more."""
        return pause_words(state, self.subject, seconds)

    def answered(self, answer: Answer) -> None:
        """Where it is held now, at the bottom."""
        self.console.say(answer.words)
        self.dismiss()


class DownDialog(HoldDialog):
    """Nothing of it is loaded any more, and what runs of it stops. Its name must be typed."""

    danger: Danger = "danger"
    kind = "down"

    def title_words(self) -> str:
        """Whom it takes down."""
        return f"HOLD DOWN {self.subject}"

    def choice(self, *, enabled: bool) -> Choice:
        """The typed name makes it possible."""
        label = "Hold down (enter in the name)" if enabled else "Hold down, once the name is typed"
        return Choice("hold", "", label, enabled=enabled, style="danger")

    def body(self) -> ComposeResult:
        """The name comes last, below what it does."""
        yield from super().body()
        yield from self.labelled("tab, type its name", TypedName(id="name"))

    @property
    def may_hold(self) -> bool:
        """The whole name, and a time that can be read."""
        return super().may_hold and self.query_one("#name", TypedName).value == self.subject

    def effect(self, state: FleetState, seconds: float | None) -> str:
        """What stops, and what it cuts."""
        return down_words(state, self.subject, seconds)

    def answered(self, answer: Answer) -> None:
        """It is held at the agents; now what runs of it stops, and the operation is followed."""
        state = self.console.state
        views = replicas_of(state, self.subject) if state is not None else ()
        started = [
            self.console.submit(StartUnload(replica=view.id, why=f"{self.subject} is held down")) for view in views
        ]
        self.console.say(answer.words)
        if not self.is_current:
            return
        op_id = started[0] if len(started) == 1 else None
        if op_id is not None:
            self.app.switch_screen(OperationPage(op_id, f"unload {views[0].id}"))
        elif started:
            self.app.switch_screen(OperationsScreen())
        else:
            self.dismiss()


class HoldsDialog(Dialog):
    """Everything that is held; y releases what is under the cursor."""

    danger: Danger = "write"
    is_tall = True

    def __init__(self, subject: str = "") -> None:
        super().__init__((CANCEL, Choice("resume", "y", "Resume", enabled=False)))
        self._first = subject
        self._waits = ""
        self._said: tuple[str, str] = ("", "")

    def title_words(self) -> str:
        """What is shown."""
        return "resume: what people hold, which the keeper obeys"

    def body(self) -> ComposeResult:
        """A table of holds, and what releasing one does."""
        grid = Grid(self.painter, id="holds")
        grid.add_class("fill")
        yield grid
        yield LineView(self.painter, id="effect", classes="lines")

    def opened(self) -> None:
        """The table has the keys: moving in it changes nothing."""
        self.set_focus(self.query_one(Grid))

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """Fill the table again, with the cursor on what was asked for."""
        if state is None:
            return
        grid = self.query_one(Grid)
        grid.set_table(holds_table(state, look))
        if self._first and grid.select(self._first):
            self._first = ""
        subject = grid.cursor_key
        enabled = subject is not None and not self._waits
        choice = Choice("resume", "y", f"Resume {subject}" if subject else "Resume", enabled=enabled)
        self.choices.set_choices((CANCEL, choice) if subject is not None else (CLOSE,))
        words, style = self._said
        if words:
            self.show_lines("#effect", wrapped(words, self.text_width, 1, style))
        else:
            self.show_lines("#effect", [resume_line(subject)] if subject is not None else [])

    def other_key(self, key: str) -> None:
        """Move in the table."""
        move_in_grid(self.query_one(Grid), key)
        self._said = ("", "")
        self._rewrite()

    def taken(self, choice: Choice) -> None:
        """Release what is under the cursor."""
        subject = self.query_one(Grid).cursor_key
        if subject is None or self._waits:
            return
        if self.console.submit(ResumeSubject(subject=subject), self._answered) is not None:
            self._waits = subject
            self._said = (f"Asked for {subject}.", "plain")
            self._rewrite()

    def _answered(self, answer: Answer) -> None:
        self._waits = ""
        style = "value" if answer.exit_code == 0 else "alarm"
        self._said = (answer.words or "It was refused without a word.", style)
        if self.stands:
            self._rewrite()
        else:
            self.console.say(self._said[0], "message" if answer.exit_code == 0 else "message.alarm")
