"""What was asked on one connection and waits for its answer, and the streams that events flow into.

Answers are matched by causation and correlation id together; what a stage says on its way carries the correlation only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType

from backend.contract.p4.content_types import ADAPTER_ERROR, NODE_RESULT
from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import P4Agent, P4Event, P4Node
from backend.contract.p4.hops import ReceiptStatus
from backend.engines.p4.connection import Ticket
from backend.engines.p4.hop_side import Settled
from backend.engines.p4.outcomes import Outcome, Refused, Replied, Unknown
from backend.engines.p4.payloads import json_payload


class Asked:
    """One request that left. It can be listened to again after its answer was not in time."""

    def __init__(self, request: P4Event, expects: frozenset[str], ticket: Ticket) -> None:
        self.request = request
        self.expects = expects
        self.ticket = ticket
        self.receipt: ReceiptStatus | None = None
        """What the p4 agent's broker said of it, in hop mode."""
        self.receipt_words = ""
        self.listeners = 0
        self.stream: Stream | None = None
        """Where its answers flow, when there are many."""
        self._outcome: Outcome | None = None
        self._changed = asyncio.Event()
        self._queried = asyncio.Event()

    @property
    def is_settled(self) -> bool:
        """Whether its outcome is known, or can no longer become known on its connection."""
        return self._outcome is not None

    async def outcome(self, seconds: float) -> Outcome:
        """How it ended, waiting up to ``seconds``. Silence is Unknown, and may be listened to again."""
        self.listeners += 1
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return Unknown(self._silence(seconds), "silence", self.receipt)
        finally:
            self.listeners -= 1
        assert self._outcome is not None  # it changes once, to an outcome
        return self._outcome

    def expect_query(self) -> None:
        """A Query is about to leave: what an earlier one was answered no longer counts."""
        self._queried.clear()

    async def queried(self, seconds: float) -> bool:
        """Whether the answer to a Query came in time; ``receipt`` then holds it."""
        try:
            async with asyncio.timeout(seconds):
                await self._queried.wait()
        except TimeoutError:
            return False
        return True

    def end(self, outcome: Outcome) -> None:
        """Settle it, once."""
        if self._outcome is None:
            self._outcome = outcome
            self._changed.set()

    def settle(self, settled: Settled) -> None:
        """Take what the broker said of it."""
        self.receipt, self.receipt_words = settled.status, settled.detail
        if settled.by_query:
            self._queried.set()

    def _silence(self, seconds: float) -> str:
        kind = self.request.payload_content_type.rpartition("/")[2]
        if self.receipt is ReceiptStatus.ACCEPTED_EXACT:
            known = "its broker took it into a queue, which says nothing of its execution"
        elif self.receipt is not None:
            known = f"its broker says {self.receipt.value}: {self.receipt_words}"
        elif self.ticket.attempt is not None:
            known = "no receipt came either"
        else:
            known = "a direct connection has no receipts"
        return f"no answer to {kind} within {seconds:g} s; {known}. It may have been carried out; ask again or inspect"


class Stream:
    """The events that answer one request, in order: outputs, release receipts, telemetry. Left with ``async with``."""

    def __init__(self, asked: Asked, room: int, questions: Questions) -> None:
        self.asked = asked
        self._most = room
        self._events: deque[P4Event] = deque()
        self._arrived = asyncio.Event()
        self._has_room = asyncio.Event()
        self._questions = questions
        self._is_left = False

    def __len__(self) -> int:
        """Events that wait for their reader."""
        return len(self._events)

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    async def next(self, seconds: float) -> P4Event | Refused | Unknown:
        """The next event, waiting up to ``seconds``; Refused or Unknown when none came, and whether one still can."""
        if not self._events:
            self._arrived.clear()
            arrived = asyncio.ensure_future(self._arrived.wait())
            outcome = asyncio.ensure_future(self.asked.outcome(seconds))
            try:
                await asyncio.wait((arrived, outcome), return_when=asyncio.FIRST_COMPLETED)
                if not self._events:
                    ended = await outcome
                    assert not isinstance(ended, Replied)  # what answers a stream's request flows into it
                    return ended
            finally:
                arrived.cancel()
                outcome.cancel()
        self._has_room.set()
        return self._events.popleft()

    def leave(self) -> None:
        """Listen no more. What still comes is counted as unclaimed."""
        self._is_left = True
        self._questions.forget(self.asked)
        self._events.clear()
        self._has_room.set()

    async def put(self, event: P4Event) -> None:
        """Take an event; waits while the reader is behind, so that its connection is not read on."""
        while len(self._events) >= self._most and not self._is_left:
            self._has_room.clear()
            await self._has_room.wait()
        if not self._is_left:
            self._events.append(event)
            self._arrived.set()


class Questions:
    """Everything that is asked on one connection, at most ``room`` at once."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._by_event: dict[str, Asked] = {}
        self._by_attempt: dict[int, Asked] = {}
        self.unclaimed = 0
        """Events that answered nothing that is asked here."""

    def __len__(self) -> int:
        return len(self._by_event)

    def make_room(self) -> bool:
        """Whether one more may be asked. The oldest that nobody listens to is forgotten for it."""
        if len(self._by_event) < self._room:
            return True
        for asked in self._by_event.values():
            if not asked.listeners and asked.stream is None:
                self.forget(asked)
                return True
        return False

    def add(self, asked: Asked) -> None:
        """Listen for the answer."""
        self._by_event[asked.request.event_id] = asked
        if asked.ticket.attempt is not None:
            self._by_attempt[asked.ticket.attempt] = asked

    def forget(self, asked: Asked) -> None:
        """Listen no more."""
        if self._by_event.pop(asked.request.event_id, None) is not None and asked.ticket.attempt is not None:
            self._by_attempt.pop(asked.ticket.attempt, None)

    async def hear(self, event: P4Event) -> None:
        """Take an event of the connection to whoever asked for it."""
        asked = self._match(event)
        if asked is None:
            self.unclaimed += 1
        elif event.payload_content_type not in asked.expects:
            self._end(asked, _other_answer(event))
        elif asked.stream is not None:
            await asked.stream.put(event)
        else:
            self._end(asked, Replied(event))

    def settle(self, settled: Settled) -> None:
        """Take what the peer's broker said of an attempt."""
        asked = self._by_attempt.get(settled.attempt)
        if asked is None:
            return
        asked.settle(settled)
        if settled.status is ReceiptStatus.REJECTED:
            words = f"the p4 agent's broker refused it: {settled.detail or 'it gave no reason'}"
            self._end(asked, Refused(words, "receipt"))

    def close(self, words: str) -> None:
        """The connection is over: whatever has no outcome is unknown, and stays so."""
        for asked in list(self._by_event.values()):
            unknown = f"{words}; whether it was carried out is not known, inspect to see"
            self._end(asked, Unknown(unknown, "closed", asked.receipt))

    def _end(self, asked: Asked, outcome: Outcome) -> None:
        asked.end(outcome)
        self.forget(asked)

    def _match(self, event: P4Event) -> Asked | None:
        """The request that an event answers. What an agent says names its cause; what a stage says may not."""
        asked = self._by_event.get(event.causation_id or "")
        if asked is not None and asked.request.correlation_id == event.correlation_id:
            return asked
        if isinstance(event.source, P4Agent):
            return None
        for candidate in reversed(self._by_event.values()):
            if candidate.request.correlation_id == event.correlation_id and (
                candidate.stream is not None or candidate.request.target == event.source
            ):
                return candidate
        return None


def _cut(said: object) -> str:
    """What a peer gives as a reason, as it was said, up to 1000 characters."""
    return str(said)[:1000] if said is not None else "no reason was given"


def _other_answer(event: P4Event) -> Refused | Unknown:
    """What an answer of another type than was asked for means."""
    kind = event.payload_content_type
    try:
        if kind == NODE_RESULT:
            tree = json_payload(event)
            if tree.get("ok") is False:
                return Refused(f"the p4 agent refused it: {_cut(tree.get('detail'))}", "agent")
        elif kind == ADAPTER_ERROR and isinstance(event.source, P4Node):
            tree = json_payload(event)
            return Refused(
                f"stage {event.source.node} refused it: {_cut(tree.get('code'))}: {_cut(tree.get('detail'))}", "stage"
            )
    except P4CodecError as error:
        return Unknown(f"it was answered by {kind}, which cannot be read: {error.reason}", "answer")
    return Unknown(f"it was answered by {kind}, which is no answer to it", "answer")
