"""``ringtop up --once`` as a process: what it proves, and that nothing of it is left, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from backend.local.fleet import LocalFleet
from backend.local.layout import Layout

pytestmark = pytest.mark.engine
RINGTOP = [sys.executable, "-I", "-m", "console.cli"]
DEADLINE = 120.0


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:
        yield Path(folder)
        for process in left(Path(folder)):
            process.kill()
            process.wait(30)


def left(home: Path) -> list[psutil.Process]:
    """Every process whose command line names this home, or that runs in one of its folders."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(home) in " ".join(process.cmdline()) and process.pid != os.getpid():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def begin(home: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RINGTOP, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RINGTOP_HOME": str(home), "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_once_interrupted_while_loading_stops_what_it_started(home: Path, number: signal.Signals) -> None:
    command = begin(home, "up", "--once")
    ledger = home / "ledger"
    deadline = time.monotonic() + DEADLINE
    while not (ledger.exists() and list(ledger.glob("load-*.jsonl"))):
        assert time.monotonic() < deadline
        assert command.poll() is None
        time.sleep(0.005)
    command.send_signal(number)
    _, err = command.communicate(timeout=DEADLINE)
    assert command.returncode == 130, err
    assert "stopped again" in err
    assert left(home) == []
    assert not LocalFleet(home).is_left


def test_once_beside_a_fleet_that_is_up_is_refused_and_touches_nothing(home: Path) -> None:
    fleet = LocalFleet(home)
    fleet.start(DEADLINE)
    try:
        before = Layout(home).record.read_text()
        command = begin(home, "up", "--once")
        _, err = command.communicate(timeout=DEADLINE)
        assert command.returncode == 2
        assert "ringtop down" in err
        assert Layout(home).record.read_text() == before
    finally:
        fleet.stop()


def test_an_agent_that_cannot_start_is_told_with_its_own_words(home: Path) -> None:
    layout = Layout(home)
    layout.config("host-b").parent.mkdir(parents=True)
    layout.config("host-b").write_text(
        f'host = "host-b"\nstate = "{layout.state("host-b")}"\nsocket = "{layout.socket("host-b")}"\nnonsense = 1\n'
    )
    command = begin(home, "down")
    assert command.communicate(timeout=DEADLINE)[0] == "nothing to stop\n"
    fleet = LocalFleet(home)
    try:
        with pytest.raises(Exception, match="nonsense"):
            fleet.start(5.0)
    finally:
        fleet.stop()
    assert left(home) == []
