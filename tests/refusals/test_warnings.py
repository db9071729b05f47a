"""Loads that a person may confirm and is warned of first: every warning at its edge, and quiet one step before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from backend.contract.entities import Drain, Entities, OperatorHold, operator_hold_key
from backend.contract.plans import Plan
from backend.contract.words import LoadGeneration, OpId, ReplicaId
from backend.planning.plan import plan
from tests.planning.engines.test_p4_reported import a_chain, hosts, loaded, ready
from tests.planning.worlds import NOW, Ask, a_catalog, a_fleet, a_model, a_plan, a_shard, an_engine, holding
from tests.refusals.rows import CARD, as_parameters, both, gpus, listed_device, listing, pair
from tests.refusals.test_wrong_budgets import gpu_hosts, served

pytestmark = pytest.mark.refusals


class Warned(NamedTuple):
    """A load that is warned of by this id, with these words, and the one beside it that is not."""

    title: str
    warns: tuple[str, ...]
    words: tuple[str, ...]
    make: Callable[[], Plan]
    beside: Callable[[], Plan]


def stale() -> Plan:
    catalog = msgspec.structs.replace(a_catalog(), stale="catalog.toml is not TOML")
    return plan(catalog, a_fleet(), Ask(), model=a_model(), now_unix_ms=NOW)


def unseen() -> Plan:
    seen_by_the_driver = gpus(2)
    engines = (an_engine("CPU", "CUDA0"),)
    reports = [
        msgspec.structs.replace(report, facts=msgspec.structs.replace(report.facts, engines=engines))
        if report.host == "host-b"
        else report
        for report in seen_by_the_driver.reports
    ]
    return a_plan(a_fleet(*reports), profile={"device": "CUDA*"})


def reported(**profile: Any) -> Plan:
    """A chain whose architecture is not known, after a load that failed and said what its stage returns."""
    planned = int(a_chain().shards[0].bound.result)
    return a_chain(hosts(loaded(f"profile={planned}, READY={ready()}")), **profile)


def held(scope: str, subject: str) -> Entities:
    """A host at which bob holds something down."""
    hold = OperatorHold(subject=subject, scope=scope, kind="down", by="bob", why="bad weights", at_unix_ms=NOW)
    return Entities(operator_holds={operator_hold_key(scope, subject): hold})


def emptying(outcome: str) -> Entities:
    """A host from which alice drains glm-1, or has drained it."""
    drain = Drain(
        replica=ReplicaId("glm-1"),
        load_generation=LoadGeneration(5),
        op_id=OpId("drain-1"),
        by="alice",
        why="fan",
        left_ms=60_000,
        at_unix_ms=NOW,
        at_deadline="give-up",
        outcome=outcome,
    )
    return Entities(drains={drain.replica: drain})


LANS = ("10.0.0.98", "10.0.0.99", "192.168.1.7")
"""What both hosts have, each advertised address among them."""
GEOMETRY = {"cut_tensors": 3, "cut_row_bytes": 57_344}
ROWS = [
    Warned(
        "a device that the driver has and the engine does not see",
        ("device.unseen",),
        ("CUDA1 on host-b", "CPU, CUDA0"),
        unseen,
        lambda: a_plan(gpus(2), profile={"device": "CUDA*"}),
    ),
    Warned(
        "a device whose memory only agent.toml tells",
        ("device.unmeasured",),
        ("Vulkan0 on host-a", "8192 MiB by agent.toml alone"),
        lambda: a_plan(listing(listed_device(is_capped_only=True)), profile={"device": "Vulkan0"}),
        lambda: a_plan(listing(listed_device()), profile={"device": "Vulkan0"}),
    ),
    Warned(
        "a device of a list that may be one of the driver's",
        ("device.unmeasured",),
        ("Vulkan0 on host-a", "CUDA0 at the drivers", "nobody can compare them"),
        lambda: a_plan(listing(CARD, listed_device()), profile={"device": "Vulkan0"}),
        lambda: a_plan(listing(CARD, listed_device(same_as="CUDA0")), profile={"device": "Vulkan0"}),
    ),
    Warned(
        "an address that containers get",
        ("address.container",),
        ("172.17.0.4", "Docker"),
        lambda: a_plan(pair(advertise="172.17.0.4")),
        lambda: a_plan(pair(advertise="172.18.0.4")),
    ),
    Warned(
        "a port that the kernel gives to outgoing connections",
        ("port.ephemeral",),
        ("18000-60999", "ip_local_reserved_ports=18000-18000"),
        lambda: a_plan(pair(ephemeral=(18_000, 60_999))),
        lambda: a_plan(pair(ephemeral=(18_001, 60_999))),
    ),
    Warned(
        "the same model in the same shape under load",
        ("replica.loading",),
        ("tiny-7 on host-b", "tiny-7/1 is loading"),
        lambda: a_plan(pair(entities=holding(a_shard("host-b", node="tiny-7/1", state="loading")))),
        lambda: a_plan(pair(entities=holding(a_shard("host-b", node="tiny-7/1", state="ready")))),
    ),
    Warned(
        "a model that somebody holds down",
        ("replica.held",),
        ("down by bob", "bad weights", "ringtop resume tiny"),
        lambda: a_plan(both(entities=held("model", "tiny"))),
        lambda: a_plan(both(entities=held("model", "glm"))),
    ),
    Warned(
        "the replica id that somebody holds down",
        ("replica.held",),
        ("tiny-1", "down by bob"),
        lambda: a_plan(pair(entities=held("replica", "tiny-1"))),
        lambda: a_plan(pair(entities=held("model", "tiny-1"))),
    ),
    Warned(
        "a host that somebody is emptying",
        ("host.draining",),
        ("host-b", "glm-1 drains there, by alice: fan"),
        lambda: a_plan(pair(entities=emptying(""))),
        lambda: a_plan(pair(entities=emptying("done"))),
    ),
    Warned(
        "an agent one minor release ahead",
        ("protocol.skew",),
        ("host-b", "0.1.0", "0.2.0"),
        lambda: a_plan(pair(agent_version="0.2.0")),
        lambda: a_plan(pair(agent_version="0.1.9")),
    ),
    Warned("a catalog that was edited badly since", ("catalog.stale",), ("is not TOML",), stale, a_plan),
    Warned(
        "NCCL over whichever of two networks it takes",
        ("address.interface",),
        ("no interface", "192.168.1.7"),
        lambda: served("vllm", gpu_hosts(addresses=LANS)),
        lambda: served("vllm", gpu_hosts(addresses=LANS), options={"interface": "eth1"}),
    ),
    Warned(
        "a stop that cuts every stream",
        ("shutdown.zero",),
        ("shutdown_timeout = 0",),
        lambda: served("vllm", options={"shutdown_timeout": 0}),
        lambda: served("vllm", options={"shutdown_timeout": 1}),
    ),
    Warned(
        "prefill without a chunk",
        ("batch.unbounded",),
        ("chunked_prefill_size",),
        lambda: served("sglang", options={"chunked_prefill_size": -1}),
        lambda: served("sglang", options={"chunked_prefill_size": 2048}),
    ),
    Warned(
        "a p4 stage whose idle threads spin",
        ("threads.spin",),
        ("active in the profile", "passive"),
        lambda: a_chain(geometry=GEOMETRY, options={"wait_policy": "active"}),
        lambda: a_chain(geometry=GEOMETRY, options={"wait_policy": "passive"}),
    ),
    Warned(
        "a p4 cut that nobody verified",
        ("bound.unverified",),
        ("glm5", "2 tensors of n_embd are assumed"),
        a_chain,
        lambda: a_chain(geometry=GEOMETRY),
    ),
    Warned(
        "a p4 cut that a load which failed has told",
        ("bound.reported", "bound.unverified"),
        ("cut_tensors = 3, cut_row_bytes = 57344", "[models.glm.geometry]"),
        reported,
        lambda: reported(geometry=GEOMETRY),
    ),
]


@pytest.mark.parametrize("row", as_parameters(ROWS))
def test_warned(row: Warned) -> None:
    """Warned of by id, with both values and a remedy, and not refused; the load beside it is not warned of."""
    made = row.make()
    assert not made.is_refused, [finding.words for finding in made.findings if finding.is_refusal]
    fired = [finding for finding in made.findings if finding.id in row.warns]
    assert {finding.id for finding in made.findings} == set(row.warns)
    said = " | ".join(finding.words for finding in fired)
    for word in row.words:
        assert word in said, f"{word!r} is not in: {said}"
    assert all(finding.expected != finding.found and finding.remedy.endswith(".") for finding in fired)
    assert [finding.words for finding in row.beside().findings] == []


P4_REFUSED = [
    ("bound.overflow", {"geometry": {"cut_tensors": 2, "cut_row_bytes": 2**55}}, "2^64-1"),
    ("batch.order", {"geometry": GEOMETRY, "n_batch": 32, "n_ubatch": 33}, "n_batch = 32"),
    ("bound.result", {"geometry": {"cut_tensors": 2, "cut_row_bytes": 32_768}, "n_ubatch": 64}, "n_ubatch up to 63"),
]


@pytest.mark.parametrize(("id", "changes", "words"), P4_REFUSED, ids=[row[0] for row in P4_REFUSED])
def test_p4(id: str, changes: dict[str, Any], words: str) -> None:
    """A p4 chain that its own stages would refuse after a whole load: refused in the plan."""
    made = a_chain(**changes)
    fired = [finding for finding in made.findings if finding.id == id and finding.is_refusal]
    assert fired, [finding.words for finding in made.findings]
    assert words in " | ".join(finding.words for finding in fired)


def test_p4_at_the_edge() -> None:
    """The largest micro-batch that fits the store, and one as large as the batch, are taken."""
    cut = {"cut_tensors": 2, "cut_row_bytes": 32_768}
    assert a_chain(geometry=cut, n_ubatch=63).findings == ()
    assert a_chain(geometry=cut, n_batch=32, n_ubatch=32).findings == ()
