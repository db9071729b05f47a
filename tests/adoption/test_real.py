"""Adoption with real agents and real rings: what restarts notice, what they leave alone, and what a person stops."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.fleet import until
from tests.faults.stand import Asker, FaultFleet, load, quiet, reserve, running, worker_plan

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.timeout(110)]

ALONE = """
[models.tiny]
path = "tiny.gguf"
engine = "llamacpp"

[models.tiny.profiles.alone]
ranks = 1
hosts = ["host-b"]
context = 2048

[models.tiny.profiles.one-worker]
ranks = 2
hosts = ["host-a"]
context = 2048
"""


def adopt_plan(fleet: FaultFleet, *args: str) -> tuple[int, dict[str, Any]]:
    """What ``adopt --plan`` says, and its exit code."""
    done = fleet.run("adopt", "--plan", "--json", *args)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def who(replica: dict[str, Any]) -> tuple[Any, ...]:
    """What must be the same after a restart: generation, endpoint, and every rank's process."""
    pids = {shard["rank"]: shard["pid"] for shard in replica["shards"]}
    return replica["load_generation"], replica["endpoint"], pids


def in_state(fleet: FaultFleet, state: str) -> dict[str, Any]:
    """The replica, once it is in this state."""

    def look() -> dict[str, Any] | None:
        done = fleet.run("ls", "replicas", "--json")
        seen = [r for r in json.loads(done.stdout) if r["id"] == "tiny-1"] if done.stdout else []
        return seen[0] if seen and seen[0]["state"] == state else None

    return until(f"tiny-1 {state}", look)


class Stream(threading.Thread):
    """A completion of many tokens that runs while other things happen."""

    def __init__(self, endpoint: str, tokens: int) -> None:
        super().__init__(daemon=True)
        self._tokens = tokens
        body = {"prompt": "one two", "n_predict": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        header = {"Content-Type": "application/json"}
        self._request = urllib.request.Request(f"{endpoint}/completion", json.dumps(body).encode(), header)
        self.pieces: list[dict[str, Any]] = []
        self.flows = threading.Event()

    def run(self) -> None:
        with urllib.request.urlopen(self._request, timeout=100) as reply:
            for line in reply:
                if line.startswith(b"data: "):
                    self.pieces.append(json.loads(line[6:]))
                    if len(self.pieces) > 20:
                        self.flows.set()

    def assert_whole(self) -> None:
        self.join(90)
        assert self.pieces, "the stream never began"
        assert self.pieces[-1]["stop"] is True
        assert self.pieces[-1]["tokens_predicted"] == self._tokens


@contextlib.contextmanager
def another_home(fleet: FaultFleet, catalog: str) -> Iterator[dict[str, str]]:
    """The environment of a second console on the same agents, with a catalog of its own."""
    home = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
    shutil.copy(fleet.home / "contexts.toml", home / "contexts.toml")
    (home / "catalog.toml").write_text(catalog)
    try:
        yield {"RINGTOP_HOME": str(home)}
    finally:
        shutil.rmtree(home)


def stray(fleet: FaultFleet) -> int:
    """A worker of an older generation of tiny-1 on host-a, on the lowest port that there is; returns the port."""
    plan = worker_plan(fleet, port=-3)

    async def start() -> None:
        asker = Asker(fleet)
        async with running(asker):
            assert (await asker.ask(reserve(plan))).status == "succeeded"
            loaded = await asker.ask(load(plan))
            assert loaded.status == "succeeded", loaded.first_error

    asyncio.run(start())
    return int(next(shard.ports[0] for shard in plan.shards if shard.rank == 1))


@pytest.mark.adoption(
    "a real stray is found, its port is not handed out, and apply stops exactly it while the ring serves"
)
def test_r12_a_real_stray_keeps_its_port_until_apply_has_stopped_it(fleet: FaultFleet) -> None:
    (fleet.home / "catalog.toml").write_text(ALONE)
    fleet.start()
    before = who(fleet.load("tiny:alone"))
    port = stray(fleet)
    path = fleet.home / "adopt.json"
    code, document = adopt_plan(fleet, "-o", str(path))
    assert code == 1
    assert [(each["kind"], each["node_id"], each["host"]) for each in document["stoppable"]] == [
        ("stray", "tiny-1/1", "host-a")
    ]
    assert psutil.Process(document["stoppable"][0]["pid"]).name() == "ggml-rpc-server"
    planned = json.loads(fleet.run("plan", "tiny:one-worker", "--json").stdout)
    handed_out = [shard["ports"] for shard in planned["shards"]]
    assert handed_out, planned["findings"]
    assert port not in {each for ports in handed_out for each in ports}
    refused = fleet.run("adopt", "--apply", str(path))
    assert (refused.returncode, len(fleet.engine_pids())) == (2, 2)
    assert "--yes" in refused.stderr
    applied = fleet.json("adopt", "--apply", str(path), "--yes", "--why", "left over")
    assert applied["stopped"] == ["tiny-1/1@host-a"]
    assert who(in_state(fleet, "ready")) == before
    assert len(fleet.engine_pids()) == 1
    again = fleet.run("adopt", "--apply", str(path), "--yes")
    assert again.returncode == 2
    assert "no longer holds" in again.stderr
    quiet(fleet)


@pytest.mark.adoption("a console that is killed, and the next one that starts, change nothing")
def test_r17_a_console_is_killed_and_the_next_one_starts(fleet: FaultFleet) -> None:
    fleet.start()
    before = who(fleet.load())
    console = subprocess.Popen(
        fleet.command("journal", "--follow"), env=fleet.env(), stdout=subprocess.PIPE, start_new_session=True
    )
    assert console.stdout is not None
    assert console.stdout.readline()
    console.kill()
    console.wait()
    console.stdout.close()
    assert who(in_state(fleet, "ready")) == before
    quiet(fleet)


@pytest.mark.adoption("the host that registers later is merged: recovering until then, nothing torn, then ready")
def test_r05_the_second_host_registers_later_and_is_merged(fleet: FaultFleet) -> None:
    fleet.start()
    before = who(fleet.load())
    for name in ("host-a", "host-b"):
        fleet.kill_agent(name)
    fleet.start("host-a")
    half = in_state(fleet, "recovering")
    assert half["endpoint"] == before[1], "it keeps its route"
    code, document = adopt_plan(fleet)
    assert code == 4
    assert (document["heard"], document["hosts"], document["stoppable"]) == (1, 2, [])
    (merged,) = [decision["reason"] for decision in document["decisions"] if decision["what"] == "merge"]
    assert merged.endswith("still short: rank 2 on host-b: unreachable")
    fleet.start("host-b")
    assert who(in_state(fleet, "ready")) == before
    quiet(fleet)


@pytest.mark.adoption("an engine that was killed while its agent was down has failed at the report")
def test_r14_an_engine_killed_while_its_agent_was_down_has_failed(fleet: FaultFleet) -> None:
    fleet.start()
    fleet.load()
    pid = fleet.pid_of("tiny-1/2")
    fleet.kill_agent("host-b")
    os.kill(pid, signal.SIGKILL)
    until("the end of the engine", lambda: not psutil.pid_exists(pid) or None)
    fleet.start("host-b")
    assert "rank 2 on host-b" in in_state(fleet, "failed")["words"]
    _, document = adopt_plan(fleet)
    assert document["stoppable"] == []


@pytest.mark.adoption("two consoles with different catalogs stop nothing, and call nothing unclaimed")
def test_r09_two_consoles_with_different_catalogs_stop_nothing(fleet: FaultFleet) -> None:
    fleet.start()
    before = who(fleet.load())
    other = '[models.other]\npath = "other.gguf"\n[models.other.profiles.alone]\nranks = 1\n'
    with another_home(fleet, other) as env:
        done = fleet.run("adopt", "--plan", "--json", env=env)
        document = json.loads(done.stdout)
        assert (done.returncode, document["stoppable"]) == (1, []), "catalog drift is pending"
        assert any("catalog has no tiny:two-host" in d["reason"] for d in document["decisions"] if d["what"] == "warn")
        assert document["replicas"][0]["claim"] == "adopted"
    code, ours = adopt_plan(fleet)
    assert (code, ours["stoppable"]) == (0, [])
    assert who(in_state(fleet, "ready")) == before
    quiet(fleet)
