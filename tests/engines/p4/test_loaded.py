"""LOADED against the plan, and the census of a stage that will not unload."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.engines.p4.loaded import COUNTS, judge_loaded, read_census, release_of
from tests.engines.p4.plans import a_p4_plan, loaded


def test_a_loaded_that_agrees_in_every_field_is_no_finding() -> None:
    plan = a_p4_plan()
    assert [judge_loaded(plan, shard, loaded(plan, shard)) for shard in plan.shards] == [None] * 4


@pytest.mark.parametrize(
    "changes",
    [
        {"load_generation": 1},
        {"physical_identity_revision": 2},
        {"max_physical_result_bytes": 137_935_245},
        {"max_physical_result_bytes": None},
        {"n_batch": 64},
        {"n_ubatch": 16},
        {"n_ctx": 4096},
        {"n_seq_max": 4},
        {"per_sequence_context": 2048},
        {"reserved_context": True},
        {"resource_profile": {"version": 1}},
    ],
    ids=str,
)
def test_a_field_that_differs_is_named_with_both_values(changes: dict[str, Any]) -> None:
    plan = a_p4_plan()
    finding = judge_loaded(plan, plan.shards[1], loaded(plan, plan.shards[1], **changes))
    assert finding is not None
    assert finding.id == "bound.differs"
    for name, value in changes.items():
        assert name in finding.expected
        assert name in finding.found
        assert isinstance(value, dict) or f"{'nothing' if value is None else value}" in finding.found


def test_a_release_is_what_must_be_equal_and_the_flavour_only_for_an_exact_build() -> None:
    plan = a_p4_plan()
    one = release_of(loaded(plan, plan.shards[0]))
    other = release_of(loaded(plan, plan.shards[0], backend_inventory="CPU[CPU]|ROCm[ROCm0]"))
    assert one.words == other.words == "451b89bae patch f00dcafe0001 wire physical-v4"
    assert one.exact != other.exact
    assert release_of({}).words == "unknown patch unknown wire unknown"


CENSUS: dict[str, Any] = dict.fromkeys(COUNTS, 0) | {
    "prepared_issue": None,
    "verify_fenced": False,
    "held_input": False,
    "receive": {"running": 0, "uncertain": 0, "active_attempt": False, "fenced": False},
}


def test_a_census_has_seventeen_counts_and_shows_those_that_are_open() -> None:
    assert len(COUNTS) == 17
    body = msgspec.json.encode(CENSUS | {"requests": 2, "pending": 1, "active_owners": 3}).decode()
    census = read_census(f"unload is busy;work={body}")
    assert census is not None
    assert census.counts == (("requests", "2"), ("pending", "1"), ("active_owners", "3"))
    assert (census.in_flight, census.queued) == (3, 1)
    assert census.words == "unload is busy: requests 2, pending 1, active_owners 3; the other 14 are nothing"


def test_a_census_in_another_form_is_read_by_its_pairs() -> None:
    census = read_census("unload is busy;work=Work { requests: 1, pending: 0, verify_fenced: true }")
    assert census is not None
    assert census.counts == (("requests", "1"), ("verify_fenced", "true"))


def test_busy_is_never_nothing_in_flight() -> None:
    census = read_census("unload is busy;work={}")
    assert census is not None
    assert census.in_flight == 1


def test_another_refusal_is_no_census() -> None:
    assert read_census("node is not unloadable; state=loading") is None
