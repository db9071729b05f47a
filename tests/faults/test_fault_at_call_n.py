"""One fault at call N, for every N, of what makes things durable or alive: write, sync, rename, link, spawn.

The loop ends when the whole scenario passed without meeting its fault: then every call has had its turn.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.agent import supervisor
from backend.agent.journal import Disk, Journal, JournalWriteFailed, Limits
from backend.agent.process_identity import group_members
from backend.agent.run_folder import RunFolder
from backend.contract.entities import ProcessIdentity
from backend.contract.words import OpId, UnixMs
from backend.control import ledger, ledger_views
from backend.control.ledger import Operation, Step
from backend.engines.driver import StopStep
from tests.agent.journal.worlds import HOST, StillClock, append_each, open_journal, record, steps
from tests.agent.run_world import python

ROTATING = Limits(segment_bytes=1024, allocate_bytes=512, head_seconds=3600.0)
LONG = python("import time; time.sleep(600)")


class Countdown:
    """Fails the N-th of the calls that it counts, with one error."""

    def __init__(self, at: int, error: int = errno.EIO) -> None:
        self.left = at
        self.error = error

    @property
    def has_struck(self) -> bool:
        return self.left <= 0

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(self.error, os.strerror(self.error))

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, counted first."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            self()
            return call(*args, **kwargs)

        return counted


class FailingDisk(Disk):
    """The real disk, but for the N-th call of one kind."""

    def __init__(self, kind: str, countdown: Countdown) -> None:
        self._kind = kind
        self._countdown = countdown

    def _count(self, kind: str) -> None:
        if kind == self._kind:
            self._countdown()

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        self._count("write")
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._count("sync")
        super().fdatasync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        self._count("cut")
        super().ftruncate(fd, length)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        self._count("allocate")
        super().allocate(fd, offset, length)

    def fsync_folder(self, folder: Path) -> None:
        self._count("folder")
        super().fsync_folder(folder)


def numbers() -> Iterator[int]:
    """1, 2, 3, …; no scenario here makes more than 200 calls of one kind."""
    yield from range(1, 200)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("kind", ["write", "sync", "cut", "allocate", "folder"])
@pytest.mark.faults("the journal's N-th call of this kind fails, for every N: no acknowledged record is lost")
async def test_journal_fault_at_call_n(tmp_path: Path, kind: str, error: int) -> None:
    for at in numbers():
        folder, countdown = tmp_path / str(at), Countdown(at, error)
        acknowledged = await _append_until_failure(folder, FailingDisk(kind, countdown))
        again = open_journal(folder)
        assert kept(again)[:acknowledged] == promised(acknowledged), f"lost with {kind} {at}"
        assert again.health == "ok"
        await append_each(again, [99])
        await again.close()
        if not countdown.has_struck:
            break
    assert at > 1 or kind == "cut"


@pytest.mark.parametrize("name", ["rename", "open", "fsync"])
@pytest.mark.faults("the journal's N-th rename, open or folder sync fails, for every N: nothing acknowledged is lost")
async def test_journal_name_fault_at_call_n(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in numbers():
        folder, countdown = tmp_path / str(at), Countdown(at)
        with monkeypatch.context() as patched:
            patched.setattr(f"backend.agent.journal.disk.os.{name}", countdown.around(getattr(os, name)))
            acknowledged = await _append_until_failure(folder, Disk())
        again = open_journal(folder)
        assert kept(again)[:acknowledged] == promised(acknowledged), f"lost with {name} {at}"
        await append_each(again, [99])
        await again.close()
        if not countdown.has_struck:
            break
    assert at > 1


def kept(journal: Journal) -> list[str]:
    """The test's own records in their order; the journal may have noted the trouble in between."""
    return [words for _, words in steps(journal)]


def promised(count: int) -> list[str]:
    return [f"step {n}" for n in range(1, count + 1)]


async def _append_until_failure(folder: Path, disk: Disk) -> int:
    """Append in a small journal that rotates, as an agent that stops at a failure; how many were acknowledged."""
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
        pass
    await journal.close()
    return acknowledged


@pytest.mark.parametrize("name", ["write", "fsync", "link", "open"])
@pytest.mark.faults("the ledger's N-th call of this kind fails, for every N: a step is whole or not there")
def test_ledger_fault_at_call_n(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in numbers():
        folder, countdown = tmp_path / str(at), Countdown(at)
        with monkeypatch.context() as patched:
            patched.setattr(f"backend.control.ledger.os.{name}", countdown.around(getattr(os, name)))
            written = _write_ledger(folder)
        found = sorted(folder.glob("*.jsonl"))
        if written:
            (path,) = found
            writer = ledger.reopen(folder, OpId("load-1"))
            assert [step.words for step in writer.steps][: written - 1] == [f"step {n}" for n in range(1, written)]
            writer.close()
            assert ledger_views.read_operation(path).state == "ownerless"
        assert list(folder.glob(".*.new")) == []
        if not countdown.has_struck:
            break
    assert at > 1


def _write_ledger(folder: Path) -> int:
    """Begin an operation and write steps until something fails; how many lines were promised to be there."""
    operation = Operation(
        op_id=OpId("load-1"),
        kind="load",
        subject="tiny-1",
        by="alice",
        context="test",
        load_generation=None,
        targets=(),
        options={},
        started_unix_ms=UnixMs(1),
    )
    try:
        writer = ledger.create(folder, operation)
    except OSError:
        return 0
    written = 1
    try:
        for n in range(1, 5):
            writer.append(Step(at_unix_ms=UnixMs(n), target="tiny-1", what="step", words=f"step {n}"))
            written += 1
    except OSError:
        pass
    writer.close()
    return written


@pytest.mark.parametrize("name", ["posix_spawn", "pidfd_open"])
@pytest.mark.faults("starting the shim fails at this call, for every N: nothing runs, or what runs is found and ended")
async def test_spawn_fault_at_call_n(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in numbers():
        folder, countdown = tmp_path / str(at), Countdown(at, errno.EAGAIN)
        with monkeypatch.context() as patched:
            patched.setattr(f"backend.agent.supervisor.os.{name}", countdown.around(getattr(os, name)))
            started = await _started(folder)
        await _ended(folder, started)
        if not countdown.has_struck:
            break
    assert at > 1


async def _started(folder: Path) -> ProcessIdentity | None:
    try:
        return await supervisor.spawn(folder, "n1", LONG, {})
    except (supervisor.SpawnFailed, OSError):
        return None


async def _ended(folder: Path, started: ProcessIdentity | None) -> None:
    """What an agent's next life does: find it again, and stop it; or prove that it never was."""
    found = started or supervisor.adopt(folder, "n1")
    if found is None or isinstance(found, supervisor.EndedRun):
        record = RunFolder(folder).read_spawn()
        assert record is None or not group_members(record.identity)
        return
    assert (await supervisor.stop(found, folder, (StopStep(15, 5.0),))).stopped
    assert group_members(found) == ()


@pytest.mark.faults("the shim is killed at any moment of its start: the engine runs and is known, or never runs")
async def test_shim_killed_at_any_moment_of_its_start(tmp_path: Path) -> None:
    seen_dead = seen_alive = 0
    for at in range(12):
        folder = tmp_path / str(at)
        start = asyncio.create_task(supervisor.spawn(folder, "n1", LONG, {}))
        await asyncio.sleep(0.003 * at)  # the moments that are tried, not a wait for something
        shim = next((pid for pid in _children() if str(folder) in _command_line(pid)), None)
        if shim is not None:
            os.kill(shim, 9)
        try:
            identity = await start
        except supervisor.SpawnFailed:
            seen_dead += 1
            record = RunFolder(folder).read_spawn()
            assert record is None or not group_members(record.identity)
            continue
        seen_alive += 1
        assert (await supervisor.stop(identity, folder, (StopStep(15, 5.0),))).stopped
    assert seen_dead + seen_alive == 12


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
