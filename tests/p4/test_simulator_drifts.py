"""The seven drifts as operators met them: a bare caller without guards, and what it then hears: mostly nothing."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.p4.peer import GENERATION, QUIET, BarePeer, Closed, PlannedStage, changed, planned_ring, profile_of
from tests.p4.ring import AGENT_PORT, SimulatedRing, simulated_ring
from tests.p4.simulator.hops import Status
from tests.p4.simulator.lifecycle import Payload


@pytest.fixture
def rings(tmp_path: Path) -> Any:
    """Start simulated rings that end with the test."""
    with ExitStack() as stack:

        def start(**switches: Any) -> SimulatedRing:
            return stack.enter_context(simulated_ring(tmp_path, **switches))

        yield start


def results_of(ring: SimulatedRing, stages: list[PlannedStage]) -> tuple[list[BarePeer], list[Payload]]:
    """Load every stage through its agent, hearing all of them out; one peer per host."""
    peers = [BarePeer(host.dial, host.address) for host in ring.hosts]
    by_rank = [peers[rank * len(peers) // len(stages)] for rank in range(len(stages))]
    asked = [(peer, peer.load(stage)) for peer, stage in zip(by_rank, stages, strict=True)]
    results = [peer.result(event) for peer, event in asked]
    assert all(results)
    return peers, [result for result in results if result is not None]


def test_drift_1_a_load_to_the_node_it_creates_leaves_without_a_word(rings: Any) -> None:
    ring = rings(count=1, broker="private")
    stage = planned_ring([ring[0].address])[0]
    direct, hop = (BarePeer(ring[0].dial, ring[0].address, hop=hop) for hop in (False, True))
    for count, peer in enumerate((direct, hop), 1):
        asked = peer.load(stage, target=stage.end)
        assert peer.inspect() is not None  # what was sent before it is dealt with
        assert ring[0].ask()["forwarded_outward"] == count
        assert peer.answer(asked, seconds=QUIET) is None
        assert (peer.inspect() or {})["nodes"] == []
    receipt = hop.receipts[1]
    assert receipt is not None
    assert receipt.status is Status.ACCEPTED
    assert "step37" not in ring[0].log.read_text()


def test_drift_1_the_public_rule_refuses_it_but_a_direct_caller_sees_only_the_end(rings: Any) -> None:
    ring = rings(count=1)
    stage = planned_ring([ring[0].address])[0]
    hop = BarePeer(ring[0].dial, ring[0].address, hop=True)
    hop.load(stage, target=stage.end)
    assert hop.inspect() is not None
    receipt = hop.receipts[1]
    assert receipt is not None
    assert receipt.detail == "UnknownNode('step37-s0')"
    direct = BarePeer(ring[0].dial, ring[0].address)
    direct.load(stage, target=stage.end)
    with pytest.raises(Closed):
        direct.receive()


def test_drift_2_a_node_generation_of_its_own_answers_once_and_never_again(rings: Any) -> None:
    ring = rings()
    stages = [
        PlannedStage(each.agent, each.node, 1, GENERATION, each.body)
        for each in planned_ring([host.address for host in ring.hosts])
    ]
    (head, _), results = results_of(ring, stages)
    assert {result.metadata["status"] for result in results} == {"succeeded"}
    for event in head.open_session(stages, "first"):
        assert head.answer(event, "session-ready") is not None
    asked = head.prefill(stages, "first", "r-1", 3)
    while not any("stop" in json.loads(event.payload) for event in head.events if "output" in event.content_type):
        came = head.receive()
        assert came is not None
        head.events.append(came)
    ring[0].until("the head has stopped", lambda said: said["nodes"]["step37-s0"]["stopped"])
    assert head.answer(asked, "release-receipt", QUIET) is None
    sent = head.open_session(stages, "second")
    ready = [head.answer(event, "session-ready") is not None for event in sent[1:]]
    assert ready == [True, True, True]
    assert head.answer(sent[0], seconds=QUIET) is None
    seen = head.inspect()
    assert seen is not None
    assert seen["nodes"][0]["state"] == "failed:release owner census generation differs from source"
    assert seen["nodes"][0]["delivery"]["stopped"]
    assert {node["lifecycle_state"] for node in seen["nodes"]} == {"loaded"}


def test_drift_3_a_guessed_bound_is_known_wrong_only_after_every_stage_was_loaded(rings: Any) -> None:
    ring = rings()
    wide = planned_ring([host.address for host in ring.hosts], n_batch=2048, n_ubatch=512)
    stages = [changed(stage, resource_profile=profile_of(33_554_432)) for stage in wide]
    _, results = results_of(ring, stages)
    assert [result.metadata["first_error"].rpartition(": ")[2] for result in results] == [
        "profile=33554432, READY=34419218444",
        "profile=33554432, READY=34419218444",
        "profile=33554432, READY=34419218444",
        "profile=33554432, READY=59136012",
    ]
    assert {(each.metadata["status"], each.metadata["resource_state"]) for each in results} == {("failed", "absent")}
    assert all(host.ask()["nodes"] == {} for host in ring.hosts)


def test_drift_3_a_stage_that_reports_another_number_fails_a_right_plan_too(rings: Any) -> None:
    ring = rings(count=1, ready_bound=137_935_245)
    _, results = results_of(ring, planned_ring([ring[0].address])[:1])
    assert "profile=137935244, READY=137935245" in results[0].metadata["first_error"]


def test_drift_4_an_agent_that_advertises_loopback_is_looked_for_at_the_callers_own_host(rings: Any) -> None:
    loopback = f"tcp://127.0.0.1:{AGENT_PORT}"
    ring = rings(advertised=[f"tcp://10.77.0.1:{AGENT_PORT}", loopback])
    stages = planned_ring([host.address for host in ring.hosts])
    (head, _), results = results_of(ring, stages)
    assert {result.metadata["status"] for result in results} == {"succeeded"}
    sent = head.open_session(stages, "s-1")
    assert all(head.answer(event, "session-ready") is not None for event in sent[:2])
    ring[0].until("the host has called itself", lambda said: said["duplicates"] == 2)
    assert all(head.answer(event, seconds=QUIET) is None for event in sent[2:])
    assert ring[0].ask()["failures"] == {}
    assert {node["state"] for node in ring[1].ask()["nodes"].values()} == {"loaded"}


def test_drift_5_without_a_journal_no_model_is_loaded(rings: Any) -> None:
    ring = rings(count=1, has_journal=False)
    _, results = results_of(ring, planned_ring([ring[0].address])[:1])
    assert results[0].metadata["first_error"] == "operational journal is required before model LOAD"
    assert results[0].metadata["status"] == "rejected"


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        # drift 6: the plan says CUDA0. The reason is on a standard error that is thrown away.
        ({"devices": ["ROCm0"]}, "stage server exited while starting: exit status: 5"),
        # drift 7: the stage binary is older than the agent.
        ({"stage_lacks": ["physical_result_tensor_count"]}, "HELLO omits physical_result_tensor_count"),
    ],
    ids=["drift-6-device-of-another-backend", "drift-7-older-stage-binary"],
)
def test_drifts_6_and_7_load_the_whole_model_and_fail_then(rings: Any, switches: dict[str, Any], words: str) -> None:
    ring = rings(count=1, load_seconds=0.2, **switches)
    began = time.monotonic()
    peers, results = results_of(ring, planned_ring([ring[0].address])[:1])
    assert time.monotonic() - began >= 0.2
    detail = results[0].metadata["first_error"]
    assert detail.startswith("stage runtime initialization failed: ")
    assert detail.endswith(words)
    assert (results[0].metadata["status"], results[0].metadata["resource_state"]) == ("failed", "absent")
    assert "ROCm0" not in detail
    assert (peers[0].inspect() or {})["nodes"] == []
