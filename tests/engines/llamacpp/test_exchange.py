"""One question and one answer over HTTP: whole, or refused in words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from backend.engines.llamacpp.client import EngineClient, Unanswered
from backend.engines.llamacpp.exchange import MAX_ANSWER_BYTES, BrokenAnswer, exchange


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
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nfour", "closed after 42 bytes"),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "where an HTTP status belongs"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "closed after 47 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfo", "closed after 52 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfour\r\n", "a chunk of size 'four'"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nfourteen", "goes on behind its end"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n", "a chunk of size 'ffffffff'"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "transfer coding 'gzip, chunked'"),
        ("HTTP/1.1 \u00b2\u00b2\u00b2 OK\r\nContent-Length: 0\r\n\r\n".encode("latin-1"), "an HTTP status belongs"),
        ("HTTP/1.1 200 OK\r\nContent-Length: \u00b2\r\n\r\n".encode("latin-1"), "length '\u00b2'"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n", "length '999"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "length '99999999999'"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", "longer than 64 KiB"),
    ],
)
async def test_an_answer_that_is_not_whole_is_refused_in_words(server: Server, answer: bytes, why: str) -> None:
    server.answer = answer
    with pytest.raises(BrokenAnswer, match=why):
        await exchange("127.0.0.1", server.port, "/metrics")


async def test_an_answer_in_chunks_and_one_without_a_length_are_read_to_their_end(server: Server) -> None:
    """SGLang's metrics come so: the application that serves them names no length, and its server then sends chunks."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.answer = head + b"4\r\nsgla\r\nA ;x=1\r\nng:num 1\n2\r\n0\r\n\r\n"
    assert (await exchange("127.0.0.1", server.port, "/metrics")).text == "sglang:num 1\n2"
    server.answer = b"HTTP/1.0 200 OK\r\n\r\nup to the end"
    assert (await exchange("127.0.0.1", server.port, "/metrics")).text == "up to the end"


async def test_an_answer_without_end_is_given_up_at_its_limit() -> None:
    stream = b"x" * 65_536

    async def go_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(stream)
                await writer.drain()

    listener = await asyncio.start_server(go_on, "127.0.0.1", 0)
    async with listener:
        with pytest.raises(BrokenAnswer, match=f"goes on beyond {MAX_ANSWER_BYTES} bytes"):
            await asyncio.wait_for(exchange("127.0.0.1", listener.sockets[0].getsockname()[1], "/metrics"), 60)


async def test_json_that_is_nested_without_reason_is_none(server: Server) -> None:
    body = b"[" * 100_000
    server.answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    assert (await exchange("127.0.0.1", server.port, "/slots")).tree is None
    assert await EngineClient(f"http://127.0.0.1:{server.port}").slots(30.0) is None


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
