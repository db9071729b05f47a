"""The replicas that an event touches, worked out again: which hosts have what of them, and what they are by that."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from backend.contract.words import HostId, ReplicaId, UnixMs
from backend.control.derive import derive_replica
from backend.control.drift_lens import Lens
from backend.control.drifts import derive_drifts, since_when
from backend.control.fleet_state import Fleet, with_drifts, with_replicas
from backend.control.holdings import Holdings, Part, index_host
from backend.control.open_operations import open_operations
from backend.control.views import Drift, OperationView, ReplicaView


def reindex(fleet: Fleet, names: Iterable[HostId]) -> tuple[Fleet, set[ReplicaId]]:
    """The fleet with the holdings of these hosts indexed, and the replicas whose holdings there changed."""
    index: dict[HostId, dict[ReplicaId, Holdings]] = {}
    where: dict[ReplicaId, frozenset[HostId]] = {}
    touched: set[ReplicaId] = set()
    for name in names:
        old, new = fleet.index[name], index_host(fleet.state.hosts[name].entities)
        changed = [replica for replica in old.keys() | new.keys() if old.get(replica) != new.get(replica)]
        if not changed:
            continue
        index[name] = new
        touched.update(changed)
        for replica in changed:
            hosts = where.get(replica, fleet.where.get(replica, frozenset()))
            if (name in hosts) != (replica in new):
                where[replica] = hosts ^ {name}
    if not index:
        return fleet, touched
    fleet = msgspec.structs.replace(fleet, index={**fleet.index, **index})
    return (_at_these(fleet, where) if where else fleet), touched


def _at_these(fleet: Fleet, where: dict[ReplicaId, frozenset[HostId]]) -> Fleet:
    """The fleet with these hosts of each of these replicas."""
    everywhere = {**fleet.where, **where}
    for replica, hosts in where.items():
        if not hosts:
            del everywhere[replica]
    return msgspec.structs.replace(fleet, where=everywhere)


def touching(fleet: Fleet, host: HostId) -> set[ReplicaId]:
    """The replicas that a host has a part in, or should have by their plan."""
    return {*fleet.planned_at.get(host, ()), *fleet.index[host]}


def rederive(fleet: Fleet, touched: set[ReplicaId], unix_ms: UnixMs, *, look_for_drift: bool = True) -> Fleet:
    """Work the touched replicas out again. Those that come out equal stay the same objects."""
    if not touched:
        return fleet
    state = fleet.state
    views: dict[ReplicaId, ReplicaView | None] = {}
    drifts: dict[ReplicaId, tuple[Drift, ...]] = {}
    for replica in sorted(touched):
        operations = open_operations(replica, state.operations.values())
        parts = _parts(fleet, replica, operations)
        given_up = fleet.given_up.get(replica)
        view = derive_replica(replica, parts, operations, state.models, unix_ms, given_up)
        before = fleet.drifts.get(replica, ())
        if view is not None and look_for_drift:
            lens = Lens(
                replica=view,
                parts=tuple(parts),
                models=state.models,
                headers=fleet.headers,
                is_changing=bool(operations),
            )
            found = since_when(derive_drifts(lens), before, unix_ms)
        else:
            found = before if view is not None else ()
        if view != state.replicas.get(replica):
            views[replica] = view
        if found != before:
            drifts[replica] = found
    return with_drifts(with_replicas(fleet, views), drifts, unix_ms)


def _parts(fleet: Fleet, replica: ReplicaId, operations: list[OperationView]) -> list[Part]:
    """Every host that has something of the replica, and every host of its plans with nothing of it."""
    hosts = fleet.state.hosts
    parts = {name: Part(hosts[name], fleet.index[name][replica]) for name in fleet.where.get(replica, ())}
    plans = [plan for part in parts.values() for plan in part.holdings.plans]
    plans += [operation.plan for operation in operations if operation.plan is not None]
    for name in sorted({shard.host for plan in plans for shard in plan.shards}):
        if name in hosts and name not in parts:
            parts[name] = Part(hosts[name], Holdings())
    return [parts[name] for name in sorted(parts)]
