"""Small factories for the journal's tests: records, a clock that the test moves, disks that misbehave on demand."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable
from pathlib import Path

from backend.agent.journal import Disk, Journal, Limits
from backend.contract.entities import JournalRecord
from backend.contract.words import UnixMs

HOST = "host-a"
WAIT_SECONDS = 30.0
SMALL = Limits(allocate_bytes=4096, head_seconds=3600.0, reserve_bytes=8192)
"""Limits that keep test files small and the head file still until close."""


class StillClock:
    """A clock that stands where the test puts it."""

    def __init__(self) -> None:
        self.wall = 1_764_412_800_000_000_000
        self.mono = 1_000_000_000

    def wall_ns(self) -> int:
        return self.wall

    def mono_ns(self) -> int:
        return self.mono


class TroubledDisk(Disk):
    """The real disk with faults that a test switches on; it keeps the order of the calls on the log."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.room: int | None = None
        self.failing_writes = 0
        self.bites: int | None = None
        self.sync_error = False
        self.truncate_error = False
        self.syncing = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def free_room(self, folder: Path) -> tuple[int, int]:
        return super().free_room(folder) if self.room is None else (self.room, 1 << 40)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self.calls.append(f"write {len(data)}")
        if self.failing_writes:
            self.failing_writes -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.room is not None:
            if self.room == 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            data = data[: self.room]
            self.room -= len(data)
        if self.bites is not None:
            data = data[: self.bites]
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self.calls.append("sync")
        self.syncing.set()
        assert self.go_on.wait(WAIT_SECONDS)
        if self.sync_error:
            raise OSError(errno.EIO, "Input/output error")
        super().fdatasync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        self.calls.append("cut")
        if self.truncate_error:
            raise OSError(errno.EIO, "Input/output error")
        super().ftruncate(fd, length)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        if self.room is not None:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(fd, offset, length)


def record(n: int, words: str = "") -> JournalRecord:
    return JournalRecord(kind="test.step", words=words or f"step {n}", at_unix_ms=UnixMs(n))


def open_journal(folder: Path, *, disk: Disk | None = None, limits: Limits = SMALL) -> Journal:
    return Journal.open(folder, host=HOST, clock=StillClock(), disk=disk, limits=limits)


async def append_each(journal: Journal, numbers: Iterable[int]) -> None:
    """One batch per record: each is durable before the next is queued."""
    for n in numbers:
        await journal.append([record(n)]).durable


async def closed_with(folder: Path, count: int, *, limits: Limits = SMALL) -> None:
    """A journal of ``count`` batches of one record each, closed again."""
    journal = open_journal(folder, limits=limits)
    await append_each(journal, range(1, count + 1))
    await journal.close()


def place(folder: Path) -> Path:
    """The folder of the one journal."""
    (found,) = (path for path in folder.iterdir() if len(path.name) == 32)
    return found


def segments(folder: Path) -> list[Path]:
    return sorted(place(folder).glob("*.rtj"))


def steps(journal: Journal) -> list[tuple[int, str]]:
    return [(r.seq, r.words) for r in journal.replay() if r.kind == "test.step"]


def words(journal: Journal) -> list[str]:
    """What the test wrote, without the numbers, which checkpoints take their share of."""
    return [r.words for r in journal.replay() if r.kind == "test.step"]


def expected_words(count: int) -> list[str]:
    return [f"step {n}" for n in range(1, count + 1)]


def expected(count: int) -> list[tuple[int, str]]:
    return [(n, f"step {n}") for n in range(1, count + 1)]
