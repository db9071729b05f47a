"""A real pseudo-terminal around the console: raw bytes out, keys in, and a rebuilt screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte

PATIENCE = 30.0
ROOT = Path(__file__).parents[2]


class Terminal:
    """One console process in a pseudo-terminal of a fixed size."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, size: tuple[int, int]) -> None:
        self.process = process
        self.raw = b""
        self._master = master
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)

    def read(self, seconds: float = 0.05) -> bytes:
        """What came within this time."""
        out = b""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and self._master >= 0:
            if not select.select([self._master], [], [], left)[0]:
                break
            try:
                chunk = os.read(self._master, 65536)
            except OSError:  # the other side is closed
                break
            if not chunk:
                break
            out += chunk
        self.raw += out
        self._stream.feed(out)
        return out

    def text(self) -> str:
        """What stands on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Read until this is true."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"{what} did not come; the screen says\n{self.text()}"
            self.read()

    def see(self, words: str) -> None:
        """Read until these words stand on the screen."""
        self.until(lambda: words in self.text(), repr(words))

    def send(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def close(self) -> None:
        """The terminal goes away, as when a connection breaks."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def end(self) -> int:
        """Wait until the process has ended; returns its code, negative for a signal."""
        self.until(lambda: self.process.poll() is not None, "the end of the process")
        if self._master >= 0:
            self.read(0.2)
        return self.process.returncode


@contextlib.contextmanager
def console_in_terminal(
    *words: str, size: tuple[int, int] = (80, 24), ignore_hangup: bool = False, **environment: str
) -> Iterator[Terminal]:
    """The console process; it is ended by its pid when the test is over."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def own_terminal() -> None:
        os.setsid()
        if not ignore_hangup:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    keep = {name: os.environ[name] for name in ("PATH", "HOME", "VIRTUAL_ENV") if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.console.console_process", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=ROOT,
        env={**keep, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment},
        preexec_fn=own_terminal,
    )
    os.close(slave)
    terminal = Terminal(process, master, size)
    try:
        yield terminal
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()
        terminal.close()
