"""The agent's sockets: a unix socket for its own user, and loopback TCP when asked for."""

from __future__ import annotations

import http
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve
from websockets.http11 import Request, Response

from backend.agent.access import why_not_admit, why_not_peer
from backend.contract.envelopes import SUBPROTOCOL

MAX_FRAME_BYTES = 1 << 20
MAX_CONNECTIONS = 64

Handler = Callable[[ServerConnection], Awaitable[None]]


async def listen_unix(handler: Handler, path: str, connected: Callable[[], int]) -> Server:
    """Listen at ``path`` with mode 0600. A socket left there is removed: the journal's lock says its agent is gone."""
    _make_room(path)
    old = os.umask(0o177)
    try:
        return await unix_serve(handler, path, **_settings(None, connected))
    finally:
        os.umask(old)


async def listen_loopback(handler: Handler, port: int, connected: Callable[[], int]) -> Server:
    """Listen at 127.0.0.1, never at any other address."""
    return await serve(handler, "127.0.0.1", port, **_settings(port, connected))


def _make_room(path: str) -> None:
    Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    Path(path).unlink(missing_ok=True)


def _settings(tcp_port: int | None, connected: Callable[[], int]) -> dict[str, Any]:
    def admit(connection: ServerConnection, request: Request) -> Response | None:
        reason = why_not_admit(request.headers, tcp_port=tcp_port)
        reason = reason or why_not_peer(connection.transport.get_extra_info("socket"))
        if reason is not None:
            return connection.respond(http.HTTPStatus.FORBIDDEN, reason + "\n")
        if connected() >= MAX_CONNECTIONS:
            words = f"{MAX_CONNECTIONS} consoles are connected already, which is the most. Close one.\n"
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, words)
        return None

    return {
        "process_request": admit,
        "subprotocols": [SUBPROTOCOL],
        "compression": None,
        "max_size": MAX_FRAME_BYTES,
        "max_queue": 8,
        "write_limit": 32_768,
        "ping_interval": 10,
        "ping_timeout": 10,
        "close_timeout": 3,
        "open_timeout": 5,
        "server_header": None,
    }
