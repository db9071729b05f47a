"""Small factories for fleet states: every test builds the world it is about."""

from __future__ import annotations

from typing import Any

from backend.contract.entities import Buffers, Canary, Drain, Exit, JournalRecord, Shard
from backend.contract.findings import refuse, warn
from backend.contract.naming import by_number
from backend.contract.plans import Bound, Candidate, PhaseBound, Plan, PlannedShard, Profile, Term, sealed
from backend.contract.reports import DeviceFacts, EngineFacts, HostFacts, Measurement
from backend.contract.states import HostState, ReplicaState
from backend.contract.words import Bytes, HostId, LoadGeneration, NodeGeneration, NodeId, OpId, Port, ReplicaId, UnixMs
from backend.control.views import (
    Answer,
    Drift,
    FleetState,
    HostView,
    JournalLine,
    ModelView,
    OperationStep,
    OperationView,
    ReplicaView,
    ShardView,
)

GENERATION = 1_764_412_800_123
NOW_MS = 1_764_417_871_000
NOW = 1000.0
GIB = 1 << 30


def bound(weights: int = 100_000_000, kv: int = 37_935_244, result: int = 3_696_012) -> Bound:
    return Bound(
        weights=Bytes(weights),
        kv=Bytes(kv),
        compute=Bytes(20_000_000),
        result=Bytes(result),
        result_limit=Bytes(256 << 20),
        derived=True,
        terms=(
            Term("weights", weights, "B", "tensors of blocks 0-11"),
            Term("kv", kv, "B", "2 x context x n_embd_k x 2 B"),
        ),
    )


def shard(replica: str = "tiny-1", rank: int = 0, host: str = "gpu-a", **changes: Any) -> Shard:
    given: dict[str, Any] = {
        "host": HostId(host),
        "replica": ReplicaId(replica),
        "node_id": NodeId(f"{replica}/{rank}"),
        "rank": rank,
        "world_size": 3,
        "load_generation": LoadGeneration(GENERATION),
        "node_generation": NodeGeneration(GENERATION),
        "engine": "llamacpp",
        "release": "1-7e4c0a9",
        "role": "leader" if rank == 0 else "worker",
        "device": "CPU",
        "device_uuid": "",
        "layers": None if rank == 0 else (rank * 2 - 2, rank * 2),
        "ports": (Port(18000 + rank),),
        "advertise": "192.168.0.6",
        "model": "tiny",
        "profile_name": "two-host",
        "profile_fingerprint": "abcd",
        "op_id": OpId("op-1"),
        "bound": bound(),
        "state": "ready",
        "since_unix_ms": UnixMs(NOW_MS - 60_000),
    }
    return Shard(**{**given, **changes})


def shard_view(rank: int = 0, *, state: str | None = None, measured_at: float = NOW, **changes: Any) -> ShardView:
    views = {name: changes.pop(name) for name in ("bound", "generation", "reported", "measurement") if name in changes}
    made = shard(rank=rank, **({"state": state} if state else {}), **changes)
    measurement = views.get(
        "measurement",
        Measurement(node_id=made.node_id, observed_unix_ms=UnixMs(NOW_MS), memory=int(9.8 * GIB)),
    )
    return ShardView(
        shard=made,
        state=state or made.state,
        measurement=measurement,
        measured_at=measured_at,
        reported=views.get("reported", Buffers(rank, 100_000_000, 37_935_244, 0)),
        bound=views.get("bound", "equal"),
        generation=views.get("generation", "equal"),
    )


def replica(name: str = "tiny-1", state: ReplicaState = ReplicaState.READY, **changes: Any) -> ReplicaView:
    hosts = ("gpu-a", "gpu-a", "gpu-b")
    given: dict[str, Any] = {
        "id": ReplicaId(name),
        "model": name.rpartition("-")[0],
        "profile_name": "two-host",
        "state": state,
        "words": "",
        "load_generation": LoadGeneration(GENERATION),
        "world_size": 3,
        "ranks_ready": 3,
        "shards": tuple(shard_view(rank, replica=name, host=hosts[rank]) for rank in range(3)),
        "endpoint": "http://gpu-a:18090",
        "bound": "equal",
        "tokens_per_second": 28.1,
        "in_flight": 2,
        "queued": 0,
        "oldest_seconds": 38.0,
        "source": "the engine's metrics",
        "measured_at": NOW,
        "canary": Canary(True, 0.41, UnixMs(NOW_MS - 20_000), ""),
        "drain": None,
        "drain_left_ms": None,
    }
    return ReplicaView(**{**given, **changes})


def drain(name: str = "tiny-1", **changes: Any) -> Drain:
    given: dict[str, Any] = {
        "replica": ReplicaId(name),
        "load_generation": LoadGeneration(GENERATION),
        "op_id": OpId("op-9"),
        "by": "alice@desk",
        "why": "",
        "left_ms": 120_000,
        "at_unix_ms": UnixMs(NOW_MS - 18_000),
        "at_deadline": "give-up",
    }
    return Drain(**{**given, **changes})


def host(name: str = "gpu-a", state: HostState = HostState.LIVE, **changes: Any) -> HostView:
    facts = HostFacts(
        host=HostId(name),
        agent_version="0.1.0",
        boot_id="b",
        cpu_count=16,
        cpu_flags=("avx2",),
        memory_total=64 * GIB,
        memory_free=40 * GIB,
        devices=(DeviceFacts(name="CPU", uuid="", kind="cpu", total=64 * GIB, free=40 * GIB),),
        engines=(EngineFacts(engine="llamacpp", folder="/opt/llama", release="1-7e4c0a9", devices=("CPU",)),),
        ports=(Port(18000), Port(18999)),
        ports_in_use=(),
        advertise="192.168.0.6",
        model_roots=("/models",),
        journal="healthy",
    )
    given: dict[str, Any] = {
        "host": HostId(name),
        "address": f"ssh://ops@{name}",
        "state": state,
        "clock_offset_ms": 3,
        "heard_at": NOW,
        "reported_at": NOW,
        "facts": facts,
    }
    return HostView(**{**given, **changes})


def record(words: str = "ready after 2 s", **changes: Any) -> JournalRecord:
    given: dict[str, Any] = {"kind": "shard.ready", "words": words, "at_unix_ms": UnixMs(NOW_MS), "node_id": "tiny-1/0"}
    return JournalRecord(**{**given, **changes})


def journal_line(index: int = 1, words: str = "ready after 2 s", host: str = "gpu-a", **changes: Any) -> JournalLine:
    return JournalLine(index, HostId(host), record(words, **changes))


def profile(**changes: Any) -> Profile:
    return Profile(**{"ranks": 3, "hosts": ("gpu-a", "gpu-b"), **changes})


def model(name: str = "tiny", **profiles: Profile) -> ModelView:
    return ModelView(name, (), "llamacpp", f"{name}.gguf", profiles or {"two-host": profile(), "one": profile(ranks=1)})


def plan(*, refused: bool = False, warned: bool = False) -> Plan:
    findings = []
    if refused:
        findings.append(
            refuse(
                "address.loopback",
                "gpu-b",
                expected="an address that gpu-a can reach",
                found="gpu-b advertises 127.0.0.1, and ranks are on 2 hosts",
                remedy="Set advertise in gpu-b's agent.toml.",
            )
        )
    if warned:
        findings.append(
            warn("clock.offset", "gpu-b", expected="under 1 s", found="2.1 s ahead of gpu-a", remedy="Check its clock.")
        )
    hosts = ("gpu-a", "gpu-a", "gpu-b")
    shards = tuple(
        PlannedShard(
            rank=rank,
            host=HostId(hosts[rank]),
            node_id=NodeId(f"tiny-2/{rank}"),
            node_generation=NodeGeneration(GENERATION),
            role="leader" if rank == 0 else "worker",
            device="CPU",
            device_uuid="",
            layers=None if rank == 0 else (rank * 2 - 2, rank * 2),
            holds_output=rank == 2,
            ports=(Port(18000 + rank),),
            advertise="192.168.0.6",
            bound=bound(),
        )
        for rank in range(3)
    )
    return sealed(
        Plan(
            replica=ReplicaId("tiny-2"),
            model="tiny",
            model_path="/models/tiny.gguf",
            model_facts=None,
            profile_name="two-host",
            profile=profile(),
            profile_fingerprint="abcd",
            engine="llamacpp",
            load_generation=LoadGeneration(GENERATION),
            shards=shards,
            phases=(
                PhaseBound("loading", 310.0, "61 GiB / 0.2 GiB/s"),
                PhaseBound("warming", 60.0, "fixed"),
            ),
            facts=(),
            candidates=(
                Candidate(HostId("gpu-a"), True, "named by the profile"),
                Candidate(HostId("gpu-c"), False, "unreachable"),
            ),
            findings=tuple(findings),
            made_unix_ms=UnixMs(NOW_MS),
        )
    )


def operation(op_id: str = "op-1", state: str = "running", **changes: Any) -> OperationView:
    given: dict[str, Any] = {
        "id": OpId(op_id),
        "kind": "load",
        "subject": "tiny-1",
        "by": "alice@desk",
        "state": state,
        "words": "",
        "started_unix_ms": UnixMs(NOW_MS - 30_000),
        "ended_unix_ms": None,
        "load_generation": LoadGeneration(GENERATION),
        "steps": (
            OperationStep(UnixMs(NOW_MS - 29_000), "gpu-a", "reserved", "3 slots"),
            OperationStep(UnixMs(NOW_MS - 28_000), "tiny-1/1", "loading", "reads 61 GiB"),
        ),
    }
    return OperationView(**{**given, **changes})


def drift() -> Drift:
    return Drift(
        id="generation:step37-1/3",
        subject="step37-1/3",
        what="generation",
        one="1764412800123",
        one_source="load record",
        other="1",
        other_source="registered at gpu-b",
        severity="alarm",
        since_unix_ms=UnixMs(NOW_MS - 60_000),
        consequence="The head stops at its first release; every later session hangs.",
        remedy="Load again with one number.",
    )


def answer(op_id: str, request: str = "MakePlan", **changes: Any) -> Answer:
    return Answer(**{"op_id": OpId(op_id), "request": request, "done": True, **changes})


def fleet(*replicas: ReplicaView, **changes: Any) -> FleetState:
    given: dict[str, Any] = {
        "context": "prod",
        "label": "PROD",
        "hosts": {HostId(name): host(name) for name in ("gpu-a", "gpu-b")},
        "replicas": {view.id: view for view in sorted(replicas, key=lambda view: by_number(view.id))},
        "operations": {},
        "models": {"tiny": model()},
        "catalog_words": "",
        "answers": {},
        "drifts": (),
        "journal_head": 0,
        "fault": None,
        "read_only": False,
    }
    return FleetState(**{**given, **changes})


def exited(rank: int = 2, name: str = "glm-2") -> ShardView:
    end = Exit(None, 9, "signal 9 (out of memory) after 41 s", UnixMs(NOW_MS), ("loading", "alloc failed: 61 GiB"))
    return shard_view(rank, state="failed", replica=name, host="gpu-b", exit=end, measurement=None)


def busy_fleet() -> FleetState:
    """One of everything, as on a bad night."""
    differs = shard_view(
        2, replica="step37-1", host="gpu-b", node_generation=NodeGeneration(1), generation="differs", bound="differs",
        reported=Buffers(2, 59_136_012, 0, 0),
    )  # fmt: skip
    step = replica("step37-1", in_flight=3)
    step = replica("step37-1", in_flight=3, bound="differs", shards=(*step.shards[:2], differs))
    return fleet(
        step,
        replica("tiny-1", ReplicaState.DRAINING, tokens_per_second=4.0, drain=drain(), drain_left_ms=102_000),
        replica(
            "qwen-122b-1", ReplicaState.RECOVERING, ranks_ready=2, tokens_per_second=None, in_flight=None,
            queued=None, oldest_seconds=None, bound="unknown", words="rank 2 has not reported",
        ),
        replica(
            "glm-2", ReplicaState.FAILED, ranks_ready=2, words="rank 2 exited: signal 9",
            shards=(*replica("glm-2").shards[:2], exited()),
        ),
        hosts={
            HostId("gpu-a"): host("gpu-a"),
            HostId("gpu-b"): host("gpu-b", clock_offset_ms=2100),
            HostId("gpu-c"): host(
                "gpu-c", HostState.UNREACHABLE, words="ssh: connection timed out; next try 12:04:34", facts=None
            ),
        },
        drifts=(drift(),),
        operations={OpId("op-1"): operation()},
    )  # fmt: skip
