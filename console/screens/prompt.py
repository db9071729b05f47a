"""Test: one short prompt through every rank, its answer and how long that took."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.widgets import Input

from backend.api import Answer, FleetState, TestRequest
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.values import duration
from console.screens.dialog import CLOSE, Dialog
from console.screens.drain import find_replica
from console.widgets.fields import Choice, Field
from console.widgets.lines import LineView

DEFAULT_PROMPT = "one two three"


class PromptDialog(Dialog):
    """Ask one replica something short."""

    def __init__(self, replica: str) -> None:
        super().__init__((CLOSE, Choice("send", "enter", "enter sends")))
        self._replica = replica
        self._answer: Answer | None = None
        self._waits = False

    def title_words(self) -> str:
        """Who is asked."""
        return f"test {self._replica}"

    def body(self) -> ComposeResult:
        """A prompt and an answer."""
        yield from self.labelled("prompt", Field(DEFAULT_PROMPT, id="prompt"))
        yield LineView(self.painter, id="answer", classes="lines")

    def opened(self) -> None:
        """The prompt has the keys: a test changes nothing."""
        self.set_focus(self.query_one("#prompt", Field))

    def refresh_state(self, state: FleetState | None, look: Look) -> None:
        """The answer, or what is being waited for."""
        self.show_lines("#answer", self._answer_lines())

    def _answer_lines(self) -> list[Line]:
        if self._waits:
            return [line(" Sent. Every rank has to pass it on.")]
        if self._answer is None:
            return [line(cell(" Twelve tokens at most; it counts as use, as any request does.", "note"))]
        if self._answer.exit_code != 0:
            return wrapped(self._answer.words or "It failed without a word.", self.text_width, 1, "alarm")
        value = self._answer.value
        seconds = value.get("seconds")
        took = duration(float(seconds)) if isinstance(seconds, int | float) else "?"
        text = wrapped(str(value.get("text", "")), self.text_width, 1, "value")
        return [*text, line(cell(f" after {took}", "note"))]

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send the prompt."""
        event.stop()
        self._send()

    def taken(self, choice: Choice) -> None:
        """Send the prompt."""
        self._send()

    def _send(self) -> None:
        view = find_replica(self.console.state, self._replica)
        if self._waits or view is None:
            return
        prompt = self.query_one("#prompt", Field).value or DEFAULT_PROMPT
        op_id = self.console.submit(TestRequest(replica=view.id, prompt=prompt), self._answered)
        self._waits = op_id is not None
        self._rewrite()

    def _answered(self, answer: Answer) -> None:
        self._answer, self._waits = answer, False
        self._rewrite()
