"""A simulated power cut: of the last, unacknowledged batch any subset of sectors reached the disk."""

from __future__ import annotations

import asyncio
import errno
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.agent.journal import Disk, Journal, JournalWriteFailed
from tests.agent.journal.worlds import HOST, SMALL, StillClock, record

SECTOR = 512


class PowerCutDisk(Disk):
    """Keeps what is written in memory until it is synced; at the cut only chosen sectors of it reach the file."""

    def __init__(self, survivors: list[bool]) -> None:
        self.armed = False
        self._survivors = survivors
        self._unsynced: list[tuple[int, int, bytes]] = []

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        if not self.armed:
            return super().pwrite(fd, data, offset)
        self._unsynced.append((fd, offset, bytes(data)))
        return len(data)

    def fdatasync(self, fd: int) -> None:
        if not self.armed:
            super().fdatasync(fd)
            return
        kept = 0
        for file, offset, data in self._unsynced:
            at = offset
            while at < offset + len(data):
                end = min(offset + len(data), at - at % SECTOR + SECTOR)
                if self._survivors[kept % len(self._survivors)]:
                    super().pwrite(file, data[at - offset : end - offset], at)
                kept += 1
                at = end
        raise OSError(errno.EIO, "the power is gone")


async def live_until_the_cut(folder: Path, appends: list[int], last: int, survivors: list[bool]) -> list[str]:
    """One life of an agent: batches of the given sizes, then one that is cut; returns the acknowledged words."""
    disk = PowerCutDisk(survivors)
    journal = Journal.open(folder, host=HOST, clock=StillClock(), disk=disk, limits=SMALL)
    acknowledged = []
    for size in appends:
        appended = journal.append([record(n, f"{journal.head_seq} {n} " + "w" * n * 40) for n in range(size)])
        await appended.durable
        acknowledged += [r.words for r in appended.records]
    disk.armed = True
    with pytest.raises(JournalWriteFailed):
        await journal.append([record(n, f"cut {n} " + "c" * n * 90) for n in range(last)]).durable
    await journal.close()
    return acknowledged


async def words_on_disk(folder: Path) -> list[str]:
    journal = Journal.open(folder, host=HOST, clock=StillClock(), limits=msgspec.structs.replace(SMALL))
    words = [r.words for r in journal.replay() if r.kind != "journal.recovered"]
    assert [r.seq for r in journal.replay()] == list(range(1, journal.head_seq + 1))
    await journal.close()
    return words


LIFE = st.tuples(
    st.lists(st.integers(1, 12), max_size=4), st.integers(1, 30), st.lists(st.booleans(), min_size=1, max_size=24)
)


@settings(max_examples=60, deadline=None)
@given(lives=st.lists(LIFE, min_size=1, max_size=4))
def test_after_any_power_cut_the_log_is_what_was_acknowledged_and_at_most_the_last_batch_whole(
    lives: list[tuple[list[int], int, list[bool]]],
) -> None:
    async def run(folder: Path) -> None:
        stands: list[str] = []
        for appends, last, survivors in lives:
            stands += await live_until_the_cut(folder, appends, last, survivors)
            found = await words_on_disk(folder)
            assert found[: len(stands)] == stands
            extra = found[len(stands) :]
            assert [words.split()[:2] for words in extra] in ([], [["cut", str(n)] for n in range(last)])
            stands = found

    with tempfile.TemporaryDirectory(prefix="rt") as folder:
        asyncio.run(run(Path(folder)))
