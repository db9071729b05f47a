"""``ringtop-agent connect``: a bridge between standard input and output and the agent's socket, for ssh."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys

_CHUNK = 65_536


def bridge(path: str) -> int:
    """Copy bytes both ways until either side ends, however it does.

    Returns an exit code: 0 ended, 4 no agent answers at ``path``.
    """
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        agent.connect(path)
    except OSError as error:
        sys.stderr.write(f"no agent answers at {path}: {error.strerror or error}\n")
        return 4
    with agent, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a side that was cut off has ended too
        _copy(agent)
    return 0


def _copy(agent: socket.socket) -> None:
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(agent, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == 0:
                    data = os.read(0, _CHUNK)
                    if data:
                        agent.sendall(data)
                    else:
                        selector.unregister(0)
                        with contextlib.suppress(OSError):
                            agent.shutdown(socket.SHUT_WR)
                else:
                    data = agent.recv(_CHUNK)
                    if not data:
                        return
                    _write_all(1, data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
