"""What the journal does when the disk, the process or a second agent get in its way."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backend.agent.journal import Disk, Journal, JournalLocked, JournalWriteFailed, Limits
from tests.agent.journal.worlds import (
    HOST,
    WAIT_SECONDS,
    StillClock,
    TroubledDisk,
    append_each,
    closed_with,
    expected,
    expected_words,
    open_journal,
    place,
    record,
    segments,
    steps,
    words,
)

ROTATING = Limits(segment_bytes=1024, allocate_bytes=512, head_seconds=3600.0, reserve_bytes=8192)
ROOT = Path(__file__).parents[3]
WRITER = """
import asyncio, sys
from pathlib import Path
from backend.agent.journal import Journal, SystemClock
from tests.agent.journal.worlds import record

async def one(journal, n):
    appended = journal.append([record(n, f"step {n} " + "x" * (n % 700))] )
    await appended.durable
    sys.stdout.write(f"{appended.records[0].seq} {n}\\n")
    sys.stdout.flush()

async def main():
    journal = Journal.open(Path(sys.argv[1]), host="host-a", clock=SystemClock())
    n = journal.head_seq
    while True:
        await asyncio.gather(*(one(journal, n + k) for k in range(1, 6)))
        n += 5

asyncio.run(main())
"""


@contextmanager
def writer_process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


async def test_a_second_agent_fails_on_the_lock_and_names_the_holder(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(JournalLocked, match=f"process {os.getpid()}") as refused:
        open_journal(tmp_path)
    assert refused.value.pid == os.getpid()
    await append_each(journal, [1])
    await journal.close()
    await open_journal(tmp_path).close()


async def test_a_child_of_the_agent_does_not_inherit_the_lock(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    child = await asyncio.create_subprocess_exec("sleep", "60", close_fds=False)
    try:
        await journal.close()
        await open_journal(tmp_path).close()
    finally:
        child.kill()
        await child.wait()


def test_killing_a_writer_loses_no_acknowledged_record(tmp_path: Path) -> None:
    acknowledged: dict[int, int] = {}
    for _ in range(3):
        with writer_process(tmp_path) as process:
            assert process.stdout is not None
            for _ in range(60):
                seq, n = map(int, process.stdout.readline().split())
                acknowledged[seq] = n
            process.send_signal(signal.SIGKILL)
            for line in process.stdout:
                if line.endswith("\n"):
                    seq, n = map(int, line.split())
                    acknowledged[seq] = n

    async def kept() -> dict[int, str]:
        journal = open_journal(tmp_path)
        found = {r.seq: r.words for r in journal.replay()}
        await journal.close()
        return found

    found = asyncio.run(kept())
    assert len(acknowledged) >= 180
    assert list(found) == list(range(1, len(found) + 1))
    assert {seq: found[seq].split()[:2] for seq in acknowledged} == {
        seq: ["step", str(n)] for seq, n in acknowledged.items()
    }


async def test_a_failed_sync_fences_the_journal_and_is_never_tried_again(tmp_path: Path) -> None:
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    await append_each(journal, [1])
    disk.syncing.clear()
    disk.go_on.clear()
    disk.sync_error = True
    disk.calls.clear()
    pending = [journal.append([record(2)])]
    assert await asyncio.to_thread(disk.syncing.wait, WAIT_SECONDS)
    pending.append(journal.append([record(3)]))
    disk.go_on.set()
    for appended in pending:
        with pytest.raises(JournalWriteFailed, match=r"fenced.*Input/output error") as failed:
            await appended.durable
        assert failed.value.fenced
    disk.sync_error = False
    with pytest.raises(JournalWriteFailed, match="fenced"):
        journal.append([record(4)])
    assert "fenced" in journal.health
    assert (journal.head_seq, steps(journal)) == (1, expected(1))
    await journal.close()
    assert [call.split()[0] for call in disk.calls] == ["write", "sync"]
    again = open_journal(tmp_path)
    assert again.health == "ok"
    assert steps(again)[:1] == expected(1)
    await again.close()


async def test_what_the_last_life_left_unsynced_is_synced_before_it_counts(tmp_path: Path) -> None:
    await closed_with(tmp_path, 2)
    disk = TroubledDisk()
    disk.sync_error = True
    with pytest.raises(JournalWriteFailed, match="Input/output error"):
        open_journal(tmp_path, disk=disk)
    await open_journal(tmp_path).close()


async def test_a_failed_sync_of_the_head_file_fences_too(tmp_path: Path) -> None:
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    await append_each(journal, [1])
    disk.sync_error = True
    await journal.close()
    assert "head file" in journal.health


async def test_a_full_disk_cuts_the_part_off_and_the_journal_goes_on_when_there_is_room(tmp_path: Path) -> None:
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    await append_each(journal, [1, 2])
    (segment,) = segments(tmp_path)
    disk.room = 144
    failed = journal.append([record(3, "x" * 9000)])
    with pytest.raises(JournalWriteFailed, match="No space left") as refused:
        await failed.durable
    assert not refused.value.fenced
    assert "No space left" in journal.health
    assert segment.read_bytes().rstrip(b"\0")[-1:] == b"}"
    with pytest.raises(JournalWriteFailed, match="No space left"):
        journal.append([record(3)])
    assert journal.resume()
    with pytest.raises(JournalWriteFailed, match="No space left"):
        await journal.append([record(3)]).durable
    disk.room = None
    assert journal.resume()
    await journal.keep_up()
    appended = journal.append([record(3)])
    assert appended.records[0].seq == 3
    await appended.durable
    assert (journal.health, steps(journal)) == ("ok", expected(3))
    await journal.close()
    again = open_journal(tmp_path)
    assert (again.journal_epoch, steps(again)) == (1, expected(3))
    await again.close()


async def test_what_queued_behind_a_failed_write_fails_with_it_and_leaves_no_hole(tmp_path: Path) -> None:
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    disk.syncing.clear()
    disk.go_on.clear()
    first = journal.append([record(1)])
    assert await asyncio.to_thread(disk.syncing.wait, WAIT_SECONDS)
    queued = [journal.append([record(n, "y" * 200_000)]) for n in (2, 3, 4)]
    disk.failing_writes = 1
    disk.go_on.set()
    await first.durable
    for appended in queued:
        with pytest.raises(JournalWriteFailed, match="No space left"):
            await appended.durable
    assert journal.resume()
    await append_each(journal, [2, 3])
    assert steps(journal) == expected(3)
    await journal.close()


async def test_short_writes_are_gone_on_with(tmp_path: Path) -> None:
    disk = TroubledDisk()
    disk.bites = 7
    journal = open_journal(tmp_path, disk=disk)
    await append_each(journal, [1, 2, 3])
    await journal.close()
    again = open_journal(tmp_path)
    assert steps(again) == expected(3)
    await again.close()


async def test_a_part_that_cannot_be_cut_off_fences_the_journal(tmp_path: Path) -> None:
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    await append_each(journal, [1])
    disk.room, disk.truncate_error = 100, True
    with pytest.raises(JournalWriteFailed, match="could not be cut off"):
        await journal.append([record(2)]).durable
    await journal.close()
    again = open_journal(tmp_path)
    assert (again.journal_epoch, steps(again)) == (2, expected(1))
    await again.close()


class FailingAt(Disk):
    """A disk whose call number ``at`` fails, whichever it is."""

    def __init__(self, at: int) -> None:
        self.left = at

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.EIO, "Input/output error")

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self._count()
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._count()
        super().fdatasync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        self._count()
        super().ftruncate(fd, length)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._count()
        super().allocate(fd, offset, length)

    def fsync_folder(self, folder: Path) -> None:
        self._count()
        super().fsync_folder(folder)


async def test_whichever_disk_call_fails_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    at, was_hit = 0, True
    while was_hit:
        at += 1
        folder, disk = tmp_path / str(at), FailingAt(at)
        acknowledged = await _run_into_failure(folder, disk)
        was_hit = disk.left <= 0
        journal = open_journal(folder)
        assert words(journal)[:acknowledged] == expected_words(acknowledged)
        assert journal.health == "ok"
        await append_each(journal, [99])
        await journal.close()
    assert at > 20


async def _run_into_failure(folder: Path, disk: Disk) -> int:
    """Append until a failure, as an agent would that stops then; returns how many were acknowledged."""
    try:
        journal = Journal.open(folder, host=HOST, clock=StillClock(), disk=disk, limits=ROTATING)
    except JournalWriteFailed:
        return 0
    acknowledged = 0
    try:
        for n in range(1, 9):
            await journal.append([record(n)]).durable
            acknowledged = n
    except JournalWriteFailed:
        assert journal.health != "ok"
    await journal.close()
    return acknowledged


async def test_a_journal_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    await closed_with(tmp_path, 1)
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").mkdir()
    with pytest.raises(JournalWriteFailed, match=r"cannot be opened for writing.*lock"):
        open_journal(tmp_path)
    assert place(tmp_path).exists()


def test_flock_is_what_holds_the_lock(tmp_path: Path) -> None:
    tmp_path.joinpath("lock").write_text("garbage")
    fd = os.open(tmp_path / "lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(JournalLocked, match="did not leave its pid"):
            open_journal(tmp_path)
    finally:
        os.close(fd)
