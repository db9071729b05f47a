"""What each host has of each replica: the index under the derivation, so that no event looks at the whole fleet."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from backend.contract.entities import Drain, Entities, Reservation, Shard
from backend.contract.plans import Plan
from backend.contract.words import NodeId, ReplicaId
from backend.control.views import HostView

K = TypeVar("K")
V = TypeVar("V")


class Holdings(msgspec.Struct, frozen=True):
    """What one host has of one replica. ``intents`` are the slots with a command that has no result yet."""

    shards: tuple[Shard, ...] = ()
    plans: tuple[Plan, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    drain: Drain | None = None
    intents: tuple[NodeId, ...] = ()


class Part(msgspec.Struct, frozen=True):
    """One host's part in a replica."""

    host: HostView
    holdings: Holdings


def kept_entities(before: Entities, now: Entities) -> Entities:
    """What a host reports, with the objects that were known already where they are equal.

    An agent repeats its plans in every report; what stays the same object is compared by a glance from here on.
    """
    shards, loads = _kept(before.shards, now.shards), _kept(before.loads, now.loads)
    kept = msgspec.structs.replace(now, shards=shards, loads=loads)
    return before if kept == before else kept


def _kept(before: dict[K, V], now: dict[K, V]) -> dict[K, V]:
    return {
        key: known if (known := before.get(key)) == value and known is not None else value for key, value in now.items()
    }


def index_host(entities: Entities) -> dict[ReplicaId, Holdings]:
    """What a host has, by replica."""
    shards: dict[ReplicaId, list[Shard]] = {}
    for shard in entities.shards.values():
        shards.setdefault(shard.replica, []).append(shard)
    plans: dict[ReplicaId, list[Plan]] = {}
    for load in entities.loads.values():
        plans.setdefault(load.plan.replica, []).append(load.plan)
    reservations: dict[ReplicaId, list[Reservation]] = {}
    for reservation in entities.reservations.values():
        reservations.setdefault(reservation.replica, []).append(reservation)
    intents: dict[ReplicaId, list[NodeId]] = {}
    for operation in entities.operations.values():
        if operation.result is None and operation.command in ("load", "unload"):
            replica = ReplicaId(operation.subject.partition("/")[0])
            intents.setdefault(replica, []).append(NodeId(operation.subject))
    names = shards.keys() | plans.keys() | reservations.keys() | intents.keys() | entities.drains.keys()
    return {
        name: Holdings(
            shards=tuple(sorted(shards.get(name, ()), key=lambda shard: (shard.rank, shard.load_generation))),
            plans=tuple(sorted(plans.get(name, ()), key=lambda plan: plan.load_generation)),
            reservations=tuple(reservations.get(name, ())),
            drain=entities.drains.get(name),
            intents=tuple(sorted(intents.get(name, ()))),
        )
        for name in names
    }
