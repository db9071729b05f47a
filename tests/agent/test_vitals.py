"""Facts of a host said again: only what moved, to whoever was told the rest; all of it to an old console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from backend.agent.connections import VITALS_MINOR, Connection
from backend.contract.envelopes import MINOR
from backend.contract.events import Measured
from backend.contract.reports import HostFacts, with_vitals
from backend.contract.words import Port
from tests.agent.journal.test_streaming import HeardSocket, connection_to
from tests.agent.journal.worlds import WAIT_SECONDS, open_journal
from tests.planning.worlds import GIB, a_host, an_engine

FACTS = a_host("host-a", cpu_flags=tuple(f"flag{n}" for n in range(120))).facts
BUSIER = msgspec.structs.replace(FACTS, memory_free=GIB, ports_in_use=(Port(18_001),))
UPDATED = msgspec.structs.replace(BUSIER, engines=(an_engine("CPU", release="2-00c0ffe"),))


@asynccontextmanager
async def told(folder: Path, minor: int) -> AsyncIterator[tuple[Connection, HeardSocket]]:
    """A console of this minor version that was told the facts in its report."""
    socket, journal = HeardSocket(), open_journal(folder)
    connection = connection_to(journal, socket, FACTS)
    connection.minor = minor
    sender = asyncio.get_running_loop().create_task(connection.send_loop())
    try:
        yield connection, socket
    finally:
        sender.cancel()
        await asyncio.gather(sender, return_exceptions=True)
        await journal.close()


async def heard(connection: Connection, socket: HeardSocket, facts: HostFacts) -> Measured:
    """The next measured event after these facts were measured."""
    before = len(socket.frames)
    connection.measured({}, facts)
    async with asyncio.timeout(WAIT_SECONDS):
        await socket.until(lambda: any(isinstance(frame, Measured) for frame in socket.frames[before:]))
    return next(frame for frame in socket.frames[before:] if isinstance(frame, Measured))


async def test_what_stands_still_is_said_once_and_what_moved_gives_the_same_facts(tmp_path: Path) -> None:
    async with told(tmp_path, MINOR) as (connection, socket):
        said = await heard(connection, socket, BUSIER)
        assert said.facts is None
        assert said.vitals is not None
        assert with_vitals(FACTS, said.vitals) == BUSIER
        assert len(msgspec.json.encode(said)) < len(msgspec.json.encode(FACTS)) / 2
        assert b"flag7" not in msgspec.json.encode(said)


async def test_another_release_is_said_whole_and_is_what_stands_from_then_on(tmp_path: Path) -> None:
    async with told(tmp_path, MINOR) as (connection, socket):
        assert (await heard(connection, socket, UPDATED)).facts == UPDATED
        moved = msgspec.structs.replace(UPDATED, memory_free=1)
        again = await heard(connection, socket, moved)
        assert again.facts is None
        assert again.vitals is not None
        assert with_vitals(UPDATED, again.vitals) == moved


@pytest.mark.parametrize("minor", range(VITALS_MINOR))
async def test_a_console_that_knows_no_vitals_is_told_everything(tmp_path: Path, minor: int) -> None:
    async with told(tmp_path, minor) as (connection, socket):
        said = await heard(connection, socket, BUSIER)
        assert (said.facts, said.vitals) == (BUSIER, None)
