"""Small makers of the values that the operator's side works with."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.entities import (
    Buffers,
    Canary,
    Change,
    Entities,
    Exit,
    JournalRecord,
    LoadRecord,
    Shard,
)
from backend.contract.events import Welcome
from backend.contract.plans import Bound, Fact, PhaseBound, Plan, PlannedShard, Profile, sealed
from backend.contract.reports import HostFacts, HostReport
from backend.contract.words import (
    Bytes,
    HostId,
    LoadGeneration,
    NodeGeneration,
    NodeId,
    OpId,
    Port,
    ReplicaId,
    UnixMs,
)
from backend.control.link_events import LinkUp

GENERATION = LoadGeneration(1_764_412_800_123)
MIB = 1_048_576
RELEASE = "build 1, commit 7e4c0a9"
REPLICA = ReplicaId("tiny-1")
A, B = HostId("host-a"), HostId("host-b")
HOST_OF_RANK = {0: A, 1: A, 2: B}


def a_bound(weights: int = 10 * MIB, kv: int = 2 * MIB, *, derived: bool = True) -> Bound:
    return Bound(Bytes(weights), Bytes(kv), Bytes(MIB), Bytes(4096), Bytes(0), derived, ())


def a_shard(rank: int, state: str = "ready", *, host: HostId | None = None, **fields: Any) -> Shard:
    generation = fields.pop("load_generation", GENERATION)
    values: dict[str, Any] = {
        "host": host or HOST_OF_RANK[rank],
        "replica": REPLICA,
        "node_id": NodeId(f"{REPLICA}/{rank}"),
        "rank": rank,
        "world_size": 3,
        "load_generation": generation,
        "node_generation": NodeGeneration(generation),
        "engine": "llamacpp",
        "release": RELEASE,
        "role": "leader" if rank == 0 else "worker",
        "device": "CPU",
        "device_uuid": "",
        "layers": None if rank == 0 else (2 * rank - 2, 2 * rank),
        "ports": (Port(18_000 + rank),),
        "advertise": "127.0.0.1",
        "model": "tiny",
        "profile_name": "two-host",
        "profile_fingerprint": "f",
        "op_id": OpId("load-1-reserve"),
        "bound": a_bound(0, 0) if rank == 0 else a_bound(),
        "state": state,
        "since_unix_ms": UnixMs(1),
        **fields,
    }
    return Shard(**values)


def a_leader(state: str = "ready", **fields: Any) -> Shard:
    """Rank 0 that a canary has proven, with the buffers that every worker was planned to take."""
    values: dict[str, Any] = {
        "endpoint": "http://127.0.0.1:18090",
        "canary": Canary(True, 0.4, UnixMs(1), "ok"),
        "buffers": tuple(Buffers(rank, 10 * MIB, 2 * MIB, 5) for rank in (1, 2)),
        **fields,
    }
    return a_shard(0, state, **values)


def killed(signal: int = 9) -> Exit:
    return Exit(None, signal, f"signal {signal} (killed)", UnixMs(5), ("last line",))


def a_plan(**fields: Any) -> Plan:
    generation = fields.get("load_generation", GENERATION)
    values: dict[str, Any] = {
        "replica": REPLICA,
        "model": "tiny",
        "model_path": "tiny.gguf",
        "model_facts": None,
        "profile_name": "two-host",
        "profile": Profile(ranks=3, hosts=(A, B)),
        "profile_fingerprint": "f",
        "engine": "llamacpp",
        "load_generation": generation,
        "shards": tuple(
            PlannedShard(
                rank=rank,
                host=host,
                node_id=NodeId(f"{REPLICA}/{rank}"),
                node_generation=NodeGeneration(generation),
                role="leader" if rank == 0 else "worker",
                device="CPU",
                device_uuid="",
                layers=None if rank == 0 else (2 * rank - 2, 2 * rank),
                holds_output=rank == 2,
                ports=(Port(18_000 + rank),),
                advertise="127.0.0.1",
                bound=a_bound(0, 0) if rank == 0 else a_bound(),
            )
            for rank, host in HOST_OF_RANK.items()
        ),
        "phases": (PhaseBound("loading", 20.0, "20 s"),),
        "facts": tuple(Fact(host, f"epoch-{host}", 0, RELEASE) for host in (A, B)),
        "candidates": (),
        "findings": (),
        "made_unix_ms": UnixMs(1),
        **fields,
    }
    return sealed(Plan(**values))


def facts_of(host: HostId, boot_id: str = "boot-1") -> HostFacts:
    return HostFacts(
        host=host,
        agent_version="0.1.0",
        boot_id=boot_id,
        cpu_count=2,
        cpu_flags=(),
        memory_total=1,
        memory_free=1,
        devices=(),
        engines=(),
        ports=(Port(18_000), Port(18_999)),
        ports_in_use=(),
        advertise="127.0.0.1",
        model_roots=(),
        journal="ok",
    )


def entities_of(*shards: Shard, plan: Plan | None = None, **fields: Any) -> Entities:
    loads = (
        {} if plan is None else {OpId("load-1-reserve"): LoadRecord(OpId("load-1-reserve"), "alice", plan, UnixMs(1))}
    )
    return Entities(shards={shard.node_id: shard for shard in shards}, loads=loads, **fields)


def report_of(host: HostId, entities: Entities | None = None, *, seq: int = 10, **fields: Any) -> HostReport:
    values: dict[str, Any] = {
        "host": host,
        "agent_epoch": f"epoch-{host}",
        "journal_id": f"journal-{host}",
        "journal_epoch": 1,
        "seq": seq,
        "oldest_seq": 1,
        "revision": 0,
        "facts": facts_of(host),
        "entities": entities or Entities(),
        **fields,
    }
    return HostReport(**values)


def welcome_of(report: HostReport) -> Welcome:
    return Welcome(
        host=report.host,
        agent_epoch=report.agent_epoch,
        journal_id=report.journal_id,
        journal_epoch=report.journal_epoch,
        head_seq=report.seq,
        major=1,
        minor=0,
        agent_version="0.1.0",
        read_only=False,
        asked_unix_ms=0,
        answered_unix_ms=0,
    )


def up(report: HostReport, *, at: float = 1.0) -> LinkUp:
    return LinkUp(
        host=report.host,
        at=at,
        unix_ms=UnixMs(1000),
        welcome=welcome_of(report),
        report=report,
        round_trip_ms=1.0,
        clock_offset_ms=0,
    )


def a_record(seq: int, shard: Shard | None = None, **fields: Any) -> JournalRecord:
    change = Change(shard=shard) if shard is not None else fields.pop("change", None)
    return JournalRecord(
        kind=fields.pop("kind", "note"), words="w", at_unix_ms=UnixMs(2), change=change, seq=seq, **fields
    )


def changed(shard: Shard, **fields: Any) -> Shard:
    return msgspec.structs.replace(shard, **fields)
