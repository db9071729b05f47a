"""The console in a real pseudo-terminal: what goes over the wire, and what stays behind."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from tests.console.terminal import console_in_terminal

pytestmark = pytest.mark.e2e

LEAVE_ALTERNATE = b"\x1b[?1049l"


def test_no_sequence_that_a_host_said_reaches_the_terminal() -> None:
    with console_in_terminal("hostile") as terminal:
        terminal.see("<1b>")
        terminal.send("\t\t\r")
        terminal.see("journal, as it stood")
        terminal.see("<1b>]52;c;AAAA<07>")
        for leak in (b"\x1b]52;c;AAAA", b"\x1b]0;owned", b"\x1bP1;1", b"\xc2\x9b", "\u202e".encode()):
            assert leak not in terminal.raw
        assert LEAVE_ALTERNATE not in terminal.raw
        terminal.send("\x1b")
        terminal.until(lambda: "as it stood" not in terminal.text(), "the main screen")
        terminal.send("qq")  # the second was typed before anybody could read what it confirms
        terminal.see("leave the console?")
        terminal.send("q")
        assert terminal.end() == 0
        assert terminal.raw.count(LEAVE_ALTERNATE) == 1


def test_keys_are_answered_while_a_journal_storms() -> None:
    with console_in_terminal("storm") as terminal:
        terminal.see("line ")
        for _ in range(3):
            terminal.send("D" if _ else "?")
            terminal.until(lambda: "╭" in terminal.text() or "not possible" in terminal.text(), "an answer")
            terminal.send("\x1b")
            terminal.until(lambda: "╭" not in terminal.text(), "the main screen")
        terminal.see("line 2999")


def test_an_idle_console_sends_nothing() -> None:
    with console_in_terminal("idle") as terminal:
        terminal.see("tiny-1")
        terminal.read(2.0)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:  # at most one of these seconds holds the turn of a minute
            if terminal.read(4.0) == b"":
                return
        raise AssertionError(f"it sends all the time: {terminal.raw[-200:]!r}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_the_terminal_as_it_was(number: signal.Signals, code: int) -> None:
    with console_in_terminal("busy") as terminal:
        terminal.see("step37-1")
        terminal.process.send_signal(number)
        assert terminal.end() == code
        assert LEAVE_ALTERNATE in terminal.raw


def test_a_bug_gives_the_terminal_back_and_is_told_by_whoever_ran_the_console() -> None:
    with console_in_terminal("busy", "broken") as terminal:
        assert terminal.end() == 70
        assert LEAVE_ALTERNATE in terminal.raw
        after = terminal.raw[terminal.raw.rindex(LEAVE_ALTERNATE) :]
        assert b"raised 'NoneType'" in after
        assert b"Traceback" not in terminal.raw


@pytest.mark.parametrize("ignore_hangup", [False, True])
def test_a_console_whose_terminal_is_gone_ends_and_does_not_spin(ignore_hangup: bool) -> None:
    with console_in_terminal("busy", ignore_hangup=ignore_hangup) as terminal:
        terminal.see("step37-1")
        process = psutil.Process(terminal.process.pid)
        before = sum(process.cpu_times()[:2])
        terminal.close()
        deadline = time.monotonic() + 30
        used = before
        while terminal.process.poll() is None:
            assert time.monotonic() < deadline, "it lives on without a terminal"
            try:
                used = sum(process.cpu_times()[:2])
            except psutil.NoSuchProcess:
                break
            time.sleep(0.05)
        assert used - before < 3.0


def test_mono_sends_no_colour_and_ascii_nothing_else() -> None:
    with console_in_terminal("busy", "mono", "ascii", LC_ALL="C") as terminal:
        terminal.see("step37-1")
        terminal.send("?")
        terminal.see("ringtop unload")
        assert terminal.raw.isascii()
        assert b"\x1b[38;" not in terminal.raw
        assert b"\x1b[31m" not in terminal.raw
