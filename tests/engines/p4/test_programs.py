"""Programs of the operator: run to their own end, whatever they leave in the background, and killed whole."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.engines.llamacpp.sockets import has_ended
from backend.engines.p4.programs import Ran, kill_session, run_program
from tests.agent.run_world import until


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Path]:
    """Where a script writes the pid of what it starts; that is gone at the end."""
    path = tmp_path / "child"
    yield path
    if path.exists() and not has_ended(pid_in(path)):
        os.kill(pid_in(path), signal.SIGKILL)


def pid_in(path: Path) -> int:
    return int(path.read_text())


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


async def test_a_program_has_ended_when_it_has_though_what_it_started_still_holds_its_streams(child: Path) -> None:
    command = shell(f"cat; echo aside >&2; sleep 1000 & echo $! > {child}")
    ran = await run_program(command, 60.0, lines=2, given=b"told\n", kills=True)
    assert ran == Ran(0, ("told", "aside"))
    assert not has_ended(pid_in(child)), "what it leaves in the background is its own"


async def test_how_a_program_ended_is_said_with_its_last_lines() -> None:
    ran = await run_program(shell("echo one; echo two; exit 3"), 60.0, lines=1, kills=True)
    assert (ran, ran.how) == (Ran(3, ("two",)), "ended with exit 3")
    ran = await run_program(shell("kill -TERM $$"), 60.0, lines=1, kills=True)
    assert ran.how == "was ended by signal 15"
    ran = await run_program(shell("exec sleep 1000"), 0.01, lines=1, kills=True)
    assert (ran.code, ran.how) == (None, "has not ended")
    with pytest.raises(FileNotFoundError):
        await run_program(("/nowhere/program",), 60.0, lines=1, kills=True)


async def test_a_script_is_killed_with_what_it_started(child: Path) -> None:
    command = shell(f"sleep 1000 & echo $! > {child}.new; mv {child}.new {child}; wait")
    process = await asyncio.create_subprocess_exec(*command, start_new_session=True)
    await asyncio.to_thread(until, child.exists, "the script has a child")
    await kill_session(process)
    assert process.returncode == -signal.SIGKILL
    await asyncio.to_thread(until, lambda: has_ended(pid_in(child)), "the child is gone as well")
