"""Drift: two sides holding different values for one thing that must be equal, with what follows and what to do."""

from __future__ import annotations

import ipaddress

from backend.contract.words import HostId
from backend.control.derive import find_model
from backend.control.views import Drift, ModelView, ReplicaView, ShardView

_LIVE_LESS = ("stopped", "failed")


def derive_drifts(replica: ReplicaView, models: dict[str, ModelView], boots: dict[HostId, str]) -> tuple[Drift, ...]:
    """Every drift of one replica's live shards, in rank order. Equal boot ids in ``boots`` are one machine."""
    live = [shard for shard in replica.shards if shard.state not in _LIVE_LESS]
    found = [drift for shard in live for drift in _of_shard(replica, shard)]
    found += _releases(live)
    found += _loopback(live, boots)
    if live:
        found += _profile(replica, models)
    return tuple(found)


def _of_shard(replica: ReplicaView, view: ShardView) -> list[Drift]:
    shard = view.shard
    drifts = []
    if view.generation == "differs":
        drifts.append(
            Drift(
                subject=shard.node_id,
                what="generation",
                one=f"load record {shard.load_generation}",
                other=f"registered at {shard.host} {shard.node_generation}",
                consequence="The leader stops at its first release; every later session hangs.",
                remedy=f"Unload {replica.id} and load it again with one generation.",
            )
        )
    if view.bound == "differs" and view.reported is not None:
        drifts.append(
            Drift(
                subject=shard.node_id,
                what="result bound",
                one=f"derived weights {shard.bound.weights:,} + kv {shard.bound.kv:,}".replace(",", " "),
                other=f"reported weights {view.reported.weights:,} + kv {view.reported.kv:,}".replace(",", " "),
                consequence=(
                    f"Rank {shard.rank} runs in another shape than was planned and checked; "
                    "its memory may not fit under load."
                ),
                remedy=f"Compare the profile with the log of {shard.node_id}, correct it, load {replica.id} again.",
            )
        )
    return drifts


def _releases(live: list[ShardView]) -> list[Drift]:
    """One release on every rank: ranks are compared with the lowest one that says its own."""
    speaking = [view.shard for view in live if view.shard.release]
    return [
        Drift(
            subject=shard.node_id,
            what="engine release",
            one=f"rank {speaking[0].rank} on {speaking[0].host} {speaking[0].release}",
            other=f"rank {shard.rank} on {shard.host} {shard.release}",
            consequence="Ranks of different releases read each other's messages wrongly, or hang.",
            remedy=f"Install one release on {speaking[0].host} and {shard.host}, then load again.",
        )
        for shard in speaking[1:]
        if shard.release != speaking[0].release
    ]


def _loopback(live: list[ShardView], boots: dict[HostId, str]) -> list[Drift]:
    """A loopback address on another machine than rank 0's. Agents that share one machine reach it rightly."""
    leader = next((view.shard for view in live if view.shard.rank == 0), None)
    if leader is None or not boots.get(leader.host):
        return []
    return [
        Drift(
            subject=view.shard.node_id,
            what="advertised address",
            one=f"rank 0 is on {leader.host}",
            other=f"{view.shard.host} advertises {view.shard.advertise}",
            consequence=f"{leader.host} dials itself instead of {view.shard.host}.",
            remedy=f"Set advertise in {view.shard.host}'s agent.toml to an address that {leader.host} can reach.",
        )
        for view in live
        if boots.get(view.shard.host) not in (None, "", boots[leader.host]) and _is_loopback(view.shard.advertise)
    ]


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _profile(replica: ReplicaView, models: dict[str, ModelView]) -> list[Drift]:
    """The catalog beside the load record. A catalog that is missing or empty says nothing."""
    if not models or replica.plan is None:
        return []
    model = find_model(models, replica.model)
    profile = model.profiles.get(replica.profile_name) if model else None
    if profile == replica.plan.profile:
        return []
    what = f"{replica.model}:{replica.profile_name}"
    return [
        Drift(
            subject=replica.id,
            what="profile changed" if profile is not None else "catalog",
            one=f"load record of {what}",
            other=f"catalog has another {what}" if profile is not None else f"catalog has no {what}",
            consequence="It runs in the shape it was loaded with; the next load takes the catalog's.",
            remedy=f"Restore {what} in catalog.toml, or load {replica.id} again.",
        )
    ]
