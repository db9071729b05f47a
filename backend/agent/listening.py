"""The agent's sockets: a unix socket for its own user, and loopback TCP when asked for."""

from __future__ import annotations

import http
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve, unix_serve
from websockets.http11 import Request, Response

from backend.agent.access import why_not_admit, why_not_peer
from backend.contract.envelopes import SUBPROTOCOL

MAX_FRAME_BYTES = 1 << 20
MAX_CONNECTIONS = 64
_PROBE_SECONDS = 2.0

Handler = Callable[[ServerConnection], Awaitable[None]]


class SocketTaken(Exception):
    """Somebody else has the socket or the port, or none can be made there. The message names it and what to do."""


async def listen_unix(handler: Handler, path: str, connected: Callable[[], int]) -> Server:
    """Listen at ``path`` with mode 0600. Raises SocketTaken."""
    make_room(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old = os.umask(0o177)  # for this one call: what other tasks and threads make has modes of its own
    try:
        listener.bind(path)
        listener.listen()  # at once: whoever sees the socket may connect
    except OSError as error:
        listener.close()
        raise _cannot_listen(path, error) from error
    finally:
        os.umask(old)
    return await unix_serve(handler, sock=listener, **_settings(None, connected))


async def listen_loopback(handler: Handler, port: int, connected: Callable[[], int]) -> Server:
    """Listen at 127.0.0.1, never at any other address. Raises SocketTaken."""
    try:
        return await serve(handler, "127.0.0.1", port, **_settings(port, connected))
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise SocketTaken(f"127.0.0.1:{port} cannot be listened at: {why}. Give another --loopback-port.") from error


def make_room(path: str) -> None:
    """Remove a socket that an agent left which is gone, and make its folder.

    Raises SocketTaken when somebody answers: the journal's lock keeps two agents apart only where they share a folder.
    Nothing but a socket is ever removed.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_SECONDS)
        try:
            Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError as error:
            if not stat.S_ISSOCK(os.stat(path).st_mode):  # the kernel refuses a connection to any other file alike
                words = f"{path} is a file and no socket, and is left as it is. Name another socket in agent.toml."
                raise SocketTaken(words) from error
            Path(path).unlink(missing_ok=True)
            return
        except OSError as error:
            raise _cannot_listen(path, error) from error
        holder = _peer_pid(probe)
    raise SocketTaken(
        f"process {holder} answers at {path} already, with a state folder of its own. One host has one agent: stop "
        "that one first, or give this one another host id, state folder and socket in agent.toml."
    )


def _cannot_listen(path: str, error: OSError) -> SocketTaken:
    return SocketTaken(f"{path} cannot be listened at: {error.strerror or error}. Name another socket in agent.toml.")


def _peer_pid(connected: socket.socket) -> int:
    """The process at the other end of a unix socket."""
    size = struct.calcsize("3i")
    pid, _, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(pid)


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
