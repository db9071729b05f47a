"""The plan as a whole: sealed, stable, and worth nothing once a fact has moved."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.contract.plans import Plan, plan_digest
from backend.contract.reports import HostReport
from backend.contract.words import HostId, UnixMs
from backend.planning.catalog import UnknownModel
from backend.planning.fleet import FleetFacts
from backend.planning.plan import model_hosts, plan, recheck
from tests.planning.worlds import (
    GIB,
    NOW,
    Ask,
    a_catalog,
    a_fleet,
    a_host,
    a_model,
    a_plan,
    an_engine,
    holding,
    ids,
)


def test_a_plan_names_everything_that_the_load_would_do() -> None:
    made = a_plan()
    assert (made.replica, made.model, made.profile_name, made.engine) == ("tiny-1", "tiny", "two-host", "llamacpp")
    assert int(made.load_generation) == NOW
    assert [shard.node_id for shard in made.shards] == ["tiny-1/0", "tiny-1/1", "tiny-1/2"]
    assert {int(shard.node_generation) for shard in made.shards} == {int(NOW)}
    assert [shard.layers for shard in made.shards] == [None, (0, 3), (3, 4)]
    assert [fact.host for fact in made.facts] == ["host-a", "host-b"]
    assert {fact.release for fact in made.facts} == {"1-7e4c0a9"}
    assert made.phase_seconds("loading") == 60.0
    assert all(shard.bound.derived and shard.bound.terms for shard in made.shards)


def test_the_same_facts_give_the_same_digest_and_another_fact_another() -> None:
    assert a_plan().digest == a_plan().digest == plan_digest(a_plan())
    assert a_plan(now_unix_ms=UnixMs(NOW + 1)).digest != a_plan().digest
    assert a_plan(a_fleet(a_host("host-a", revision=4), a_host("host-b"))).digest != a_plan().digest


def test_a_plan_survives_being_saved_as_json_to_the_digest() -> None:
    made = a_plan(profile={"options": {"cram": 64, "flash_attn": "on"}})
    back = msgspec.json.decode(msgspec.json.encode(made), type=Plan)
    assert back == made
    assert recheck(back, a_fleet()) == ()


def test_an_unknown_target_is_no_plan() -> None:
    with pytest.raises(UnknownModel, match="no model 'huge'"):
        plan(a_catalog(), a_fleet(), Ask("huge"), model=None, now_unix_ms=NOW)


def test_an_alias_plans_the_canonical_model() -> None:
    made = plan(a_catalog(), a_fleet(), Ask("t"), model=a_model(), now_unix_ms=NOW)
    assert made.model == "tiny"


def test_a_model_that_nobody_could_read_is_planned_without_bounds_and_refused() -> None:
    made = a_plan(model=None, model_words="host-a: connection lost")
    assert ids(made) == ["model.unreadable"]
    assert [shard.bound.derived for shard in made.shards] == [False] * 3
    assert [shard.layers for shard in made.shards] == [None] * 3


def test_a_host_named_twice_counts_once() -> None:
    made = a_plan(hosts=("host-a", "host-a"))
    assert {shard.host for shard in made.shards} == {"host-a"}
    assert not made.is_refused


def test_the_generation_exceeds_what_any_host_has_seen() -> None:
    seen = a_host("host-c", entities=holding(highest=NOW + 1_000))
    made = a_plan(a_fleet(a_host("host-a"), a_host("host-b"), seen))
    assert made.load_generation == NOW + 1_001
    assert not made.is_refused


def test_an_untouched_fleet_leaves_a_saved_plan_sound() -> None:
    assert recheck(a_plan(), a_fleet()) == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"revision": 4}, ("revision 3", "revision 4")),
        ({"engines": (an_engine("CPU", release="1-bbbbbbb"),)}, ("1-7e4c0a9", "1-bbbbbbb")),
        ({"engines": ()}, ("1-7e4c0a9", "no release")),
    ],
)
def test_a_fact_that_moved_makes_the_plan_stale_and_names_both(changes: dict[str, Any], said: tuple[str, str]) -> None:
    (finding,) = recheck(a_plan(), a_fleet(a_host("host-a"), a_host("host-b", **changes)))
    assert (finding.id, finding.subject, finding.severity) == ("plan.stale", "host-b", "refuse")
    assert said[0] in finding.expected
    assert said[1] in finding.found


def test_an_agent_that_was_restarted_makes_the_plan_stale() -> None:
    again: HostReport = msgspec.structs.replace(a_host("host-b"), agent_epoch="another")
    assert [f.id for f in recheck(a_plan(), a_fleet(a_host("host-a"), again))] == ["plan.stale"]


def test_a_measurement_that_moved_does_not() -> None:
    assert recheck(a_plan(), a_fleet(a_host("host-a", memory_free=1, devices={"CPU": (1, 0)}), a_host("host-b"))) == ()


def test_a_host_that_is_gone_is_named() -> None:
    fleet = a_fleet(a_host("host-a"), unreachable=((HostId("host-b"), "timed out"),))
    (finding,) = recheck(a_plan(), fleet)
    assert (finding.id, finding.subject, finding.found) == ("host.unreachable", "host-b", "timed out")


def test_a_plan_that_was_edited_is_refused() -> None:
    made = a_plan()
    edited = msgspec.structs.replace(made, findings=(), profile=msgspec.structs.replace(made.profile, context=9))
    assert [finding.id for finding in recheck(edited, a_fleet())] == ["plan.edited"]
    assert [finding.id for finding in recheck(msgspec.structs.replace(made, digest=""), a_fleet())] == ["plan.edited"]


def test_a_saved_plan_whose_generation_was_overtaken_is_refused() -> None:
    fleet = a_fleet(a_host("host-a"), a_host("host-b", entities=holding(highest=NOW)))
    assert [finding.id for finding in recheck(a_plan(), fleet)] == ["generation.not_above"]


def test_the_model_is_read_where_the_leader_will_be() -> None:
    assert model_hosts(a_catalog(), a_fleet(), Ask()) == ("host-a",)
    assert model_hosts(a_catalog(), a_fleet(), Ask(hosts=("host-b", "host-a"))) == ("host-b",)
    assert model_hosts(a_catalog(), a_fleet(), Ask(hosts=("host-x",))) == ()
    fleet = FleetFacts(reports=(a_host("host-a"), a_host("host-b", devices={"CPU": (22 * GIB, 0)})))
    assert model_hosts(a_catalog(hosts=()), fleet, Ask()) == ("host-b", "host-a")
