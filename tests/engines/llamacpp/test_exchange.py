"""One question and one answer over HTTP: whole, or refused in words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from backend.engines.llamacpp.client import EngineClient, Unanswered
from backend.engines.llamacpp.exchange import BrokenAnswer, exchange


class Server:
    """Answers each connection with the same bytes and keeps what was asked."""

    def __init__(self) -> None:
        self.answer = b""
        self.asked = b""
        self.hangs = False
        self.hung_up = asyncio.Event()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked = await reader.readuntil(b"\r\n\r\n")
        if self.hangs:
            await reader.read()
            self.hung_up.set()
        writer.write(self.answer)
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    yield server
    listener.close()


async def test_status_and_body_come_back_whole(server: Server) -> None:
    server.answer = b"HTTP/1.1 503 Busy\r\ncontent-LENGTH: 5\r\nX: y\r\n\r\nhello, and more"
    answer = await exchange("127.0.0.1", server.port, "/health")
    assert (answer.status, answer.text) == (503, "hello")
    assert server.asked.startswith(b"GET /health HTTP/1.1\r\n")
    assert b"Connection: close\r\n" in server.asked


async def test_a_body_is_posted_as_json_with_its_length(server: Server) -> None:
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    await exchange("127.0.0.1", server.port, "/completion", {"n_predict": 1})
    assert server.asked.startswith(b"POST /completion HTTP/1.1\r\n")
    assert b"Content-Length: 15\r\n" in server.asked


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "closed after 0 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "closed after 27 bytes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour", "closed after 4 bytes"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "where an HTTP status belongs"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "length 'unknown'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "length '99999999999'"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", "longer than 64 KiB"),
    ],
)
async def test_an_answer_that_is_not_whole_is_refused_in_words(server: Server, answer: bytes, why: str) -> None:
    server.answer = answer
    with pytest.raises(BrokenAnswer, match=why):
        await exchange("127.0.0.1", server.port, "/metrics")


async def test_a_deadline_closes_the_connection_so_that_the_engine_gives_up(server: Server) -> None:
    server.hangs = True
    client = EngineClient(f"http://127.0.0.1:{server.port}")
    with pytest.raises(TimeoutError, match=r"no completion within 0\.1 s"):
        await client.complete("one", 1, 0.1)
    await asyncio.wait_for(server.hung_up.wait(), 20)


async def test_a_port_where_nothing_listens_is_unanswered() -> None:
    client = EngineClient("http://127.0.0.1:1")
    with pytest.raises(Unanswered, match="/metrics was dropped: ConnectionRefusedError"):
        await client.census(5.0)
