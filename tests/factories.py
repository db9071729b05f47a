"""Small worlds for tests: a plan over two hosts, sealed, with everything a load needs."""

from __future__ import annotations

from backend.contract.plans import Bound, Fact, PhaseBound, Plan, PlannedShard, Profile, sealed
from backend.contract.words import Bytes, HostId, LoadGeneration, NodeGeneration, Port, ReplicaId, UnixMs, node_id

GENERATION = 1_764_412_800_123


def make_bound(memory: int = 1000) -> Bound:
    return Bound(
        weights=Bytes(memory),
        kv=Bytes(0),
        compute=Bytes(0),
        result=Bytes(8200),
        result_limit=Bytes(10_000),
        derived=True,
        terms=(),
    )


def make_shard(replica: str, rank: int, host: str, port: int, generation: int, memory: int = 1000) -> PlannedShard:
    return PlannedShard(
        rank=rank,
        host=HostId(host),
        node_id=node_id(ReplicaId(replica), rank),
        node_generation=NodeGeneration(generation),
        role="leader" if rank == 0 else "worker",
        device="CPU",
        device_uuid="cpu",
        layers=None if rank == 0 else (rank - 1, rank),
        holds_output=False,
        ports=(Port(port),),
        advertise="127.0.0.1",
        bound=make_bound(memory),
    )


def make_plan(
    replica: str = "tiny-1",
    generation: int = GENERATION,
    hosts: tuple[str, ...] = ("host-a", "host-a", "host-b"),
    first_port: int = 18_000,
    memory: int = 1000,
) -> Plan:
    """A plan with one rank per entry of ``hosts``; rank 0 leads."""
    shards = tuple(
        make_shard(replica, rank, host, first_port + rank, generation, memory) for rank, host in enumerate(hosts)
    )
    return sealed(
        Plan(
            replica=ReplicaId(replica),
            model="tiny",
            model_path="tiny.gguf",
            model_facts=None,
            profile_name="two-host",
            profile=Profile(ranks=len(hosts)),
            profile_fingerprint="f" * 64,
            engine="llamacpp",
            load_generation=LoadGeneration(generation),
            shards=shards,
            phases=tuple(PhaseBound(name, 10.0, "10 s") for name in ("workers", "bind", "load", "canary")),
            facts=tuple(Fact(HostId(host), "epoch", 0, "1-7e4c0a9") for host in sorted(set(hosts))),
            candidates=(),
            findings=(),
            made_unix_ms=UnixMs(generation),
        )
    )
