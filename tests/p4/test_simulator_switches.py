"""What else operators met, each by its switch: leaked slots, silence, lost receipts, stuck text, unknown outcomes."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.p4.peer import GENERATION, MIB, QUIET, BarePeer, Closed, PlannedStage, planned_ring
from tests.p4.ring import SimulatedHost, simulated_ring
from tests.p4.simulator import hops
from tests.p4.simulator.control import INSPECT
from tests.p4.simulator.hops import Data, Query, QueryResult, Receipt, Status
from tests.p4.simulator.stage import SESSION
from tests.p4.simulator.wire import AgentEnd, encode_event, parse_address


@pytest.fixture
def host(tmp_path: Path) -> Iterator[SimulatedHost]:
    with simulated_ring(tmp_path, 1) as ring:
        yield ring[0]


def stage_of(host: SimulatedHost, generation: int = GENERATION, rank: int = 0) -> PlannedStage:
    return planned_ring([host.address], generation=generation)[rank]


def status_of(peer: BarePeer, stage: PlannedStage, *, unload: bool = False) -> tuple[str, str, str]:
    result = peer.result(peer.unload(stage) if unload else peer.load(stage))
    assert result is not None
    metadata = result.metadata
    return metadata["status"], metadata["resource_state"], metadata.get("first_error", "")


def test_a_thousand_callers_that_finish_cost_nothing(host: SimulatedHost) -> None:
    for number in range(1000):
        peer = BarePeer(host.dial, host.address, hop=number % 2 == 0)
        peer.finish()
    said = host.until("all have left", lambda said: said["connections"] == 0)
    assert said["slots"] == {"used": 0, "limit": 256, "leaked": 0}
    assert BarePeer(host.dial, host.address).inspect() is not None


def test_direct_callers_that_just_close_use_up_the_slots_and_nobody_is_told(host: SimulatedHost) -> None:
    serving = BarePeer(host.dial, host.address)
    assert serving.inspect() is not None
    for _ in range(255):
        peer = BarePeer(host.dial, host.address)
        assert peer.inspect() is not None
        peer.drop()
    host.until("every slot is used", lambda said: said["slots"]["used"] == 256)
    late = BarePeer(host.dial, host.address)
    assert late.inspect(QUIET) is None
    assert serving.inspect() is not None  # the old connection goes on
    assert "permit" not in host.log.read_text()


def test_hop_callers_that_just_close_give_their_slots_back(host: SimulatedHost) -> None:
    for _ in range(20):
        peer = BarePeer(host.dial, host.address, hop=True)
        assert peer.inspect() is not None
        peer.drop()
    said = host.until("all have left", lambda said: said["connections"] == 0)
    assert said["slots"] == {"used": 0, "limit": 256, "leaked": 0}


def test_a_dropped_connection_keeps_its_descriptor_in_the_agent(host: SimulatedHost) -> None:
    peer = BarePeer(host.dial, host.address)
    assert peer.inspect() is not None
    before = _socket_descriptors(host.pid)
    peer.drop()
    host.until("the slot has leaked", lambda said: said["slots"]["leaked"] == 1)
    assert _socket_descriptors(host.pid) == before


def _socket_descriptors(pid: int) -> int:
    return sum(str(each.readlink()).startswith("socket:") for each in Path(f"/proc/{pid}/fd").iterdir())


def test_an_agent_that_never_answers_takes_the_connection_and_says_nothing(host: SimulatedHost) -> None:
    host.set(silence="all")
    peer = BarePeer(host.dial, host.address)
    assert peer.inspect(QUIET) is None
    peer.send_body(b"")
    assert peer.receive_body(QUIET) is None
    assert host.ask()["connections"] == 1


def test_an_agent_may_give_receipts_and_no_answer(host: SimulatedHost) -> None:
    host.set(silence="replies")
    peer = BarePeer(host.dial, host.address, hop=True)
    assert peer.inspect(QUIET) is None
    receipt = peer.receipts[1]
    assert receipt is not None
    assert receipt.status is Status.ACCEPTED


@pytest.mark.parametrize(
    ("lost", "status", "detail"),
    [("unsent", Status.ACCEPTED, ""), ("forgotten", Status.UNKNOWN, "receipt is not pinned")],
)
def test_a_lost_receipt_is_asked_after(host: SimulatedHost, lost: str, status: Status, detail: str) -> None:
    host.set(lost_receipts=lost)
    peer = BarePeer(host.dial, host.address, hop=True)
    event = peer.event(AgentEnd(peer.address), INSPECT, b"{}")
    peer.send(event)
    assert peer.answer(event) is not None  # it was carried out all the same
    assert peer.receipts[1] is None
    digest = hashlib.sha256(encode_event(event)).digest()
    peer.send_body(hops.encode_hop(Query(f"peer-{peer.route.channel}", 1, 1, digest)))
    frames = iter(lambda: hops.decode_hop(peer.receive_body(30.0) or b""), None)
    said = next(frame for frame in frames if isinstance(frame, QueryResult))
    assert (said.status, said.detail) == (status, detail)


def test_an_attempt_is_answered_once_and_another_digest_conflicts(host: SimulatedHost) -> None:
    peer = BarePeer(host.dial, host.address, hop=True)
    first, other = (encode_event(peer.event(AgentEnd(peer.address), SESSION, b"{}")) for _ in range(2))
    said = []
    for raw in (first, first, other):
        peer.send_body(hops.encode_hop(Data(7, raw)))
        frame = hops.decode_hop(peer.receive_body(30.0) or b"")
        while not isinstance(frame, Receipt):  # the agent's own answer may come between
            frame = hops.decode_hop(peer.receive_body(30.0) or b"")
        said.append(frame.status)
    assert said == [Status.ACCEPTED, Status.ACCEPTED, Status.CONFLICT]


def test_a_stuck_text_says_nothing_about_what_serves(host: SimulatedHost) -> None:
    peer = BarePeer(host.dial, host.address)
    assert status_of(peer, stage_of(host))[0] == "succeeded"
    host.set(stuck_state="failed:session load generation is stale")
    seen = peer.inspect()
    assert seen is not None
    assert (seen["nodes"][0]["state"], seen["nodes"][0]["lifecycle_state"]) == (
        "failed:session load generation is stale",
        "loaded",
    )
    assert status_of(peer, stage_of(host), unload=True)[:2] == ("succeeded", "absent")


@pytest.mark.parametrize("outcome", ["unknown", "present"])
def test_a_load_may_end_with_the_stage_still_there(host: SimulatedHost, outcome: str) -> None:
    host.set(load_outcome=outcome)
    peer = BarePeer(host.dial, host.address)
    assert status_of(peer, stage_of(host))[:2] == ("failed", outcome)
    seen = peer.inspect()
    assert seen is not None
    assert seen["nodes"][0]["lifecycle_state"] == "failed"
    host.set(load_outcome="")
    assert status_of(peer, stage_of(host, GENERATION + 1)) == ("rejected", "present", "node already exists")
    assert status_of(peer, stage_of(host), unload=True)[2] == "node is not unloadable; state=failed"


def test_an_unload_may_end_unknown(host: SimulatedHost) -> None:
    peer = BarePeer(host.dial, host.address)
    assert status_of(peer, stage_of(host))[0] == "succeeded"
    host.set(unload_outcome="unknown")
    assert status_of(peer, stage_of(host), unload=True)[:2] == ("failed", "unknown")


def test_loads_of_one_agent_wait_for_each_other_and_freeze_who_speaks_to_their_node(host: SimulatedHost) -> None:
    host.set(load_seconds=0.3)
    stages = planned_ring([host.address])
    loading, frozen, free = (BarePeer(host.dial, host.address) for _ in range(3))
    began = time.monotonic()
    asked = [loading.load(stage) for stage in stages[:2]]
    host.until("both nodes are there", lambda said: len(said["nodes"]) == 2)
    session = frozen.open_session(stages[:2], "early")
    assert free.inspect() is not None
    assert {node["phase"] for node in host.ask()["nodes"].values()} <= {"loading", "loaded"}
    inspected = frozen.send(frozen.event(AgentEnd(frozen.address), INSPECT, b"{}"))
    results = [loading.result(event) for event in asked]
    assert time.monotonic() - began >= 0.6
    assert all(result is not None and result.metadata["status"] == "succeeded" for result in results)
    assert frozen.answer(inspected) is not None
    ready = [event.content_type for event in frozen.events]
    assert ready.index("application/vnd.p4.agent.snapshot-v1+json") > 0  # it waited behind the sessions
    assert frozen.answer(session[1], "session-ready") is not None


def test_an_address_that_is_not_the_advertised_text_is_sent_outward(host: SimulatedHost) -> None:
    real = "tcp://{}:{}".format(*host.dial)
    peer = BarePeer(host.dial, host.address)
    asked = peer.load(stage_of(host), target=AgentEnd(parse_address(real)))
    host.until("it was sent outward and failed", lambda said: len(said["failures"]) == 1)
    assert peer.answer(asked, seconds=QUIET) is None
    assert "P4_EVENT_PEER_DELIVERY_FAILED target=" + real in host.log.read_text()


def test_a_caller_whose_route_names_another_ingress_hears_nothing(host: SimulatedHost) -> None:
    peer = BarePeer(host.dial, host.address, ingress="tcp://{}:{}".format(*host.dial))
    assert peer.inspect(QUIET) is None
    host.until("the answer went outward", lambda said: len(said["failures"]) == 1)


def test_a_sequence_that_does_not_grow_and_a_changed_event_are_refused(host: SimulatedHost) -> None:
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"event_id": "another"}, "SequenceRegression { previous: 1, incoming: 1 }"),
        ({"payload": b"[]"}, "ConflictingDuplicate"),
    )
    for change, words in changes:
        peer = BarePeer(host.dial, host.address, hop=True)
        event = peer.event(AgentEnd(peer.address), INSPECT, b"{}")
        assert peer.answer(peer.send(event)) is not None
        peer.send(replace(event, **change))
        assert peer.inspect() is not None
        receipt = peer.receipts[2]
        assert receipt is not None
        assert words in receipt.detail


def test_the_same_event_twice_is_carried_out_once(host: SimulatedHost) -> None:
    peer = BarePeer(host.dial, host.address)
    event = peer.event(AgentEnd(peer.address), INSPECT, b"{}")
    for _ in range(3):
        peer.send(event)
    assert peer.inspect() is not None
    assert host.ask()["duplicates"] == 2
    assert len([each for each in peer.events if each.correlation_id == event.correlation_id]) == 1


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (hops.encode_hop(Data(1, b"x")), "first hop frame is not hello"),
        (b"P4E3", "event frame magic mismatch"),
        (b"GET / HTTP/1.1", "event frame magic mismatch"),
    ],
    ids=["hop-data", "cut-event", "http"],
)
def test_the_first_body_decides_and_a_wrong_one_ends_the_connection(
    host: SimulatedHost, first: bytes, words: str
) -> None:
    peer = BarePeer(host.dial, host.address)
    peer.send_body(first)
    with pytest.raises(Closed):
        peer.receive()
    assert words in host.log.read_text()
    host.until("its slot is free", lambda said: said["slots"]["used"] == 0)


def test_a_full_journal_refuses_what_would_have_to_be_recorded(host: SimulatedHost) -> None:
    peer = BarePeer(host.dial, host.address, hop=True)
    assert status_of(peer, stage_of(host))[0] == "succeeded"
    host.set(journal_max_bytes=0)
    host.end()
    host.spawn(journal_max_bytes=10)
    host.wait_ready()
    peer = BarePeer(host.dial, host.address, hop=True)
    stages = planned_ring([host.address], generation=GENERATION + 1)
    for stage in stages:
        assert status_of(peer, stage)[0] == "succeeded"
    peer.open_session(stages, "s-1")
    assert peer.inspect() is not None
    details = {receipt.detail for receipt in peer.receipts.values() if receipt is not None and receipt.detail}
    assert details == {"outbound journal capacity exhausted"}


def test_a_hop_framed_prefill_finds_no_admission_at_the_head(host: SimulatedHost) -> None:
    peer = BarePeer(host.dial, host.address, hop=True)
    stages = planned_ring([host.address])
    for stage in stages:
        assert status_of(peer, stage)[0] == "succeeded"
    for event in peer.open_session(stages, "s-1"):
        assert peer.answer(event, "session-ready") is not None
    refusal = peer.answer(peer.prefill(stages, "s-1", "r-1"), "error-v2")
    assert refusal is not None
    assert "No such file or directory" in json.loads(refusal.payload)["detail"]


def test_nothing_larger_than_a_store_is_admitted(host: SimulatedHost) -> None:
    host.end()
    host.spawn(retained_bytes=MIB)
    host.wait_ready()
    peer = BarePeer(host.dial, host.address, hop=True)
    peer.send(peer.event(AgentEnd(peer.address), INSPECT, b" " * MIB))
    assert peer.inspect() is not None
    receipt = peer.receipts[1]
    assert receipt is not None
    assert receipt.detail.startswith("StorageTooLarge { required: ")
