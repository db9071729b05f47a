"""Guards about an engine's own agent on each host: what refuses a plan, what only warns, what is as it should be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.contract.reports import HostReport, ResidentNode
from backend.planning.guards.residents import host_of
from tests.engines.p4.plans import ADDRESSES, a_p4_host, a_p4_plan
from tests.planning.worlds import ids


def test_agents_that_are_well_are_passed_without_a_word_and_their_addresses_are_facts_of_the_plan() -> None:
    plan = a_p4_plan()
    assert plan.findings == ()
    assert {fact.host: fact.address for fact in plan.facts} == ADDRESSES
    assert plan.address_of(plan.shards[3]) == ADDRESSES["host-b"]


@pytest.mark.parametrize(
    ("resident", "id", "refuses"),
    [
        ({"address": "tcp://127.0.0.1:4201"}, "resident.loopback", True),
        ({"address": "tcp://[::1]:4201"}, "resident.loopback", True),
        ({"address": "tcp://0.0.0.0:4201"}, "resident.loopback", True),
        ({"address": ADDRESSES["host-b"]}, "resident.same", True),
        ({"journal": "its agent was started without one"}, "resident.journal", True),
        ({"journal": ""}, "resident.journal", True),
        ({"restart": "its journal holds 9 admitted requests"}, "resident.restart", False),
        ({"sockets": 128}, "resident.slots", False),
        ({"sockets": 5, "hidden": 1}, "resident.slots", False),
        ({"sockets": 192}, "resident.slots", True),
        ({"nodes": (ResidentNode(name="step37-1/0", generation=7, phase="loaded"),)}, "resident.name", True),
        ({"taught": False}, "resident.untold", False),
    ],
    ids=str,
)
def test_what_is_wrong_with_an_agent_is_said_before_the_load(resident: dict[str, Any], id: str, refuses: bool) -> None:
    plan = a_p4_plan(a_p4_host("host-a", **resident), a_p4_host("host-b"))
    assert id in ids(plan)
    assert plan.is_refused == refuses
    finding = next(finding for finding in plan.findings if finding.id == id)
    assert "host-" in finding.subject
    assert finding.remedy


def test_only_the_heads_host_needs_a_bridge_that_is_told() -> None:
    assert "resident.untold" not in ids(a_p4_plan(a_p4_host("host-a"), a_p4_host("host-b", taught=False)))


def test_loopback_is_enough_where_every_agent_is_on_it_and_on_one_machine() -> None:
    reports = [a_p4_host("host-a", "tcp://127.0.0.1:1"), a_p4_host("host-b", "tcp://127.0.0.1:2")]
    assert "resident.loopback" in ids(a_p4_plan(*reports)), "their boot ids are two machines'"
    together = [on_machine(report, "one") for report in reports]
    assert "resident.loopback" not in ids(a_p4_plan(*together))
    beside = [together[0], on_machine(a_p4_host("host-b"), "one")]
    assert "resident.loopback" in ids(a_p4_plan(*beside)), "the other is reached by another network"


def on_machine(report: HostReport, boot_id: str) -> HostReport:
    """The same agent on this machine."""
    return msgspec.structs.replace(report, facts=msgspec.structs.replace(report.facts, boot_id=boot_id))


def test_generations_of_nodes_that_others_loaded_are_a_floor() -> None:
    plan = a_p4_plan()
    above = int(plan.load_generation) + 5
    node = ResidentNode(name="other-s0", generation=above, phase="loaded")
    assert a_p4_plan(a_p4_host("host-a", nodes=(node,)), a_p4_host("host-b")).load_generation == above + 1


def test_the_host_of_an_address_is_told_from_its_port() -> None:
    assert [host_of(text) for text in ("tcp://h:1", "tcp://[::1]:1", "tcp://10.0.0.1:52001")] == [
        "h",
        "::1",
        "10.0.0.1",
    ]
