"""What a reload plans with: the profile as it was loaded, and the fleet as it is once the replica has gone. Pure."""

from __future__ import annotations

import msgspec

from backend.contract.plans import Plan
from backend.contract.reports import DeviceFacts, HostReport
from backend.contract.states import shard_state
from backend.contract.words import Port, ReplicaId
from backend.planning.catalog import Catalog, ModelEntry
from backend.planning.fleet import ALLOCATED, HOST_MEMORY, FleetFacts


class Wanted(msgspec.Struct, frozen=True):
    """What to plan: ``MODEL:PROFILE``, at the hosts of the profile unless some are named."""

    target: str
    hosts: tuple[str, ...] = ()


def recorded_catalog(recorded: Plan, present: Catalog | None) -> Catalog:
    """A catalog of one model in one shape, as a load record has them.

    The geometry that a catalog overrides is in no plan; it is the present catalog's, where that has the model.
    """
    known = present.models.get(recorded.model) if present is not None else None
    entry = ModelEntry(
        name=recorded.model,
        path=recorded.model_path,
        engine=recorded.engine,
        profiles={recorded.profile_name: recorded.profile},
        geometry=known.geometry if known is not None else {},
    )
    return Catalog(name=f"the load record of {recorded.replica}", models={entry.name: entry})


def without_replica(fleet: FleetFacts, replica: ReplicaId, fixed_port: int | None = None) -> FleetFacts:
    """The fleet as it will be when a replica is gone: its memory and devices are free, its ports are not.

    A new load gets new ports; only ``fixed_port``, which the profile names, is free again.
    """
    reports = tuple(_without(report, replica, fixed_port) for report in fleet.reports)
    return msgspec.structs.replace(fleet, reports=reports)


def _without(report: HostReport, replica: ReplicaId, fixed_port: int | None) -> HostReport:
    entities, facts = report.entities, report.facts
    going = [shard for shard in entities.shards.values() if shard.replica == replica]
    if not going:
        return report
    freed: dict[str, int] = {}
    promised: dict[str, int] = {}
    for shard in going:
        state = shard_state(shard.state)
        if state is not None and state.is_live:
            promised[shard.device] = promised.get(shard.device, 0) + shard.bound.memory
        if state in ALLOCATED:
            freed[shard.device] = freed.get(shard.device, 0) + shard.bound.memory
    names = {shard.node_id for shard in going}
    ports = {port for shard in going for port in shard.ports} | set(facts.ports_in_use)
    rest = msgspec.structs.replace(
        entities,
        shards={name: shard for name, shard in entities.shards.items() if name not in names},
        loads={op: record for op, record in entities.loads.items() if record.plan.replica != replica},
        drains={name: drain for name, drain in entities.drains.items() if name != replica},
        holds={key: hold for key, hold in entities.holds.items() if hold.node_id not in names},
    )
    emptied = msgspec.structs.replace(
        facts,
        devices=tuple(_freed(device, freed, promised) for device in facts.devices),
        memory_free=min(facts.memory_total, facts.memory_free + freed.get(HOST_MEMORY, 0)),
        ports_in_use=tuple(sorted(Port(port) for port in ports if port != fixed_port)),
    )
    return msgspec.structs.replace(report, entities=rest, facts=emptied)


def _freed(device: DeviceFacts, freed: dict[str, int], promised: dict[str, int]) -> DeviceFacts:
    return msgspec.structs.replace(
        device,
        free=device.free + freed.get(device.name, 0),
        committed=max(0, device.committed - promised.get(device.name, 0)),
    )
