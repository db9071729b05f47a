"""Saved plans that are wrong by now: changed by hand, overtaken, or made of facts that have moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from backend.contract.plans import Plan, sealed
from backend.contract.words import HostId, LoadGeneration, NodeGeneration
from backend.planning.fleet import FleetFacts
from backend.planning.plan import recheck
from tests.planning.worlds import NOW, a_cordon, a_fleet, a_host, a_plan, a_reservation, a_shard, an_engine, holding
from tests.refusals.rows import as_parameters, assert_refuses, pair

pytestmark = pytest.mark.refusals


class SavedPlan(NamedTuple):
    """A plan as it was saved and the fleet that it comes back to."""

    title: str
    id: str
    words: tuple[str, ...]
    saved: Callable[[], Plan]
    fleet: Callable[[], FleetFacts]


def edited(**changes: Any) -> Plan:
    return msgspec.structs.replace(a_plan(), **changes)


def one_shard_of(generation: int) -> Plan:
    """Sealed again after the edit, so that only the numbers speak against it."""
    plan = a_plan()
    odd = msgspec.structs.replace(plan.shards[2], node_generation=NodeGeneration(generation))
    return sealed(msgspec.structs.replace(plan, shards=(*plan.shards[:2], odd)))


def restarted() -> FleetFacts:
    return a_fleet(a_host("host-a"), msgspec.structs.replace(a_host("host-b"), agent_epoch="another"))


def flavoured(first: str, second: str = "") -> FleetFacts:
    """host-a and host-b, their engines built with these backends."""
    return a_fleet(
        a_host("host-a", engines=(an_engine("CPU", flavour=first),)),
        a_host("host-b", engines=(an_engine("CPU", flavour=second or first),)),
    )


ROWS = [
    SavedPlan(
        "a context changed by hand",
        "plan.edited",
        ("digest",),
        lambda: edited(profile=msgspec.structs.replace(a_plan().profile, context=9)),
        a_fleet,
    ),
    SavedPlan(
        "a load generation changed by hand",
        "plan.edited",
        ("digest",),
        lambda: edited(load_generation=LoadGeneration(NOW + 1)),
        a_fleet,
    ),
    SavedPlan(
        "a model path changed by hand", "plan.edited", ("digest",), lambda: edited(model_path="/etc/shadow"), a_fleet
    ),
    SavedPlan("a digest taken out", "plan.edited", ("digest none",), lambda: edited(digest=""), a_fleet),
    SavedPlan(
        "a node generation one below the load generation",
        "generation.differs",
        (f"load generation {NOW}", f"node generation {NOW - 1}", "tiny-1/2 on host-b", "first release"),
        lambda: one_shard_of(NOW - 1),
        a_fleet,
    ),
    SavedPlan(
        "a node generation of 1, the default of a register",
        "generation.differs",
        (f"load generation {NOW}", "node generation 1"),
        lambda: one_shard_of(1),
        a_fleet,
    ),
    SavedPlan(
        "a generation that a host has seen by now",
        "generation.not_above",
        (f"above {NOW}", "host-b"),
        a_plan,
        lambda: pair(entities=holding(highest=NOW)),
    ),
    SavedPlan(
        "a generation that another load has reserved since",
        "generation.not_above",
        (f"above {NOW + 5}",),
        a_plan,
        lambda: pair("host-a", entities=holding(reservation=a_reservation(generation=NOW + 5))),
    ),
    SavedPlan(
        "a host on which something was decided since",
        "plan.stale",
        ("revision 3", "revision 4", "host-b"),
        a_plan,
        lambda: pair(revision=4),
    ),
    SavedPlan(
        "a host that was cordoned since",
        "host.cordoned",
        ("host-b", "cordoned by alice@ops-1", "fan"),
        a_plan,
        lambda: pair(revision=4, entities=holding(cordon=a_cordon())),
    ),
    SavedPlan("an agent that was restarted", "plan.stale", ("epoch epoch-of", "epoch another"), a_plan, restarted),
    SavedPlan(
        "an engine that was replaced",
        "plan.stale",
        ("release 1-7e4c0a9", "release 1-bbbbbbb"),
        a_plan,
        lambda: pair(engines=(an_engine("CPU", release="1-bbbbbbb"),)),
    ),
    SavedPlan(
        "an engine of the same release built otherwise, with exact_build",
        "plan.stale",
        ("release 1-7e4c0a9 for cpu", "release 1-7e4c0a9 for cpu vulkan", "host-b"),
        lambda: a_plan(flavoured("cpu"), profile={"exact_build": True}),
        lambda: flavoured("cpu", "cpu vulkan"),
    ),
    SavedPlan(
        "a plan that was loaded before",
        "replica.twice",
        ("host-b has tiny-1",),
        a_plan,
        lambda: pair(entities=holding(a_shard("host-b", node="tiny-1/2", generation=NOW - 5))),
    ),
    SavedPlan("an engine that was removed", "plan.stale", ("no release",), a_plan, lambda: pair(engines=())),
    SavedPlan(
        "a host that fell silent",
        "host.unreachable",
        ("host-b", "timed out"),
        a_plan,
        lambda: a_fleet(a_host("host-a"), unreachable=((HostId("host-b"), "timed out"),)),
    ),
    SavedPlan(
        "a host that left the context",
        "host.unreachable",
        ("host-b", "not in this context"),
        a_plan,
        lambda: a_fleet(a_host("host-a")),
    ),
]


@pytest.mark.parametrize("row", as_parameters(ROWS))
def test_saved(row: SavedPlan) -> None:
    """A saved plan that is wrong by now is refused when it comes back."""
    assert_refuses(recheck(row.saved(), row.fleet()), row.id, row.words)
