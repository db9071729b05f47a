"""One HTTP/1.1 exchange with a program on this host, over a connection of its own.

Small on purpose: an agent asks each of its leaders every second, and an engine answers with a length and a body. A
connection per question leaves the engine's few HTTP threads to its users; kept open, each would hold one of them.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec

MAX_ANSWER_BYTES = 16 << 20
MAX_HEAD_BYTES = 64 << 10
READ_BYTES = 64 << 10


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


async def exchange(host: str, port: int, path: str, json: object = None) -> Answer:
    """GET ``path``, or POST ``json`` to it. Raises OSError, and BrokenAnswer for an answer that is not whole.

    Cancelled, it closes the connection at once, so that the program behind it gives the request up as well.
    """
    loop = asyncio.get_running_loop()
    family, address = await _resolved(host, port)
    # A plain socket: a transport with its protocol and two buffers costs more than everything else of an exchange.
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, address)
        await loop.sock_sendall(connection, _request(host, port, path, json))
        return await _read_answer(connection)


async def _resolved(host: str, port: int) -> tuple[int, tuple[Any, ...]]:
    """The address family and the address of a numeric host, without a look-up; else of what its name resolves to."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return family, (host, port)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return found[0][0], found[0][4]


def _request(host: str, port: int, path: str, json: object) -> bytes:
    body = b"" if json is None else msgspec.json.encode(json)
    lines = [f"{'GET' if json is None else 'POST'} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
    if json is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode() + body


async def _read_answer(connection: socket.socket) -> Answer:
    received = await _more(connection, b"", 0)
    while (end := received.find(b"\r\n\r\n")) < 0 and len(received) <= MAX_HEAD_BYTES:
        received = await _more(connection, received, 0)
    if not 0 <= end <= MAX_HEAD_BYTES:
        raise BrokenAnswer(f"the head of the answer is longer than {MAX_HEAD_BYTES >> 10} KiB")
    head = received[:end].decode("latin-1").split("\r\n")
    protocol, _, rest = head[0].partition(" ")
    if not protocol.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise BrokenAnswer(f"it answered {head[0][:60]!r} where an HTTP status belongs")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    length = headers.get("content-length", "")
    if not length.isdigit() or int(length) > MAX_ANSWER_BYTES:
        raise BrokenAnswer(f"its answer has the length {length or 'unknown'!r}, outside 0..{MAX_ANSWER_BYTES}")
    begin, whole = end + 4, end + 4 + int(length)
    while len(received) < whole:
        received = await _more(connection, received, begin)
    return Answer(int(rest[:3]), received[begin:whole])


async def _more(connection: socket.socket, received: bytes, begin: int) -> bytes:
    """What was received and what comes next. Raises BrokenAnswer at the end of the connection."""
    data = await asyncio.get_running_loop().sock_recv(connection, READ_BYTES)
    if not data:
        raise BrokenAnswer(f"the connection was closed after {len(received) - begin} bytes of an answer")
    return received + data
