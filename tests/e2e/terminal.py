"""A real pseudo-terminal around a program, with a screen emulator that reads what it draws."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence

import pyte

ANSWERS = ((b"\x1b[c", b"\x1b[?62;c"), (b"\x1b[6n", b"\x1b[1;1R"))
"""What a terminal answers when it is asked who and where it is."""


class Terminal:
    """One program in a pseudo-terminal of a fixed size. ``raw`` keeps every byte that it wrote."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], columns: int = 80, rows: int = 24) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.status: int | None = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], list(command), dict(env))
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.modes_before = termios.tcgetattr(self.fd)

    def read(self, seconds: float) -> None:
        """Take what the program writes for at most this long."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self.fd], [], [], left)
            if not ready:
                return
            try:
                data = os.read(self.fd, 65_536)
            except OSError:
                return  # the other side is closed: the program has ended
            if not data:
                return
            self.raw += data
            for asked, answer in ANSWERS:
                if asked in data:
                    os.write(self.fd, answer)
            self._stream.feed(data)

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, what: str | Callable[[str], bool], seconds: float = 40.0) -> str:
        """Read until the screen shows a text, or satisfies a test; the screen is the failure's message."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            text = self.text()
            if what in text if isinstance(what, str) else what(text):
                return text
            self.read(0.1)
        raise AssertionError(f"{what!r} did not come within {seconds:g} s. The screen:\n{self.text()}")

    def wait_gone(self, what: str, seconds: float = 40.0) -> str:
        return self.wait_for(lambda text: what not in text, seconds)

    def press(self, *keys: str) -> None:
        for key in keys:
            os.write(self.fd, key.encode())
            self.read(0.15)

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait_end(self, seconds: float = 30.0) -> int:
        """Wait until the program has ended; its exit code, or the negative signal."""
        deadline = time.monotonic() + seconds
        while self.status is None and time.monotonic() < deadline:
            self.read(0.1)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        assert self.status is not None, f"still running. The screen:\n{self.text()}"
        self.read(0.2)
        return self.status

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)
