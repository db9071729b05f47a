"""The console in a real pseudo-terminal at 80x24: load, watch, drain, leave; killed in the middle, nothing is lost."""

from __future__ import annotations

import os
import signal
import termios
from collections.abc import Iterator

import pytest

from tests.e2e.fleet import Fleet, until
from tests.e2e.terminal import Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

ENTER, ESCAPE, DOWN = "\r", "\x1b", "\x1b[B"


@pytest.fixture
def console(fleet: Fleet) -> Iterator[Terminal]:
    terminal = Terminal(fleet.command(), fleet.env())
    yield terminal
    terminal.close()


def load_two_host(console: Terminal) -> None:
    """L, choose the profile, look at the plan, confirm it."""
    console.wait_for("2/2 hosts")
    console.press("L")
    console.wait_for("two-host")
    for _ in range(8):
        if any(line.lstrip("│ ").startswith(">") and "two-host" in line for line in console.text().splitlines()):
            break
        console.press(DOWN)
    console.press(ENTER)
    console.wait_for("Takes up to")
    console.read(0.5)
    console.press("y")
    console.wait_gone("Takes up to")
    console.press(ESCAPE)


def ready(text: str) -> bool:
    return any("tiny-1" in line and " ready " in line and "3/3" in line for line in text.splitlines())


def test_load_watch_drain_and_leave_by_keyboard(fleet: Fleet, console: Terminal) -> None:
    load_two_host(console)
    console.wait_for(ready)
    text = console.wait_for("leader")
    assert "host-a" in text
    assert "host-b" in text
    console.press("D")
    console.wait_for("drain tiny-1")
    console.read(0.5)
    console.press("y")
    console.press(ESCAPE)
    console.wait_for(lambda text: "nothing is loaded" in text.lower(), seconds=60)
    console.press("q")
    console.read(0.5)
    if console.status is None and "Quit" in console.text():
        console.press("q")
    assert console.wait_end() == 0
    assert console.raw.rindex(b"\x1b[?1049l") > console.raw.rindex(b"\x1b[?1049h")
    assert console.raw.rindex(b"\x1b[?25h") > console.raw.rindex(b"\x1b[?25l")
    assert termios.tcgetattr(console.fd) == console.modes_before
    assert fleet.engines() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["SIGKILL", "SIGSTOP"])
def test_a_console_that_is_killed_or_stopped_changes_nothing_for_its_load(
    fleet: Fleet, console: Terminal, number: int
) -> None:
    console.wait_for("2/2 hosts")
    load_two_host(console)
    console.kill(number)

    def is_ready() -> dict[str, object] | None:
        replica = fleet.replica()
        return replica if replica is not None and replica["state"] == "ready" else None

    replica = until("the load's end", is_ready)
    assert replica["ranks_ready"] == 3
    operations = fleet.json("ls", "operations")
    assert [(o["kind"], o["state"]) for o in operations] == [("load", "succeeded")]


def test_a_killed_worker_is_named_on_the_screen(fleet: Fleet, console: Terminal) -> None:
    fleet.load()
    console.wait_for(ready)
    os.kill(fleet.pid_of("tiny-1/2"), signal.SIGKILL)
    text = console.wait_for(lambda text: any("tiny-1 " in line and " failed " in line for line in text.splitlines()))
    assert "rank 2" in text
    console.wait_for("signal 9")


def test_a_host_whose_agent_died_is_said_and_comes_back(fleet: Fleet, console: Terminal) -> None:
    fleet.load()
    console.wait_for(ready)
    fleet.kill_agent("host-b")
    console.wait_for("1/2 hosts")
    console.wait_for("unreachable")
    fleet.start("host-b")
    console.wait_for("2/2 hosts")
    console.wait_for(ready)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_leave_the_terminal_as_it_was(console: Terminal, number: int, code: int) -> None:
    console.wait_for("2/2 hosts")
    console.kill(number)
    assert console.wait_end() == code
    assert console.raw.rindex(b"\x1b[?1049l") > console.raw.rindex(b"\x1b[?1049h")


def test_wrong_keys_do_nothing_but_say_why(fleet: Fleet, console: Terminal) -> None:
    console.wait_for("2/2 hosts")
    for key in ("D", "U", "t", "x", "y", "Z", "9", "\t", DOWN, ESCAPE):
        console.press(key)
    console.read(0.5)
    console.press(ESCAPE)
    assert fleet.json("ls", "operations") == []
    console.press("q")
    console.read(0.5)
    if "Quit" in console.text():
        console.press("q")
    assert console.wait_end() == 0


def test_without_a_terminal_one_line_says_what_to_use(fleet: Fleet) -> None:
    done = fleet.run()
    assert done.returncode == 2
    assert "ringtop ls" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


@pytest.mark.thorough
@pytest.mark.faults("a bad edit of the catalog under a running console: said, and the last good one stays in use")
def test_a_bad_edit_of_the_catalog_is_said_and_the_last_good_one_plans_on(fleet: Fleet, console: Terminal) -> None:
    path = fleet.home / "catalog.toml"
    good = path.read_text()
    console.wait_for("2/2 hosts")
    path.write_text(good + "\n[models.tiny.profiles.broken]\nrankz = 3\n")
    console.wait_for("catalog fault")
    done = fleet.run("load", "tiny:alone", "--yes")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "rankz" in done.stdout + done.stderr  # a command that never saw a good one has none to go on with
    assert "catalog.toml" in done.stdout + done.stderr
    console.press("L")
    console.wait_for("stays in use")
    console.wait_for("alone")
    console.press(ENTER)
    console.wait_for("catalog.stale")
    console.press(ESCAPE)
    path.write_text(good)
    console.wait_gone("catalog fault")
    assert fleet.engines() == []
