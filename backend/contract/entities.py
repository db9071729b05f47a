"""What an agent keeps, as values: the after-images that its journal records carry.

One pure fold serves both sides: an agent rebuilds itself from its journal with it, and a console follows the agent by
the same records on top of a report.
"""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.cordons import Cordon
from backend.contract.plans import Bound, Plan
from backend.contract.words import (
    HostId,
    LoadGeneration,
    NodeGeneration,
    NodeId,
    OpId,
    Port,
    ReplicaId,
    UnixMs,
)


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Who a process is: a pid alone is not an identity. ``start_ticks`` is field 22 of /proc/PID/stat."""

    pid: int
    start_ticks: int
    boot_id: str
    nonce: str


class Resident(msgspec.Struct, frozen=True):
    """A shard that an engine's own agent runs and ours only asked for: where it was asked, by which name and number.

    It stands in the place of a process: none of its processes is this agent's to name, to signal or to wait for.
    """

    address: str
    name: str
    generation: NodeGeneration

    @property
    def words(self) -> str:
        """Who it is, for people."""
        return f"node {self.name} generation {self.generation} at {self.address}"


class Exit(msgspec.Struct, frozen=True):
    """How an engine ended. ``code`` and ``signal`` are None when nobody could learn them: unknown is never 0."""

    code: int | None
    signal: int | None
    words: str
    at_unix_ms: UnixMs
    log_tail: tuple[str, ...] = ()


class Buffers(msgspec.Struct, frozen=True):
    """What the engine said it allocated for one rank, in bytes (printed MiB times 1048576, rounded).

    ``parts`` is how many sizes at most were added up, each of which the engine had rounded.
    """

    rank: int
    weights: int
    kv: int
    compute: int
    parts: int = 1


class Canary(msgspec.Struct, frozen=True):
    """A short completion through rank 0 that crossed every rank."""

    ok: bool
    seconds: float
    at_unix_ms: UnixMs
    words: str


class TakenOver(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that no agent started and a person adopted: by whom, why, and what it was at that moment.

    What such an engine was never told stays unknown: a bound, and a generation of its own. ``memory`` is the bytes that
    it held then, ``address`` where on its host it takes connections, ``started_by`` the user whose process it is.
    """

    by: str
    why: str
    at_unix_ms: UnixMs
    program: str
    address: str
    memory: int | None = None
    started_by: str = ""
    started_unix_ms: UnixMs | None = None


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One shard as its agent knows it. ``words`` is the reason for its state; ``buffers`` is known at rank 0 only.

    ``ends_as`` is set while stopping: ``stopped`` when somebody asked for it, ``failed`` when it had to be ended.
    ``reported_result`` is the largest result in bytes that the engine said it may return, which ``bound`` derived, and
    ``reported_release`` what it said that it is; an engine that says neither leaves them unknown.
    ``identity`` is its process, or ``resident`` whom an engine's own agent runs it for; both are None before the start.
    ``taken_over`` is set for an engine that no agent started: then its generation numbers the adoption, and its bound
    holds nothing but the memory that was measured.

    ``state`` is text, so that a newer agent's word stays readable; see ``states.shard_state``.
    """

    host: HostId
    replica: ReplicaId
    node_id: NodeId
    rank: int
    world_size: int
    load_generation: LoadGeneration
    node_generation: NodeGeneration
    engine: str
    release: str
    role: str
    device: str
    device_uuid: str
    layers: tuple[int, int] | None
    ports: tuple[Port, ...]
    advertise: str
    model: str
    profile_name: str
    profile_fingerprint: str
    op_id: OpId
    bound: Bound
    state: str
    since_unix_ms: UnixMs
    words: str = ""
    endpoint: str = ""
    identity: ProcessIdentity | None = None
    exit: Exit | None = None
    buffers: tuple[Buffers, ...] = ()
    canary: Canary | None = None
    ends_as: str = ""
    revision: int = 0
    taken_over: TakenOver | None = None
    resident: Resident | None = None
    reported_result: int | None = None
    reported_release: str = ""

    @property
    def is_begun(self) -> bool:
        """It has a process of ours, or an engine's own agent was named for it: there is something to stop."""
        return self.identity is not None or self.resident is not None


class LoadRecord(msgspec.Struct, frozen=True):
    """What an agent keeps of a load so that it outlives every console: who, the whole plan, its ranks here."""

    op_id: OpId
    by: str
    plan: Plan
    at_unix_ms: UnixMs


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """Node ids, generation, ports, device memory and budgets held durably before the first LOAD. Expires.

    ``cores`` and ``power`` (watts) are what its ranks take of the host's budgets.
    """

    op_id: OpId
    by: str
    replica: ReplicaId
    load_generation: LoadGeneration
    node_ids: tuple[NodeId, ...]
    ports: tuple[Port, ...]
    memory: dict[str, int]
    made_unix_ms: UnixMs
    expires_unix_ms: UnixMs
    cores: int = 0
    power: int = 0


class OpenOperation(msgspec.Struct, frozen=True, kw_only=True):
    """One command at this agent: its payload hash for idempotence, and its single result once there is one.

    ``generation`` is the load generation that a load took; 0 for other commands and for those of an old agent.
    """

    op_id: OpId
    command: str
    subject: str
    by: str
    payload_digest: str
    at_unix_ms: UnixMs
    result: Result | None = None
    generation: int = 0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The one outcome of a command.

    ``status`` is succeeded, rejected or failed; ``resource_state`` is absent, present or unknown.
    """

    status: str
    resource_state: str
    first_error: str = ""
    cleanup_error: str = ""
    value: dict[str, Any] = {}


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """Emptying one replica, kept at every rank's agent. ``left_ms`` is what remained at ``at_unix_ms``.

    ``at_deadline`` is ``stop`` or ``give-up``; ``outcome`` is empty while it runs, else ``done``, ``given up``,
    ``cancelled`` or ``cut n``.
    """

    replica: ReplicaId
    load_generation: LoadGeneration
    op_id: OpId
    by: str
    why: str
    left_ms: int
    at_unix_ms: UnixMs
    at_deadline: str
    admission_closed_by: str = ""
    outcome: str = ""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Ports or a device kept back because something may still use them; ended on proof only.

    ``kind`` is ``ports``, ``device`` (its memory), or ``stuck``: a process that survives KILL, and while it does its
    device takes no new load.
    """

    node_id: NodeId
    load_generation: LoadGeneration
    kind: str
    ports: tuple[Port, ...] = ()
    device: str = ""
    memory: int = 0
    until: str = ""
    at_unix_ms: UnixMs = UnixMs(0)


class Failing(msgspec.Struct, frozen=True, kw_only=True):
    """The recent failures of one slot, oldest first. Quarantined, it takes no load until a person unloads it."""

    node_id: NodeId
    failed_unix_ms: tuple[UnixMs, ...]
    words: str
    is_quarantined: bool = False


class OperatorHold(msgspec.Struct, frozen=True, kw_only=True):
    """What a person decided about a replica or a model, obeyed by the keeper until it ends or is released.

    ``scope`` is ``replica`` or ``model``; ``kind`` is ``down`` (nothing of it is loaded), ``paused`` (nothing is done
    about it) or ``quarantined`` (a keeper used up its load budget). ``left_ms`` is what remained at ``at_unix_ms``;
    None holds until somebody releases it.
    """

    subject: str
    scope: str
    kind: str
    by: str
    why: str
    at_unix_ms: UnixMs
    left_ms: int | None = None

    @property
    def until_unix_ms(self) -> UnixMs | None:
        """When it ends by itself, for display."""
        return None if self.left_ms is None else UnixMs(self.at_unix_ms + self.left_ms)


class KeeperLease(msgspec.Struct, frozen=True, kw_only=True):
    """Who keeps the fleet as this agent knows it; one that has ended stays, so that its epoch is never given again.

    ``console`` names the keeper's process, ``seconds`` is what each claim and renewal gives. Renewals are not written.
    ``ended`` is empty while it holds, else ``over`` or ``resigned``.
    """

    keeper_epoch: int
    who: str
    console: str
    seconds: float
    at_unix_ms: UnixMs
    ended: str = ""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one journal record makes true: after-images to set and keys to remove.

    ``restates``: said again for a checkpoint, nothing was decided. ``highest_generation`` is 0 but in a checkpoint.
    """

    shard: Shard | None = None
    load: LoadRecord | None = None
    reservation: Reservation | None = None
    operation: OpenOperation | None = None
    drain: Drain | None = None
    hold: Hold | None = None
    drop_shards: tuple[NodeId, ...] = ()
    drop_loads: tuple[OpId, ...] = ()
    drop_reservations: tuple[OpId, ...] = ()
    drop_operations: tuple[OpId, ...] = ()
    drop_drains: tuple[ReplicaId, ...] = ()
    drop_holds: tuple[str, ...] = ()
    failing: Failing | None = None
    drop_failing: tuple[NodeId, ...] = ()
    highest_generation: int = 0
    restates: bool = False
    operator_hold: OperatorHold | None = None
    drop_operator_holds: tuple[str, ...] = ()
    keeper: KeeperLease | None = None
    cordon: Cordon | None = None
    drop_cordon: bool = False


class Entities(msgspec.Struct, frozen=True):
    """Everything an agent runs, reserves, holds and has open. Keyed so that one change copies one small dict."""

    shards: dict[NodeId, Shard] = {}
    loads: dict[OpId, LoadRecord] = {}
    reservations: dict[OpId, Reservation] = {}
    operations: dict[OpId, OpenOperation] = {}
    drains: dict[ReplicaId, Drain] = {}
    holds: dict[str, Hold] = {}
    highest_generation: int = 0
    failing: dict[NodeId, Failing] = {}
    operator_holds: dict[str, OperatorHold] = {}
    keeper: KeeperLease | None = None
    cordon: Cordon | None = None


class JournalRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened on a host. ``level`` is info, warn or alarm; ``seq`` counts from 1 within a journal.

    ``kind`` is a dotted word for programs, ``words`` the sentence for people; text from engines stays raw here and
    is made safe at the render boundary.
    """

    kind: str
    words: str
    at_unix_ms: UnixMs
    level: str = "info"
    by: str = ""
    replica: str = ""
    node_id: str = ""
    change: Change | None = None
    seq: int = 0


_DECISIONS = (
    "reservation",
    "load",
    "drain",
    "hold",
    "cordon",
    "drop_reservations",
    "drop_drains",
    "drop_holds",
    "drop_cordon",
)


def hold_key(hold: Hold) -> str:
    """The key of a hold among the entities: slot, generation and kind."""
    return f"{hold.node_id}@{hold.load_generation}/{hold.kind}"


def operator_hold_key(scope: str, subject: str) -> str:
    """The key of an operator hold among the entities: a replica and a model may have one name."""
    return f"{scope}:{subject}"


def fold(entities: Entities, record: JournalRecord) -> Entities:
    """The entities after one record. Pure; copies only the dicts that the record touches."""
    change = record.change
    if change is None:
        return entities
    new: dict[str, Any] = {}
    if change.shard is not None or change.drop_shards:
        shards = {k: v for k, v in entities.shards.items() if k not in change.drop_shards}
        if change.shard is not None:
            shards[change.shard.node_id] = change.shard
            new["highest_generation"] = max(entities.highest_generation, change.shard.load_generation)
        new["shards"] = shards
    if change.load is not None or change.drop_loads:
        loads = {k: v for k, v in entities.loads.items() if k not in change.drop_loads}
        if change.load is not None:
            loads[change.load.op_id] = change.load
        new["loads"] = loads
    if change.reservation is not None or change.drop_reservations:
        reservations = {k: v for k, v in entities.reservations.items() if k not in change.drop_reservations}
        if change.reservation is not None:
            reservations[change.reservation.op_id] = change.reservation
            highest = max(entities.highest_generation, change.reservation.load_generation)
            new["highest_generation"] = max(new.get("highest_generation", 0), highest)
        new["reservations"] = reservations
    if change.operation is not None or change.drop_operations:
        operations = {k: v for k, v in entities.operations.items() if k not in change.drop_operations}
        if change.operation is not None:
            operations[change.operation.op_id] = change.operation
        new["operations"] = operations
    if change.drain is not None or change.drop_drains:
        drains = {k: v for k, v in entities.drains.items() if k not in change.drop_drains}
        if change.drain is not None:
            drains[change.drain.replica] = change.drain
        new["drains"] = drains
    if change.hold is not None or change.drop_holds:
        holds = {k: v for k, v in entities.holds.items() if k not in change.drop_holds}
        if change.hold is not None:
            holds[hold_key(change.hold)] = change.hold
        new["holds"] = holds
    if change.failing is not None or change.drop_failing:
        failing = {k: v for k, v in entities.failing.items() if k not in change.drop_failing}
        if change.failing is not None:
            failing[change.failing.node_id] = change.failing
        new["failing"] = failing
    if change.operator_hold is not None or change.drop_operator_holds:
        kept = {k: v for k, v in entities.operator_holds.items() if k not in change.drop_operator_holds}
        if change.operator_hold is not None:
            kept[operator_hold_key(change.operator_hold.scope, change.operator_hold.subject)] = change.operator_hold
        new["operator_holds"] = kept
    if change.keeper is not None:
        new["keeper"] = change.keeper
    if change.cordon is not None or change.drop_cordon:
        new["cordon"] = change.cordon
    if change.highest_generation:
        highest = max(entities.highest_generation, change.highest_generation)
        new["highest_generation"] = max(new.get("highest_generation", 0), highest)
    return msgspec.structs.replace(entities, **new)


def moves_revision(change: Change | None) -> bool:
    """Whether a change moves the revision of its agent: decisions do, measurements and states do not."""
    return change is not None and not change.restates and any(getattr(change, name) for name in _DECISIONS)
