"""Length-prefixed frames over one TCP socket, which is closed only when somebody says so."""

from __future__ import annotations

import asyncio
import socket

MAX_FRAME = 2 * 1024**3
FINISH = b""


class Wire:
    """One socket. Its descriptor stays open after the peer has gone, as the engine's does, until ``close``."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._read = bytearray()
        self._sending = asyncio.Lock()

    async def receive(self) -> bytes | None:
        """The next body, FINISH for a length of 0, or None at the end of the stream or after an error of the peer."""
        head = await self._take(4)
        if head is None:
            return None
        length = int.from_bytes(head, "little")
        if length > MAX_FRAME:
            return None
        return FINISH if length == 0 else await self._take(length)

    async def send(self, body: bytes) -> bool:
        """Write one frame; False when the peer is gone."""
        try:
            async with self._sending:
                await self._loop.sock_sendall(self.sock, len(body).to_bytes(4, "little") + body)
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Let the descriptor go."""
        self.sock.close()

    async def _take(self, count: int) -> bytes | None:
        while len(self._read) < count:
            try:
                more = await self._loop.sock_recv(self.sock, 1 << 18)
            except OSError:
                return None
            if not more:
                return None
            self._read += more
        taken = bytes(self._read[:count])
        del self._read[:count]
        return taken
