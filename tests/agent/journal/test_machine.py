"""The whole journal on a simulated disk: batches, rotation, retention, checkpoints, full disks, power cuts and forks.

The disk keeps what is written in memory until it is synced; a power cut lets any subset of its sectors reach the file.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from backend.agent.journal import DamagedJournal, Disk, Journal, JournalDamaged, JournalWriteFailed, fork_journal
from backend.agent.journal.verifying import verify
from backend.contract.entities import Change, Entities, JournalRecord, fold
from backend.contract.words import NodeId
from tests.agent.journal.test_recovery import batch_offsets
from tests.agent.journal.worlds import HOST, SMALL, StillClock, record, segments
from tests.contract.factories import shard

T = TypeVar("T")
SECTOR = 512
LIMITS = msgspec.structs.replace(SMALL, segment_bytes=3000, allocate_bytes=1024, ring_records=3, keep_bytes=12_000)
MINUTE_NS = 60 * 1_000_000_000
SLOTS = [NodeId(f"tiny-{n}/0") for n in range(4)]


class SimulatedDisk(Disk):
    """Writes wait in memory for their sync. ``full``: nothing more fits. ``cut``: the power goes at the next sync."""

    def __init__(self) -> None:
        self.full = False
        self.survivors: list[bool] = []
        self._unsynced: list[tuple[int, int, bytes]] = []

    def free_room(self, folder: Path) -> tuple[int, int]:
        return (0 if self.full else 1 << 40), 1 << 41

    def allocate(self, fd: int, offset: int, length: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(fd, offset, length)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if self.full and offset + len(data) > os.fstat(fd).st_size:
            # What was reserved before can still be written; of anything behind it a part fits.
            super().pwrite(fd, data[: len(data) // 3], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        self._unsynced.append((fd, offset, bytes(data)))
        return len(data)

    def fdatasync(self, fd: int) -> None:
        if self.survivors:
            self._lose()
            raise OSError(errno.EIO, "the power is gone")
        for file, offset, data in self._unsynced:
            if file == fd:
                super().pwrite(file, data, offset)
        self._unsynced = [each for each in self._unsynced if each[0] != fd]

    def _lose(self) -> None:
        kept = 0
        for file, offset, data in self._unsynced:
            at = offset
            while at < offset + len(data):
                end = min(offset + len(data), at - at % SECTOR + SECTOR)
                if self.survivors[kept % len(self.survivors)]:
                    super().pwrite(file, data[at - offset : end - offset], at)
                kept += 1
                at = end
        self._unsynced = []


class JournalMachine(RuleBasedStateMachine):
    """``acked`` is what the agent was told is durable, and ``entities`` its fold."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
        self.clock = StillClock()
        self.acked: list[str] = []
        self.entities = Entities()
        self.count = 0
        self.epoch = 1

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.open()

    def open(self) -> None:
        self.disk = SimulatedDisk()
        self.journal = Journal.open(self.folder, host=HOST, clock=self.clock, disk=self.disk, limits=LIMITS)
        self.epoch = self.journal.journal_epoch

    def records(self, size: int, slot: int, drops: bool) -> list[JournalRecord]:
        made = []
        for n in range(size):
            self.count += 1
            plain = record(self.count, f"w{self.count} " + "x" * (37 * n % 400))
            if n == 0:
                change = Change(
                    shard=None if drops else msgspec.structs.replace(shard(), node_id=SLOTS[slot], words=plain.words),
                    drop_shards=(SLOTS[slot],) if drops else (),
                )
                plain = msgspec.structs.replace(plain, change=change)
            made.append(plain)
        return made

    def take(self, records: list[JournalRecord]) -> None:
        for each in records:
            self.acked.append(each.words)
            self.entities = fold(self.entities, each)

    async def _append(self, records: list[JournalRecord]) -> bool:
        try:
            await self.journal.append(records).durable
        except JournalWriteFailed:
            return False
        return True

    @rule(size=st.integers(1, 12), slot=st.integers(0, 3), drops=st.booleans())
    def append(self, size: int, slot: int, drops: bool) -> None:
        records = self.records(size, slot, drops)
        if self.do(self._append(records)):
            self.take(records)
        else:
            assert self.disk.full
            assert self.journal.resume()

    @rule()
    def the_disk_fills(self) -> None:
        self.disk.full = True

    @rule()
    def there_is_room_again(self) -> None:
        self.disk.full = False
        self.do(self.journal.keep_up())
        assert self.do(self._append([record(0, "again")]))
        self.acked.append("again")
        assert self.journal.health == "ok"

    @rule(minutes=st.integers(0, 3), days=st.sampled_from([0, 0, 1, 40]))
    def time_passes(self, minutes: int, days: int) -> None:
        self.clock.mono += minutes * MINUTE_NS + days * 1440 * MINUTE_NS
        self.clock.wall += minutes * MINUTE_NS + days * 1440 * MINUTE_NS
        before = len(self.journal.segments())
        self.do(self.journal.keep_up())
        self.do(self.journal.keep_up())
        assert before - 1 <= len(self.journal.segments()) <= before

    @rule()
    def restart(self) -> None:
        self.do(self.journal.close())
        self.open()

    @rule(size=st.integers(1, 30), slot=st.integers(0, 3), survivors=st.lists(st.booleans(), min_size=1, max_size=16))
    def power_cut(self, size: int, slot: int, survivors: list[bool]) -> None:
        self.disk.full = False
        records = self.records(size, slot, drops=False)
        self.disk.survivors = survivors
        assert not self.do(self._append(records))
        self.do(self.journal.close())
        self.open()
        found = self.written()
        if found[-len(records) :] == [each.words for each in records]:
            self.take(records)

    @precondition(lambda self: self.flippable())
    @rule(bit=st.integers(0, 7), place=st.floats(0, 0.999), data=st.data())
    def damage_and_fork(self, bit: int, place: float, data: st.DataObject) -> None:
        """One flipped bit of the present segment, before a whole batch: refused, read only, then forked."""
        self.do(self.journal.close())
        path = segments(self.folder)[-1]
        whole = path.read_bytes()
        offsets = batch_offsets(whole)
        which = data.draw(st.integers(0, len(offsets) - 3))
        at = offsets[which] + int(place * (offsets[which + 1] - offsets[which]))
        broken = bytearray(whole)
        broken[at] ^= 1 << bit
        path.write_bytes(broken)
        try:
            self.open()
            raise AssertionError("the damage was not noticed")
        except JournalDamaged as damage:
            words = str(damage)
        damaged = DamagedJournal(self.folder, host=HOST, words=words)
        assert self.is_part([r.words for r in damaged.replay() if r.kind == "test.step"])
        entities = damaged.entities
        lock = damaged.hand_over_lock()
        fork_journal(self.folder, damaged.salvaged, host=HOST, by="alice", why=words, discovered="", clock=self.clock)
        self.disk = SimulatedDisk()
        self.journal = Journal.open(self.folder, host=HOST, clock=self.clock, disk=self.disk, limits=LIMITS, lock=lock)
        assert self.journal.journal_epoch == self.epoch + 1
        self.epoch += 1
        first = next(self.journal.replay())
        assert (first.kind, first.by, first.seq) == ("journal.forked", "alice", damaged.salvaged.next_seq)
        assert self.journal.entities == entities
        self.acked, self.entities = [], entities

    def is_part(self, written: list[str]) -> bool:
        """Whether these stand one after another in what was acknowledged."""
        if not written:
            return True
        starts = [n for n, each in enumerate(self.acked) if each == written[0]]
        return any(self.acked[n : n + len(written)] == written for n in starts)

    def flippable(self) -> bool:
        return len(batch_offsets(segments(self.folder)[-1].read_bytes())) >= 3

    def written(self) -> list[str]:
        return [each.words for each in self.journal.replay() if each.kind == "test.step"]

    @invariant()
    def what_was_acknowledged_is_there_and_nothing_else(self) -> None:
        if not hasattr(self, "journal"):
            return
        found = self.written()
        assert found == self.acked[len(self.acked) - len(found) :]
        seqs = [each.seq for each in self.journal.replay()]
        assert seqs == list(range(self.journal.oldest_seq, self.journal.head_seq + 1))
        kept = self.journal.segments()
        if kept[0].header.first_seq == 1:
            assert len(found) == len(self.acked)
        assert self.journal.entities == self.entities
        assert verify(self.journal).words == ""

    def teardown(self) -> None:
        try:
            if hasattr(self, "journal"):
                self.disk.full = False
                self.do(self.journal.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()
            shutil.rmtree(self.folder)


JournalMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestJournalMachine = JournalMachine.TestCase
