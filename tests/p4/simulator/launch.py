"""Stage servers as processes of their own, children of the agent: launched, greeted, bound, and ended with it."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Callable
from typing import Any

from tests.p4.simulator.load import LoadBody, LoadFailed
from tests.p4.simulator.stage_frames import BIND_LOAD, HEAD_BYTES, HELLO, BadFrame, frame, read_head, read_ready

INHERIT = "P4_STAGED_LLAMA_INHERIT_STDERR"
_RETRY_SECONDS = 0.02
_FAILED = "stage runtime initialization failed: "


class StageProcess:
    """One stage server under this agent. Its standard input is its life line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said: dict[str, Any] = {}
        self.is_wanted = True
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def greet(self, body: LoadBody) -> None:
        """Wait for READY and bind the load generation. Raises LoadFailed."""
        host, _, port = str(body["endpoint"]).rpartition(":")
        deadline = time.monotonic() + body.raw.get("ready_timeout_ms", 600_000) / 1000
        while self._writer is None:
            if self.process.returncode is not None:
                code = self.process.returncode
                how = f"exit status: {code}" if code >= 0 else f"signal: {-code}"
                raise LoadFailed(f"{_FAILED}stage server exited while starting: {how}")
            if time.monotonic() > deadline:
                raise LoadFailed(f"{_FAILED}ReadyTimeout")
            try:
                self._reader, self._writer = await asyncio.open_connection(host.strip("[]"), int(port))
            except OSError:
                await asyncio.sleep(_RETRY_SECONDS)
        try:
            self.said = read_ready(await self._ask(HELLO))
            generation = struct.pack("<Q", body["load_generation"])
            if await self._ask(BIND_LOAD, generation) != generation:
                raise BadFrame("stage server did not echo the load generation")
        except (BadFrame, OSError, asyncio.IncompleteReadError) as error:
            raise LoadFailed(f"{_FAILED}{error}") from None

    async def _ask(self, operation: int, body: bytes = b"") -> bytes:
        assert self._reader is not None
        assert self._writer is not None
        self._writer.write(frame(operation, body))
        await self._writer.drain()
        said, length = read_head(await self._reader.readexactly(HEAD_BYTES))
        if said != operation:
            raise BadFrame(f"stage server answered operation {said} to {operation}")
        return await self._reader.readexactly(length)

    async def watch(self, gone: Callable[[int], None]) -> None:
        """Say when it ended without having been asked to."""
        code = await self.process.wait()
        if self.is_wanted:
            gone(code)

    async def stop(self) -> None:
        """Close its life line and wait for it."""
        self.is_wanted = False
        if self._writer is not None:
            self._writer.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        await self.process.wait()


async def launch(body: LoadBody) -> StageProcess:
    """Start the stage server of a LOAD and hand it its plan; its words are thrown away. Raises LoadFailed."""
    host, _, port = str(body["endpoint"]).rpartition(":")
    arguments = [str(each) for each in body["args"]]
    if "--port" not in arguments:
        arguments += ["--port", port, "--bind", host.strip("[]")]
    environment = os.environ | {str(name): str(value) for name, value in body["environment"]}
    try:
        process = await asyncio.create_subprocess_exec(
            body["binary"],
            *arguments,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=None if INHERIT in os.environ else asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise LoadFailed(f"{_FAILED}{error.strerror} (os error {error.errno})") from None
    plan = str(body["plan"]).encode()
    assert process.stdin is not None
    try:
        process.stdin.write(struct.pack("<I", len(plan)) + plan)
        await process.stdin.drain()
    except OSError:
        await process.wait()  # how it ended is said by whoever waits for READY
    return StageProcess(process)
