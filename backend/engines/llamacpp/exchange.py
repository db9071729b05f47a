"""One HTTP/1.1 exchange with a program on this host, over a connection of its own.

Small on purpose: an agent asks each of its leaders every second, and an engine answers with a length and a body. A
connection per question leaves the engine's few HTTP threads to its users; kept open, each would hold one of them.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Mapping
from typing import Any

import msgspec

from backend.engines.names import looked_up

MAX_ANSWER_BYTES = 16 << 20
MAX_HEAD_BYTES = 64 << 10
READ_BYTES = 64 << 10

_STATUS = re.compile(r"HTTP/1\.\d ([1-5][0-9]{2})(?: |$)")
_LENGTH = re.compile(r"[0-9]{1,12}")
_CHUNK = re.compile(r"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")
_MAX_CHUNK_LINE_BYTES = 1 << 10


class BrokenAnswer(ConnectionError):
    """What came back is no whole answer; the message says what is wrong with it."""


class Answer(msgspec.Struct, frozen=True):
    """Status and body of one answer."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode(errors="replace")

    @property
    def tree(self) -> Any:
        """The body as JSON; None for what is none, or is nested so deep that nobody could have meant it."""
        try:
            return msgspec.json.decode(self.body)
        except (msgspec.DecodeError, RecursionError):
            return None


async def exchange(
    host: str, port: int, path: str, json: object = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """GET ``path``, or POST ``json`` to it. Raises OSError, and BrokenAnswer for an answer that is not whole.

    Cancelled, it closes the connection at once, so that the program behind it gives the request up as well.
    """
    loop = asyncio.get_running_loop()
    family, address = await _resolved(host, port)
    # A plain socket: a transport with its protocol and two buffers costs more than everything else of an exchange.
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, address)
        await loop.sock_sendall(connection, _request(host, port, path, json, headers or {}))
        return await _read_answer(_Incoming(connection))


async def _resolved(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """The address family and the address of a numeric host, without a look-up; else of what its name resolves to."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return family, (host, port)
    with looked_up(host):
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return found[0][0], found[0][4]


def _request(host: str, port: int, path: str, json: object, headers: Mapping[str, str]) -> bytes:
    body = b"" if json is None else msgspec.json.encode(json)
    lines = [f"{'GET' if json is None else 'POST'} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if json is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode() + body


class _Incoming:
    """What a connection brings, taken piece by piece; no more of an answer is held than it may have."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._held = bytearray()
        self._passed = 0

    async def until(self, mark: bytes, most: int, what: str) -> bytes:
        """What comes before the next ``mark``, which is passed over."""
        seen = 0
        while (end := self._held.find(mark, max(0, seen - len(mark)))) < 0 and len(self._held) <= most:
            seen = len(self._held)
            await self._more()
        if not 0 <= end <= most:
            raise BrokenAnswer(f"{what} is longer than {most >> 10} KiB")
        return self._taken(end + len(mark))[:end]

    async def exactly(self, size: int) -> bytes:
        """So many bytes."""
        while len(self._held) < size:
            await self._more()
        return self._taken(size)

    async def rest(self, most: int) -> bytes:
        """Everything up to the end of the connection."""
        while data := await self._received():
            if len(self._held) + len(data) > most:
                raise BrokenAnswer(f"its answer goes on beyond {most} bytes")
            self._held += data
        return self._taken(len(self._held))

    async def _more(self) -> None:
        data = await self._received()
        if not data:
            size = self._passed + len(self._held)
            raise BrokenAnswer(f"the connection was closed after {size} bytes of an answer")
        self._held += data

    async def _received(self) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self._connection, READ_BYTES)

    def _taken(self, size: int) -> bytes:
        taken = bytes(self._held[:size])
        del self._held[:size]
        self._passed += size
        return taken


async def _read_answer(incoming: _Incoming) -> Answer:
    head = await incoming.until(b"\r\n\r\n", MAX_HEAD_BYTES, "the head of the answer")
    lines = head.decode("latin-1").split("\r\n")
    status = _STATUS.match(lines[0])
    if status is None:
        raise BrokenAnswer(f"it answered {lines[0][:60]!r} where an HTTP status belongs")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return Answer(int(status[1]), await _read_body(incoming, headers))


async def _read_body(incoming: _Incoming, headers: Mapping[str, str]) -> bytes:
    """By chunks, by its length, or up to the end of the connection: a server has these three ways to say its size."""
    coding, length = headers.get("transfer-encoding", ""), headers.get("content-length")
    if coding.lower() == "chunked":
        return await _read_chunks(incoming)
    if coding:
        raise BrokenAnswer(f"its answer has the transfer coding {coding[:60]!r}; only chunked is read")
    if length is None:
        return await incoming.rest(MAX_ANSWER_BYTES)
    if not _LENGTH.fullmatch(length) or int(length) > MAX_ANSWER_BYTES:
        raise BrokenAnswer(f"its answer has the length {length[:60]!r}, outside 0..{MAX_ANSWER_BYTES}")
    return await incoming.exactly(int(length))


async def _read_chunks(incoming: _Incoming) -> bytes:
    body = bytearray()
    while True:
        line = (await incoming.until(b"\r\n", _MAX_CHUNK_LINE_BYTES, "the size of a chunk")).decode("latin-1")
        match = _CHUNK.fullmatch(line)
        size = int(match[1], 16) if match else -1
        if not 0 <= size <= MAX_ANSWER_BYTES - len(body):
            raise BrokenAnswer(f"it has a chunk of size {line[:60]!r} after {len(body)} of {MAX_ANSWER_BYTES} bytes")
        if size == 0:
            return bytes(body)  # a trailer may follow, and says nothing that is asked for here
        body += await incoming.exactly(size)
        if await incoming.exactly(2) != b"\r\n":
            raise BrokenAnswer(f"a chunk of {size} bytes goes on behind its end")
