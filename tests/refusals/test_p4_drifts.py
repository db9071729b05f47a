"""The seven drifts of p4 rings: refused before a LOAD leaves, or impossible; and beside it what a bare caller hears.

The second half of each row proves that the first one guards something: the same agents, the same mistake, sent without
ringtop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.contract.plans import Plan, sealed
from backend.contract.words import NodeGeneration
from tests.e2e.p4_fleet import P4_CATALOG, SOUND, P4Fleet
from tests.p4.peer import GENERATION, QUIET, BarePeer, PlannedStage, changed, planned_ring, profile_of
from tests.p4.ring import AGENT_PORT, SimulatedRing, simulated_ring
from tests.ports import claim_block

pytestmark = [pytest.mark.refusals, pytest.mark.e2e, pytest.mark.thorough]

WIDE = P4_CATALOG.replace("n_batch = 128", "n_batch = 2048").replace("n_ubatch = 32", "n_ubatch = 512")
CUDA = P4_CATALOG.replace('device = "CPU"', 'device = "CUDA0"')


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Any]:
    """Start fleets beside simulated p4 agents; they end with the test."""
    with ExitStack() as stack:

        def start(catalog: str = P4_CATALOG, **switches: Any) -> P4Fleet:
            ring = stack.enter_context(simulated_ring(tmp_path, 2, **{**SOUND, **switches}))
            fleet = P4Fleet(claim_block(), ring, catalog)
            stack.callback(fleet.close)
            fleet.start()
            return fleet

        yield start


def refused(fleet: P4Fleet, id: str, *words: str, target: str = "step:ring") -> None:
    """A load is refused under this id with both values; no p4 agent has heard of a node, and nothing is reserved."""
    done = fleet.run("load", target, "--yes")
    said = done.stdout + done.stderr
    assert done.returncode == 2, said
    assert id in said, said
    for word in words:
        assert word in said, said
    untouched(fleet.ring)
    assert fleet.json("ls", "replicas") == []


def untouched(ring: SimulatedRing) -> None:
    """No p4 agent has a node, and none of ringtop's events went astray."""
    for host in ring.hosts:
        said = host.ask()
        assert said["nodes"] == {}
        assert said["forwarded_outward"] == 0


def peers_of(ring: SimulatedRing) -> list[BarePeer]:
    return [BarePeer(host.dial, host.address) for host in ring.hosts]


def load_bare(ring: SimulatedRing, stages: list[PlannedStage]) -> tuple[list[BarePeer], list[dict[str, Any]]]:
    """What a loader without guards sends and hears: the metadata of every result, all heard out."""
    peers = peers_of(ring)
    by_rank = [peers[rank * len(peers) // len(stages)] for rank in range(len(stages))]
    asked = [(peer, peer.load(stage)) for peer, stage in zip(by_rank, stages, strict=True)]
    results = [peer.result(event) for peer, event in asked]
    return peers, [result.metadata for result in results if result is not None]


def test_a_load_cannot_name_the_node_that_it_creates(fleets: Any) -> None:
    fleet = fleets(broker="private", n_layer=4)
    fleet.load("step:ring")
    assert [host.ask()["forwarded_outward"] for host in fleet.ring.hosts] == [0, 0]
    assert fleet.run("unload", "step-1", "--yes").returncode == 0
    ring = fleet.ring
    stage = planned_ring([ring[0].address])[0]
    peer = BarePeer(ring[0].dial, ring[0].address)
    asked = peer.load(stage, target=stage.end)
    assert peer.inspect() is not None
    assert ring[0].ask()["forwarded_outward"] == 1
    assert peer.answer(asked, seconds=QUIET) is None, "a bare caller would wait for ever"


def test_two_generations_are_refused_where_a_bare_head_stops_after_one_right_answer(fleets: Any) -> None:
    fleet = fleets()
    path = fleet.home / "plan.json"
    assert fleet.run("plan", "step:ring", "-o", str(path)).returncode == 1
    plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    shards = tuple(msgspec.structs.replace(shard, node_generation=NodeGeneration(1)) for shard in plan.shards)
    path.write_bytes(msgspec.json.encode(sealed(msgspec.structs.replace(plan, shards=shards))))
    done = fleet.run("load", "--plan", str(path), "--yes")
    assert done.returncode == 2
    assert "generation.differs" in done.stdout + done.stderr
    untouched(fleet.ring)
    ring = fleet.ring
    ring[0].set(n_layer=45)
    ring[1].set(n_layer=45)
    stages = [
        PlannedStage(each.agent, each.node, 1, GENERATION, each.body)
        for each in planned_ring([host.address for host in ring.hosts])
    ]
    (head, _), results = load_bare(ring, stages)
    assert {result["status"] for result in results} == {"succeeded"}, "the loader is told that all is well"
    for event in head.open_session(stages, "first"):
        assert head.answer(event, "session-ready") is not None
    head.prefill(stages, "first", "r-1", 1)
    ring[0].until("the head has stopped", lambda said: said["nodes"]["step37-s0"]["stopped"])
    assert head.answer(head.open_session(stages, "second")[0], seconds=QUIET) is None


def test_a_result_that_fits_no_store_is_refused_before_a_model_is_loaded_for_it(fleets: Any) -> None:
    fleet = fleets(WIDE)
    refused(fleet, "bound.result", "34419218444", "201326592", "n_batch 2048 with n_ubatch up to 2")
    ring = fleet.ring
    for host in ring.hosts:
        host.set(n_layer=45)
    wide = planned_ring([host.address for host in ring.hosts], n_batch=2048, n_ubatch=512)
    _, results = load_bare(ring, [changed(stage, resource_profile=profile_of(33_554_432)) for stage in wide])
    assert {result["status"] for result in results} == {"failed"}, "each stage was loaded whole, and then unloaded"


def test_loopback_beside_a_routed_address_is_refused_where_a_bare_caller_hears_nothing(tmp_path: Path) -> None:
    loopback = f"tcp://127.0.0.1:{AGENT_PORT}"
    advertised = [f"tcp://10.77.0.1:{AGENT_PORT}", loopback]
    with simulated_ring(tmp_path, advertised=advertised, **SOUND) as ring:
        fleet = P4Fleet(claim_block(), ring)
        try:
            fleet.start()
            refused(fleet, "resident.loopback", loopback)
        finally:
            fleet.close()
        for host in ring.hosts:
            host.set(n_layer=45)
        stages = planned_ring(advertised)
        (head, _), results = load_bare(ring, stages)
        assert {result["status"] for result in results} == {"succeeded"}
        sent = head.open_session(stages, "s-1")
        assert all(head.answer(event, "session-ready") is not None for event in sent[:2])
        ring[0].until("the host has called itself", lambda said: said["duplicates"] == 2)
        assert all(head.answer(event, seconds=QUIET) is None for event in sent[2:])


def test_a_p4_agent_without_a_journal_takes_no_plan(tmp_path: Path) -> None:
    with simulated_ring(tmp_path, has_journal=False, **SOUND) as ring:
        fleet = P4Fleet(claim_block(), ring)
        try:
            fleet.start()
            refused(fleet, "resident.journal", "P4_EVENT_OUTBOUND_JOURNAL_DIR")
        finally:
            fleet.close()
        _, results = load_bare(ring, planned_ring([host.address for host in ring.hosts]))
        assert {result["first_error"] for result in results} == {"operational journal is required before model LOAD"}


def test_a_device_of_another_backend_is_refused_before_the_model_is_read(fleets: Any) -> None:
    fleet = fleets(CUDA, devices=["ROCm0"])
    refused(fleet, "device.missing", "CUDA0", "ROCm0")
    _, results = load_bare(fleet.ring, planned_ring([host.address for host in fleet.ring.hosts])[:1])
    assert "exit status: 5" in results[0]["first_error"], "which names no device"


def test_another_stage_binary_on_one_host_is_refused_before_the_model_is_read(fleets: Any) -> None:
    fleet = fleets(stage_lacks=["physical_result_tensor_count"])
    fleet.binary("host-b").write_text("#!/bin/sh\n# of an older release\nexit 2\n")
    refused(fleet, "release.differs", "build")
    _, results = load_bare(fleet.ring, planned_ring([host.address for host in fleet.ring.hosts])[:1])
    assert "HELLO omits" in results[0]["first_error"], "after the whole load"


def test_an_agent_that_answers_under_another_name_than_agent_toml_says_is_no_engine(fleets: Any) -> None:
    fleet = fleets()
    ring = fleet.ring
    ring.restart(1, **SOUND, advertised=f"tcp://10.77.0.9:{AGENT_PORT}")
    refused(fleet, "engine.missing", f"tcp://10.77.0.2:{AGENT_PORT}")


def test_a_name_that_somebody_elses_node_has_is_refused_before_the_other_stages_load(fleets: Any) -> None:
    fleet = fleets()
    ring = fleet.ring
    ring[1].set(n_layer=45)
    stage = planned_ring([ring[1].address])[0]
    theirs = PlannedStage(stage.agent, "step-1/3", stage.generation, stage.load_generation, stage.body)
    peer = BarePeer(ring[1].dial, ring[1].address)
    assert peer.result(peer.load(theirs)) is not None
    done = fleet.run("load", "step:ring", "--yes")
    assert done.returncode == 2
    assert "resident.name" in done.stdout + done.stderr
    assert list(ring[1].ask()["nodes"]) == ["step-1/3"]
    assert ring[0].ask()["nodes"] == {}
