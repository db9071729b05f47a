"""The RPC greeting: asks a worker which protocol it speaks, without llama.cpp.

Frames are ``command u8, size u64le, payload``; replies ``size u64le, payload``. HELLO (14) carries 24 bytes of
transport capabilities and is answered by major, minor, patch, a pad byte and 24 bytes (5.0.0 in b10434, 7.0.0 in
b11434).

A worker serves one client at a time. A HELLO that is given up while a leader is attached is answered into a closed
socket when the leader leaves, and kills a worker that does not ignore SIGPIPE. So greet only before a leader may come.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct

import msgspec

from backend.engines.names import looked_up

_HELLO = 14
_CAPABILITIES = bytes(24)
_LARGEST_REPLY = 4096

KNOWN_PROTOCOLS = {"1-7e4c0a9": (5, 0, 0)}
"""The protocol that a release is known to speak, by release."""


class NotRpc(ConnectionError):
    """Something answered, and it was no worker: the message says what came."""


class Greeting(msgspec.Struct, frozen=True):
    """The protocol that a worker speaks. Two ends work together when their majors are equal."""

    major: int
    minor: int
    patch: int

    @property
    def words(self) -> str:
        """As people write it: ``5.0.0``."""
        return f"{self.major}.{self.minor}.{self.patch}"


async def hello(address: str, port: int, seconds: float) -> Greeting:
    """Greet the worker at ``address:port`` and close at once.

    Raises TimeoutError when it is silent for ``seconds`` (it hangs, serves another client, or is something else),
    NotRpc when something else answers, and another ConnectionError or OSError when nothing listens.
    """
    async with asyncio.timeout(seconds):
        with looked_up(address):
            reader, writer = await asyncio.open_connection(address, port)
        try:
            writer.write(struct.pack("<BQ", _HELLO, len(_CAPABILITIES)) + _CAPABILITIES)
            await writer.drain()
            return _read_greeting(await _read_reply(reader))
        finally:
            # An idle open connection keeps everybody else out of the worker.
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def _read_reply(reader: asyncio.StreamReader) -> bytes:
    """One sized reply."""
    try:
        (size,) = struct.unpack("<Q", await reader.readexactly(8))
        if size > _LARGEST_REPLY:
            raise NotRpc(f"answered HELLO with {size} bytes where a worker sends 28")
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError as short:
        raise NotRpc(f"closed the connection after {len(short.partial)} bytes of an answer to HELLO") from short


def _read_greeting(reply: bytes) -> Greeting:
    """The three numbers in a reply to HELLO."""
    if len(reply) < 3:
        raise NotRpc(f"answered HELLO with {len(reply)} bytes where a worker sends 28")
    return Greeting(reply[0], reply[1], reply[2])
