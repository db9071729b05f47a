"""Programs of the operator that agent.toml names, run to their own end, with what they said.

They speak into files, never into a pipe: what a program leaves running in the background would hold the pipe open, and
its end would be waited for instead of the program's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import Mapping

import msgspec


class Ran(msgspec.Struct, frozen=True):
    """How a program ended: its exit code (negative: the signal), None while it still runs; and its last lines."""

    code: int | None
    said: tuple[str, ...]

    @property
    def how(self) -> str:
        """Its end in words."""
        if self.code is None:
            return "has not ended"
        return f"was ended by signal {-self.code}" if self.code < 0 else f"ended with exit {self.code}"


async def run_program(
    command: tuple[str, ...],
    seconds: float,
    *,
    lines: int,
    given: bytes = b"",
    env: Mapping[str, str] | None = None,
    kills: bool,
) -> Ran:
    """Run a command with ``given`` on its standard input; ``lines`` of what it says are kept, on both streams.

    One that takes longer than ``seconds`` is killed with all of its session where ``kills``, else left running. ``env``
    None means this process's own. Raises OSError when it cannot be run.
    """
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as said:
        told.write(given)
        told.seek(0)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=told, stdout=said, stderr=said, env=env, start_new_session=True, cwd="/"
        )
        code: int | None
        try:
            code = await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            code = None
            if kills:
                await kill_session(process)
        said.seek(0)
        return Ran(code, tuple(said.read().decode(errors="replace").strip().splitlines()[-lines:]))


async def kill_session(process: asyncio.subprocess.Process) -> None:
    """End a process that leads a session, and what it started there: a script's child would outlive the script."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
