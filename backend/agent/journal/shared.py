"""What the writer thread and the event loop both touch."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from backend.agent.journal.limits import Limits
from backend.agent.journal.recent import Recent, Records
from backend.agent.journal.recovery import IndexEntry, Position, is_indexed
from backend.agent.journal.segments import Segment
from backend.contract.entities import Entities


class Notice(msgspec.Struct, frozen=True):
    """Something about the journal itself that its owner should record."""

    kind: str
    level: str
    words: str


@dataclass(slots=True)
class Pending:
    """One call of append, waiting for its sync: all of its records go into one batch.

    ``payload`` is the records as framed. ``entities`` and ``revision`` are what a fold gives up to its last record.
    ``begins`` asks for a new segment before it, and ``completes`` says that it ends the checkpoint at the start of one.
    """

    records: Records
    payload: bytes
    durable: asyncio.Future[None]
    entities: Entities
    revision: int
    begins: bool = False
    completes: bool = False


class Bell:
    """Wakes the one thread that waits for it.

    An eventfd: a waiter on it is back in 10 to 15 µs, on a ``threading.Condition`` in 20 to 55. Edge-triggered, so it
    is never read, which would be a second system call and a second wait for the interpreter's lock.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.epoll(1)
        self._poll.register(self._fd, select.EPOLLIN | select.EPOLLET)

    def ring(self) -> None:
        """End the present wait, or the next one when nobody waits now."""
        os.eventfd_write(self._fd, 1)

    def wait(self, seconds: float) -> None:
        """Return when it rings, at the latest after ``seconds``; sometimes without either."""
        self._poll.poll(max(0.001, seconds), 1)

    def close(self) -> None:
        """Give the descriptors back, once nobody rings or waits any more."""
        self._poll.close()
        os.close(self._fd)


class Shared:
    """The state of an open journal, each field under ``lock``."""

    def __init__(self, segments: list[Segment], position: Position, limits: Limits, entities: Entities) -> None:
        self.lock = threading.RLock()
        self.is_waiting = False
        self.queue: deque[Pending] = deque()
        self.segments = segments
        self.entities = entities
        self.revision = 0
        self.head_seq = position.next_seq - 1
        self.head_chain = position.chain
        self.next_seq = position.next_seq
        self.recent = Recent(limits.ring_records)
        self.stopping = False
        self.fenced = ""
        self.damage = ""
        self.refusing = ""
        self.may_resume = False
        self.trouble = ""
        self.is_low = False
        self.full = ""
        self.dropped = 0
        self.rotation_due = False
        self.notices: list[Notice] = []
        self.upkeep: list[asyncio.Future[None]] = []
        self.sync_seconds = 0.0
        self.sync_began_ns: int | None = None

    @property
    def oldest_seq(self) -> int:
        """The oldest record kept; one past the head while there is none."""
        return self.segments[0].header.first_seq if self.segments else self.head_seq + 1

    def publish(
        self, batch: Sequence[Records], position: Position, size: int, entities: Entities, revision: int
    ) -> None:
        """Make a synced batch readable."""
        segment = self.segments[-1]
        if is_indexed(segment.index, batch[0].first, segment.end):
            segment.index.append(IndexEntry(batch[0].first, segment.end))
        segment.end += size
        self.head_seq = position.next_seq - 1
        self.head_chain = position.chain
        self.entities, self.revision = entities, revision
        for records in batch:
            self.recent.add(records, position.chain)

    def note(self, kind: str, level: str, words: str) -> None:
        """Leave a notice for the owner of the journal."""
        with self.lock:
            self.notices.append(Notice(kind, level, words))
