"""When a connection counts as a leader, and when its absence counts as a loss."""

from __future__ import annotations

from backend.contract.states import ShardState
from backend.engines.driver import LeaderGone, PhaseSeen
from backend.engines.llamacpp.sockets import FourTuple
from backend.engines.llamacpp.worker import Attachment

LEADER = FourTuple("10.0.0.1", 50052, "10.0.0.9", 40001)
OTHER = FourTuple("10.0.0.1", 50052, "10.0.0.9", 40002)


def attachment(*, had_leader: bool = False) -> Attachment:
    return Attachment(planned=1000, lasting=0.3, grace=60.0, had_leader=had_leader)


def state(seen: PhaseSeen | LeaderGone | None) -> ShardState | None:
    return seen.state if isinstance(seen, PhaseSeen) else None


def test_short_connections_come_and_go_without_a_word() -> None:
    worker = attachment()
    said = [
        worker.step(at / 10, client, 0) for at, client in enumerate([None, LEADER, None, OTHER, LEADER, OTHER, None])
    ]
    assert said == [None] * 7
    assert worker.step(1000.0, None, 0) is None, "it never had a leader, so none is missed"


def test_a_connection_that_lasts_is_a_leader_and_weights_make_it_ready() -> None:
    worker = attachment()
    assert worker.step(0.0, LEADER, 0) is None
    assert state(worker.step(0.4, LEADER, 0)) is ShardState.LOADING
    assert worker.step(1.0, LEADER, 899) is None
    ready = worker.step(2.0, LEADER, 1200)
    assert ready == PhaseSeen(ShardState.READY, "holds 1000 of 1000 bytes, leader attached")
    assert worker.step(3.0, LEADER, 1200) is None


def test_a_leader_that_leaves_is_missed_once_after_the_grace() -> None:
    worker = attachment()
    for at in (0.0, 1.0, 2.0):
        worker.step(at, LEADER, 1000)
    assert state(worker.step(10.0, None, 0)) is ShardState.CONNECTING
    assert worker.step(69.0, None, 0) is None
    assert isinstance(worker.step(70.0, None, 0), LeaderGone)
    assert worker.step(90.0, None, 0) is None


def test_a_new_leader_ends_the_grace_and_a_short_connection_does_not() -> None:
    worker = attachment()
    for at in (0.0, 1.0, 2.0):
        worker.step(at, LEADER, 1000)
    worker.step(10.0, None, 0)
    assert worker.step(60.0, OTHER, 0) is None
    assert worker.step(60.1, None, 0) is None
    assert isinstance(worker.step(70.5, None, 0), LeaderGone)

    worker = attachment()
    for at in (0.0, 1.0, 2.0):
        worker.step(at, LEADER, 1000)
    worker.step(10.0, None, 0)
    worker.step(20.0, OTHER, 0)
    assert state(worker.step(20.5, OTHER, 0)) is ShardState.LOADING
    assert worker.step(80.0, OTHER, 0) is None


def test_an_adopted_worker_that_had_a_leader_misses_it_from_the_adoption_on() -> None:
    worker = attachment(had_leader=True)
    assert state(worker.step(5.0, None, 0)) is ShardState.CONNECTING
    assert isinstance(worker.step(65.0, None, 0), LeaderGone)


def test_memory_that_cannot_be_measured_leaves_the_connection_as_evidence() -> None:
    worker = attachment(had_leader=True)
    worker.step(0.0, LEADER, None)
    ready = worker.step(1.0, LEADER, None)
    assert isinstance(ready, PhaseSeen)
    assert (ready.state, "cannot be measured" in ready.words) == (ShardState.READY, True)


def test_weights_that_came_over_a_connection_make_it_a_leader_at_once() -> None:
    worker = attachment()
    assert worker.step(0.00, LEADER, 0, 899) is None
    assert state(worker.step(0.01, LEADER, 0, 900)) is ShardState.LOADING
    ready = worker.step(0.02, LEADER, 0, 900)
    assert ready == PhaseSeen(ShardState.READY, "received its 1000 bytes of weights, leader attached")


def test_a_worker_without_weights_has_a_leader_only_when_its_connection_lasts() -> None:
    worker = Attachment(planned=0, lasting=0.3, grace=60.0)
    assert worker.step(0.0, LEADER, 0, 500) is None
    assert state(worker.step(0.4, LEADER, 0, 500)) is ShardState.LOADING
