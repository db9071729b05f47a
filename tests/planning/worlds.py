"""Small factories for the planning tests: hosts, models and catalogs as agents and people would give them."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.cordons import Cordon
from backend.contract.entities import Entities, Hold, Reservation, Shard, hold_key
from backend.contract.models import BlockFacts, ModelFacts
from backend.contract.plans import Bound, Plan, Profile
from backend.contract.reports import DeviceFacts, EngineFacts, HostFacts, HostReport
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
from backend.planning.catalog import Catalog, ModelEntry
from backend.planning.fleet import FleetFacts
from backend.planning.plan import plan

NOW = UnixMs(1_764_412_800_123)
GIB = 2**30
RELEASE = "1-7e4c0a9"


class Ask(msgspec.Struct, frozen=True):
    target: str = "tiny"
    hosts: tuple[str, ...] = ()


def a_model(**changes: Any) -> ModelFacts:
    facts = ModelFacts(
        path="/models/tiny.gguf",
        file_bytes=Bytes(1_479_296),
        expected_bytes=Bytes(1_479_296),
        header_digest="d" * 64,
        architecture="llama",
        name="ringtop-tiny-4x128",
        n_layer=4,
        n_embd=128,
        n_head=4,
        n_head_kv=2,
        key_length=32,
        value_length=32,
        n_vocab=547,
        context_train=4096,
        blocks=tuple(BlockFacts(index, Bytes(295_936)) for index in range(4)),
        output_bytes=Bytes(140_544),
        token_embd_bytes=Bytes(140_032),
        has_output=True,
        tensor_types=("f16", "f32"),
    )
    return msgspec.structs.replace(facts, **changes)


def a_host(name: str, *, devices: dict[str, tuple[int, int]] | None = None, **changes: Any) -> HostReport:
    """A live host. ``devices`` maps names to (free, committed) of 24 GiB; the rest are changes of its facts."""
    shown = devices or {"CPU": (20 * GIB, 0)}
    facts = HostFacts(
        host=HostId(name),
        agent_version="0.1.0",
        boot_id=f"boot-of-{name}",
        cpu_count=8,
        cpu_flags=("avx2", "avx512_vnni"),
        memory_total=24 * GIB,
        memory_free=20 * GIB,
        devices=tuple(
            DeviceFacts(name=device, uuid=f"{name}-{device}", kind="cpu", total=24 * GIB, free=free, committed=used)
            for device, (free, used) in shown.items()
        ),
        engines=(an_engine(*shown),),
        ports=(Port(18_000), Port(18_009)),
        ports_in_use=(),
        advertise=f"10.0.0.{ord(name[-1]) % 200 + 1}",
        model_roots=("/models",),
        journal="ok",
    )
    entities = changes.pop("entities", Entities())
    revision = changes.pop("revision", 3)
    return HostReport(
        host=HostId(name),
        agent_epoch=f"epoch-of-{name}",
        journal_id=f"journal-of-{name}",
        journal_epoch=1,
        seq=10,
        oldest_seq=1,
        revision=revision,
        facts=msgspec.structs.replace(facts, **changes),
        entities=entities,
    )


def an_engine(*devices: str, release: str = RELEASE, needs: tuple[str, ...] = (), flavour: str = "") -> EngineFacts:
    return EngineFacts(
        engine="llamacpp",
        folder="/engines",
        release=release,
        devices=devices or ("CPU",),
        cpu_needs=needs,
        flavour=flavour,
    )


def a_fleet(*reports: HostReport, **changes: Any) -> FleetFacts:
    return FleetFacts(reports=reports or (a_host("host-a"), a_host("host-b")), **changes)


def a_catalog(**profile: Any) -> Catalog:
    shape = Profile(**{"ranks": 3, "hosts": ("host-a", "host-b"), "context": 2048, **profile})
    entry = ModelEntry(name="tiny", path="tiny.gguf", aliases=("t",), profiles={"two-host": shape})
    return Catalog("catalog.toml", {"tiny": entry})


def a_plan(
    fleet: FleetFacts | None = None, *, hosts: tuple[str, ...] = (), profile: Any = None, **changes: Any
) -> Plan:
    """A plan of the tiny model: two workers over host-a and host-b unless told otherwise."""
    asked: dict[str, Any] = {"model": a_model(), "now_unix_ms": NOW, **changes}
    return plan(a_catalog(**(profile or {})), fleet or a_fleet(), Ask(hosts=hosts), **asked)


def ids(plan: Plan) -> list[str]:
    return [finding.id for finding in plan.findings]


def a_shard(
    host: str, *, node: str = "tiny-1/1", state: str = "ready", ports: tuple[int, ...] = (), **changes: Any
) -> Shard:
    generation = changes.pop("generation", 1_000)
    memory = changes.pop("memory", 0)
    fields: dict[str, Any] = {
        "host": HostId(host),
        "replica": ReplicaId(node.partition("/")[0]),
        "node_id": NodeId(node),
        "rank": 1,
        "world_size": 3,
        "load_generation": LoadGeneration(generation),
        "node_generation": NodeGeneration(generation),
        "engine": "llamacpp",
        "release": RELEASE,
        "role": "worker",
        "device": "CPU",
        "device_uuid": "",
        "layers": (0, 2),
        "ports": tuple(Port(port) for port in ports),
        "advertise": "10.0.0.1",
        "model": "tiny",
        "profile_name": "two-host",
        "profile_fingerprint": "",
        "op_id": OpId("op"),
        "bound": Bound(Bytes(memory), Bytes(0), Bytes(0), Bytes(0), Bytes(0), True, ()),
        "state": state,
        "since_unix_ms": NOW,
        **changes,
    }
    return Shard(**fields)


def holding(
    *shards: Shard,
    reservation: Reservation | None = None,
    hold: Hold | None = None,
    highest: int = 0,
    cordon: Cordon | None = None,
) -> Entities:
    return Entities(
        shards={shard.node_id: shard for shard in shards},
        reservations={reservation.op_id: reservation} if reservation else {},
        holds={hold_key(hold): hold} if hold else {},
        highest_generation=highest,
        cordon=cordon,
    )


def a_cordon(why: str = "fan", left_ms: int | None = None) -> Cordon:
    return Cordon(by="alice@ops-1", why=why, at_unix_ms=NOW, left_ms=left_ms)


def a_reservation(
    *, ports: tuple[int, ...] = (), memory: dict[str, int] | None = None, generation: int = 1_000
) -> Reservation:
    return Reservation(
        op_id=OpId("op-of-bob"),
        by="bob",
        replica=ReplicaId("qwen-1"),
        load_generation=LoadGeneration(generation),
        node_ids=(NodeId("qwen-1/1"),),
        ports=tuple(Port(port) for port in ports),
        memory=memory or {},
        made_unix_ms=NOW,
        expires_unix_ms=UnixMs(NOW + 60_000),
    )
