"""The one thread that writes: adaptive group commit, rotation, and what happens when the disk says no.

One sync is in flight; meanwhile appends queue, and then go out together as the next batch. Batch N+1 is never written
before N's sync returned: recovery relies on it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from backend.agent.journal.disk import Disk, open_regular
from backend.agent.journal.errors import JournalWriteFailed
from backend.agent.journal.format import SEGMENT_HEADER_BYTES, SegmentHeader, encode_batch
from backend.agent.journal.head import Head, HeadFile
from backend.agent.journal.recovery import IndexEntry, Position, is_indexed
from backend.agent.journal.segments import Segment, create_segment
from backend.contract.entities import JournalRecord


class Clock(Protocol):
    """Where the journal gets its time from."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, for people."""

    def mono_ns(self) -> int:
        """Nanoseconds of a clock that never goes back, for durations."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a journal. Bytes, records and seconds."""

    segment_bytes: int = 64 * 1024 * 1024
    allocate_bytes: int = 1024 * 1024
    group_records: int = 512
    group_bytes: int = 256 * 1024
    ring_records: int = 4096
    head_seconds: float = 1.0


@dataclass(slots=True)
class Pending:
    """One call of append, waiting for its sync: all of its records go into one batch."""

    records: tuple[JournalRecord, ...]
    frames: list[bytes]
    size: int
    durable: asyncio.Future[None]


class NotWritten(Exception):
    """A batch that is not in the file: nothing of it, or cut off again."""


class Fenced(Exception):
    """Nobody knows what is on the disk any more."""


class SegmentWriter:
    """The end of the log on disk. Used by the writer thread alone."""

    def __init__(self, folder: Path, segment: Segment, position: Position, disk: Disk, limits: Limits) -> None:
        self._folder = folder
        self._disk = disk
        self._limits = limits
        self.segment = segment
        self.position = position
        self._end = segment.end
        self._fd = open_regular(segment.path, os.O_RDWR)
        self._allocated = os.fstat(self._fd).st_size

    def prepare(self, size: int) -> Segment | None:
        """Make room for a batch of ``size`` bytes; returns the new segment when it began one. Raises NotWritten."""
        begun: Segment | None = None
        if self._end + size > self._limits.segment_bytes and self._end > SEGMENT_HEADER_BYTES:
            begun = self._rotate()
        if self._end + size > self._allocated:
            room = max(self._limits.allocate_bytes, size)
            try:
                self._disk.allocate(self._fd, self._allocated, room)
                self._allocated += room
            except OSError:
                # Too full for a whole step. The batch itself may still fit: its write decides, and says why not.
                self._allocated = max(self._allocated, os.fstat(self._fd).st_size)
        return begun

    def write(self, data: bytes) -> None:
        """Write one batch, not yet synced. Raises NotWritten with the file cut back, or Fenced."""
        try:
            self._disk.write_all(self._fd, data, self._end)
        except OSError as error:
            self._cut_back(error)
            raise NotWritten(f"the batch could not be written: {_words(error)}") from error

    def sync(self, size: int, position: Position) -> None:
        """Make the batch just written durable and move past it. Raises Fenced; never tries again."""
        try:
            self._disk.fdatasync(self._fd)
        except OSError as error:
            raise Fenced(f"the sync of {self.segment.path.name} failed: {_words(error)}") from error
        self._end += size
        self._allocated = max(self._allocated, self._end)
        self.position = position

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def _rotate(self) -> Segment:
        position = self.position
        old = self.segment.header
        header = SegmentHeader(
            journal_id=old.journal_id,
            epoch=position.epoch,
            first_seq=position.next_seq,
            first_batch_no=position.next_batch_no,
            prev_chain=position.chain,
            host=old.host,
        )
        try:
            segment = create_segment(self._folder, header, self._disk)
        except OSError as error:
            raise NotWritten(f"the next segment could not be made: {_words(error)}") from error
        os.close(self._fd)
        self.segment = segment
        self._end = segment.end
        self._fd = open_regular(segment.path, os.O_RDWR)
        self._allocated = segment.end
        return segment

    def _cut_back(self, cause: OSError) -> None:
        try:
            self._disk.ftruncate(self._fd, self._end)
            self._disk.fdatasync(self._fd)
        except OSError as error:
            raise Fenced(
                f"a write failed ({_words(cause)}) and its part could not be cut off again: {_words(error)}"
            ) from error
        self._allocated = self._end


class Shared:
    """What the writer thread and the event loop both touch, each under ``changed``."""

    def __init__(self, segments: list[Segment], position: Position, limits: Limits) -> None:
        self.changed = threading.Condition()
        self.queue: deque[Pending] = deque()
        self.segments = segments
        self.head_seq = position.next_seq - 1
        self.head_chain = position.chain
        self.next_seq = position.next_seq
        self.ring: deque[tuple[JournalRecord, int]] = deque(maxlen=limits.ring_records)
        self.stopping = False
        self.fenced = ""
        self.refusing = ""
        self.trouble = ""
        self.sync_seconds = 0.0
        self.sync_began_ns: int | None = None

    def publish(self, records: tuple[JournalRecord, ...], position: Position, size: int) -> None:
        """Make a synced batch readable."""
        segment = self.segments[-1]
        if is_indexed(segment.index, records[0].seq, segment.end):
            segment.index.append(IndexEntry(records[0].seq, segment.end))
        segment.end += size
        self.head_seq = position.next_seq - 1
        self.head_chain = position.chain
        self.ring.extend((record, position.chain) for record in records)


class Writer(threading.Thread):
    """Takes what queued, writes it as one batch, syncs, and tells the event loops."""

    def __init__(self, shared: Shared, end: SegmentWriter, head: HeadFile, clock: Clock, limits: Limits) -> None:
        super().__init__(name="journal-writer", daemon=True)
        self._shared = shared
        self._end = end
        self._head = head
        self._clock = clock
        self._limits = limits
        self._witnessed_ns = clock.mono_ns()
        self._journal_id = end.segment.header.journal_id

    def run(self) -> None:
        """Work until told to stop and the queue is empty, or until the journal is fenced."""
        group: list[Pending] = []
        ended = "the writer thread ended by a fault of its own; its traceback is in the agent's log"
        try:
            while (taken := self._next_group()) is not None:
                group = taken
                if group:
                    self._commit(group)
                group = []
                self._witness_when_due()
            self._witness()
            ended = ""
        except Fenced as fenced:
            ended = str(fenced)
        finally:
            self._end.close()
            self._head.close()
            if ended:
                self._fence(group, ended)

    def _next_group(self) -> list[Pending] | None:
        shared = self._shared
        with shared.changed:
            while not shared.queue:
                if shared.stopping:
                    return None
                if self._head.last == self._reached():
                    shared.changed.wait()
                elif not shared.changed.wait(self._seconds_to_witness()) and not shared.queue:
                    return []
            group = [shared.queue.popleft()]
            records, size = len(group[0].records), group[0].size
            while shared.queue:
                records += len(shared.queue[0].records)
                size += shared.queue[0].size
                if records > self._limits.group_records or size > self._limits.group_bytes:
                    break
                group.append(shared.queue.popleft())
            return group

    def _commit(self, group: list[Pending]) -> None:
        records = tuple(record for pending in group for record in pending.records)
        before = self._end.position
        data = encode_batch(
            [frame for pending in group for frame in pending.frames],
            batch_no=before.next_batch_no,
            first_seq=records[0].seq,
            prev_chain=before.chain,
        )
        after = Position(
            epoch=before.epoch,
            next_batch_no=before.next_batch_no + 1,
            next_seq=records[-1].seq + 1,
            chain=batch_chain(data),
        )
        try:
            begun = self._end.prepare(len(data))
            if begun is not None:
                with self._shared.changed:
                    self._shared.segments.append(begun)
            self._end.write(data)
        except NotWritten as refused:
            self._refuse(group, str(refused))
            return
        self._sync(len(data), after)
        with self._shared.changed:
            self._shared.publish(records, after, len(data))
            self._shared.trouble = ""
        _tell(group, _succeed)

    def _sync(self, size: int, after: Position) -> None:
        began = self._clock.mono_ns()
        with self._shared.changed:
            self._shared.sync_began_ns = began
        try:
            self._end.sync(size, after)
        finally:
            with self._shared.changed:
                self._shared.sync_began_ns = None
                self._shared.sync_seconds = (self._clock.mono_ns() - began) / 1e9

    def _refuse(self, group: list[Pending], words: str) -> None:
        """Fail what was queued: its numbers are given again, once the event loop has heard of it."""
        shared = self._shared
        with shared.changed:
            refused = [*group, *shared.queue]
            shared.queue.clear()
            shared.refusing = shared.trouble = words

        def reopen(pending: Pending) -> None:
            _fail(pending, JournalWriteFailed(f"{words}. Nothing of it was kept; the next try may work.", fenced=False))
            if pending is refused[-1]:
                with shared.changed:
                    shared.next_seq = shared.head_seq + 1
                    shared.refusing = ""

        _tell(refused, reopen)

    def _fence(self, group: list[Pending], words: str) -> None:
        shared = self._shared
        with shared.changed:
            shared.fenced = fenced_words(words)
            lost = [*group, *shared.queue]
            shared.queue.clear()
        _tell(lost, lambda pending: _fail(pending, JournalWriteFailed(shared.fenced, fenced=True)))

    def _seconds_to_witness(self) -> float:
        return max(0.0, self._limits.head_seconds - (self._clock.mono_ns() - self._witnessed_ns) / 1e9)

    def _witness_when_due(self) -> None:
        if self._seconds_to_witness() == 0.0:
            self._witness()

    def _witness(self) -> None:
        with self._shared.changed:
            reached = self._reached()
        if reached != self._head.last:
            try:
                self._head.write(reached)
            except OSError as error:
                raise Fenced(f"the head file could not be written: {_words(error)}") from error
        self._witnessed_ns = self._clock.mono_ns()

    def _reached(self) -> Head:
        return Head(
            journal_id=self._journal_id,
            epoch=self._end.position.epoch,
            seq=self._shared.head_seq,
            oldest=self._shared.segments[0].header.first_seq,
            chain=self._shared.head_chain,
        )


def fenced_words(words: str) -> str:
    """What a fenced journal says of itself."""
    return (
        f"the journal is fenced: {words}. What is on the disk is not known; no command is taken, engines go on. "
        "Look at the disk (dmesg, space, mount), then restart the agent: it recovers what is really there."
    )


def batch_chain(batch: bytes) -> int:
    """The checksum that an encoded batch carries."""
    return int.from_bytes(batch[32:36], "little")


def _words(error: OSError) -> str:
    return error.strerror or str(error)


def _succeed(pending: Pending) -> None:
    if not pending.durable.done():
        pending.durable.set_result(None)


def _fail(pending: Pending, error: JournalWriteFailed) -> None:
    if not pending.durable.done():
        pending.durable.set_exception(error)
        pending.durable.exception()  # lazy records have no waiter; the journal's health says it for them


def _tell(group: list[Pending], tell: Callable[[Pending], None]) -> None:
    if not group:
        return
    try:
        group[0].durable.get_loop().call_soon_threadsafe(_each, tell, group)
    except RuntimeError:
        # The loop is closed, and with it everybody who could have waited.
        return


def _each(tell: Callable[[Pending], None], group: list[Pending]) -> None:
    for pending in group:
        tell(pending)
