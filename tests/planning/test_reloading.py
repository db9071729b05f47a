"""What a reload plans with: the recorded profile, and the fleet as it is once the replica is gone."""

from __future__ import annotations

import msgspec

from backend.contract.entities import Entities
from backend.contract.reports import DeviceFacts
from backend.contract.words import HostId, Port, ReplicaId
from backend.planning.catalog import Catalog, ModelEntry
from backend.planning.fleet import FleetFacts, available_memory, device_users, replica_ids, taken_ports
from backend.planning.reloading import recorded_catalog, without_replica
from tests.control.factories import REPLICA, A, B, a_leader, a_plan, a_shard, entities_of, report_of

GIB = 1 << 30


def a_fleet(entities: Entities, device: DeviceFacts) -> FleetFacts:
    report = report_of(A, entities)
    facts = msgspec.structs.replace(report.facts, devices=(device,), ports_in_use=(Port(18_001),))
    return FleetFacts(reports=(msgspec.structs.replace(report, facts=facts), report_of(B)))


def a_gpu(committed: int = 0) -> DeviceFacts:
    return DeviceFacts(name="CUDA0", uuid="GPU-1", kind="gpu", total=8 * GIB, free=GIB, committed=committed)


def test_what_the_replica_has_is_free_again_and_its_ports_are_not() -> None:
    shard = a_shard(1, device="CUDA0")
    fleet = a_fleet(entities_of(shard, plan=a_plan()), a_gpu(committed=shard.bound.memory))
    before, after = fleet.reports[0], without_replica(fleet, REPLICA).reports[0]
    assert "CUDA0" in device_users(before)
    assert device_users(after) == {}
    assert available_memory(after, "CUDA0") == GIB + shard.bound.memory
    assert replica_ids(after) == set()
    assert Port(18_001) in taken_ports(after)
    assert without_replica(fleet, REPLICA).reports[1] is fleet.reports[1]


def test_a_port_that_the_profile_names_is_free_again() -> None:
    fleet = a_fleet(entities_of(a_leader()), a_gpu())
    assert Port(18_000) in taken_ports(without_replica(fleet, REPLICA).reports[0])
    assert Port(18_000) not in taken_ports(without_replica(fleet, REPLICA, 18_000).reports[0])


def test_memory_that_was_never_taken_or_is_given_back_already_is_not_counted_twice() -> None:
    for state in ("loading", "failed", "stopped"):
        fleet = a_fleet(entities_of(a_shard(1, state, device="CUDA0")), a_gpu())
        assert available_memory(without_replica(fleet, REPLICA).reports[0], "CUDA0") == GIB


def test_another_replica_keeps_what_it_has() -> None:
    other = a_shard(1, device="CUDA0", replica=ReplicaId("tiny-2"), node_id="tiny-2/1")
    fleet = a_fleet(entities_of(other), a_gpu())
    assert without_replica(fleet, REPLICA).reports[0] is fleet.reports[0]


def test_the_recorded_profile_is_planned_even_where_the_catalog_has_another_or_none() -> None:
    recorded = a_plan()
    catalog = recorded_catalog(recorded, None)
    entry, name, profile = catalog.resolve("tiny:two-host")
    assert (entry.path, name, profile) == (recorded.model_path, "two-host", recorded.profile)
    present = Catalog("c", {"tiny": ModelEntry(name="tiny", path="other.gguf", geometry={"n_layer": 4})})
    entry, _, _ = recorded_catalog(recorded, present).resolve("tiny")
    assert (entry.path, entry.geometry) == ("tiny.gguf", {"n_layer": 4})
    assert HostId("host-a") in profile.hosts
