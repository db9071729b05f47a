"""The simulator as a p4 agent: both modes, lifecycle, sessions, tokens, release, unload, and what a restart loses."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.p4.peer import GENERATION, BarePeer, Closed, PlannedStage, changed, planned_ring
from tests.p4.ring import SimulatedRing, simulated_ring
from tests.p4.simulator.control import RECONCILE
from tests.p4.simulator.hops import Status
from tests.p4.simulator.stage import SESSION
from tests.p4.simulator.wire import AgentEnd, NodeEnd, parse_address


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[SimulatedRing]:
    with simulated_ring(tmp_path) as started:
        yield started


def peers_of(ring: SimulatedRing, *, hop: bool = False) -> list[BarePeer]:
    return [BarePeer(host.dial, host.address, hop=hop) for host in ring.hosts]


def load_all(ring: SimulatedRing, stages: list[PlannedStage], *, hop: bool = False) -> list[BarePeer]:
    """One connection per agent, every stage loaded through its own agent's."""
    peers = peers_of(ring, hop=hop)
    for stage in stages:
        peer = next(each for each in peers if str(each.address) == stage.agent)
        result = peer.result(peer.load(stage))
        assert result is not None
        assert result.metadata["status"] == "succeeded", result
    return peers


def answered(peer: BarePeer, stages: list[PlannedStage], session: str, tokens: int = 3) -> list[str]:
    """Open a session and ask once; the texts that came back."""
    for event in peer.open_session(stages, session):
        assert peer.answer(event, "session-ready") is not None
    asked = peer.prefill(stages, session, f"{session}-1", tokens)
    assert peer.answer(asked, "release-receipt") is not None
    outputs = [json.loads(event.payload) for event in peer.events if "output-v5" in event.content_type]
    return [output["text"] for output in outputs if output["session_id"] == session]


@pytest.mark.parametrize("hop", [False, True], ids=["direct", "hop"])
def test_a_four_stage_ring_on_two_agents_loads_with_the_bounds_of_the_contract(ring: SimulatedRing, hop: bool) -> None:
    stages = planned_ring([host.address for host in ring.hosts])
    peers = peers_of(ring, hop=hop)
    bounds = []
    for stage in stages:
        peer = next(each for each in peers if str(each.address) == stage.agent)
        result = peer.result(peer.load(stage))
        assert result is not None
        assert result.metadata["resource_state"] == "present"
        assert result.metadata["node_generation"] == GENERATION
        loaded = json.loads(result.body)
        assert loaded["load_generation"] == GENERATION
        bounds.append(loaded["max_physical_result_bytes"])
    assert bounds == [137_935_244, 137_935_244, 137_935_244, 3_696_012]
    seen = peers[1].inspect()
    assert seen is not None
    assert [node["node_id"] for node in seen["nodes"]] == ["step37-s2", "step37-s3"]
    assert {node["state"] for node in seen["nodes"]} == {"loaded"}
    for stage in stages:
        peer = next(each for each in peers if str(each.address) == stage.agent)
        result = peer.result(peer.unload(stage))
        assert result is not None
        assert (result.metadata["status"], result.metadata["resource_state"]) == ("succeeded", "absent")
    for peer in peers:
        assert (peer.inspect() or {})["nodes"] == []
        peer.finish()
    for host in ring.hosts:
        host.until("every caller's slot is free", lambda said: said["connections"] == 0)


def test_a_request_crosses_every_stage_and_is_released_at_each(ring: SimulatedRing) -> None:
    stages = planned_ring([host.address for host in ring.hosts])
    head, other = load_all(ring, stages)
    assert answered(head, stages, "s-1") == [" t0", " t1", " t2"]
    last = [json.loads(event.payload) for event in head.events if "output-v5" in event.content_type][-1]
    assert last["stop"] == "length"
    for host in ring.hosts:
        for node in host.ask()["nodes"].values():
            assert not any(value for name, value in node["census"].items() if name != "receive")
    for peer in (head, other):
        peer.finish()


def test_a_stage_at_work_refuses_its_unload_with_all_seventeen_counts(ring: SimulatedRing) -> None:
    stages = planned_ring([host.address for host in ring.hosts])
    head, other = load_all(ring, stages)
    ring[1].set(hold_tokens=True)
    for event in head.open_session(stages, "s-1"):
        assert head.answer(event, "session-ready") is not None
    asked = head.prefill(stages, "s-1", "r-1")
    ring[0].until("the head has its request in flight", lambda said: said["nodes"]["step37-s0"]["census"]["requests"])
    for peer, stage in ((head, stages[0]), (other, stages[3])):
        ring[1].until("the tail owns it", lambda said: said["nodes"]["step37-s3"]["census"]["active_owners"])
        result = peer.result(peer.unload(stage))
        assert result is not None
        assert (result.metadata["status"], result.metadata["resource_state"]) == ("rejected", "present")
        census = json.loads(result.metadata["first_error"].removeprefix("unload is busy;work="))
        assert len(census) == 17
        assert census["active_owners"] == 1
    ring[1].set(hold_tokens=False)
    assert head.answer(asked, "release-receipt") is not None
    result = head.result(head.unload(stages[0]))
    assert result is not None
    assert result.metadata["status"] == "succeeded"


def test_a_stale_session_sticks_in_the_state_text_while_a_right_one_is_served(ring: SimulatedRing) -> None:
    stages = planned_ring([host.address for host in ring.hosts])
    head, _ = load_all(ring, stages)
    wrong = head.open_session(stages, "old", load_generation=GENERATION - 1)
    assert head.answer(wrong[0], "error-v2") is not None
    assert answered(head, stages, "right") == [" t0", " t1", " t2"]
    seen = head.inspect()
    assert seen is not None
    assert seen["nodes"][0]["state"] == "failed:session load generation is stale"


def test_a_restart_loses_every_stage_and_a_journal_that_served_forbids_it(ring: SimulatedRing) -> None:
    stages = planned_ring([host.address for host in ring.hosts])
    head, _ = load_all(ring, stages)
    assert list(ring[1].journal.iterdir()) == []
    assert ring.restart(1).ask()["nodes"] == {}
    ring[1].end()
    other = BarePeer(ring.restart(1).dial, ring[1].address)
    for stage in stages[2:]:
        result = other.result(other.load(stage))
        assert result is not None
        assert result.metadata["status"] == "succeeded"
    before = len(answered(head, stages, "s-1"))
    assert before == 3
    grown = len(list(ring[0].journal.iterdir()))
    answered(head, stages, "s-2")
    assert len(list(ring[0].journal.iterdir())) > grown
    with pytest.raises(RuntimeError, match="recovery census: request_incarnations=2 provisional_submissions=0"):
        ring.restart(0)
    ring[0].journal.rename(ring[0].journal.with_name("moved-aside"))
    assert ring.restart(0).ask()["nodes"] == {}


def test_a_request_cut_off_by_a_kill_is_a_provisional_submission_that_forbids_the_start(ring: SimulatedRing) -> None:
    stages = planned_ring([host.address for host in ring.hosts])
    head, _ = load_all(ring, stages)
    ring[1].set(hold_tokens=True)
    for event in head.open_session(stages, "s-1"):
        assert head.answer(event, "session-ready") is not None
    head.prefill(stages, "s-1", "r-1")
    ring[0].until("the head has its request in flight", lambda said: said["nodes"]["step37-s0"]["census"]["requests"])
    with pytest.raises(RuntimeError, match="request_incarnations=1 provisional_submissions=1"):
        ring.restart(0, signal.SIGKILL)


def test_one_journal_is_held_by_one_agent(tmp_path: Path, ring: SimulatedRing) -> None:
    second = tmp_path / "second"
    second.mkdir()
    with (
        pytest.raises(RuntimeError, match="held by another agent"),
        simulated_ring(second, 1, journal=str(ring[0].journal)),
    ):
        pass


def test_a_refusal_comes_back_by_receipt_in_hop_mode_and_ends_a_direct_connection(ring: SimulatedRing) -> None:
    target = NodeEnd(parse_address(ring[0].address), "nobody", 7)
    hop = BarePeer(ring[0].dial, ring[0].address, hop=True)
    hop.send(hop.event(target, SESSION, b"{}"))
    seen = hop.inspect()
    receipt = hop.receipts[1]
    assert receipt is not None
    assert (receipt.status, receipt.detail) == (Status.REJECTED, "UnknownNode('nobody')")
    assert seen is not None
    assert seen["transport"]["failures"]["states"]["rejected_local"] == 1
    direct = BarePeer(ring[0].dial, ring[0].address)
    direct.send(direct.event(target, SESSION, b"{}"))
    with pytest.raises(Closed):
        direct.receive()
    hop.finish()
    ring[0].until("each refusal holds its slot", lambda said: said["slots"]["used"] == 2 and not said["connections"])
    freeing = BarePeer(ring[0].dial, ring[0].address)
    for failure_id in ring[0].ask()["failures"]:
        body = json.dumps({"failure_id": failure_id}).encode()
        asked = freeing.send(freeing.event(AgentEnd(freeing.address), RECONCILE, body))
        assert freeing.answer(asked, "node.result-v3") is not None
    assert ring[0].ask()["slots"]["used"] == 1


def test_a_stage_takes_only_the_profile_that_its_ready_equals(ring: SimulatedRing) -> None:
    stage = planned_ring([ring[0].address, ring[1].address])[0]
    peer = BarePeer(ring[0].dial, ring[0].address)
    for profile, words in (
        ({"max_physical_result_bytes": 33_554_432}, "profile=33554432, READY=137935244"),
        ({"max_physical_result_bytes": 2**40}, "exceeds max_completion_payload_bytes"),
        ({"max_edge_retained_bytes": 2**40}, "exceeds the edge store"),
        ({"max_output_tokens": 1}, "exceeds max_output_tokens"),
    ):
        wrong = changed(stage, resource_profile=stage.body["resource_profile"] | profile)
        result = peer.result(peer.load(wrong))
        assert result is not None
        assert words in result.metadata["first_error"]
        assert result.metadata["resource_state"] == "absent"
        stage = _later(stage)
    assert (peer.inspect() or {})["nodes"] == []


def _later(stage: PlannedStage) -> PlannedStage:
    """The stage under the next generation, as the last one is used up."""
    return PlannedStage(stage.agent, stage.node, stage.generation + 1, stage.load_generation, stage.body)


def test_a_used_generation_is_refused_again(ring: SimulatedRing) -> None:
    stage = planned_ring([ring[0].address, ring[1].address])[0]
    peer = BarePeer(ring[0].dial, ring[0].address)
    said: list[Any] = []
    for step in (peer.load, peer.load, peer.unload, peer.load):
        result = peer.result(step(stage))
        assert result is not None
        said.append((result.metadata["status"], result.metadata.get("first_error", "")))
    assert said[0][0] == said[2][0] == "succeeded"
    assert said[1] == ("rejected", "node already exists")
    assert said[3][0] == "rejected"
    assert "StaleNode" in said[3][1]
