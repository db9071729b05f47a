"""The agent's journal: append, know when it is durable, read back, and say where a console stands."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from backend.agent.journal.checkpoint import restating_records
from backend.agent.journal.disk import Disk, own_folder, take_lock
from backend.agent.journal.errors import JournalWriteFailed
from backend.agent.journal.format import (
    BATCH_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    check_batch_size,
    encode_record,
    encode_records,
)
from backend.agent.journal.limits import Clock, Limits
from backend.agent.journal.opening import Opened, open_folder
from backend.agent.journal.recent import Records
from backend.agent.journal.scrub import Scrubber
from backend.agent.journal.segment_writer import error_words
from backend.agent.journal.segments import first_wall_ns
from backend.agent.journal.shared import Notice, Pending
from backend.agent.journal.stored import StoredLog
from backend.agent.journal.writer import Writer
from backend.contract.entities import JournalRecord, fold, moves_revision
from backend.contract.words import UnixMs

LOCK_NAME = "lock"
RETRY_NS = 60 * 1_000_000_000
"""How long after a rotation that failed the next one is tried."""
_RECORD = msgspec.json.Decoder(JournalRecord)
_ENCODER = msgspec.json.Encoder()


class Appended:
    """What an append gave: the records with their numbers, and a future that ends when all of them are durable.

    ``durable`` raises JournalWriteFailed when they never will be.
    """

    __slots__ = ("_records", "durable")

    def __init__(self, records: Records, durable: asyncio.Future[None]) -> None:
        self._records = records
        self.durable = durable

    @property
    def records(self) -> tuple[JournalRecord, ...]:
        """The records with their numbers."""
        return self._records.numbered


class Journal(StoredLog):
    """One journal, open for writing. Written from one event loop."""

    is_read_only = False

    def __init__(self, opened: Opened, lock: int, clock: Clock, disk: Disk, limits: Limits) -> None:
        super().__init__(opened.journal_id, opened.end.position.epoch, opened.shared)
        self.is_new = opened.is_new
        self.recovered_bytes = opened.recovered_bytes
        self.place = opened.place
        self._clock = clock
        self._limits = limits
        self._lock = lock
        self._ahead = opened.shared.entities
        self._ahead_revision = opened.shared.revision
        self._filled = opened.shared.segments[-1].end
        self._full_at = limits.segment_bytes
        self._is_fresh = self._filled == SEGMENT_HEADER_BYTES
        self._began_ns = clock.mono_ns() - self._age_ns(opened)
        self._tried_ns = clock.mono_ns() - RETRY_NS
        self._writer = Writer(opened.shared, opened.end, opened.head, opened.space, disk, clock, limits)
        self._writer.start()
        self._scrubber = Scrubber(opened.shared, limits)
        self._scrubber.start()

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        host: str,
        clock: Clock,
        disk: Disk | None = None,
        limits: Limits | None = None,
        lock: int | None = None,
    ) -> Journal:
        """Lock, check and open the journal under ``folder``, or begin one there (``is_new``).

        A torn tail is kept as ``*.torn`` and cut off, and a new epoch begins. ``lock`` is the descriptor of a lock
        held already. Raises JournalLocked, JournalDamaged, and JournalWriteFailed when the disk does not take what
        opening has to write; a ``lock`` that was given is then still held.
        """
        limits, disk, held = limits or Limits(), disk or Disk(), lock
        try:
            own_folder(folder)
            if held is None:
                held = take_lock(folder / LOCK_NAME)
            opened = open_folder(folder, host=host, clock=clock, disk=disk, limits=limits)
            return cls(opened, held, clock, disk, limits)
        except BaseException as error:
            if held is not None and lock is None:
                os.close(held)
            if isinstance(error, OSError):
                raise cannot_open(folder, error) from error
            raise

    @property
    def health(self) -> str:
        """``ok``, or what is wrong in words: then no load may begin."""
        shared = self._shared
        with shared.lock:
            return shared.fenced or shared.trouble or shared.full or "ok"

    @property
    def fenced(self) -> str:
        """Why nothing can be written any more until a restart; empty while it can."""
        with self._shared.lock:
            return self._shared.fenced

    @property
    def damage(self) -> str:
        """What the scrub found wrong with a sealed segment, when nothing else ended the writing; else empty.

        Then all that was acknowledged is durable and in ``entities``: a fork of it loses history, and no state.
        """
        with self._shared.lock:
            return self._shared.damage if self._shared.fenced == self._shared.damage else ""

    @property
    def last_sync_seconds(self) -> float:
        """How long the last sync took, or the one under way has taken so far when that is longer."""
        with self._shared.lock:
            last, began = self._shared.sync_seconds, self._shared.sync_began_ns
        return last if began is None else max(last, (self._clock.mono_ns() - began) / 1e9)

    @property
    def dropped_records(self) -> int:
        """Progress records that were not kept since space became low."""
        with self._shared.lock:
            return self._shared.dropped

    def take_notices(self) -> tuple[Notice, ...]:
        """What the journal has to say of itself since the last call, for its owner to record."""
        with self._shared.lock:
            notices, self._shared.notices = tuple(self._shared.notices), []
        return notices

    def append(self, records: Sequence[JournalRecord]) -> Appended:
        """Number the records and queue them; all of one call become durable together, in the order of the calls.

        Raises ValueError for a record that could not be read back (over 512 KiB, a lone surrogate, NaN where a number
        must be) and for a call over 4096 records or 1 MiB; JournalWriteFailed while the journal takes nothing: then
        ``fenced``, or until ``resume``.
        """
        durable = asyncio.get_running_loop().create_future()
        if not records:
            durable.set_result(None)
            return Appended(Records(0, ()), durable)
        wall_ns, mono_ns = self._clock.wall_ns(), self._clock.mono_ns()
        payload = encode_records([_checked_json(record) for record in records], wall_ns=wall_ns, mono_ns=mono_ns)
        check_batch_size(len(records), len(payload))
        shared = self._shared
        with shared.lock:
            self._raise_when_closed()
            if self._is_full(len(payload), mono_ns):
                self._begin_segment(wall_ns, mono_ns)
            queued = self._queue(records, payload, durable)
            self._is_fresh = False
            is_awaited, shared.is_waiting = shared.is_waiting, False
        if is_awaited:
            self._writer.wake()
        return Appended(queued, durable)

    def append_lazy(self, records: Sequence[JournalRecord]) -> Appended | None:
        """Append what may be missing afterwards, such as progress; None when space is low: it is counted instead."""
        with self._shared.lock:
            if self._shared.is_low:
                self._shared.dropped += len(records)
                return None
        return self.append(records)

    def resume(self) -> bool:
        """Take records again after a refusal, from the durable state on; False while that cannot be.

        Whoever appends calls this once it has gone back to ``entities``: what was refused is forgotten here.
        """
        shared = self._shared
        with shared.lock:
            if shared.fenced or shared.stopping or (shared.refusing and not shared.may_resume):
                return False
            if shared.refusing:
                shared.refusing, shared.may_resume = "", False
                shared.next_seq = shared.head_seq + 1
                self._ahead, self._ahead_revision = shared.entities, shared.revision
                self._filled = shared.segments[-1].end
                self._is_fresh = self._filled == SEGMENT_HEADER_BYTES
        return True

    async def keep_up(self) -> None:
        """Look after room and retention now instead of in a while; returns when that is done."""
        done = asyncio.get_running_loop().create_future()
        with self._shared.lock:
            if self._shared.fenced or self._shared.stopping:
                return
            self._shared.upkeep.append(done)
        self._writer.wake()
        await done

    async def close(self) -> None:
        """Write what is queued, leave the head file exact, and give the lock back. Again is harmless."""
        lock = await self.hand_over()
        if lock >= 0:
            os.close(lock)

    async def hand_over(self) -> int:
        """The same, but the lock stays held: its descriptor, for what takes the place of this; -1 once it is gone."""
        shared = self._shared
        with shared.lock:
            shared.stopping = True
        if self._lock < 0:
            return -1
        self._writer.wake()
        self._scrubber.stop()
        await asyncio.to_thread(self._writer.join)
        lock, self._lock = self._lock, -1
        if lock >= 0:  # not closed by another caller meanwhile
            self._writer.silence()
        return lock

    # Segments, each under the lock of what is shared

    def _queue(self, records: Sequence[JournalRecord], payload: bytes, durable: asyncio.Future[None]) -> Records:
        shared = self._shared
        queued = Records(shared.next_seq, records)
        for record in records:
            if record.change is not None:
                self._ahead = fold(self._ahead, record)
                self._ahead_revision += moves_revision(record.change)
        shared.next_seq = queued.last + 1
        shared.queue.append(Pending(queued, payload, durable, self._ahead, self._ahead_revision))
        self._filled += len(payload) + BATCH_HEADER_BYTES
        return queued

    def _is_full(self, size: int, mono_ns: int) -> bool:
        if self._is_fresh:
            return False
        if self._shared.rotation_due:
            return mono_ns - self._tried_ns >= RETRY_NS
        is_old = mono_ns - self._began_ns >= self._limits.segment_seconds * 1e9
        return is_old or self._filled + size + BATCH_HEADER_BYTES > self._full_at

    def _begin_segment(self, wall_ns: int, mono_ns: int) -> None:
        """Queue a new segment that begins with a checkpoint of everything queued so far."""
        self._shared.rotation_due, self._filled = False, 0
        self._tried_ns = self._began_ns = mono_ns
        loop = asyncio.get_running_loop()
        records = restating_records(self._ahead, UnixMs(wall_ns // 1_000_000))
        group: list[JournalRecord] = []
        frames: list[bytes] = []
        first = len(self._shared.queue)
        for record in records:
            frame = encode_record(_checked_json(record), wall_ns=wall_ns, mono_ns=mono_ns)
            if frames and sum(map(len, frames)) + len(frame) > self._limits.group_bytes:
                self._queue(group, b"".join(frames), loop.create_future())
                group, frames = [], []
            group.append(record)
            frames.append(frame)
        self._queue(group, b"".join(frames), loop.create_future())
        self._shared.queue[first].begins = True
        self._shared.queue[-1].completes = True
        self._full_at = max(self._limits.segment_bytes, 2 * self._filled)
        self._is_fresh = True

    def _raise_when_closed(self) -> None:
        shared = self._shared
        if shared.fenced:
            raise JournalWriteFailed(shared.fenced, fenced=True)
        if shared.stopping:
            raise JournalWriteFailed("the journal is closed", fenced=True)
        if shared.refusing:
            raise JournalWriteFailed(f"{shared.refusing}. Nothing of it was kept.", fenced=False)

    def _age_ns(self, opened: Opened) -> int:
        """How old the segment is that is gone on with: at most its limit, whatever the wall clock did."""
        first = first_wall_ns(opened.shared.segments[-1])
        if first is None:
            return 0
        return min(max(0, self._clock.wall_ns() - first), int(self._limits.segment_seconds * 1e9))


def _checked_json(record: JournalRecord) -> bytes:
    """The JSON to store, proven to read back: a record that does not would make every later start refuse."""
    try:
        body = _ENCODER.encode(record if record.seq == 0 else msgspec.structs.replace(record, seq=0))
        if record.change is not None:
            # Only after-images have numbers that JSON cannot say; texts are checked by the encoder.
            _RECORD.decode(body)
    except (ValueError, TypeError, OverflowError, msgspec.MsgspecError) as error:
        raise ValueError(f"the journal record {record.kind!r} cannot be stored: {error}") from error
    return body


def cannot_open(folder: Path, error: OSError) -> JournalWriteFailed:
    """The error of a journal whose disk does not take what opening has to write."""
    where = error.filename or folder
    return JournalWriteFailed(
        f"the journal cannot be opened for writing: {error_words(error)} ({where}). Look at the disk, its mount "
        "and the folder's owner, then start the agent again.",
        fenced=True,
    )
