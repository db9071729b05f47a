"""A four-stage p4 ring over two hosts, from the plan to the unload, through the command line and real agents."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.fleet import until
from tests.e2e.p4_fleet import HEAD_BOUND, SOUND, TAIL_BOUND, P4Fleet
from tests.p4.ring import simulated_ring
from tests.ports import claim_block

pytestmark = pytest.mark.e2e

BOUNDS = [HEAD_BOUND, HEAD_BOUND, HEAD_BOUND, TAIL_BOUND]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[P4Fleet]:
    """Two agents, each with a simulated p4 agent beside it."""
    with simulated_ring(tmp_path, 2, **SOUND) as ring:
        fleet = P4Fleet(claim_block(), ring)
        try:
            fleet.start()
            yield fleet
        finally:
            fleet.close()


def begin(fleet: P4Fleet, *words: str) -> subprocess.Popen[str]:
    """A command that takes its time."""
    return subprocess.Popen(
        fleet.command(*words),
        env=fleet.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_ring_is_planned_loaded_proven_drained_while_busy_and_gone(fleet: P4Fleet) -> None:
    plan = fleet.json("plan", "step:ring", code=1)
    assert [shard["bound"]["result"] for shard in plan["shards"]] == BOUNDS
    assert [finding["id"] for finding in plan["findings"]] == ["resident.untold"]
    replica = fleet.load("step:ring")
    shards = fleet.shards("step-1")
    assert [shards[rank]["state"] for rank in range(4)] == ["ready"] * 4
    assert [shards[rank]["host"] for rank in range(4)] == ["host-a", "host-a", "host-b", "host-b"]
    results = [shards[rank]["bound"]["result"] for rank in range(4)]
    assert [result["derived"] for result in results] == BOUNDS
    assert [result["reported"] for result in results] == BOUNDS
    assert {shard["pid"] for shard in shards.values()} == {None}, "no process of p4 is claimed"
    for index, host in enumerate(fleet.ring.hosts):
        nodes = host.ask()["nodes"]
        assert sorted(nodes) == [f"step-1/{2 * index}", f"step-1/{2 * index + 1}"]
        assert {node["generation"] for node in nodes.values()} == {replica["load_generation"]}
    assert fleet.json("drift") == []
    assert fleet.json("test", "step-1", "--prompt", "one two", "--max-tokens", "3")["tokens"] == 3

    fleet.ring[1].set(hold_tokens=True)
    asked = begin(fleet, "test", "step-1")
    fleet.ring[0].until("a request is under way", lambda said: said["nodes"]["step-1/0"]["census"]["requests"])
    drained = begin(fleet, "drain", "step-1", "--deadline", "60s")
    busy = until("the census of a busy head", lambda: _busy(fleet))
    assert "requests 1" in busy
    assert "active_owners 1" in busy
    assert fleet.shards("step-1")[0]["state"] == "draining"
    fleet.ring[1].set(hold_tokens=False)
    said, _ = drained.communicate(timeout=60)
    assert drained.returncode == 0, said
    assert "from census of UNLOAD: unload is busy: requests 1" in said
    assert asked.wait(60) == 0, "what was in flight was answered"
    assert fleet.json("ls", "replicas") == []
    assert [host.ask()["nodes"] for host in fleet.ring.hosts] == [{}, {}]
    assert [host.ask()["slots"]["leaked"] for host in fleet.ring.hosts] == [0, 0]


def _busy(fleet: P4Fleet) -> str:
    words = str(fleet.shards("step-1")[0]["measured"])
    return words if words.startswith("unload is busy") else ""
