"""What the console may see: one immutable ``FleetState``, keyed by host and then by slot.

Intended, observed and proven stay three things: a plan or record says what was intended, ``Shard`` what an agent
says, ``Canary`` what was proven. None is unknown, never 0.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.entities import Buffers, Canary, Drain, Entities, JournalRecord, Shard
from backend.contract.plans import Plan, Profile
from backend.contract.reports import ClientSeen, HostFacts, LinkSeen, Measurement, Presence
from backend.contract.states import HostState, ReplicaState
from backend.contract.words import HostId, LoadGeneration, NodeGeneration, NodeId, OpId, ReplicaId, UnixMs


class HostView(msgspec.Struct, frozen=True, kw_only=True):
    """One host as its link knows it. ``heard_at`` and ``reported_at`` are monotonic seconds of this process, 0 = never.

    ``words`` says why it is not live and when the next try is; ``clock_offset_ms`` is the agent's clock minus ours.
    What a silent host last said is kept: ``entities`` are as of the record ``entities_seq`` of its journal, whose last
    one is ``head_seq``.
    """

    host: HostId
    address: str
    state: HostState
    words: str = ""
    agent_epoch: str = ""
    agent_version: str = ""
    journal_id: str = ""
    head_seq: int = 0
    entities_seq: int = 0
    revision: int = 0
    clock_offset_ms: int | None = None
    round_trip_ms: float | None = None
    heard_at: float = 0.0
    reported_at: float = 0.0
    facts: HostFacts | None = None
    entities: Entities = Entities()
    measurements: dict[NodeId, Measurement] = {}
    measured_at: dict[NodeId, float] = {}
    present: tuple[Presence, ...] = ()

    @property
    def clock_ahead_ms(self) -> int | None:
        """How far the agent's clock is ahead of ours (negative: behind) for certain: a slow answer proves little.

        Half the round trip may lie on either way, so that much of the measured offset may be no offset at all.
        """
        if self.clock_offset_ms is None:
            return None
        doubt = round((self.round_trip_ms or 0.0) / 2)
        certain = max(0, abs(self.clock_offset_ms) - doubt)
        return certain if self.clock_offset_ms > 0 else -certain


class ShardView(msgspec.Struct, frozen=True, kw_only=True):
    """One shard with what others say of it. ``bound`` and ``generation`` are equal, differs or unknown.

    ``reported`` is what the engine at rank 0 said it allocated for this rank. ``state`` is the shard's own word, or
    ``unreachable`` / ``lost`` when its host is silent.
    """

    shard: Shard
    state: str
    measurement: Measurement | None
    measured_at: float
    reported: Buffers | None
    bound: str
    generation: str


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """One replica, derived from its shards, its load record and the open operations.

    Of its ranks that no host reports: ``not_running`` has those that a live agent denies, ``missing`` all others, each
    with the reason. ``oddities`` are ranks that are there twice, or that its load does not have.
    """

    id: ReplicaId
    model: str
    profile_name: str
    state: ReplicaState
    words: str
    load_generation: LoadGeneration
    world_size: int
    ranks_ready: int
    shards: tuple[ShardView, ...]
    endpoint: str
    bound: str
    tokens_per_second: float | None
    in_flight: int | None
    queued: int | None
    oldest_seconds: float | None
    source: str
    measured_at: float
    canary: Canary | None
    drain: Drain | None
    drain_left_ms: int | None
    unknown_targets: int = 0
    plan: Plan | None = None
    missing: dict[int, str] = {}
    not_running: dict[int, str] = {}
    oddities: tuple[str, ...] = ()
    arrived: int | None = None
    clients: tuple[ClientSeen, ...] | None = None
    clients_beyond: int = 0
    links: tuple[LinkSeen, ...] = ()


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One shard that an operation acts on."""

    host: HostId
    node_id: NodeId
    rank: int
    node_generation: NodeGeneration
    adapter_kind: str


class OperationStep(msgspec.Struct, frozen=True):
    """One line of an operation's ledger file. ``lines`` holds more text, such as the end of a rank's log."""

    at_unix_ms: UnixMs
    target: str
    what: str
    words: str
    lines: tuple[str, ...] = ()


class OperationView(msgspec.Struct, frozen=True, kw_only=True):
    """One operation as its ledger file tells it. ``state``: running, ownerless, succeeded, refused, failed, unknown.

    ``phase`` is what it does now (``connecting``, ``reserving``, ``checking``, ``dialling``, ``loading``,
    ``rolling back``, ``unloading``, ``draining``); ``unknown_targets`` counts the targets not yet proven absent. A
    ledger file that cannot be read to its end has the state ``damaged``, and what can be read of it.
    """

    id: OpId
    kind: str
    subject: str
    by: str
    state: str
    words: str
    started_unix_ms: UnixMs
    ended_unix_ms: UnixMs | None
    load_generation: LoadGeneration | None
    steps: tuple[OperationStep, ...]
    exit_code: int | None = None
    phase: str = ""
    unknown_targets: int = 0
    plan: Plan | None = None
    context: str = ""
    targets: tuple[Target, ...] = ()
    options: dict[str, Any] = {}


class ModelView(msgspec.Struct, frozen=True):
    """One model of the catalog: canonical name, aliases, engine, and its profiles by name.

    ``words`` says why it cannot be used, or nothing. ``fingerprints`` are those of the profiles; ``mode`` is ``manual``
    or ``on_demand``, with ``idle_seconds`` until an unused replica may go, down to ``desired`` ones, which are loaded
    in the shape of ``scaling_profile`` (empty: its only one).
    """

    name: str
    aliases: tuple[str, ...]
    engine: str
    path: str
    profiles: dict[str, Profile]
    words: str = ""
    fingerprints: dict[str, str] = {}
    mode: str = "manual"
    idle_seconds: int = 0
    desired: int = 0
    scaling_profile: str = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one submitted request. ``done`` False: still under way. ``exit_code`` follows the CLI's table."""

    op_id: OpId
    request: str
    done: bool
    exit_code: int = 0
    words: str = ""
    plan: Plan | None = None
    value: dict[str, Any] = {}


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody knows of a drift and says so until a time. ``version`` is that of the drift they saw."""

    drift: str
    note: str
    by: str
    at_unix_ms: UnixMs
    until_unix_ms: UnixMs
    version: str


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Two sides holding different values for one thing that must be equal. Each value with who holds it.

    ``id`` names the thing and where it differs, and never the values, so that ``since_unix_ms`` outlives their
    changes. ``version`` changes with what would have to be acknowledged anew. ``severity`` is alarm or warn: alarm
    where what runs is wrong, warn where the next load or a person would be misled.
    """

    id: str
    subject: str
    what: str
    one: str
    other: str
    consequence: str
    remedy: str
    one_source: str = ""
    other_source: str = ""
    severity: str = "warn"
    since_unix_ms: UnixMs = UnixMs(0)
    version: str = ""
    acknowledged: Acknowledgement | None = None

    @property
    def is_open(self) -> bool:
        """Nobody has acknowledged it, or that has run out."""
        return self.acknowledged is None


class JournalLine(msgspec.Struct, frozen=True):
    """One record of one host. ``index`` counts arrivals at this console from 1, over all hosts."""

    index: int
    host: HostId
    record: JournalRecord


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the console shows. Compared by identity: an unchanged state is the same object.

    Hosts and replicas are in the order in which people count (``by_number``).

    ``fault`` is what escaped from the backend's loop; ``Backend.stamp()`` says when that loop last lived. ``drifts``
    holds the acknowledged ones too; ``acknowledgement_words`` says why none can be read.
    """

    context: str
    label: str
    hosts: dict[HostId, HostView]
    replicas: dict[ReplicaId, ReplicaView]
    operations: dict[OpId, OperationView]
    models: dict[str, ModelView]
    catalog_words: str
    answers: dict[OpId, Answer]
    drifts: tuple[Drift, ...]
    journal_head: int
    fault: str | None
    read_only: bool
    acknowledgement_words: str = ""
