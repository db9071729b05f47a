"""The agent's journal: append, know when it is durable, read back, and say where a console stands."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from backend.agent.journal.cursor import Cursor, CursorOutcome, parse_cursor
from backend.agent.journal.disk import Disk, own_folder, take_lock
from backend.agent.journal.errors import JournalWriteFailed
from backend.agent.journal.format import check_batch_size, encode_record
from backend.agent.journal.opening import Opened, chain_at, open_folder, segment_of
from backend.agent.journal.segments import Segment, batches_from
from backend.agent.journal.writer import Clock, Limits, Pending, Writer
from backend.contract.entities import JournalRecord
from backend.contract.numbers import check_u64

LOCK_NAME = "lock"
_RECORD = msgspec.json.Decoder(JournalRecord)


class SystemClock:
    """The machine's own clocks."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970."""
        return time.time_ns()

    def mono_ns(self) -> int:
        """Nanoseconds of the monotonic clock."""
        return time.monotonic_ns()


class Appended:
    """What an append gave: the records with their numbers, and a future that ends when all of them are durable.

    ``durable`` raises JournalWriteFailed when they never will be.
    """

    __slots__ = ("durable", "records")

    def __init__(self, records: tuple[JournalRecord, ...], durable: asyncio.Future[None]) -> None:
        self.records = records
        self.durable = durable


class Journal:
    """One journal, open for writing. Used from one event loop; reading is bounded by ``limit`` and never waits."""

    def __init__(self, opened: Opened, lock: int, clock: Clock, limits: Limits) -> None:
        self.journal_id = opened.journal_id
        self.journal_epoch = opened.end.position.epoch
        self.is_new = opened.is_new
        self.recovered_bytes = opened.recovered_bytes
        self._shared = opened.shared
        self._clock = clock
        self._lock = lock
        self._writer = Writer(opened.shared, opened.end, opened.head, clock, limits)
        self._writer.start()

    @classmethod
    def open(
        cls, folder: Path, *, host: str, clock: Clock, disk: Disk | None = None, limits: Limits | None = None
    ) -> Journal:
        """Lock, check and open the journal under ``folder``, or begin one there (``is_new``).

        A torn tail is kept as ``*.torn`` and cut off, and a new epoch begins. Raises JournalLocked, JournalDamaged,
        and JournalWriteFailed when the disk does not take what opening has to write.
        """
        limits = limits or Limits()
        try:
            own_folder(folder)
            lock = take_lock(folder / LOCK_NAME)
        except OSError as error:
            raise _cannot_open(folder, error) from error
        try:
            opened = open_folder(folder, host=host, clock=clock, disk=disk or Disk(), limits=limits)
            return cls(opened, lock, clock, limits)
        except OSError as error:
            os.close(lock)
            raise _cannot_open(folder, error) from error
        except BaseException:
            os.close(lock)
            raise

    @property
    def head_seq(self) -> int:
        """The last durable record; 0 while there is none."""
        with self._shared.changed:
            return self._shared.head_seq

    @property
    def oldest_seq(self) -> int:
        """The oldest record kept; one past ``head_seq`` while there is none."""
        with self._shared.changed:
            return self._shared.segments[0].header.first_seq

    @property
    def health(self) -> str:
        """``ok``, or what is wrong in words."""
        with self._shared.changed:
            return self._shared.fenced or self._shared.trouble or "ok"

    @property
    def last_sync_seconds(self) -> float:
        """How long the last sync took, or the one under way has taken so far when that is longer."""
        with self._shared.changed:
            last, began = self._shared.sync_seconds, self._shared.sync_began_ns
        return last if began is None else max(last, (self._clock.mono_ns() - began) / 1e9)

    def append(self, records: Sequence[JournalRecord]) -> Appended:
        """Number the records and queue them; all of one call become durable together, in the order of the calls.

        Raises ValueError for a record that could not be read back (over 512 KiB, a lone surrogate, NaN where a number
        must be) and for a call over 4096 records or 1 MiB; JournalWriteFailed while the journal takes nothing.
        """
        durable = asyncio.get_running_loop().create_future()
        if not records:
            durable.set_result(None)
            return Appended((), durable)
        wall_ns, mono_ns = self._clock.wall_ns(), self._clock.mono_ns()
        frames = [encode_record(_checked_json(record), wall_ns=wall_ns, mono_ns=mono_ns) for record in records]
        size = sum(map(len, frames))
        check_batch_size(len(frames), size)
        shared = self._shared
        with shared.changed:
            if shared.fenced:
                raise JournalWriteFailed(shared.fenced, fenced=True)
            if shared.stopping:
                raise JournalWriteFailed("the journal is closed", fenced=True)
            if shared.refusing:
                raise JournalWriteFailed(f"{shared.refusing}. Nothing of it was kept.", fenced=False)
            first = shared.next_seq
            numbered = tuple(msgspec.structs.replace(r, seq=seq) for seq, r in enumerate(records, first))
            shared.next_seq = first + len(numbered)
            shared.queue.append(Pending(numbered, frames, size, durable))
            shared.changed.notify_all()
        return Appended(numbered, durable)

    def replay(self) -> Iterator[JournalRecord]:
        """Every durable record in order. Raises JournalDamaged for what no longer reads as it was written."""
        return self._stored(0)

    def read(self, after: int, limit: int) -> tuple[JournalRecord, ...]:
        """At most ``limit`` durable records past ``after``, from memory when recent, else from the file."""
        check_u64("after", after)
        shared = self._shared
        with shared.changed:
            ring = shared.ring
            if after >= shared.head_seq or limit <= 0:
                return ()
            if ring and ring[0][0].seq <= after + 1:
                start = after + 1 - ring[0][0].seq
                return tuple(record for record, _ in islice(ring, start, start + limit))
        return tuple(islice(self._stored(after), limit))

    def cursor(self, seq: int) -> str:
        """The cursor of somebody who has everything up to ``seq`` (0: nothing). Raises ValueError outside the log."""
        oldest, head = self.oldest_seq, self.head_seq
        if not oldest - 1 <= seq <= head:
            raise ValueError(f"no cursor for record {seq}: the journal holds {oldest}..{head}")
        epoch, chain = self._mark(seq)
        return str(Cursor(self.journal_id, epoch, seq, chain))

    def resolve(self, cursor: str) -> CursorOutcome:
        """Where the holder of a cursor goes on. Raises ValueError for a text that is no cursor."""
        asked = parse_cursor(cursor)
        oldest, head = self.oldest_seq, self.head_seq
        if asked.journal_id != self.journal_id:
            return self._diverged(f"the cursor is of journal {asked.journal_id}, this one is {self.journal_id}")
        if asked.seq > head:
            return self._diverged(
                f"the cursor has seen record {asked.seq}, the journal ends with {head}: the journal went backwards"
            )
        if asked.seq < oldest - 1:
            return CursorOutcome(outcome="gone", oldest=oldest, journal_epoch=self.journal_epoch)
        epoch, chain = self._mark(asked.seq)
        is_before_all = asked.seq == oldest - 1
        if chain != asked.chain or (epoch != asked.journal_epoch and not is_before_all):
            return self._diverged(
                f"the cursor has record {asked.seq} of epoch {asked.journal_epoch} with chain {asked.chain:08x}, the "
                f"journal has it in epoch {epoch} with {chain:08x}"
            )
        return CursorOutcome(outcome="ok", from_seq=asked.seq, oldest=oldest, journal_epoch=self.journal_epoch)

    async def close(self) -> None:
        """Write what is queued, leave the head file exact, and give the lock back. Again is harmless."""
        shared = self._shared
        with shared.changed:
            shared.stopping = True
            shared.changed.notify_all()
        await asyncio.to_thread(self._writer.join)
        if self._lock >= 0:
            lock, self._lock = self._lock, -1
            os.close(lock)

    def _diverged(self, words: str) -> CursorOutcome:
        return CursorOutcome(outcome="diverged", oldest=self.oldest_seq, journal_epoch=self.journal_epoch, words=words)

    def _mark(self, seq: int) -> tuple[int, int]:
        shared = self._shared
        segments = self._snapshot()
        epoch = segment_of(segments, seq).header.epoch
        with shared.changed:
            ring = shared.ring
            if ring and ring[0][0].seq <= seq:
                return epoch, ring[seq - ring[0][0].seq][1]
            if seq == shared.head_seq:
                return epoch, shared.head_chain
        return epoch, chain_at(segments, seq)

    def _snapshot(self) -> list[Segment]:
        with self._shared.changed:
            return [Segment(s.path, s.header, s.end, s.index) for s in self._shared.segments]

    def _stored(self, after: int) -> Iterator[JournalRecord]:
        segments = self._snapshot()
        first = segments.index(segment_of(segments, after + 1))
        for segment in segments[first:]:
            for batch in batches_from(segment, segment.offset_near(after + 1), segment.end):
                yield from (record for record in batch.records if record.seq > after)


def _checked_json(record: JournalRecord) -> bytes:
    """The JSON to store, proven to read back: a record that does not would make every later start refuse."""
    try:
        body = msgspec.json.encode(msgspec.structs.replace(record, seq=0))
        _RECORD.decode(body)
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
        raise ValueError(f"the journal record {record.kind!r} cannot be stored: {error}") from error
    return body


def _cannot_open(folder: Path, error: OSError) -> JournalWriteFailed:
    where = error.filename or folder
    return JournalWriteFailed(
        f"the journal cannot be opened for writing: {error.strerror or error} ({where}). Look at the disk, its mount "
        "and the folder's owner, then start the agent again.",
        fenced=True,
    )
