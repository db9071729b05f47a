"""The greeting ends within its deadline, whatever answers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backend.engines.driver import PhaseSeen
from backend.engines.llamacpp.rpc import Greeting, NotRpc, hello
from tests.engines.llamacpp.conftest import MakeRing
from tests.engines.llamacpp.ring import free_ports, ring_plan

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(reply: bytes, *, then_close: bool = False) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A listener that answers each connection with some bytes, and the bytes that it was sent."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(64))
        writer.write(reply)
        await writer.drain()
        if not then_close:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], heard


@pytest.mark.engine
async def test_a_real_worker_says_its_protocol_and_serves_on(tiny: Path, make_ring: MakeRing) -> None:
    ring = make_ring(ring_plan(tiny))
    worker = ring.start(1)
    await worker.first(PhaseSeen)
    port = ring.plan.shards[1].ports[0]
    assert [await hello("127.0.0.1", port, 5.0) for _ in range(3)] == [Greeting(5, 0, 0)] * 3
    assert worker.process is not None
    assert worker.process.poll() is None


async def test_the_request_is_one_hello_frame_with_24_bytes() -> None:
    async with answering(struct.pack("<Q", 28) + bytes([7, 1, 2, 0]) + bytes(24)) as (port, heard):
        greeting = await hello("127.0.0.1", port, 5.0)
    assert (greeting, greeting.words) == (Greeting(7, 1, 2), "7.1.2")
    assert heard == [b"\x0e" + struct.pack("<Q", 24) + bytes(24)]


async def test_a_silent_peer_is_given_up_at_the_deadline() -> None:
    async with answering(b"") as (port, _):
        with pytest.raises(TimeoutError):
            await hello("127.0.0.1", port, 0.3)


async def test_a_closed_port_is_a_connection_error() -> None:
    with pytest.raises(ConnectionRefusedError):
        await hello("127.0.0.1", free_ports(1)[0], 5.0)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "bytes where a worker sends 28"),
        (b"SSH", "closed the connection after 3 bytes"),
        (struct.pack("<Q", 2) + b"ab", "with 2 bytes"),
        (struct.pack("<Q", 28) + b"\5\0", "closed the connection after 2 bytes"),
    ],
)
async def test_another_service_is_named_as_none(reply: bytes, words: str) -> None:
    async with answering(reply, then_close=True) as (port, _):
        with pytest.raises(NotRpc, match=words):
            await hello("127.0.0.1", port, 5.0)
