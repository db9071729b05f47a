"""A p4 agent that does exactly what a test says, byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from backend.contract.p4.addresses import P4Address
from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import P4Event, decode_event
from backend.contract.p4.framing import FINISH, frame_body
from backend.contract.p4.hops import Data, Hello, HelloAck, HopFrame, decode_hop, encode_hop
from backend.engines.p4.client import P4Client
from backend.engines.p4.connection import P4Settings
from backend.engines.p4.slots import SlotCount

SECONDS = 30.0
ADVERTISED = P4Address("tcp://10.77.0.9:52001")


class Caller:
    """One connection as the scripted agent sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def body(self) -> bytes:
        """The next body; empty for FINISH. Raises IncompleteReadError when the caller is gone."""
        length = int.from_bytes(await self.reader.readexactly(4), "little")
        return await self.reader.readexactly(length)

    async def event(self) -> P4Event:
        """The next body as a bare event."""
        return decode_event(await self.body())

    async def frame(self) -> HopFrame:
        """The next body as a hop frame."""
        return decode_hop(await self.body())

    async def data(self) -> tuple[Data, P4Event]:
        """The next body as a Data with its event."""
        frame = await self.frame()
        assert isinstance(frame, Data), frame
        return frame, decode_event(frame.event)

    async def greet(self, **changes: Any) -> Hello:
        """Answer the caller's Hello."""
        hello = await self.frame()
        assert isinstance(hello, Hello)
        ack = HelloAck(hello.connection_generation, str(ADVERTISED), 1, 256, 1 << 26)
        self.say(msgspec.structs.replace(ack, **changes))
        return hello

    def say(self, frame: HopFrame) -> None:
        """Send a hop frame."""
        self.write(frame_body(encode_hop(frame)))

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    async def until_finish(self) -> None:
        """Read on until the caller says FINISH, and say it too."""
        while await self.body():
            pass
        self.write(FINISH)


Script = Callable[[Caller], Awaitable[None]]


class ScriptedAgent:
    """Runs one script for each connection in turn, the last one for all that follow."""

    def __init__(self, *scripts: Script) -> None:
        self._scripts = list(scripts)
        self.accepted = 0
        self.faults: list[BaseException] = []
        self.finished = 0
        """Connections whose script ran to its end."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        script = self._scripts[min(self.accepted, len(self._scripts) - 1)]
        self.accepted += 1
        try:
            await script(Caller(reader, writer))
            self.finished += 1
        except (ConnectionError, asyncio.IncompleteReadError, AssertionError, P4CodecError) as error:
            self.faults.append(error)
        finally:
            writer.close()


@contextlib.asynccontextmanager
async def scripted(home: Path, *scripts: Script, **settings: Any) -> AsyncIterator[tuple[P4Client, ScriptedAgent]]:
    """A client at a scripted agent."""
    modes = settings.pop("modes", None)
    agent = ScriptedAgent(*scripts)
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    slots = SlotCount(home / "slots.json", "life")
    dial = server.sockets[0].getsockname()
    try:
        async with P4Client(dial, ADVERTISED, slots, settings=P4Settings(**settings), modes=modes) as client:
            yield client, agent
    finally:
        slots.close()
        server.close()
