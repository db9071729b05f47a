"""The keeper over real agents and a real engine: one at a time, taken over, with a budget, and obeying people."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.fleet import Fleet, until

pytestmark = [pytest.mark.e2e, pytest.mark.engine]

CATALOG = """
[models.tiny]
path = "tiny.gguf"
aliases = ["t"]
engine = "llamacpp"

[models.tiny.scaling]
mode = "on_demand"
desired = {desired}
idle_timeout = "{idle}"

[models.tiny.profiles.alone]
ranks = 1
hosts = ["host-a"]
context = 2048
"""


class Keeper:
    """One `ringtop keep` process and what it has said so far."""

    def __init__(self, fleet: Fleet, number: int, *options: str) -> None:
        self.log = fleet.home / f"keeper-{number}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                fleet.command("keep", "--json", "--lease", "4s", "--every", "0.2s", *options),
                env=fleet.env(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def events(self, *names: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]
        return [each for each in lines if not names or each.get("event") in names or each.get("decision") in names]

    def wait_for(self, name: str, count: int = 1) -> dict[str, Any]:
        return until(f"{name} x{count} in {self.log}", lambda: self.events(name)[count - 1 : count])[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@pytest.fixture
def keep(make_fleet: Callable[..., Fleet]) -> Iterator[Callable[..., Keeper]]:
    """Starts keepers; every one is gone before its fleet is."""
    keepers: list[Keeper] = []

    def start(fleet: Fleet, *options: str) -> Keeper:
        keepers.append(Keeper(fleet, len(keepers), *options))
        return keepers[-1]

    yield start
    for keeper in keepers:
        if keeper.process.poll() is None:
            keeper.kill()


@pytest.fixture
def make(make_fleet: Callable[..., Fleet]) -> Callable[..., Fleet]:
    """A running fleet whose model is on demand."""

    def made(desired: int = 1, idle: str = "1h") -> Fleet:
        fleet = make_fleet(CATALOG.format(desired=desired, idle=idle))
        fleet.start()
        return fleet

    return made


def ready(fleet: Fleet, but: int = 0) -> dict[str, Any]:
    """The replica as soon as it serves under another generation than ``but``."""

    def look() -> dict[str, Any] | None:
        view = fleet.replica()
        serves = view is not None and view["state"] == "ready" and view["load_generation"] != but
        return view if serves else None

    return until("tiny-1 to be ready", look)


def records(fleet: Fleet) -> list[int]:
    """How far the journal of each host is."""
    return [int(each["head_seq"]) for each in fleet.json("journal", "stats").values()]


def kill_engine(fleet: Fleet) -> None:
    os.kill(fleet.pid_of("tiny-1/0"), signal.SIGKILL)


@pytest.mark.adoption("25: a killed keeper is succeeded when its lease ends, and a failed replica is loaded again")
def test_r25_a_killed_keeper_is_taken_over_and_its_successor_loads_what_fails(
    make: Callable[..., Fleet], keep: Callable[..., Keeper]
) -> None:
    fleet = make()
    first = keep(fleet)
    before = ready(fleet)
    second = keep(fleet, "--standby")
    name = second.wait_for("waiting")["words"]
    refused = fleet.json("keep", code=2)["error"]
    assert f"{fleet.json('ls', 'hosts')[0]['keeper']['who']} keeps this fleet" in refused["words"]
    assert fleet.json("ls", "hosts")[0]["keeper"]["who"] in name
    first.kill()
    second.wait_for("keeping")
    lease = fleet.json("ls", "hosts")[0]["keeper"]
    assert (lease["keeper_epoch"], lease["ended"]) == (2, "")
    assert second.events("load", "dismiss", "drain") == []
    assert ready(fleet)["load_generation"] == before["load_generation"]
    kill_engine(fleet)
    after = ready(fleet, but=before["load_generation"])
    assert after["load_generation"] > before["load_generation"]
    assert [event["decision"] for event in second.events("dismiss", "load")] == ["dismiss", "load"]
    assert second.end() == 0
    assert fleet.json("ls", "hosts")[0]["keeper"]["ended"] == "resigned"
    assert ready(fleet)["load_generation"] == after["load_generation"]


@pytest.mark.adoption("25: a keeper killed in the middle of its load: the load goes on, and nothing is doubled")
def test_r25_a_keeper_killed_while_it_loads_doubles_nothing(
    make: Callable[..., Fleet], keep: Callable[..., Keeper]
) -> None:
    fleet = make()
    first = keep(fleet)
    began = first.wait_for("load")
    first.kill()
    second = keep(fleet, "--standby")
    second.wait_for("keeping")
    assert ready(fleet)["load_generation"]
    (operation,) = fleet.json("ls", "operations")
    assert (operation["id"], operation["state"]) == (began["operation"], "succeeded")
    assert second.events("decided") == []
    assert len(fleet.engines()) == 1


@pytest.mark.adoption("28: the budget over a real engine that does not stay, until a person clears it")
def test_r28_three_failures_quarantine_a_replica_until_a_person_resumes_it(
    make: Callable[..., Fleet], keep: Callable[..., Keeper]
) -> None:
    fleet = make()
    keeper = keep(fleet)
    generation = 0
    for _ in range(3):
        generation = ready(fleet, but=generation)["load_generation"]
        kill_engine(fleet)
    verdict = keeper.wait_for("quarantine")
    assert "tiny-1 was loaded 3 times within 10 min" in verdict["words"]
    view = fleet.replica()
    assert view is not None
    assert view["state"] == "failed"
    (hold,) = fleet.json("ls", "hosts")[0]["operator_holds"]
    assert (hold["subject"], hold["kind"]) == ("tiny-1", "quarantined")
    assert "keeper" in hold["by"]
    assert len(keeper.events("load")) == 3
    assert fleet.run("resume", "tiny-1").returncode == 0
    assert ready(fleet, but=generation)["state"] == "ready"
    assert len(keeper.events("load")) == 4


@pytest.mark.adoption("26: `ringtop down` is obeyed by a keeper, and a fleet in the minority is left alone")
def test_r26_what_is_down_stays_down_until_it_is_resumed_and_a_minority_does_nothing(
    make: Callable[..., Fleet], keep: Callable[..., Keeper]
) -> None:
    fleet = make()
    keeper = keep(fleet)
    before = ready(fleet)
    unconfirmed = fleet.run("down", "tiny-1")
    assert (unconfirmed.returncode, "add --yes" in unconfirmed.stderr) == (2, True)
    down = fleet.json("down", "tiny-1", "--yes", "--for", "1h", "--why", "bad weights")
    assert [each["replica"] for each in down["unloaded"]] == ["tiny-1"]
    loads = len(keeper.events("load"))
    (hold,) = fleet.json("ls", "hosts")[1]["operator_holds"]
    assert (hold["kind"], hold["why"]) == ("down", "bad weights")
    assert hold["until_unix_ms"] - hold["at_unix_ms"] == 3_600_000
    assert fleet.engines() == []
    fleet.kill_agent("host-b")
    keeper.wait_for("minority")
    assert fleet.run("resume", "tiny-1").returncode == 4
    assert (len(keeper.events("load")), fleet.engines()) == (loads, [])
    fleet.start("host-b")
    keeper.wait_for("keeping", 2)
    assert fleet.run("resume", "tiny-1").returncode == 0
    assert ready(fleet, but=before["load_generation"])["state"] == "ready"
    assert len(keeper.events("load")) == loads + 1


@pytest.mark.adoption("23: in the steady state a keeper and its renewals write nothing")
def test_r23_a_keeper_that_has_nothing_to_do_writes_nothing(
    make: Callable[..., Fleet], keep: Callable[..., Keeper]
) -> None:
    fleet = make()
    keeper = keep(fleet, "--lease", "6s")
    ready(fleet)
    operations = len(fleet.json("ls", "operations"))
    before = until("two equal looks at the journals", lambda: _quiet(fleet))
    began = time.monotonic()
    until("more than a lease to pass", lambda: time.monotonic() - began > 7)
    assert records(fleet) == before
    assert len(fleet.json("ls", "operations")) == operations
    assert fleet.json("ls", "hosts")[0]["keeper"]["ended"] == ""
    assert len(keeper.events("keeping", "minority")) == 1


def _quiet(fleet: Fleet) -> list[int] | None:
    first, second = records(fleet), records(fleet)
    return second if first == second else None


@pytest.mark.adoption("13: on demand, an idle replica is emptied after its timeout and one that is used is not")
def test_r13_an_idle_replica_is_emptied_after_its_timeout_and_a_paused_one_is_not(
    make: Callable[..., Fleet], keep: Callable[..., Keeper]
) -> None:
    fleet = make(desired=0, idle="3s")
    fleet.load("tiny")
    assert fleet.run("pause", "t", "--why", "measuring").returncode == 0
    keeper = keep(fleet)
    keeper.wait_for("keeping")
    assert fleet.run("test", "tiny-1").returncode == 0
    assert keeper.events("drain") == []
    assert fleet.run("resume", "tiny").returncode == 0
    assert "tiny-1 was not used for" in keeper.wait_for("drain")["words"]
    until("tiny-1 to be gone", lambda: fleet.replica() is None)
    assert fleet.engines() == []


def test_once_loads_what_is_missing_gives_the_lease_back_and_then_has_nothing_to_do(
    make: Callable[..., Fleet],
) -> None:
    fleet = make()
    assert fleet.run("keep", "--once").returncode == 0
    generation = ready(fleet)["load_generation"]
    again = fleet.run("keep", "--once", "--json")
    assert again.returncode == 0
    assert [json.loads(line)["event"] for line in again.stdout.splitlines()] == ["keeping", "resigned"]
    assert ready(fleet)["load_generation"] == generation
