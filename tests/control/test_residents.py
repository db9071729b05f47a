"""Rings of an engine with agents of its own, as the fleet shows them: bounds, releases, and what others loaded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.contract.entities import Result, Shard
from backend.contract.plans import Plan
from backend.contract.states import ReplicaState
from backend.contract.words import Bytes
from backend.control.fleet import Fleet, empty_fleet, fold_event
from backend.control.operations.conduct import Outcome
from backend.control.operations.load import _releases_differ
from tests.control.factories import (
    REPLICA,
    A,
    B,
    a_bound,
    a_leader,
    a_plan,
    a_shard,
    entities_of,
    report_of,
    up,
)

BOUND = msgspec.structs.replace(
    a_bound(derived=False), result=Bytes(137_935_244), result_limit=Bytes(201_326_592), result_derived=True
)
PLAN = a_plan(shards=tuple(msgspec.structs.replace(shard, bound=BOUND) for shard in a_plan().shards))
OTHERS = a_plan(shards=(), facts=(), profile_name="adopted")


def folded(*at_a: Shard, at_b: Shard | None = None, plan: Plan = PLAN) -> Fleet:
    fleet = empty_fleet("test", "TEST", {A: "unix:/a", B: "unix:/b"}, read_only=False)  # type: ignore[dict-item]
    other = entities_of(at_b or stage(2), plan=plan)
    for event in (up(report_of(A, entities_of(*at_a, plan=plan))), up(report_of(B, other))):
        fleet, _ = fold_event(fleet, event)
    return fleet


def stage(rank: int, result: int | None = 137_935_244, **fields: Any) -> Shard:
    said = {"bound": BOUND, "reported_result": result, "reported_release": "451b89bae patch 1 wire 4", **fields}
    return a_leader(buffers=(), **said) if rank == 0 else a_shard(rank, **said)


def drifts(fleet: Fleet) -> dict[str, str]:
    return {drift.what: f"{drift.one} != {drift.other}" for drift in fleet.state.drifts}


def test_a_result_that_was_derived_is_compared_to_the_byte() -> None:
    fleet = folded(stage(0), stage(1))
    view = fleet.state.replicas[REPLICA]
    assert (view.state, view.bound) == (ReplicaState.READY, "equal")
    assert drifts(fleet) == {}


@pytest.mark.parametrize(("result", "word"), [(137_935_245, "differs"), (None, "unknown")])
def test_one_that_differs_is_drift_and_one_that_was_not_heard_is_unknown(result: int | None, word: str) -> None:
    fleet = folded(stage(0), stage(1), at_b=stage(2, result))
    view = fleet.state.replicas[REPLICA]
    assert (view.shards[2].bound, view.bound) == (word, word)
    expected = {"largest result": "137935244 != 137935245"} if word == "differs" else {}
    assert drifts(fleet) == expected


def test_releases_that_engines_say_themselves_are_compared_over_all_ranks() -> None:
    fleet = folded(stage(0), stage(1), at_b=stage(2, reported_release="0a1b2c3d4 patch 1 wire 4"))
    assert set(drifts(fleet)) == {"loaded release"}


def test_a_ring_that_somebody_else_loaded_is_recovering_until_a_prompt_crossed_it() -> None:
    words: dict[str, Any] = {
        "words": "loaded by somebody else as s0; adopted from its record",
        "bound": a_bound(0, 0, derived=False),
    }
    ranks = [stage(rank, None, reported_release="", canary=None, **words) for rank in (0,)]
    others = [a_shard(rank, **words) for rank in (1, 2)]
    fleet = folded(ranks[0], others[0], at_b=others[1], plan=OTHERS)
    view = fleet.state.replicas[REPLICA]
    assert view.state is ReplicaState.RECOVERING
    assert "ringtop test tiny-1" in view.words
    assert drifts(fleet) == {}, "nobody here placed it, so nothing of it is compared"
    fleet = folded(stage(0, None, reported_release="", **words), others[0], at_b=others[1], plan=OTHERS)
    assert fleet.state.replicas[REPLICA].state is ReplicaState.READY


def test_ranks_that_say_two_releases_when_loaded_form_no_ring() -> None:
    def loaded(release: str | None) -> Outcome:
        value = {} if release is None else {"release": release}
        return Outcome(Result(status="succeeded", resource_state="present", value=value), "")

    plan = a_plan()
    same = dict.fromkeys(plan.shards, loaded("r1"))
    assert _releases_differ(same) == ""
    assert _releases_differ({**same, plan.shards[0]: loaded(None)}) == "", "one that does not say is not compared"
    differs = _releases_differ({**same, plan.shards[2]: loaded("r2")})
    assert "rank 2 on host-b is r2" in differs
