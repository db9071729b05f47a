"""What the command line does with and without a terminal, on a real pseudo-terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

RINGTOP = [sys.executable, "-I", "-m", "console.cli"]


def environment(home: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "RINGTOP_HOME": str(home), "TERM": "xterm-256color", **more}


def read_until(terminal: int, wanted: bytes, seconds: float = 20.0) -> bytes:
    """What came out of the terminal until these bytes did."""
    deadline = time.monotonic() + seconds
    seen = b""
    while wanted not in seen:
        left = deadline - time.monotonic()
        assert left > 0, seen
        if select.select([terminal], [], [], left)[0]:
            seen += os.read(terminal, 65_536)
    return seen


def test_without_a_terminal_the_console_is_refused_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        RINGTOP, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(tmp_path), check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "ringtop ls" in done.stderr
    assert "\x1b" not in done.stderr


def test_a_dumb_terminal_is_refused_in_words(tmp_path: Path) -> None:
    inside, outside = pty.openpty()
    try:
        command = subprocess.Popen(
            RINGTOP, stdin=outside, stdout=outside, stderr=outside, env=environment(tmp_path, TERM="dumb")
        )
        assert b"TERM is 'dumb'" in read_until(inside, b"'dumb'")
        assert command.wait(20) == 2
    finally:
        os.close(outside)
        os.close(inside)


def test_a_redirected_standard_error_is_no_screen_as_the_console_draws_there(tmp_path: Path) -> None:
    inside, outside = pty.openpty()
    try:
        done = subprocess.run(
            RINGTOP,
            stdin=outside,
            stdout=outside,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(tmp_path, TERM="xterm"),
            check=False,
        )
    finally:
        os.close(outside)
        os.close(inside)
    assert done.returncode == 2
    assert "the console needs a terminal" in done.stderr


def test_reset_terminal_leaves_the_screen_the_mouse_and_raw_mode(tmp_path: Path) -> None:
    inside, outside = pty.openpty()
    try:
        modes = termios.tcgetattr(outside)
        modes[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG)
        termios.tcsetattr(outside, termios.TCSANOW, modes)
        # the terminal must be the controlling one of the command's session, as it is for a person
        script = (
            "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
            "os.execv(sys.executable, sys.argv[1:])"
        )
        command = subprocess.Popen(
            [sys.executable, "-I", "-c", script, *RINGTOP, "reset-terminal"],
            stdin=outside,
            stdout=outside,
            stderr=outside,
            env=environment(tmp_path),
        )
        written = read_until(inside, b"\x1b[r")
        assert command.wait(20) == 0
        assert b"\x1b[?1049l" in written
        assert b"\x1b[?1003l" in written
        assert termios.tcgetattr(outside)[3] & (termios.ICANON | termios.ECHO | termios.ISIG) == (
            termios.ICANON | termios.ECHO | termios.ISIG
        )
    finally:
        os.close(outside)
        os.close(inside)
