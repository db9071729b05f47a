"""One descriptor kept in reserve, so that an agent out of descriptors can still refuse a console instead of hanging it.

A connection that cannot be accepted waits in the kernel, and its console with it. asyncio then stops accepting for a
second and tells the loop's exception handler; there the reserve is spent on an answer, and taken again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

AGAIN_SECONDS = 0.25
"""How long something waits for a descriptor before it tries again."""
OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_WORDS = (
    "the agent has no file descriptor left for another console. Close one, or raise LimitNOFILE of its unit; engines "
    "and open consoles go on.\n"
)
_ANSWER = (
    f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    f"Content-Length: {len(_WORDS)}\r\n\r\n{_WORDS}"
).encode()
_MOST = 64
"""Connections that are answered at one time, of those that wait."""


class DescriptorReserve:
    """Holds the reserve and answers with it. ``refused`` counts the consoles that were turned away."""

    def __init__(self) -> None:
        self._fd = os.open(os.devnull, os.O_RDONLY)
        self.refused = 0

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take part in the loop's handling of exceptions; everything else is handled as before."""
        loop.set_exception_handler(self._handle)

    def close(self) -> None:
        """Give the reserve back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error, listening = context.get("exception"), context.get("socket")
        if listening is None or not isinstance(error, OSError) or error.errno not in OUT_OF_DESCRIPTORS:
            loop.default_exception_handler(context)
            return
        before = self.refused
        for _ in range(_MOST):
            self.close()
            is_more = self._refuse_one(listening.fileno())
            self._take_again()
            if not is_more or self._fd < 0:
                break
        if self.refused > before:  # asyncio 3.11 asks a hundred times in a row
            sys.stderr.write(f"out of file descriptors: {self.refused - before} consoles were refused\n")

    def _refuse_one(self, listening: int) -> bool:
        """Accept one waiting connection and tell it why not; False when none could be accepted."""
        listener = socket.socket(fileno=listening)  # the same descriptor, not another one
        try:
            waiting, _ = listener.accept()
        except OSError:
            return False
        finally:
            listener.detach()
        with waiting:
            waiting.setblocking(False)
            with contextlib.suppress(OSError):  # it may have hung up: then nobody is left to be told
                # A client that sees the answer before it asks takes it all the same; asked and unread, it would be
                # turned into a reset.
                waiting.recv(1 << 14)
            with contextlib.suppress(OSError):
                waiting.send(_ANSWER)
                self.refused += 1
        return True

    def _take_again(self) -> None:
        try:
            self._fd = os.open(os.devnull, os.O_RDONLY)
        except OSError:
            self._fd = -1  # somebody else was faster; without it consoles wait until one is free


async def once_there_are(attempt: Callable[[], Awaitable[T]], doing: str) -> T:
    """What ``attempt`` gives, tried again for as long as it fails for want of a descriptor; that is said once.

    For work that may be begun again and must not be left: following, stopping, proving. Raises every other error.
    """
    is_told = False
    while True:
        try:
            return await attempt()
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS:
                raise
        if not is_told:
            sys.stderr.write(f"out of file descriptors: {doing} waits until one is free. Raise LimitNOFILE.\n")
            is_told = True
        await asyncio.sleep(AGAIN_SECONDS)


@contextlib.contextmanager
def spare(count: int) -> Iterator[None]:
    """Raise OSError (EMFILE, ENFILE) unless ``count`` descriptors are free; they are, when the block is left."""
    held: list[int] = []
    try:
        while len(held) < count:
            held.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for fd in held:
            os.close(fd)
