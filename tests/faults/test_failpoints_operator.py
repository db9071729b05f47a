"""Every failpoint of the operator's side: the ledger, an operation between its steps, and its links.

A load is decided by the command line and run by a process of its own; that process is killed, fails or stands still
at each step. Whatever happens: the ledger says where it stood, another process finishes it, and nothing is left.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from backend.failpoints import NAMES
from tests.e2e.fleet import until
from tests.faults.stand import FaultFleet, quiet

pytestmark = [pytest.mark.engine, pytest.mark.timeout(100)]

NTH = {
    "ledger.before_step": 4,
    "operation.before_reserve": 1,
    "operation.before_check": 1,
    "operation.before_load": 1,
    "operation.before_leader": 1,
    "operation.before_end": 1,
    "link.before_hello": 1,
    "link.before_send": 5,
    "link.after_answer": 3,
}
"""At which pass each point acts within the operation's process: sends 1 and 2 are hello and subscribe."""
BEFORE_LOAD = ("ledger.before_step", "operation.before_reserve", "operation.before_check", "operation.before_load")


@pytest.mark.parametrize("point", NTH)
@pytest.mark.faults("the operation's process is killed here: another one finishes it from the ledger, once")
def test_kill_at(fleet: FaultFleet, point: str) -> None:
    assert _through_a_load(fleet, point, "kill") == -signal.SIGKILL


@pytest.mark.thorough
@pytest.mark.parametrize("point", NTH)
@pytest.mark.faults("a system call of the operation fails here: it says so and ends, or tries again by itself")
def test_failure_at(fleet: FaultFleet, point: str) -> None:
    expected = 0 if point in ("link.before_hello", "link.after_answer") else 70
    assert _through_a_load(fleet, point, "raise") == expected


@pytest.mark.thorough
@pytest.mark.parametrize("point", NTH)
@pytest.mark.faults("the operation's process stands still here: the load is late and nothing else")
def test_delay_at(fleet: FaultFleet, point: str) -> None:
    assert _through_a_load(fleet, point, "delay:0.3") == 0


@pytest.mark.parametrize("act", ["kill", "raise", "delay:0.3"])
@pytest.mark.faults("the ledger cannot be begun: nothing was sent, and the same load works afterwards")
def test_before_the_first_ledger_write(fleet: FaultFleet, act: str) -> None:
    _one_host(fleet)
    before = _head(fleet)
    done = fleet.run("load", "tiny:one-worker", "--yes", env=fleet.arming(f"ledger.before_first_write={act}"))
    assert fleet.acted("ledger.before_first_write")
    if act.startswith("delay"):
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert done.returncode != 0
        assert fleet.json("ls", "operations") == []
        assert _head(fleet) == before, "something was sent before the ledger was written"
        fleet.load("tiny:one-worker")
    _unloaded(fleet)


@pytest.mark.parametrize("act", ["kill", "raise", "delay:0.3"])
@pytest.mark.faults("the ledger is written and nothing was sent yet: the operation is ownerless, and can be resumed")
def test_after_the_first_ledger_sync(fleet: FaultFleet, act: str) -> None:
    _one_host(fleet)
    before = _head(fleet)
    done = fleet.run("load", "tiny:one-worker", "--yes", env=fleet.arming(f"ledger.after_first_sync={act}"))
    assert fleet.acted("ledger.after_first_sync")
    if act.startswith("delay"):
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert done.returncode != 0
        (operation,) = fleet.json("ls", "operations")
        assert operation["state"] == "ownerless"
        assert _head(fleet) == before, "a command left although the process was gone"
        assert fleet.run("op", "run", operation["id"]).returncode == 0
    _unloaded(fleet)


def test_no_point_of_the_operator_is_left_out() -> None:
    here = {name for name in NAMES if name.startswith(("ledger.", "operation.", "link."))}
    assert here - set(NTH) == {"ledger.before_first_write", "ledger.after_first_sync"}


def _through_a_load(fleet: FaultFleet, point: str, act: str) -> int:
    """A load whose process meets one fault, then what finishes it; returns the exit code of the first process."""
    _one_host(fleet)
    decided = fleet.run("load", "tiny:one-worker", "--yes", env=fleet.arming("ledger.after_first_sync=kill"))
    assert decided.returncode == -signal.SIGKILL
    (operation,) = fleet.json("ls", "operations")
    first = fleet.run("op", "run", operation["id"], env=fleet.arming(f"{point}={act}@{NTH[point]}"))
    assert fleet.acted(point), f"{point} was never hit"
    if first.returncode:
        state = _operation(fleet)
        assert state["state"] == "ownerless", state
        if point in BEFORE_LOAD:
            assert not fleet.engine_pids()
    again = fleet.run("op", "run", operation["id"])
    assert again.returncode == 0, again.stdout + again.stderr
    ended = _operation(fleet)
    assert (ended["state"], ended["load_generation"]) == ("succeeded", operation["load_generation"])
    replica = fleet.replica()
    assert replica is not None
    assert (replica["state"], replica["load_generation"]) == ("ready", operation["load_generation"])
    assert fleet.engine_pids() == {shard["pid"] for shard in replica["shards"]}
    assert fleet.run("op", "run", operation["id"]).returncode == 0, "an ended operation has the same end again"
    assert _operation(fleet) == ended
    _unloaded(fleet)
    return first.returncode


def _one_host(fleet: FaultFleet) -> None:
    fleet.write_contexts({"host-a": f"unix:{fleet.socket('host-a')}"})
    fleet.start("host-a")


def _operation(fleet: FaultFleet) -> dict[str, Any]:
    (operation,) = fleet.json("ls", "operations")
    return dict(operation)


def _head(fleet: FaultFleet) -> int:
    """The number of records that the agent's journal holds."""
    return len(fleet.run("journal", "--tail", "1000", "--json").stdout.splitlines())


def _unloaded(fleet: FaultFleet) -> None:
    done = fleet.run("unload", "tiny-1", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    until("the end of every engine", lambda: not fleet.engine_pids() or None)
    quiet(fleet)
    assert fleet.json("ls", "replicas") == []
