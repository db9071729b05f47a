"""The one thread that writes: adaptive group commit, rotation, retention, and what happens when the disk says no.

One sync is in flight; meanwhile appends queue, and then go out together as the next batch. Batch N+1 is never written
before N's sync returned: recovery relies on it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable

from backend.agent.journal.disk import Disk
from backend.agent.journal.errors import JournalWriteFailed
from backend.agent.journal.format import encode_batch
from backend.agent.journal.head import Head, HeadFile
from backend.agent.journal.limits import Clock, Limits
from backend.agent.journal.recovery import Position
from backend.agent.journal.retention import why_unlink_oldest
from backend.agent.journal.segment_writer import Fenced, NotRotated, NotWritten, SegmentWriter, error_words
from backend.agent.journal.shared import Bell, Pending, Shared
from backend.agent.journal.space import FULL, Space
from backend.failpoints import failpoint


class Writer(threading.Thread):
    """Takes what queued, writes it as one batch, syncs, and tells the event loops."""

    def __init__(
        self,
        shared: Shared,
        end: SegmentWriter,
        head: HeadFile,
        space: Space,
        disk: Disk,
        clock: Clock,
        limits: Limits,
    ) -> None:
        super().__init__(name="journal-writer", daemon=True)
        self._shared = shared
        self._end = end
        self._head = head
        self._space = space
        self._disk = disk
        self._clock = clock
        self._limits = limits
        self._bell = Bell()
        self._witnessed_ns = self._kept_up_ns = self._unlinked_ns = clock.mono_ns()
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
                self._end.settle()
                if self._seconds_until(self._witnessed_ns, self._limits.head_seconds) == 0.0:
                    self._witness()
                self._keep_up_when_due()
            self._witness()
            ended = ""
        except Fenced as fenced:
            ended = str(fenced)
        finally:
            if ended:
                self._fence(group, ended)  # first: whoever waits hears of it whatever else goes wrong here
            self._end.close()
            self._head.close()

    def wake(self) -> None:
        """Something is queued, or asked for. Called without the lock, so that the thread does not meet it closed."""
        self._bell.ring()

    def silence(self) -> None:
        """Give up what wakes the thread, after its end."""
        self._bell.close()

    def _next_group(self) -> list[Pending] | None:
        """What goes into the next batch; empty when other work is due, None when there will be no more."""
        shared = self._shared
        while True:
            with shared.lock:
                shared.is_waiting = False
                if shared.queue:
                    return self._take_group()
                if shared.stopping:
                    return None
                seconds = 0.0 if shared.upkeep else self._seconds_to_wait()
                if seconds == 0.0:
                    return []
                shared.is_waiting = True
            self._bell.wait(seconds)

    def _seconds_to_wait(self) -> float:
        seconds = self._seconds_until(self._kept_up_ns, self._limits.upkeep_seconds)
        if self._head.last != self._reached():
            seconds = min(seconds, self._seconds_until(self._witnessed_ns, self._limits.head_seconds))
        return seconds

    def _take_group(self) -> list[Pending]:
        queue = self._shared.queue
        group = [queue.popleft()]
        records, size = len(group[0].records), len(group[0].payload)
        while queue and not queue[0].begins:
            records += len(queue[0].records)
            size += len(queue[0].payload)
            if records > self._limits.group_records or size > self._limits.group_bytes:
                break
            group.append(queue.popleft())
        return group

    # One batch

    def _commit(self, group: list[Pending]) -> None:
        if group[0].begins:
            self._rotate()
        first_seq, last_seq = group[0].records.first, group[-1].records.last
        before = self._end.position
        data = encode_batch(
            [pending.payload for pending in group],
            count=last_seq + 1 - first_seq,
            batch_no=before.next_batch_no,
            first_seq=first_seq,
            prev_chain=before.chain,
        )
        after = Position(
            epoch=before.epoch,
            next_batch_no=before.next_batch_no + 1,
            next_seq=last_seq + 1,
            chain=batch_chain(data),
        )
        try:
            self._end.prepare(len(data))
            self._end.write(data)
        except NotWritten as refused:
            self._refuse(group, refused)
            return
        self._sync(data, after)
        failpoint("journal.after_sync_before_ack")
        with self._shared.lock:
            # Waking the loop takes as long as the rest here does; who is told looks at the journal under this lock.
            _tell(group, _succeed)
            last = group[-1]
            self._shared.publish([each.records for each in group], after, len(data), last.entities, last.revision)
            self._shared.trouble = ""
            if any(pending.completes for pending in group) and self._is_restating:
                self._shared.segments[-1].is_base = True
                self._is_restating = False

    _is_restating = False
    """A checkpoint is being written at the start of the present segment."""

    def _rotate(self) -> None:
        try:
            begun = self._end.rotate(self._clock.wall_ns())
        except NotRotated as refused:
            self._is_restating = False
            with self._shared.lock:
                self._shared.rotation_due = True
            self._shared.note(
                "journal.not_rotated", "warn", f"{refused}. The present segment goes on beyond its size; tried again."
            )
            return
        self._is_restating = True
        with self._shared.lock:
            self._shared.segments.append(begun)

    def _sync(self, data: bytes, after: Position) -> None:
        began = self._clock.mono_ns()
        self._shared.sync_began_ns = began
        try:
            self._end.sync(data, after)
        finally:
            # In this order, so that a reader without the lock sees the long sync in one of the two.
            self._shared.sync_seconds = (self._clock.mono_ns() - began) / 1e9
            self._shared.sync_began_ns = None

    def _refuse(self, group: list[Pending], refused: NotWritten) -> None:
        """Fail what was queued: its numbers are given again, once the owner has heard of it and resumes."""
        shared, words = self._shared, str(refused)
        if refused.is_full:
            self._give_up_the_reserve()
        with shared.lock:
            failed = [*group, *shared.queue]
            shared.queue.clear()
            shared.refusing = shared.trouble = words
            shared.may_resume = False

        def heard(pending: Pending) -> None:
            _fail(pending, JournalWriteFailed(f"{words}. Nothing of it was kept; the next try may work.", fenced=False))
            if pending is failed[-1]:
                with shared.lock:
                    shared.may_resume = True

        _tell(failed, heard)

    def _fence(self, group: list[Pending], words: str) -> None:
        shared = self._shared
        with shared.lock:
            shared.fenced = fenced_words(words)
            lost = [*group, *shared.queue]
            shared.queue.clear()
            waiting, shared.upkeep = shared.upkeep, []
        _tell(lost, lambda pending: _fail(pending, JournalWriteFailed(shared.fenced, fenced=True)))
        _wake(waiting)

    # Upkeep

    def _keep_up_when_due(self) -> None:
        with self._shared.lock:
            waiting, self._shared.upkeep = self._shared.upkeep, []
        try:
            if waiting or self._seconds_until(self._kept_up_ns, self._limits.upkeep_seconds) == 0.0:
                self._kept_up_ns = self._clock.mono_ns()
                self._look_at_space()
                self._retain()
        finally:
            _wake(waiting)

    def _look_at_space(self) -> None:
        before = self._space.level
        try:
            changed = self._space.look()
        except OSError as error:
            self._shared.note(
                "journal.space", "warn", f"the room on the journal's disk cannot be told: {error_words(error)}"
            )
            return
        if changed and before == FULL:
            self._shared.note(
                "journal.resumed", "info", "there is room on the disk again, and the journal's reserve is whole"
            )
        if changed and self._space.level == FULL:
            self._shared.note("journal.full", "alarm", self._space.words)
        self._tell_space()

    def _tell_space(self) -> None:
        is_low, shared = self._space.is_low, self._shared
        with shared.lock:
            shared.is_low, shared.full = is_low, self._space.words
            dropped, shared.dropped = (shared.dropped, 0) if not is_low else (0, shared.dropped)
        if dropped:
            shared.note("journal.dropped", "warn", f"{dropped} progress records were not kept while the disk was low")

    def _give_up_the_reserve(self) -> None:
        was_full = self._space.level == FULL
        try:
            self._space.give_up()
            self._space.look()
        except OSError as error:
            self._shared.note("journal.space", "alarm", f"the reserve could not be given up: {error_words(error)}")
        if not was_full:
            words = self._space.words or "the disk was full for a moment; there is room again"
            self._shared.note("journal.full", "alarm", words)
        self._tell_space()

    def _retain(self) -> None:
        """Unlink the oldest segment when it may go, at most one in a while, after the head file says so."""
        if self._seconds_until(self._unlinked_ns, self._limits.unlink_seconds) > 0.0:
            return
        with self._shared.lock:
            why = why_unlink_oldest(self._shared.segments, self._limits, self._clock.wall_ns())
            if not why:
                return
            gone = self._shared.segments.pop(0)
        self._witness()
        self._unlinked_ns = self._clock.mono_ns()
        try:
            os.unlink(gone.path)
            self._disk.fsync_folder(gone.path.parent)
        except OSError as error:
            self._shared.note("journal.retention", "warn", f"{gone.path} could not be removed: {error_words(error)}")
            return
        self._shared.note("journal.retention", "info", f"segment {gone.path.name} was removed: {why}")

    # The head file

    def _seconds_until(self, since_ns: int, seconds: float) -> float:
        return max(0.0, seconds - (self._clock.mono_ns() - since_ns) / 1e9)

    def _witness(self) -> None:
        with self._shared.lock:
            reached = self._reached()
        if reached != self._head.last:
            try:
                self._head.write(reached)
            except OSError as error:
                raise Fenced(f"the head file could not be written: {error_words(error)}") from error
        self._witnessed_ns = self._clock.mono_ns()

    def _reached(self) -> Head:
        return Head(
            journal_id=self._journal_id,
            epoch=self._end.position.epoch,
            seq=self._shared.head_seq,
            oldest=self._shared.oldest_seq,
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


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        try:
            future.get_loop().call_soon_threadsafe(_done, future)
        except RuntimeError:
            continue  # as above


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
