"""What becomes of a p4 ring when something ends: our agent, the p4 agent, a load, a reply; and of what is left over."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from backend.contract.commands import StartDrain
from backend.contract.words import LoadGeneration, OpId, ReplicaId
from tests.e2e.fleet import until
from tests.e2e.p4_fleet import P4_CATALOG, SOUND, P4Fleet
from tests.e2e.terminal import Terminal
from tests.faults.stand import Asker, running
from tests.p4.peer import GENERATION, BarePeer, planned_ring
from tests.p4.ring import simulated_ring
from tests.ports import claim_block

pytestmark = [pytest.mark.e2e, pytest.mark.thorough]


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Any]:
    """Start fleets beside simulated p4 agents; they end with the test."""
    with ExitStack() as stack:

        def start(**switches: Any) -> P4Fleet:
            ring = stack.enter_context(simulated_ring(tmp_path, 2, **{**SOUND, **switches}))
            fleet = P4Fleet(claim_block(), ring)
            stack.callback(fleet.close)
            fleet.start()
            return fleet

        yield start


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


def state_of(fleet: P4Fleet, state: str) -> dict[str, Any]:
    """The replica once it is in this state."""
    return until(f"{state} of step-1", lambda: _in_state(fleet, state))


def _in_state(fleet: P4Fleet, state: str, name: str = "step-1") -> dict[str, Any] | None:
    replica = fleet.replica(name)
    return replica if replica is not None and replica["state"] == state else None


@pytest.mark.faults("our agent is killed while p4 loads: the load goes on, is found by INSPECT and becomes ready")
def test_our_agent_killed_while_its_stages_load_finds_them_again(fleets: Any) -> None:
    fleet = fleets(load_seconds=1.5)
    loading = begin(fleet, "load", "step:ring", "--yes")
    fleet.ring[1].until("its stages load", lambda said: len(said["nodes"]) == 2)
    fleet.kill_agent("host-b")
    fleet.start("host-b")
    said, _ = loading.communicate(timeout=90)
    assert loading.returncode == 0, said
    replica = state_of(fleet, "ready")
    nodes = fleet.ring[1].ask()["nodes"]
    assert {node["generation"] for node in nodes.values()} == {replica["load_generation"]}
    assert fleet.run("unload", "step-1", "--yes").returncode == 0
    assert fleet.ring[1].ask()["nodes"] == {}


@pytest.mark.faults("our agent is restarted under a ring that serves: the ring is adopted as it was, with its canary")
def test_a_serving_ring_survives_both_agents_restarts(fleets: Any) -> None:
    fleet = fleets()
    before = fleet.load("step:ring")
    for name in ("host-a", "host-b"):
        fleet.kill_agent(name)
    files = [host.ask()["journal"]["files"] for host in fleet.ring.hosts]
    fleet.start()
    after = state_of(fleet, "ready")
    assert after["load_generation"] == before["load_generation"]
    assert fleet.json("test", "step-1", "--max-tokens", "1")["tokens"] == 1
    grown = [host.ask()["journal"]["files"] for host in fleet.ring.hosts]
    assert all(now > was for now, was in zip(grown, files, strict=True)), "the test alone was submitted"
    assert fleet.run("unload", "step-1", "--yes").returncode == 0


@pytest.mark.faults("a p4 agent is started again: its stages are gone, the replica has failed and says whose they were")
def test_a_p4_agent_that_was_started_again_has_lost_its_stages(fleets: Any) -> None:
    fleet = fleets()
    fleet.load("step:ring")
    fleet.ring[1].end()
    for path in fleet.ring[1].journal.iterdir():  # what lets it start again: its journal was moved aside
        path.unlink()
    fleet.ring.restart(1, **SOUND)
    replica = state_of(fleet, "failed")
    assert "ranks 2-3 on host-b" in replica["words"]
    assert "started again, or somebody else unloaded it" in replica["words"]
    assert fleet.run("unload", "step-1", "--yes").returncode == 0
    assert fleet.json("ls", "replicas") == []
    assert [host.ask()["nodes"] for host in fleet.ring.hosts] == [{}, {}]


@pytest.mark.faults(
    "a p4 agent that is silent is unknown: nothing of it fails, and it is taken up again when it answers"
)
def test_silence_of_a_p4_agent_fails_nothing(fleets: Any) -> None:
    fleet = fleets()
    fleet.load("step:ring")
    fleet.ring[1].set(silence="replies")
    until("the illness of its host", lambda: "p4 silent" in str(fleet.json("ls", "hosts")))
    assert fleet.replica("step-1")["state"] == "ready"
    fleet.ring[1].set(silence="")
    until("its recovery", lambda: "p4 silent" not in str(fleet.json("ls", "hosts")))
    assert fleet.replica("step-1")["state"] == "ready"


@pytest.mark.faults("READY has another bound than derived: p4 unloads the stage, and every other one is taken back")
def test_a_stage_that_p4_refuses_takes_the_others_back(fleets: Any) -> None:
    fleet = fleets()
    fleet.ring[1].set(ready_bound=137_935_245)
    done = fleet.run("load", "step:ring", "--yes")
    said = done.stdout + done.stderr
    assert done.returncode == 5, said
    assert "profile=137935244, READY=137935245" in said
    assert "geometry in the catalog" in said, "what to do"
    assert "rolled back, every rank is proven absent" in said
    assert [host.ask()["nodes"] for host in fleet.ring.hosts] == [{}, {}]


@pytest.mark.faults("two stages say other releases when they have loaded: no ring is made of them, and both are named")
def test_two_releases_are_found_out_before_the_head_loads(fleets: Any) -> None:
    fleet = fleets()
    fleet.ring[1].set(upstream="0a1b2c3d4")
    done = fleet.run("load", "step:ring", "--yes")
    said = done.stdout + done.stderr
    assert done.returncode == 5, said
    assert "release.differs" in said
    assert "0a1b2c3d4" in said
    assert "451b89bae" in said
    assert [host.ask()["nodes"] for host in fleet.ring.hosts] == [{}, {}]


@pytest.mark.faults("the answer to a LOAD is lost with its connection: INSPECT says what became of it")
def test_a_lost_answer_to_a_load_is_asked_for_by_inspect(fleets: Any) -> None:
    fleet = fleets(load_seconds=1.0)
    loading = begin(fleet, "load", "step:ring", "--yes")
    fleet.ring[1].until("its stages load", lambda said: len(said["nodes"]) == 2)
    fleet.kill_agent("host-b")  # with the connection that the answer would have come on
    fleet.start("host-b")
    said, _ = loading.communicate(timeout=90)
    assert loading.returncode == 0, said
    shards = fleet.shards("step-1")
    assert shards[2]["bound"]["result"]["reported"] is None, "unknown is not taken for equal"
    assert fleet.run("unload", "step-1", "--yes").returncode == 0


@pytest.mark.faults("the second host is away and reports later: the ring recovers, and is whole again when it speaks")
def test_the_second_host_reporting_later_is_merged(fleets: Any) -> None:
    fleet = fleets()
    before = fleet.load("step:ring")
    fleet.kill_agent("host-b")
    (recovering,) = fleet.json("ls", "replicas", code=4)
    assert recovering["state"] == "recovering"
    assert recovering["load_generation"] == before["load_generation"]
    assert "ranks 2-3 on host-b: unreachable" in recovering["words"]
    fleet.start("host-b")
    after = state_of(fleet, "ready")
    assert after["load_generation"] == before["load_generation"]
    assert [shard["state"] for shard in after["shards"]] == ["ready"] * 4


@pytest.mark.faults("a drain gives up at its deadline: the busy ring serves on, and its request is answered")
def test_a_drain_that_gives_up_leaves_the_ring_serving(fleets: Any) -> None:
    fleet = fleets()
    fleet.load("step:ring")
    fleet.ring[1].set(hold_tokens=True)
    asked = begin(fleet, "test", "step-1")
    fleet.ring[0].until("a request is under way", lambda said: said["nodes"]["step-1/0"]["census"]["requests"])
    done = fleet.run("drain", "step-1", "--deadline", "3s")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "given up" in done.stdout
    fleet.ring[1].set(hold_tokens=False)
    assert asked.wait(60) == 0
    assert fleet.json("test", "step-1", "--max-tokens", "1")["tokens"] == 1


@pytest.mark.faults("an unload of a busy ring is refused by p4 with its census, and done as soon as it is idle")
def test_an_unload_of_a_busy_ring_waits_and_says_for_what(fleets: Any) -> None:
    fleet = fleets()
    fleet.load("step:ring")
    fleet.ring[1].set(hold_tokens=True)
    asked = begin(fleet, "test", "step-1")
    fleet.ring[0].until("a request is under way", lambda said: said["nodes"]["step-1/0"]["census"]["requests"])
    unloading = begin(fleet, "unload", "step-1", "--yes")
    words = until("the census", lambda: _says(fleet, "unload is busy"))
    assert "requests 1" in words
    fleet.ring[1].set(hold_tokens=False)
    said, _ = unloading.communicate(timeout=90)
    assert unloading.returncode == 0, said
    assert asked.wait(60) == 0
    assert [host.ask()["nodes"] for host in fleet.ring.hosts] == [{}, {}]


@pytest.mark.faults("nobody follows a drain: each host's agent unloads its stages when it knows that the head is gone")
@pytest.mark.parametrize("seconds", [60.0, 4.0], ids=["within the deadline", "after it was given up there"])
def test_a_drain_that_nobody_follows_ends_on_every_host(tmp_path: Path, seconds: float) -> None:
    with simulated_ring(tmp_path, 2, advertised=["", ""], **SOUND) as ring:
        fleet = P4Fleet(claim_block(), ring)
        try:
            fleet.start()
            generation = fleet.load("step:ring")["load_generation"]
            asyncio.run(_drain(fleet, LoadGeneration(generation), seconds))
            until("the head's host", lambda: ring[0].ask()["nodes"] == {})
            assert len(ring[1].ask()["nodes"]) == 2, "whether the head is gone is not known there yet"
            until("the other host", lambda: ring[1].ask()["nodes"] == {})
            words = until("its reason", lambda: _gone(fleet))
            assert f"{ring[0].address} has no node step-1/0 of generation {generation}" in words
            slots = ring[0].ask()["slots"]
            assert slots["leaked"] == 0
            assert fleet.run("unload", "step-1", "--yes").returncode == 0
            assert fleet.json("ls", "replicas") == []
        finally:
            fleet.close()


async def _drain(fleet: P4Fleet, generation: LoadGeneration, seconds: float) -> None:
    """Tell both agents to drain, and go away."""
    for host in ("host-b", "host-a"):
        asker = Asker(fleet, host)
        async with running(asker):
            begun = await asker.ask(
                StartDrain(
                    op_id=OpId(f"drain-{host}"),
                    replica=ReplicaId("step-1"),
                    load_generation=generation,
                    by="tester",
                    why="",
                    deadline_seconds=seconds,
                )
            )
            assert begun.status == "succeeded", begun.first_error


def _gone(fleet: P4Fleet) -> str:
    said = [str(shard["words"]) for shard in fleet.shards("step-1").values()]
    found = fleet.run("journal").stdout
    return next((words for words in [*said, found] if "its head is gone" in words), "")


def _says(fleet: P4Fleet, words: str) -> str:
    shards = fleet.shards("step-1")
    said = str(shards[0]["words"]) if 0 in shards else ""
    return said if words in said else ""


@pytest.mark.adoption(
    "a p4 ring that somebody else loaded is adopted from its generations and its record, and unloaded"
)
def test_a_ring_that_somebody_else_loaded_is_adopted_by_its_record(tmp_path: Path) -> None:
    with simulated_ring(tmp_path, 2) as ring:
        stages = planned_ring([host.address for host in ring.hosts])
        peers = [BarePeer(host.dial, host.address) for host in ring.hosts]
        for rank, stage in enumerate(stages):
            peer = peers[rank // 2]
            assert peer.result(peer.load(stage)) is not None
        fleet = P4Fleet(claim_block(), ring)
        record = fleet.home / "last-load.json"
        members = [{"agent": each.agent, "node": each.node, "generation": each.generation} for each in stages]
        record.write_text(json.dumps({"load_generation": GENERATION, "model": {"id": "step37"}, "stages": members}))
        try:
            fleet.more = {"host-a": f'record = "{record}"'}
            fleet.write_agent("host-a", 0)
            fleet.start()
            seen = until("what is known of it", lambda: fleet.replica(f"step37-{GENERATION}"))
            assert [shard["rank"] for shard in seen["shards"]] == [0, 1], (
                "host-b has no record, so its nodes are foreign"
            )
            foreign = fleet.json("ls", "hosts")[1]["engines"][1]["resident"]["nodes"]
            assert [(node["name"], node["generation"]) for node in foreign] == [
                ("step37-s2", GENERATION),
                ("step37-s3", GENERATION),
            ]
            fleet.more = {"host-b": f'record = "{record}"'}
            fleet.write_agent("host-b", 1)
            fleet.kill_agent("host-b")
            fleet.start("host-b")
            name = f"step37-{GENERATION}"
            whole = until("the whole ring", lambda: _whole(fleet, name))
            assert whole["state"] == "recovering"
            assert "no prompt of ours has crossed it yet" in whole["words"]
            files = ring[0].ask()["journal"]["files"]
            assert fleet.json("test", name, "--max-tokens", "1")["tokens"] == 1
            assert ring[0].ask()["journal"]["files"] > files, "and nothing was submitted before that"
            proven = until("the proof", lambda: _in_state(fleet, "ready", name))
            assert proven["load_generation"] == GENERATION
            assert fleet.run("unload", name, "--yes").returncode == 0
            assert [host.ask()["nodes"] for host in ring.hosts] == [{}, {}]
            assert fleet.json("ls", "replicas") == []
        finally:
            fleet.close()


@pytest.mark.adoption(
    "a p4 stray is found by another console, and unloaded by its generation while the new ring serves"
)
def test_a_stray_is_unloaded_by_its_generation_while_the_ring_serves(fleets: Any, tmp_path: Path) -> None:
    fleet = fleets()
    there = P4_CATALOG.replace('[models.step.profiles.short]\nranks = 2\nhosts = ["host-a"]', OTHER)
    (fleet.home / "catalog.toml").write_text(there)
    old = fleet.load("step:there")
    fleet.kill_agent("host-b")
    other = tmp_path / "other"
    other.mkdir()
    for name in ("contexts.toml", "catalog.toml"):
        (other / name).write_text((fleet.home / name).read_text())
    (other / "catalog.toml").write_text(P4_CATALOG)
    home = {"RINGTOP_HOME": str(other)}
    loaded = fleet.run("load", "step:short", "--yes", env=home)
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    fleet.start("host-b")
    new = until("the new ring", lambda: _newer(fleet, old["load_generation"]))
    saved = tmp_path / "adopt.json"
    assert fleet.run("adopt", "--plan", "-o", str(saved)).returncode == 1
    document = json.loads(saved.read_text())
    named = [(each["kind"], each["host"], each["node"], each["address"]) for each in document["stoppable"]]
    assert named == [("stray", "host-b", f"step-1/{rank}", fleet.ring[1].address) for rank in range(2)]
    applied = fleet.json("adopt", "--apply", str(saved), "--yes", "--why", "left over")
    assert applied["stopped"] == ["step-1/0@host-b", "step-1/1@host-b"]
    assert fleet.ring[1].ask()["nodes"] == {}
    nodes = fleet.ring[0].ask()["nodes"]
    assert {node["generation"] for node in nodes.values()} == {new["load_generation"]}
    assert fleet.json("test", "step-1", "--max-tokens", "1")["tokens"] == 1


OTHER = """[models.step.profiles.there]
ranks = 2
hosts = ["host-b"]
device = "CPU"
context = 512
sequences = 8
n_batch = 128
n_ubatch = 32
options = { store = 192 }

[models.step.profiles.short]
ranks = 2
hosts = ["host-a"]"""


def _newer(fleet: P4Fleet, generation: int) -> dict[str, Any] | None:
    replica = _in_state(fleet, "ready")
    return replica if replica is not None and replica["load_generation"] > generation else None


def _whole(fleet: P4Fleet, name: str) -> dict[str, Any] | None:
    replica = fleet.replica(name)
    return replica if replica is not None and len(replica["shards"]) == 4 else None


@pytest.mark.faults("100 kills of our agents beside a serving ring: p4 loses no slot and serves on")
def test_kills_of_our_agents_cost_a_p4_agent_no_slot(fleets: Any) -> None:
    fleet = fleets()
    before = fleet.load("step:ring")
    held = [host.ask()["slots"]["used"] for host in fleet.ring.hosts]
    for _ in range(50):
        for name in ("host-a", "host-b"):
            fleet.kill_agent(name)
        fleet.start()
    after = state_of(fleet, "ready")
    assert after["load_generation"] == before["load_generation"]
    assert fleet.json("test", "step-1", "--max-tokens", "1")["tokens"] == 1
    for host, then in zip(fleet.ring.hosts, held, strict=True):
        slots = host.ask()["slots"]
        assert slots["leaked"] == 0
        assert slots["used"] <= then + 2, "what was cut off is given back, as hop connections are"


@pytest.mark.faults("a p4 ring is loaded, published to its bridge, watched and drained in the console, by keyboard")
def test_a_ring_is_loaded_watched_and_drained_by_keyboard(tmp_path: Path) -> None:
    with simulated_ring(tmp_path, 2, **SOUND) as ring:
        only_ring, _, _ = P4_CATALOG.partition("[models.step.profiles.short]")
        fleet = P4Fleet(claim_block(), ring, only_ring)
        fleet.more = {"host-a": f'[engines.p4.bridge]\nrecord = "{fleet.home / "bridge.json"}"'}
        fleet.write_agent("host-a", 0)
        try:
            fleet.start()
            console = Terminal(fleet.command(), fleet.env())
            try:
                _by_keyboard(fleet, console)
            finally:
                console.close()
        finally:
            fleet.close()


def _by_keyboard(fleet: P4Fleet, console: Terminal) -> None:
    console.wait_for("2/2 hosts")
    console.press("L")
    console.wait_for("ring")
    for _ in range(8):
        if any(line.lstrip("│ ").startswith(">") and "ring" in line for line in console.text().splitlines()):
            break
        console.press("\x1b[B")
    console.press("\r")
    console.wait_for("Takes up to")
    console.read(0.5)
    console.press("y")
    console.wait_gone("Takes up to")
    console.press("\x1b")
    console.wait_for(
        lambda text: any("step-1" in row and " ready " in row and "4/4" in row for row in text.splitlines())
    )
    record = json.loads((fleet.home / "bridge.json").read_text())
    replica = fleet.replica("step-1")
    assert replica is not None
    assert record["load_generation"] == replica["load_generation"]
    assert [stage["node"] for stage in record["stages"]] == [f"step-1/{rank}" for rank in range(4)]
    assert "published to the bridge" in fleet.run("journal").stdout
    console.press("D")
    console.wait_for("drain step-1")
    console.read(0.5)
    console.press("y")
    console.press("\x1b")
    console.wait_for(lambda text: "nothing is loaded" in text.lower(), seconds=60)


@pytest.mark.faults("a p4 agent that takes connections and says nothing costs one, and holds nobody up")
def test_a_p4_agent_that_never_answers_costs_one_bounded_connection(fleets: Any) -> None:
    fleet = fleets(silence="all")
    until("the illness of its hosts", lambda: str(fleet.json("ls", "hosts")).count("p4 silent") >= 2)
    done = fleet.run("load", "step:ring", "--yes")
    assert done.returncode == 2
    assert "engine.missing" in done.stdout + done.stderr
    assert "does not answer as tcp://10.77.0.1:52001" in done.stdout + done.stderr
    assert [host.ask()["accepted"] for host in fleet.ring.hosts] == [1, 1]


@pytest.mark.faults("a p4 ring is loaded again: drained, unloaded, and up under a newer generation on the same agents")
def test_a_ring_is_loaded_again(fleets: Any) -> None:
    fleet = fleets()
    before = fleet.load("step:ring")
    done = fleet.run("reload", "step-1", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    (after,) = fleet.json("ls", "replicas")
    assert after["state"] == "ready"
    assert after["load_generation"] > before["load_generation"]
    nodes = [node for host in fleet.ring.hosts for node in host.ask()["nodes"].values()]
    assert {node["generation"] for node in nodes} == {after["load_generation"]}
    assert len(nodes) == 4
