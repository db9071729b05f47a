"""One HTTP/1.1 exchange with a program on this host, over a connection of its own.

Small on purpose: an agent asks each of its leaders every second, and an engine answers with a length and a body. A
connection per question leaves the engine's few HTTP threads to its users; kept open, each would hold one of them.
"""

from __future__ import annotations

import asyncio

import msgspec

MAX_ANSWER_BYTES = 16 << 20


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
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_request(host, port, path, json))
        await writer.drain()
        return await _read_answer(reader)
    except asyncio.IncompleteReadError as short:
        raise BrokenAnswer(f"the connection was closed after {len(short.partial)} bytes of an answer") from short
    except asyncio.LimitOverrunError as long:
        raise BrokenAnswer("the head of the answer is longer than 64 KiB") from long
    finally:
        writer.transport.abort()


def _request(host: str, port: int, path: str, json: object) -> bytes:
    body = b"" if json is None else msgspec.json.encode(json)
    lines = [f"{'GET' if json is None else 'POST'} {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
    if json is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, "", "")).encode() + body


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    protocol, _, rest = head[0].partition(" ")
    if not protocol.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise BrokenAnswer(f"it answered {head[0][:60]!r} where an HTTP status belongs")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    length = headers.get("content-length", "")
    if not length.isdigit() or int(length) > MAX_ANSWER_BYTES:
        raise BrokenAnswer(f"its answer has the length {length or 'unknown'!r}, outside 0..{MAX_ANSWER_BYTES}")
    return Answer(int(rest[:3]), await reader.readexactly(int(length)))
