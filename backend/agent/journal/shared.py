"""What the writer thread and the event loop both touch."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import dataclass

import msgspec

from backend.agent.journal.limits import Limits
from backend.agent.journal.recovery import IndexEntry, Position, is_indexed
from backend.agent.journal.segments import Segment
from backend.contract.entities import Entities, JournalRecord


class Notice(msgspec.Struct, frozen=True):
    """Something about the journal itself that its owner should record."""

    kind: str
    level: str
    words: str


@dataclass(slots=True)
class Pending:
    """One call of append, waiting for its sync: all of its records go into one batch.

    ``entities`` is what a fold gives up to its last record. ``begins`` asks for a new segment before it, and
    ``completes`` says that it ends the checkpoint at the start of one.
    """

    records: tuple[JournalRecord, ...]
    frames: list[bytes]
    size: int
    durable: asyncio.Future[None]
    entities: Entities
    begins: bool = False
    completes: bool = False


class Shared:
    """The state of an open journal, each field under ``changed``."""

    def __init__(self, segments: list[Segment], position: Position, limits: Limits, entities: Entities) -> None:
        self.changed = threading.Condition()
        self.queue: deque[Pending] = deque()
        self.segments = segments
        self.entities = entities
        self.head_seq = position.next_seq - 1
        self.head_chain = position.chain
        self.next_seq = position.next_seq
        self.ring: deque[tuple[JournalRecord, int]] = deque(maxlen=limits.ring_records)
        self.stopping = False
        self.fenced = ""
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

    def publish(self, records: tuple[JournalRecord, ...], position: Position, size: int, entities: Entities) -> None:
        """Make a synced batch readable."""
        segment = self.segments[-1]
        if is_indexed(segment.index, records[0].seq, segment.end):
            segment.index.append(IndexEntry(records[0].seq, segment.end))
        segment.end += size
        self.head_seq = position.next_seq - 1
        self.head_chain = position.chain
        self.entities = entities
        chain = position.chain
        self.ring.extend([(record, chain) for record in records])

    def note(self, kind: str, level: str, words: str) -> None:
        """Leave a notice for the owner of the journal."""
        with self.changed:
            self.notices.append(Notice(kind, level, words))
