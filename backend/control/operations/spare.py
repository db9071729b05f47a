"""A spare process for the next operation: it has imported everything by the time that somebody decides.

An operation's process takes a tenth of a second to start, most of it imports. A console that may soon begin one keeps
a spare that waits at a socket; it is given the operation's id and the locked descriptor of its ledger file, and is that
operation's own process from then on. Its console's end closes the socket, and a spare that was not needed ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from backend.contract.words import OpId
from backend.control.contexts import Context
from backend.control.operations.spawning import log_path, spawn_operation

_LONGEST_ID = 4096


class Spare:
    """Keeps at most one process in reserve. Its methods may be called from any thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._waiting: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._is_closed = False

    def prepare(self) -> None:
        """Start a spare unless one waits already. A machine that takes no more processes goes without."""
        with self._lock:
            if self._is_closed or (self._waiting is not None and self._waiting[0].poll() is None):
                return
            self._drop()
            ours, theirs = socket.socketpair()
            with theirs:
                argv = [sys.executable, "-I", "-m", "backend.control.operations", "--spare-fd", str(theirs.fileno())]
                argv += ["--home", str(self._context.home), "--context", self._context.name]
                try:
                    process = subprocess.Popen(
                        argv,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL,
                        start_new_session=True,
                        cwd="/",
                        pass_fds=(theirs.fileno(),),
                    )
                except OSError:
                    ours.close()  # the operation itself will be refused in words, if it cannot start either
                    return
            self._waiting = (process, ours)

    def start(self, op_id: OpId, lock_fd: int) -> subprocess.Popen[bytes]:
        """Give an operation to the spare, or to a new process where none waits. Raises OSError."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is None:
            return spawn_operation(self._context, op_id, lock_fd)
        process, door = waiting
        with door:
            if _give(door, op_id, lock_fd):
                return process
        process.kill()  # it may still take the operation, and two processes must not run it
        process.wait()
        return spawn_operation(self._context, op_id, lock_fd)

    def close(self) -> None:
        """Let a spare that waits end. Operations go on."""
        with self._lock:
            self._is_closed = True
            self._drop()

    def _drop(self) -> None:
        if self._waiting is None:
            return
        process, door = self._waiting
        self._waiting = None
        door.close()
        process.kill()  # it has nothing, and a console that ends does not wait for its imports
        process.wait()


def _give(door: socket.socket, op_id: OpId, lock_fd: int) -> bool:
    """Whether the spare took it: it answers once the descriptor is in its hands."""
    try:
        door.settimeout(2.0)
        socket.send_fds(door, [op_id.encode()], [lock_fd])
        return door.recv(1) == b"+"
    except OSError:
        return False


def wait_for_operation(fd: int) -> tuple[OpId, int] | None:
    """In the spare: import what an operation needs, then wait to be given one; None when nobody will."""
    import websockets.asyncio.client  # noqa: F401  # what a link imports when it first dials

    with socket.socket(fileno=fd) as door:
        data, fds, _, _ = socket.recv_fds(door, _LONGEST_ID, 1)
        if not data or not fds:
            return None
        os.set_inheritable(fds[0], False)
        with contextlib.suppress(OSError):  # its console is gone since: what a person confirmed goes on without it
            door.sendall(b"+")
    return OpId(data.decode()), fds[0]


def speak_to_log(folder: Path, op_id: OpId) -> None:
    """In the spare: what goes wrong from now on is written beside the ledger file, as for any operation."""
    log = log_path(folder, op_id)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(fd, 2)
    os.close(fd)
