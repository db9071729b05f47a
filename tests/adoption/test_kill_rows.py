"""Whoever is killed, in whatever state: the same replica serves on, its stream unbroken, nothing doubled, then quiet.

Real agents, real rings and a real keeper whose model is on demand, so that it would load another replica if it ever
believed that one was missing. The whole matrix runs with ``make adoption``; one row of each state with every test.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.adoption.test_real import Stream, adopt_plan, in_state, who
from tests.e2e.fleet import CATALOG, until
from tests.e2e.terminal import Terminal
from tests.faults.stand import FaultFleet, quiet

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.timeout(180)]

ON_DEMAND = f"""{CATALOG}
[models.tiny.scaling]
mode = "on_demand"
desired = 1
idle_timeout = "1h"
profile = "two-host"
"""
VICTIMS = ("console", "operation", "keeper", "leader's agent", "other agent", "all agents")
STATES = ("loading", "ready", "streaming", "draining")
QUICK = {
    ("operation", "loading"),
    ("keeper", "ready"),
    ("leader's agent", "streaming"),
    ("all agents", "draining"),
}
AGENTS = {"leader's agent": ("host-a",), "other agent": ("host-b",), "all agents": ("host-a", "host-b")}
TOKENS = 1500


class Row:
    """One row: a fleet with a keeper, brought into a state. ``asker`` is the process of the person who asked for it."""

    def __init__(self, fleet: FaultFleet) -> None:
        self.fleet = fleet
        self.stack = contextlib.ExitStack()
        self.asker: subprocess.Popen[bytes] | None = None
        self.stream: Stream | None = None
        self.stopped: int | None = None
        self.before: dict[str, Any] = {}
        self.keepers: list[subprocess.Popen[bytes]] = []
        self.workers: set[int] = set()

    # --- processes ------------------------------------------------------------------------------------------------

    def spawn(self, *args: str, log: str = "asker", failpoints: str | None = None) -> subprocess.Popen[bytes]:
        """A `ringtop` command that goes on until it ends by itself, is killed, or the row is over."""
        env = self.fleet.env() if failpoints is None else {**self.fleet.env(), **self.fleet.arming(failpoints)}
        with (self.fleet.home / f"{log}.log").open("ab") as out:
            process = subprocess.Popen(
                self.fleet.command(*args),
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.stack.callback(_end, process)
        return process

    def keep(self) -> None:
        """A keeper, as its service manager starts it: it waits while another one's lease lasts."""
        options = ("keep", "--json", "--lease", "4s", "--every", "0.2s", "--standby")
        self.keepers.append(self.spawn(*options, log=f"keeper-{len(self.keepers)}"))

    def wait_kept(self) -> None:
        """Until the last keeper has the lease."""
        last = len(self.keepers) - 1
        until("the keeper's lease", lambda: [e for e in self.said(last) if e.get("event") == "keeping"])

    def said(self, number: int) -> list[dict[str, Any]]:
        """What a keeper said so far."""
        lines = (self.fleet.home / f"keeper-{number}.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def decisions(self) -> list[dict[str, Any]]:
        """Everything that any keeper decided."""
        return [event for number in range(len(self.keepers)) for event in self.said(number) if "decision" in event]

    # --- states ---------------------------------------------------------------------------------------------------

    def reach(self, state: str) -> None:
        """Bring the fleet there. What is begun and not over is stopped at a known step, never by luck."""
        self.fleet.start()
        if state == "loading":
            self.asker = self.spawn("load", "tiny:two-host", "--yes", failpoints="operation.before_leader=stop")
            self.stopped = self._stopped_at("operation.before_leader")
            self.workers = self.fleet.engine_pids()
            self.keep()
            self.wait_kept()
            return
        self.before = self.fleet.load()
        self.keep()
        self.wait_kept()
        if state == "ready":
            return
        self.stream = Stream(self.before["endpoint"], TOKENS)
        self.stream.start()
        assert self.stream.flows.wait(60)
        if state == "draining":
            assert self.fleet.run("pause", "tiny-1", "--why", "it is emptied").returncode == 0
            self.asker = self.spawn("drain", "tiny-1", "--deadline", "120s")
            in_state(self.fleet, "draining")

    def _stopped_at(self, point: str) -> int:
        (hit,) = until(f"a process that stands at {point}", lambda: self.fleet.acted(point))
        return int(hit.split()[-1])

    def go_on(self) -> None:
        """Let an operation that was stopped, and is not dead, go on."""
        if self.stopped is not None and psutil.pid_exists(self.stopped):
            os.kill(self.stopped, signal.SIGCONT)

    # --- victims --------------------------------------------------------------------------------------------------

    def kill(self, victim: str) -> None:
        """Kill one by KILL, and start again what a service manager starts again."""
        match victim:
            case "console":
                self._kill_console()
            case "operation":
                self._kill_operation()
            case "keeper":
                self.keepers[-1].kill()
                self.keepers[-1].wait()
                self.keep()
            case _:
                for name in AGENTS[victim]:
                    self.fleet.kill_agent(name)
                self.fleet.start(*AGENTS[victim])

    def _kill_console(self) -> None:
        """The whole screen, and the command of whoever asked for what is under way."""
        environment = {**os.environ, **self.fleet.env()}
        screen = Terminal(self.fleet.command(), environment, 120, 36)
        self.stack.callback(screen.close)
        screen.wait_for("tiny-1")
        screen.kill(signal.SIGKILL)
        assert screen.wait_end() == -signal.SIGKILL
        if self.asker is not None:
            self.asker.kill()
            self.asker.wait()
            self.asker = None

    def _kill_operation(self) -> None:
        """The process of what is under way; where nothing is, of a drain that has not sent anything yet."""
        if self.stopped is None and self.asker is None:
            self.asker = self.spawn("drain", "tiny-1", "--deadline", "90s", failpoints="ledger.before_step=stop")
            pid = self._stopped_at("ledger.before_step")
        else:
            pid = self.stopped if self.stopped is not None else self._owner()
        os.kill(pid, signal.SIGKILL)
        until("an operation without an owner", lambda: self._operation()["state"] == "ownerless")
        if self.asker is not None:
            _end(self.asker)
            self.asker = None

    def _owner(self) -> int:
        """The process that runs the operation: it has the ledger file open, which may be under its first name."""
        ledger = self.fleet.home / "ledger" / f"{self._operation()['id']}.jsonl"
        for process in psutil.process_iter(["cmdline"]):
            if "backend.control.operations" not in (process.info["cmdline"] or ()):
                continue
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if any(path.exists() and path.samefile(ledger) for path in Path(f"/proc/{process.pid}/fd").iterdir()):
                    return int(process.pid)
        raise AssertionError(f"no process runs {ledger.name}")

    def _operation(self) -> dict[str, Any]:
        """The operation that is open, or was last."""
        return dict(max(self.fleet.json("ls", "operations"), key=lambda each: int(each["started_unix_ms"])))

    def take_up(self, state: str) -> None:
        """What the person at the console does about an operation whose process is gone."""
        operation = self._operation()
        if state in ("ready", "streaming"):
            assert self.fleet.run("op", "rollback", operation["id"], "--yes").returncode == 0
            until("its end", lambda: self._operation()["state"] not in ("running", "ownerless"))
        else:
            assert self.fleet.run("op", "resume", operation["id"]).returncode == 0


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


@pytest.fixture
def make_row(make_fleet: Callable[..., FaultFleet]) -> Iterator[Callable[[], Row]]:
    """Makes rows; their processes are gone before their fleet is."""
    rows: list[Row] = []

    def make() -> Row:
        rows.append(Row(make_fleet(ON_DEMAND)))
        return rows[-1]

    yield make
    for row in rows:
        row.stack.close()


def _rows() -> Iterator[Any]:
    for victim in VICTIMS:
        for state in STATES:
            marks = [] if (victim, state) in QUICK else [pytest.mark.thorough]
            yield pytest.param(victim, state, id=f"{victim} while {state}", marks=marks)


@pytest.mark.adoption(
    "killed by KILL: the same replica, generation and endpoint, the stream unbroken, nothing doubled, then quiet"
)
@pytest.mark.parametrize(("victim", "state"), tuple(_rows()))
def test_r06_killed(make_row: Callable[[], Row], victim: str, state: str) -> None:
    row = make_row()
    row.reach(state)
    row.kill(victim)
    row.go_on()
    if victim == "operation":
        row.take_up(state)
    if state == "draining":
        assert_drained(row)
    else:
        assert_serves_on(row)
    row.wait_kept()
    assert row.decisions() == [], "the keeper had nothing to do"
    quiet(row.fleet)


def assert_serves_on(row: Row) -> None:
    """The one replica is ready with the processes that it had, and its stream came to its end."""
    after = in_state(row.fleet, "ready")
    if row.before:
        assert who(after) == who(row.before)
    else:
        assert row.workers == {shard["pid"] for shard in after["shards"] if shard["rank"]}
    if row.asker is not None:
        assert row.asker.wait(60) == 0
    if row.stream is not None:
        row.stream.assert_whole()
    assert [each["id"] for each in row.fleet.json("ls", "replicas")] == ["tiny-1"]
    assert row.fleet.engine_pids() == {shard["pid"] for shard in after["shards"]}
    code, document = adopt_plan(row.fleet)
    assert (code, document["stoppable"], document["replicas"][0]["claim"]) == (0, [], "adopted")


def assert_drained(row: Row) -> None:
    """The stream came to its end, then the engines went, and nothing was loaded in their place.

    While it drains it is the same ring; when that is over by now, the stream alone says that it was.
    """
    assert row.stream is not None
    listed = row.fleet.run("ls", "replicas", "--json").stdout
    for seen in json.loads(listed or "[]"):
        assert seen["load_generation"] == row.before["load_generation"]
        assert seen["state"] != "draining" or who(seen) == who(row.before)
    row.stream.assert_whole()
    until("no engine", lambda: not row.fleet.engine_pids() or None, seconds=60)
    if row.asker is not None:
        assert row.asker.wait(60) == 0
    until("the end of the drain", lambda: row._operation()["state"] == "succeeded")
    code, document = adopt_plan(row.fleet)
    assert (code, document["stoppable"]) == (0, [])
