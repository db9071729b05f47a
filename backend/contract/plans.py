"""A plan: everything a load would do, hashed. It travels whole and is kept in the load record."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from backend.contract.findings import Finding, has_refusal
from backend.contract.models import ModelFacts
from backend.contract.numbers import check_port, check_u64
from backend.contract.words import (
    Bytes,
    HostId,
    LoadGeneration,
    NodeGeneration,
    NodeId,
    Port,
    ReplicaId,
    UnixMs,
)

MAX_RANKS = 512
"""The largest world size of a profile; no ring is shown larger, whatever a host claims."""


class Term(msgspec.Struct, frozen=True):
    """One term of a derivation: what it is called, its value and unit, and the formula or fact it comes from.

    ``terms`` are what it is made of, so that a derivation is a small tree; empty for a fact.
    """

    name: str
    value: int
    unit: str
    source: str
    terms: tuple[Term, ...] = ()


class Bound(msgspec.Struct, frozen=True):
    """What a shard may take and return, derived before the load. All sizes in bytes.

    ``weights`` and ``kv`` are derived and compared with the engine's report at its printed resolution; ``compute``
    is an estimate and never compared. ``result`` is the largest result one step may return, of at most
    ``result_limit``. ``derived`` is False when the architecture is outside the tried list: then the sizes are
    estimates and nothing is compared. ``limit`` is what its device had left for this shard when it was planned.
    ``extra`` is what the profile's ``memory`` demands beyond the derived sizes. ``result_derived`` says that ``result``
    comes from a formula that was verified for this architecture, so that it must equal the engine's report to the byte.
    """

    weights: Bytes
    kv: Bytes
    compute: Bytes
    result: Bytes
    result_limit: Bytes
    derived: bool
    terms: tuple[Term, ...]
    limit: Bytes = Bytes(0)
    extra: Bytes = Bytes(0)
    result_derived: bool = False

    @property
    def memory(self) -> int:
        """Bytes the shard is planned to take on its device: weights, KV, the compute estimate and the extra demand."""
        return self.weights + self.kv + self.compute + self.extra

    @property
    def compared(self) -> int:
        """The bytes that must equal the engine's report: weights and KV."""
        return self.weights + self.kv


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The shape in which a model may be loaded, as the catalog has it. ``ranks`` is the world size, leader included.

    ``split`` gives the layer counts per worker rank (empty: even by the plan). ``context`` is tokens, ``sequences``
    the streams served at once (the canary's spare slot comes on top). ``devices`` is how many devices each computing
    rank takes, ``ranks_per_host`` the most such ranks on one host (0: no limit). ``memory`` is the least in bytes to
    plan for each of them (the derived bound counts where it is more), ``cpu_cores`` and ``power`` (watts) what each
    takes of its host's budget. ``pool`` and ``fabric`` are labels that its hosts must carry (empty: any).
    ``share_device`` lets ranks take a GPU that others use, by memory. ``weight`` is the share of requests that a gate
    should give its replicas beside those of other shapes; it decides no placement.
    """

    ranks: int
    hosts: tuple[str, ...] = ()
    device: str = "CPU"
    split: tuple[int, ...] = ()
    context: int = 4096
    sequences: int = 2
    n_batch: int = 2048
    n_ubatch: int = 512
    threads: int = 1
    port: int | None = None
    exact_build: bool = False
    options: dict[str, Any] = {}
    devices: int = 1
    ranks_per_host: int = 0
    memory: int = 0
    cpu_cores: int = 0
    power: int = 0
    weight: int = 100
    pool: str = ""
    fabric: str = ""
    share_device: bool = False

    def __post_init__(self) -> None:
        for name in ("ranks", "context", "sequences", "n_batch", "n_ubatch", "threads", "devices"):
            check_u64(name, getattr(self, name), least=1)
        for name in ("ranks_per_host", "memory", "cpu_cores", "power", "weight"):
            check_u64(name, getattr(self, name))
        if self.ranks > MAX_RANKS:
            raise ValueError(f"ranks is {self.ranks}, more than {MAX_RANKS}")
        for count in self.split:
            check_u64("split", count, least=1)
        if self.port is not None:
            check_port("port", self.port)


class PlannedShard(msgspec.Struct, frozen=True, kw_only=True):
    """One shard of a plan. ``layers`` is the half-open range it holds, None for none; ``role`` is leader or worker.

    ``devices`` and ``device_uuids`` name every device of a shard that takes more than one; ``device`` is the first.
    """

    rank: int
    host: HostId
    node_id: NodeId
    node_generation: NodeGeneration
    role: str
    device: str
    device_uuid: str
    layers: tuple[int, int] | None
    holds_output: bool
    ports: tuple[Port, ...]
    advertise: str
    bound: Bound
    devices: tuple[str, ...] = ()
    device_uuids: tuple[str, ...] = ()

    @property
    def all_devices(self) -> tuple[str, ...]:
        """Every device that it takes."""
        return self.devices or (self.device,)

    def __post_init__(self) -> None:
        check_u64("node_generation", self.node_generation, least=1)
        for port in self.ports:
            check_port("ports", port)


class Candidate(msgspec.Struct, frozen=True):
    """One host of the fleet, whether the plan uses it, and why or why not."""

    host: HostId
    chosen: bool
    reason: str


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the plan relied on at one host; the load is refused when it moved.

    ``flavour`` is the engine's build there, where the profile wants exact builds; ``address`` what the engine's own
    agent advertises there. Empty elsewhere.
    """

    host: HostId
    agent_epoch: str
    revision: int
    release: str
    flavour: str = ""
    address: str = ""


class PhaseBound(msgspec.Struct, frozen=True):
    """The longest a phase may take, in seconds, with its formula in words."""

    phase: str
    seconds: float
    formula: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a load would do: replica, shape, every shard, bounds, candidates and findings, under one digest."""

    replica: ReplicaId
    model: str
    model_path: str
    model_facts: ModelFacts | None
    profile_name: str
    profile: Profile
    profile_fingerprint: str
    engine: str
    load_generation: LoadGeneration
    shards: tuple[PlannedShard, ...]
    phases: tuple[PhaseBound, ...]
    facts: tuple[Fact, ...]
    candidates: tuple[Candidate, ...]
    findings: tuple[Finding, ...]
    made_unix_ms: UnixMs
    digest: str = ""

    def __post_init__(self) -> None:
        check_u64("load_generation", self.load_generation, least=1)

    @property
    def is_refused(self) -> bool:
        """Some finding stops this load."""
        return has_refusal(self.findings)

    @property
    def hosts(self) -> tuple[HostId, ...]:
        """The hosts of its shards in host-id order, which is the order of reservations."""
        return tuple(sorted({shard.host for shard in self.shards}))

    def on_host(self, host: HostId) -> tuple[PlannedShard, ...]:
        """The shards planned at one host, in rank order."""
        return tuple(shard for shard in self.shards if shard.host == host)

    def address_of(self, shard: PlannedShard) -> str:
        """Where the engine's own agent of a shard is reached; empty for an engine without one."""
        return next((fact.address for fact in self.facts if fact.host == shard.host), "")

    def phase_seconds(self, phase: str) -> float:
        """The bound of one phase in seconds; KeyError for a phase without one."""
        for bound in self.phases:
            if bound.phase == phase:
                return bound.seconds
        raise KeyError(phase)


def plan_digest(plan: Plan) -> str:
    """sha256 over the plan without its digest, keys sorted: what a person confirms."""
    bare = msgspec.structs.replace(plan, digest="")
    return hashlib.sha256(msgspec.json.encode(bare, order="sorted")).hexdigest()


def sealed(plan: Plan) -> Plan:
    """The plan with its digest filled in."""
    return msgspec.structs.replace(plan, digest=plan_digest(plan))
