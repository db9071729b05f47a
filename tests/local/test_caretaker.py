"""The caretaker with real agents: it starts them, starts them again, and ends them and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backend.local import fleet as fleet_module
from backend.local.caretaker import ALREADY_THERE
from backend.local.files import take_lock
from backend.local.fleet import FleetError, LocalFleet
from backend.local.layout import HOSTS, Layout, write_files
from backend.local.processes import Process, Record, identify, is_alive, read_record, send_signal

DEADLINE = 30.0


@pytest.fixture
def home() -> Iterator[Path]:
    """A home whose every process is ended by its identity afterwards."""
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:
        path = Path(folder)
        seen: set[Process] = set()
        yield path
        record = read_record(Layout(path).record)
        for process in (record.caretaker, *record.agents.values()) if record else ():
            seen.add(process)
        for process in seen:
            send_signal(process, signal.SIGKILL)
            wait_until(lambda process=process: not is_alive(process))  # type: ignore[misc]


def wait_until(holds: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Wait for something to become true; fails at the deadline."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def record_of(home: Path) -> Record:
    record = read_record(Layout(home).record)
    assert record is not None
    return record


def agents_of(home: Path) -> dict[str, Process]:
    return dict(record_of(home).agents)


def test_starting_brings_up_one_agent_per_host_and_stopping_ends_them_all(home: Path) -> None:
    fleet = LocalFleet(home)
    assert not fleet.is_left
    fleet.start(DEADLINE)
    started = record_of(home)
    assert fleet.is_up
    assert set(started.agents) == set(HOSTS)
    assert all(is_alive(process) for process in (started.caretaker, *started.agents.values()))
    assert os.getsid(started.caretaker.pid) == started.caretaker.pid, "a closed terminal must not reach it"

    assert set(fleet.stop()) == {"agent host-a", "agent host-b", "caretaker"}
    assert not any(is_alive(process) for process in (started.caretaker, *started.agents.values()))
    assert not fleet.is_left
    assert fleet.stop() == ()


def test_starting_twice_keeps_what_is_there(home: Path) -> None:
    fleet = LocalFleet(home)
    fleet.start(DEADLINE)
    first = record_of(home)
    fleet.start(DEADLINE)
    assert record_of(home) == first


def test_an_agent_that_is_killed_is_started_again_and_the_other_is_left_alone(home: Path) -> None:
    LocalFleet(home).start(DEADLINE)
    before = agents_of(home)
    assert send_signal(before["host-a"], signal.SIGKILL)
    wait_until(lambda: agents_of(home).get("host-a") not in (None, before["host-a"]))
    after = agents_of(home)
    assert is_alive(after["host-a"])
    assert after["host-b"] == before["host-b"]
    assert is_alive(after["host-b"])


def test_a_second_caretaker_of_one_home_steps_back(home: Path) -> None:
    LocalFleet(home).start(DEADLINE)
    first = record_of(home)
    second = subprocess.run(
        [sys.executable, "-I", "-m", "backend.local.caretaker", "--home", str(home)],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert second.returncode == ALREADY_THERE
    assert str(home) in second.stderr
    assert record_of(home) == first


def test_agents_that_outlived_their_caretaker_are_kept_by_the_next_and_end_with_it(home: Path) -> None:
    fleet = LocalFleet(home)
    fleet.start(DEADLINE)
    first = record_of(home)
    assert send_signal(first.caretaker, signal.SIGKILL)
    wait_until(lambda: not fleet.is_up)
    assert fleet.is_left, "agents may still run, and something must say so"
    fleet.start(DEADLINE)
    wait_until(lambda: record_of(home).caretaker != first.caretaker)
    assert agents_of(home) == first.agents
    fleet.stop()
    assert not any(is_alive(process) for process in first.agents.values())


def test_agents_without_a_caretaker_are_stopped_as_well(home: Path) -> None:
    fleet = LocalFleet(home)
    fleet.start(DEADLINE)
    first = record_of(home)
    assert send_signal(first.caretaker, signal.SIGKILL)
    wait_until(lambda: not fleet.is_up)
    assert set(fleet.stop()) == {"agent host-a", "agent host-b"}
    assert not any(is_alive(process) for process in first.agents.values())


def test_what_cannot_be_started_or_recorded_is_tried_again_and_ends_no_caretaker(home: Path) -> None:
    layout = Layout(home)
    write_files(layout)
    in_the_way = (layout.agent_log("host-a"), layout.record.with_name(f"{layout.record.name}.new"))
    for path in in_the_way:
        path.mkdir()
    with layout.caretaker_log.open("wb") as log:
        caretaker = subprocess.Popen(
            [sys.executable, "-I", "-m", "backend.local.caretaker", "--home", str(home)],
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(lambda: "host-a: its agent could not be started: [Errno 21]" in layout.caretaker_log.read_text())
        wait_until(lambda: "host-b: agent started" in layout.caretaker_log.read_text())
        assert "what was started cannot be recorded" in layout.caretaker_log.read_text()
        for path in in_the_way:
            path.rmdir()
        wait_until(lambda: layout.record.exists() and set(agents_of(home)) == set(HOSTS))
        assert all(is_alive(process) for process in agents_of(home).values())
    finally:
        caretaker.terminate()
        assert caretaker.wait(DEADLINE) == 0
    assert not any(is_alive(process) for process in agents_of(home).values())


def test_a_caretaker_without_a_record_is_not_said_to_be_stopped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(home)
    write_files(layout)
    monkeypatch.setattr(fleet_module, "_RECORD_SECONDS", 0.1)
    lock = take_lock(layout.lock)
    assert lock is not None
    with lock, pytest.raises(FleetError, match=r"a caretaker is at its post, and .*caretaker\.json is not there"):
        LocalFleet(home).stop()


def test_a_pid_that_was_given_to_someone_else_is_never_signalled() -> None:
    me = identify(os.getpid())
    assert me is not None
    someone_before = Process(me.pid, me.start_ticks - 1)
    assert not is_alive(someone_before)
    assert not send_signal(someone_before, signal.SIGKILL)
