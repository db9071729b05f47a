"""Small valid values of the contract's types, for tests to change one field of."""

from __future__ import annotations

import json
from typing import Any

from backend.contract.commands import Capacities, Load, StartDrain
from backend.contract.endpoints import Agent, Outer
from backend.contract.entities import (
    Drain,
    Hold,
    LoadRecord,
    OpenOperation,
    Reservation,
    Shard,
)
from backend.contract.envelopes import command_envelope, encode
from backend.contract.findings import warn
from backend.contract.plans import (
    Bound,
    Candidate,
    Fact,
    PhaseBound,
    Plan,
    PlannedShard,
    Profile,
    Term,
)
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

GENERATION = 1_764_412_800_123
CONSOLE = Outer(HostId("host-a"), "console-1", 1)
AGENT = Agent(HostId("host-a"))


def bound() -> Bound:
    term = Term("weights", 1024, "bytes", "file header")
    return Bound(Bytes(1024), Bytes(512), Bytes(256), Bytes(64), Bytes(4096), True, (term,))


def planned(rank: int = 0) -> PlannedShard:
    return PlannedShard(
        rank=rank,
        host=HostId("host-a"),
        node_id=NodeId(f"tiny-1/{rank}"),
        node_generation=NodeGeneration(GENERATION),
        role="leader" if rank == 0 else "worker",
        device="CPU",
        device_uuid="cpu",
        layers=(0, 4),
        holds_output=rank == 0,
        ports=(Port(18_090),),
        advertise="127.0.0.1",
        bound=bound(),
    )


def plan() -> Plan:
    return Plan(
        replica=ReplicaId("tiny-1"),
        model="tiny",
        model_path="tiny.gguf",
        model_facts=None,
        profile_name="two-host",
        profile=Profile(ranks=1),
        profile_fingerprint="f00d",
        engine="llamacpp",
        load_generation=LoadGeneration(GENERATION),
        shards=(planned(),),
        phases=(PhaseBound("loading", 30.0, "bytes / rate"),),
        facts=(Fact(HostId("host-a"), "epoch-1", 3, "1-7e4c0a9"),),
        candidates=(Candidate(HostId("host-a"), True, "has the model"),),
        findings=(warn("memory.tight", "host-a", expected="2 GiB", found="1 GiB", remedy="Use fewer sequences."),),
        made_unix_ms=UnixMs(1),
    )


def load() -> Load:
    return Load(
        op_id=OpId("op-1"),
        node_id=NodeId("tiny-1/0"),
        node_generation=NodeGeneration(GENERATION),
        adapter_kind="llamacpp",
        adapter_content_type="application/json",
        capacities=Capacities(),
        reservation=OpId("op-0"),
        plan=plan(),
        fence=LoadGeneration(GENERATION),
        by="alice",
    )


def drain_command() -> StartDrain:
    return StartDrain(
        op_id=OpId("op-2"),
        replica=ReplicaId("tiny-1"),
        load_generation=LoadGeneration(GENERATION),
        by="alice",
        why="new build",
        deadline_seconds=60.0,
    )


def command_tree(command: Any) -> dict[str, Any]:
    """A command frame as a plain tree, for a test to spoil one field of."""
    tree = json.loads(encode(command_envelope(command, source=CONSOLE, target=AGENT, sequence=1)))
    assert isinstance(tree, dict)
    return tree


def shard(node_id: str = "tiny-1/0", generation: int = GENERATION) -> Shard:
    return Shard(
        host=HostId("host-a"),
        replica=ReplicaId("tiny-1"),
        node_id=NodeId(node_id),
        rank=0,
        world_size=1,
        load_generation=LoadGeneration(generation),
        node_generation=NodeGeneration(generation),
        engine="llamacpp",
        release="1-7e4c0a9",
        role="leader",
        device="CPU",
        device_uuid="cpu",
        layers=(0, 4),
        ports=(Port(18_090),),
        advertise="127.0.0.1",
        model="tiny",
        profile_name="two-host",
        profile_fingerprint="f00d",
        op_id=OpId("op-1"),
        bound=bound(),
        state="ready",
        since_unix_ms=UnixMs(1),
    )


def reservation(op_id: str = "op-0", generation: int = GENERATION) -> Reservation:
    return Reservation(
        op_id=OpId(op_id),
        by="alice",
        replica=ReplicaId("tiny-1"),
        load_generation=LoadGeneration(generation),
        node_ids=(NodeId("tiny-1/0"),),
        ports=(Port(18_090),),
        memory={"CPU": 1024},
        made_unix_ms=UnixMs(1),
        expires_unix_ms=UnixMs(2),
    )


def load_record(op_id: str = "op-1") -> LoadRecord:
    return LoadRecord(OpId(op_id), "alice", plan(), UnixMs(1))


def operation(op_id: str = "op-1") -> OpenOperation:
    return OpenOperation(
        op_id=OpId(op_id), command="load", subject="tiny-1/0", by="alice", payload_digest="ab", at_unix_ms=UnixMs(1)
    )


def drain(replica: str = "tiny-1") -> Drain:
    return Drain(
        replica=ReplicaId(replica),
        load_generation=LoadGeneration(GENERATION),
        op_id=OpId("op-2"),
        by="alice",
        why="new build",
        left_ms=60_000,
        at_unix_ms=UnixMs(1),
        at_deadline="stop",
    )


def hold(node_id: str = "tiny-1/0", kind: str = "ports", generation: int = GENERATION) -> Hold:
    return Hold(node_id=NodeId(node_id), load_generation=LoadGeneration(generation), kind=kind)
