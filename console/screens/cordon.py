"""Cordon a host, or take its cordon back: what runs there and what is on its way there is said first."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input

from backend.api import CordonRequest, FleetState, HostId, HostView, UncordonRequest
from console.actions import Danger
from console.render.cells import Look, cell, line, wrapped
from console.render.cordon import cordon_lines, effect_words, replicas_on
from console.render.values import plural
from console.screens.dialog import CANCEL, Dialog
from console.screens.drain_host import HostDrainDialog
from console.spans import SPAN_KEYS, SPAN_WORDS, span_within
from console.widgets.fields import Choice, Field
from console.widgets.lines import LineView


class CordonDialog(Dialog):
    """One host, fixed when the dialog opens. What is confirmed is the host at the revision that was shown."""

    danger: Danger = "write"

    def __init__(self, host: str) -> None:
        super().__init__((CANCEL, Choice("cordon", "y", "Cordon")))
        self._host = host
        self._shown: HostView | None = None

    def title_words(self) -> str:
        """Which host."""
        return f"cordon {self._host}"

    def body(self) -> ComposeResult:
        """The numbers, then how long and why."""
        yield LineView(self.painter, id="numbers", classes="lines")
        yield from self.labelled(
            "for how long", Field(id="lasts", restrict=SPAN_KEYS, hint="until it is uncordoned; or 30m, 2h, 3d")
        )
        yield from self.labelled("why", Field(id="why", hint="the reason, for everybody who looks"))
        yield LineView(self.painter, id="effect", classes="lines")

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The numbers move while a person thinks; the choice follows whether the host is cordoned."""
        view = None if state is None else state.hosts.get(HostId(self._host))
        self._shown = view
        if state is None or view is None:
            self.show_lines("#numbers", [line(cell(f" {self._host} is no longer in this context.", "alarm"))])
            self.choices.set_choices((CANCEL,))
            return
        self.show_lines("#numbers", cordon_lines(state, view, look, self.text_width))
        is_there, (is_good, seconds) = view.state.value == "live", self._lasts()
        words = effect_words(view, seconds)
        if not is_there:
            words = f"{view.host} is {view.state.value}, so that nobody there can be told. {view.words}"
        elif not is_good:
            words = f"The time must be {SPAN_WORDS}; empty lasts until it is uncordoned."
        self.show_lines("#effect", wrapped(words, self.text_width, 1))
        choice = Choice("cordon", "y", "Cordon", enabled=is_there and is_good)
        if view.entities.cordon is not None:
            choice = Choice("uncordon", "y", "Uncordon", enabled=is_there)
        there = len(replicas_on(state, view.host))
        drain = Choice("drain", "d", f"drain the host ({plural(there, 'replica')})", enabled=is_there and there > 0)
        self.choices.set_choices((CANCEL, choice, drain))

    def _lasts(self) -> tuple[bool, float | None]:
        """Whether it is a length of time, and how long in seconds: None until it is uncordoned."""
        text = self.query_one("#lasts", Field).value.strip()
        seconds = span_within(text)
        return not text or seconds is not None, seconds

    def on_input_changed(self, event: Input.Changed) -> None:
        """Say again what would happen."""
        self._rewrite()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes on to the next field and confirms nothing."""
        event.stop()
        self.focus_next()

    def taken(self, choice: Choice) -> None:
        """Ask the host's agent; its answer is said at the bottom of the main screen."""
        view, (is_good, seconds) = self._shown, self._lasts()
        if view is None:
            return
        if choice.id == "drain":
            self.app.switch_screen(HostDrainDialog(view.host))
            return
        if choice.id == "uncordon":
            self.console.submit(UncordonRequest(host=view.host, revision=view.revision))
        elif is_good:
            why = self.query_one("#why", Field).value.strip()
            self.console.submit(CordonRequest(host=view.host, seconds=seconds, why=why, revision=view.revision))
        self.dismiss()
