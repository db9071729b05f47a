"""A stand-in for the backend's door: the same calls, a state that a test sets, and a list of what was submitted."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from backend.api import SubmitRefused
from backend.contract.words import OpId
from backend.control.requests import Request
from backend.control.views import Answer, FleetState, JournalLine
from tests.console.worlds import fleet

Answerer = Callable[[Request], Answer | None]


class StandInDoor:
    """Not a backend: it does nothing but hand out the state that it was given."""

    def __init__(self, state: FleetState | None = None, answerer: Answerer | None = None) -> None:
        self.current = state if state is not None else fleet()
        self.lines: list[JournalLine] = []
        self.submitted: list[Request] = []
        self.is_running = False
        self.stalled_since: float | None = None
        self.refuses_with = ""
        self._answerer = answerer

    def start(self) -> None:
        self.is_running = True

    def stop(self) -> None:
        self.is_running = False

    def stamp(self) -> float:
        return time.monotonic() if self.stalled_since is None else self.stalled_since

    def state(self) -> FleetState:
        assert self.is_running, "the state was asked for before the backend was started"
        return self.current

    def journal(self, after: int, limit: int) -> tuple[JournalLine, ...]:
        return tuple(line for line in self.lines if line.index > after)[:limit]

    def submit(self, request: Request) -> OpId:
        if self.refuses_with:
            raise SubmitRefused(self.refuses_with)
        self.submitted.append(request)
        op_id = OpId(f"op-{100 + len(self.submitted)}")
        made = self._answerer(request) if self._answerer is not None else None
        if made is not None:
            self.answer(msgspec.structs.replace(made, op_id=op_id))
        return op_id

    # what a test does to the world

    def put(self, state: FleetState) -> None:
        """The fleet has another state; answers and the journal stay."""
        self.current = msgspec.structs.replace(
            state, answers={**state.answers, **self.current.answers}, journal_head=len(self.lines)
        )

    def answer(self, answer: Answer) -> None:
        """A request has an outcome."""
        self.current = msgspec.structs.replace(self.current, answers={**self.current.answers, answer.op_id: answer})

    def say(self, *lines: JournalLine) -> None:
        """Records arrive; their indexes go on from the last."""
        for line in lines:
            self.lines.append(msgspec.structs.replace(line, index=len(self.lines) + 1))
        self.current = msgspec.structs.replace(self.current, journal_head=len(self.lines))
