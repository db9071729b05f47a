"""What tests of engine processes share: real children as engines, and their end by pid whatever a test does."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backend.agent.process_identity import SeenProcess, group_members, open_pidfd, see_process
from backend.agent.run_folder import RunFolder

SECONDS = 30.0
"""Deadline of every wait here: the machine may be slow and shared."""


def until(holds: Callable[[], object], what: str) -> None:
    """Look until something holds; fail the test with ``what`` when it does not in time."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {SECONDS:g} s: {what}"
        time.sleep(0.005)


def python(program: str, *arguments: str) -> list[str]:
    """A small Python program as an engine."""
    return [os.path.realpath(sys.executable), "-I", "-S", "-c", program, *arguments]


def said(folder: Path) -> str:
    """What the engine has written so far."""
    log = RunFolder(folder).log
    return log.read_text() if log.exists() else ""


def seen(pid: int) -> SeenProcess:
    """A process that must be there."""
    process = see_process(pid)
    assert process is not None, f"process {pid} is gone"
    return process


def kill(pid: int, start_ticks: int) -> None:
    """KILL exactly this process, if it is there."""
    pidfd = open_pidfd(pid, start_ticks)
    if pidfd is not None:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """A folder for runs; every engine and shim of a run under it is ended afterwards."""
    folder = tmp_path / "runs"
    yield folder
    for path in folder.glob("*/spawn.json"):
        text = path.read_bytes()
        record = RunFolder(path.parent).read_spawn() if text.startswith(b"{") else None
        if record is not None:
            for member in group_members(record.identity):
                kill(member.pid, member.start_ticks)
            kill(record.shim_pid, record.shim_ticks)
