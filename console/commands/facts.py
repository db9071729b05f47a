"""The shapes that ``--json`` prints. Unknown is null, never 0; sizes are bytes, times Unix milliseconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backend.api import (
        Cordon,
        DeviceFacts,
        EngineFacts,
        Exit,
        Hold,
        HostView,
        ModelView,
        OperationView,
        OperatorHold,
        ReplicaView,
        Reservation,
        ShardView,
    )

_AGREES = {"equal": True, "differs": False}


def shard_facts(view: ShardView) -> dict[str, Any]:
    """One shard: its place, its state, and its bound as derived beside what the engine reported."""
    shard = view.shard
    reported = view.reported
    return {
        "node_id": shard.node_id,
        "rank": shard.rank,
        "host": shard.host,
        "role": shard.role,
        "state": view.state,
        "node_generation": shard.node_generation if shard.taken_over is None else None,
        "adopted_as": shard.node_generation if shard.taken_over is not None else None,
        "taken_over": shard.taken_over,
        "device": shard.device,
        "layers": shard.layers,
        "ports": shard.ports,
        "pid": shard.identity.pid if shard.identity else None,
        "words": shard.words,
        "exit": None if shard.exit is None else _exit(shard.exit),
        "bound": {
            "derived": shard.bound.compared if shard.bound.derived else None,
            "reported": None if reported is None else reported.weights + reported.kv,
            "limit": shard.bound.limit,
            "unit": "bytes",
            "agrees": _AGREES.get(view.bound),
            "result": {
                "derived": shard.bound.result if shard.bound.result_derived else None,
                "reported": shard.reported_result,
                "limit": shard.bound.result_limit,
            },
        },
        "resident": shard.resident,
        "release": shard.reported_release or shard.release,
        "measured": None if view.measurement is None else view.measurement.words or None,
    }


def _exit(end: Exit) -> dict[str, Any]:
    return {
        "code": end.code,
        "signal": end.signal,
        "words": end.words,
        "at_unix_ms": end.at_unix_ms,
        "log_tail": end.log_tail,
    }


def replica_facts(view: ReplicaView) -> dict[str, Any]:
    """One replica with its shards in rank order."""
    return {
        "id": view.id,
        "model": view.model,
        "profile": view.profile_name,
        "state": view.state.value,
        "words": view.words,
        "load_generation": view.load_generation or None,
        "ranks_ready": view.ranks_ready,
        "world_size": view.world_size,
        "endpoint": view.endpoint or None,
        "tokens_per_second": view.tokens_per_second,
        "in_flight": view.in_flight,
        "queued": view.queued,
        "arrived": view.arrived,
        "clients": None if view.clients is None else {each.address: each.connections for each in view.clients},
        "clients_beyond": view.clients_beyond,
        "shards": [shard_facts(shard) for shard in sorted(view.shards, key=lambda each: each.shard.rank)],
    }


def cordon_facts(cordon: Cordon | None) -> dict[str, Any] | None:
    """Who keeps new shards away from a host, why and until when; null where nobody does."""
    if cordon is None:
        return None
    return {
        "by": cordon.by,
        "why": cordon.why,
        "at_unix_ms": cordon.at_unix_ms,
        "until_unix_ms": cordon.until_unix_ms,
    }


def host_facts(view: HostView) -> dict[str, Any]:
    """One host as its link knows it, and what its agent measured; null where it never answered."""
    facts = view.facts
    link = {
        "host": view.host,
        "address": view.address,
        "state": view.state.value,
        "words": view.words,
        "agent_version": view.agent_version or None,
        "clock_offset_ms": view.clock_offset_ms,
        "round_trip_ms": view.round_trip_ms,
        "keeper": view.entities.keeper,
        "cordon": cordon_facts(view.entities.cordon),
    }
    if facts is None:
        return {**link, **dict.fromkeys(_MEASURED)}
    measured = (
        facts.journal,
        facts.refuses_loads or None,
        facts.illnesses,
        [_reservation(kept) for _, kept in sorted(view.entities.reservations.items())],
        [_hold(hold) for _, hold in sorted(view.entities.holds.items())],
        [_operator_hold(held) for _, held in sorted(view.entities.operator_holds.items())],
        facts.foreign,
        facts.memory_total,
        facts.memory_free,
        [_device(device) for device in facts.devices],
        [_engine(engine) for engine in facts.engines],
        sorted(view.entities.shards),
    )
    return {**link, **dict(zip(_MEASURED, measured, strict=True))}


_MEASURED = (
    *("journal", "refuses_loads", "illnesses", "reservations", "holds", "operator_holds", "foreign"),
    *("memory_total", "memory_free", "devices", "engines", "shards"),
)
"""What only an agent can say of its host."""


def _reservation(kept: Reservation) -> dict[str, Any]:
    return {
        "replica": kept.replica,
        "generation": kept.load_generation,
        "by": kept.by,
        "nodes": kept.node_ids,
        "ports": kept.ports,
        "memory": kept.memory,
        "cores": kept.cores,
        "power": kept.power,
        "expires_unix_ms": kept.expires_unix_ms,
    }


def _hold(hold: Hold) -> dict[str, Any]:
    return {
        "node_id": hold.node_id,
        "generation": hold.load_generation,
        "kind": hold.kind,
        "ports": hold.ports,
        "device": hold.device or None,
        "memory": hold.memory if hold.device else None,
        "until": hold.until,
        "at_unix_ms": hold.at_unix_ms,
    }


def _operator_hold(held: OperatorHold) -> dict[str, Any]:
    return {
        "subject": held.subject,
        "scope": held.scope,
        "kind": held.kind,
        "by": held.by,
        "why": held.why,
        "at_unix_ms": held.at_unix_ms,
        "until_unix_ms": held.until_unix_ms,
    }


def _device(device: DeviceFacts) -> dict[str, Any]:
    return {
        "name": device.name,
        "kind": device.kind,
        "total": device.total,
        "free": device.free,
        "committed": device.committed,
        "words": device.words,
        "listed_by": device.listed_by,
        "listed_unix_ms": device.listed_unix_ms or None,
        "same_as": device.same_as,
    }


def _engine(engine: EngineFacts) -> dict[str, Any]:
    return {"engine": engine.engine, "release": engine.release, "words": engine.words, "resident": engine.resident}


def model_facts(view: ModelView) -> dict[str, Any]:
    """One model of the catalog."""
    return {
        "name": view.name,
        "aliases": view.aliases,
        "engine": view.engine,
        "path": view.path,
        "profiles": view.profiles,
    }


def operation_facts(view: OperationView) -> dict[str, Any]:
    """One operation as its ledger file tells it."""
    return {
        "id": view.id,
        "kind": view.kind,
        "subject": view.subject,
        "by": view.by,
        "state": view.state,
        "words": view.words,
        "started_unix_ms": view.started_unix_ms,
        "ended_unix_ms": view.ended_unix_ms,
        "load_generation": view.load_generation,
        "exit_code": view.exit_code,
        "context": view.context or None,
        "targets": view.targets,
        "options": view.options,
        "plan_digest": view.plan.digest if view.plan else None,
        "steps": view.steps,
    }
