"""How a link gets a websocket to an agent: a unix socket, or the system's ``ssh`` and the bridge at its far end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.contract.envelopes import SUBPROTOCOL
from backend.contract.words import AgentAddress

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

URI = "ws://localhost/"
MAX_FRAME_BYTES = 1 << 24
MAX_SOCKET_PATH = 107
"""Longest path of a unix socket on Linux, in bytes (sun_path less its terminator)."""
_SSH_TARGET = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*@)?[A-Za-z0-9_][A-Za-z0-9._:-]*")
_SSH_WORDS_LINES = 20
_LEAVE_SECONDS = 0.5
_TERM_SECONDS = 2.0


class CannotConnect(ConnectionError):
    """The agent cannot be reached; the message is what a person needs to know about it."""


@contextlib.asynccontextmanager
async def connect(address: AgentAddress, open_seconds: float = 10.0) -> AsyncIterator[ClientConnection]:
    """A websocket to the agent at ``unix:PATH`` or ``ssh://[user@]host``, closed at the end.

    Raises CannotConnect with words for a person, also when the conversation breaks because ``ssh`` ended.
    """
    if address.startswith("unix:"):
        async with _through_socket(Path(address.removeprefix("unix:")), open_seconds) as connection:
            yield connection
    elif address.startswith("ssh://"):
        async with _through_ssh(address.removeprefix("ssh://"), open_seconds) as connection:
            yield connection
    elif address.startswith("wss://"):
        host = re.sub(r"(:\d*)?(/.*)?$", "", address.removeprefix("wss://"))
        raise CannotConnect(
            f"{address}: this ringtop does not dial TLS addresses. Write ssh://{host} in its place in contexts.toml; "
            "the system's ssh then runs ringtop-agent connect over there."
        )
    else:
        raise CannotConnect(f"{address}: expected unix:PATH or ssh://[user@]host.")


def check_socket(path: Path) -> None:
    """Raise CannotConnect unless ``path`` is a socket that no other user could have put there.

    A path over 107 bytes cannot be dialled at all. A directory that others may write to lets anyone place a socket
    of their own; a sticky one (such as /tmp) does so too until the agent's own exists.
    """
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        raise CannotConnect(f"{path}: the path has {size} bytes, a unix socket's has at most {MAX_SOCKET_PATH}.")
    try:
        folder = path.parent.stat()
        found = path.stat()
    except FileNotFoundError as error:
        raise CannotConnect(f"no agent at {path}: there is no such socket. Start ringtop-agent there.") from error
    except OSError as error:
        raise CannotConnect(f"{path}: {error.strerror}.") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise CannotConnect(f"{path}: is no socket.")
    if folder.st_mode & (stat.S_IWOTH):
        raise CannotConnect(
            f"{path}: its directory has mode {stat.S_IMODE(folder.st_mode):04o}, so others can write to it and could "
            f"pose as the agent; expected no write for others. chmod o-w {path.parent}"
        )


@contextlib.asynccontextmanager
async def _through_socket(path: Path, open_seconds: float) -> AsyncIterator[ClientConnection]:
    check_socket(path)
    pipe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    pipe.setblocking(False)
    try:
        async with asyncio.timeout(open_seconds):
            await asyncio.get_running_loop().sock_connect(pipe, str(path))
    except TimeoutError as error:
        pipe.close()
        raise CannotConnect(f"{path}: the socket took no connection within {open_seconds:g} s.") from error
    except OSError as error:
        pipe.close()
        raise CannotConnect(f"{path}: {error.strerror}; the socket exists and no agent listens on it.") from error
    connection = await _upgrade(pipe, open_seconds, str(path))
    try:
        yield connection
    finally:
        await hang_up(connection)


@contextlib.asynccontextmanager
async def _through_ssh(target: str, open_seconds: float) -> AsyncIterator[ClientConnection]:
    if not _SSH_TARGET.fullmatch(target):
        raise CannotConnect(f"ssh://{target}: expected ssh://[user@]host with letters, digits, dot, _ and -.")
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    argv = ("ssh", "-T", "-o", "BatchMode=yes", target, "ringtop-agent", "connect")
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=asyncio.subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        ours.close()
        raise CannotConnect(f"ssh: cannot be started: {error.strerror}.") from error
    finally:
        theirs.close()
    spoken: list[str] = []
    listener = asyncio.create_task(_collect(process, spoken))
    try:
        try:
            connection = await _upgrade(ours, open_seconds, f"ssh://{target}")
            try:
                yield connection
            finally:
                await hang_up(connection)
        except (CannotConnect, ConnectionError) as error:
            ended = await _has_ended(listener)
            if spoken and (ended or isinstance(error, CannotConnect)):
                raise CannotConnect(f"ssh: {spoken[-1].removeprefix('ssh: ')}") from error
            raise
    finally:
        ours.close()
        await _end(process)
        listener.cancel()


async def _upgrade(pipe: socket.socket, open_seconds: float, where: str) -> ClientConnection:
    from websockets.asyncio.client import connect as websocket
    from websockets.exceptions import InvalidStatus, WebSocketException
    from websockets.typing import Subprotocol

    options: dict[str, Any] = {"close_timeout": 1, "ping_interval": None, "max_queue": 64}
    try:
        return await websocket(
            URI,
            sock=pipe,
            create_connection=_connection_type(),
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            proxy=None,
            max_size=MAX_FRAME_BYTES,
            open_timeout=open_seconds,
            **options,
        )
    except TimeoutError as error:
        pipe.close()
        raise CannotConnect(f"{where}: no answer to the handshake within {open_seconds:g} s.") from error
    except InvalidStatus as error:
        pipe.close()
        raise CannotConnect(
            f"{where}: the agent refused the handshake with HTTP {error.response.status_code}; this console speaks "
            f"{SUBPROTOCOL}."
        ) from error
    except (WebSocketException, OSError, EOFError) as error:
        pipe.close()
        raise CannotConnect(f"{where}: the handshake broke off: {error or type(error).__name__}.") from error


class _Gone(asyncio.Transport):
    """The transport of a connection that was lost: there is nothing left to close."""

    def abort(self) -> None:
        """Nothing is left."""

    def close(self) -> None:
        """Nothing is left."""

    def is_closing(self) -> bool:
        """It is over."""
        return True


@functools.cache
def _connection_type() -> type[ClientConnection]:
    """The client of websockets, but that one that was lost may be aborted, which websockets and links do in any case.

    asyncio's own transport fails there with an AttributeError when it was closed with data left to send and has sent
    it since (``_SelectorTransport._force_close`` after ``_call_connection_lost``, Python 3.11 to 3.13).
    """
    from websockets.asyncio.client import ClientConnection

    class Connection(ClientConnection):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.transport = _Gone()

    return Connection


async def hang_up(connection: ClientConnection) -> None:
    """Close politely within one second, then cut: a peer that never reads must not hold the console."""
    try:
        async with asyncio.timeout(1.0):
            await connection.close()
    except TimeoutError:
        pass
    finally:
        connection.transport.abort()


async def _collect(process: asyncio.subprocess.Process, spoken: list[str]) -> None:
    assert process.stderr is not None
    with contextlib.suppress(ValueError):  # a line beyond the reader's limit: what came before it is kept
        async for line in process.stderr:
            text = line.decode(errors="replace").strip()
            if text:
                spoken.append(text[:500])
                del spoken[:-_SSH_WORDS_LINES]


async def _has_ended(listener: asyncio.Task[None]) -> bool:
    await asyncio.wait({listener}, timeout=1.0)
    return listener.done()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Its side of the conversation is closed: ssh leaves by itself, or by TERM, or by KILL.

    One that is just leaving gets no signal: asyncio would look for its end twice, and complain of the second time.
    """
    for seconds, ask in ((_LEAVE_SECONDS, process.terminate), (_TERM_SECONDS, process.kill)):
        try:
            async with asyncio.timeout(seconds):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                ask()
    await process.wait()
