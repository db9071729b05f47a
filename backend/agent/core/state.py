"""The agent core's state, and everything that goes in and comes out of it, as values."""

from __future__ import annotations

import msgspec

from backend.contract.commands import Command, TendResident
from backend.contract.entities import (
    Entities,
    Hold,
    JournalRecord,
    LoadRecord,
    ProcessIdentity,
    Resident,
    Result,
    Shard,
)
from backend.contract.events import Event
from backend.contract.reports import DeviceFacts, ForeignProcess, Illness
from backend.contract.words import HostId, LoadGeneration, NodeId, OpId, Port, ReplicaId, UnixMs
from backend.engines.driver import Seen


class Now(msgspec.Struct, frozen=True):
    """The moment of a step: wall-clock milliseconds for people, monotonic seconds for every deadline."""

    unix_ms: UnixMs
    mono: float


class Capacity(msgspec.Struct, frozen=True):
    """What the host has at this moment, measured outside: devices, the ports it may use, and its budgets.

    ``cores`` and ``power`` (watts) are the budgets that ranks are promised of; 0 means that it has none.
    """

    devices: tuple[DeviceFacts, ...]
    ports: tuple[Port, Port]
    refuses_loads: str = ""
    cores: int = 0
    power: int = 0


# What goes in.


class Started(msgspec.Struct, frozen=True):
    """A new life of the agent begins, of this version."""

    version: str


class CommandArrived(msgspec.Struct, frozen=True):
    """A durable command from connection ``conn``; ``digest`` is sha256 of its payload.

    ``foreign`` is the engine that an adoption names, as it is at this moment.
    """

    conn: int
    command: Command
    digest: str
    capacity: Capacity
    foreign: ForeignProcess | None = None


class Synced(msgspec.Struct, frozen=True):
    """The records appended under this token are durable."""

    token: int


class JournalFailed(msgspec.Struct, frozen=True):
    """The journal cannot be written any more: nothing that waits for it may happen.

    ``is_over``: not before the agent is started again, and nobody knows what of it is on the disk.
    """

    words: str
    is_over: bool = False


class JournalResumed(msgspec.Struct, frozen=True):
    """The journal takes records again after a refusal; what it has, and nothing else, is true."""

    entities: Entities
    revision: int


class JournalNoticed(msgspec.Struct, frozen=True):
    """Something about the journal itself that it should say of itself."""

    kind: str
    level: str
    words: str


class Spawned(msgspec.Struct, frozen=True):
    """The shim recorded the engine's process; or it is known whom an engine's own agent will be asked to load."""

    node_id: NodeId
    generation: LoadGeneration
    identity: ProcessIdentity | Resident


class SpawnFailed(msgspec.Struct, frozen=True):
    """No process was started, or none is left of an intent that a former life of this agent wrote."""

    node_id: NodeId
    generation: LoadGeneration
    words: str


class EngineSaw(msgspec.Struct, frozen=True):
    """The drive of a shard saw something."""

    node_id: NodeId
    generation: LoadGeneration
    seen: Seen


class DriveBroke(msgspec.Struct, frozen=True):
    """The drive of a shard ended by a fault of ours: its engine runs on, and nobody reads its signals."""

    node_id: NodeId
    generation: LoadGeneration
    words: str


class Ended(msgspec.Struct, frozen=True):
    """The engine's process is gone. None is unknown, never 0."""

    node_id: NodeId
    generation: LoadGeneration
    code: int | None
    signal: int | None
    words: str
    log_tail: tuple[str, ...]


class Stuck(msgspec.Struct, frozen=True):
    """Processes that survived KILL; without ``pids`` a run that cannot be judged, and is left alone."""

    node_id: NodeId
    generation: LoadGeneration
    words: str
    pids: tuple[int, ...] = ()


class Gone(msgspec.Struct, frozen=True):
    """The proof that ends one hold, by its kind: no listener on the ports, or no process left that owns the device."""

    node_id: NodeId
    generation: LoadGeneration
    kind: str


class Adopted(msgspec.Struct, frozen=True):
    """After a restart: this process is still the one that was recorded; a resident is asked about from here on."""

    node_id: NodeId
    generation: LoadGeneration
    identity: ProcessIdentity | Resident


class Discovered(msgspec.Struct, frozen=True):
    """An engine's own agent runs a shard that nobody here asked for, and its loader's record says what it is."""

    shard: Shard
    load: LoadRecord


class Tended(msgspec.Struct, frozen=True):
    """What became of something that was done to an engine's own agent."""

    op_id: OpId
    result: Result


class HealthSeen(msgspec.Struct, frozen=True):
    """Everything that ails the host at this moment."""

    illnesses: tuple[Illness, ...]


class GlassBroken(msgspec.Struct, frozen=True):
    """A note of an emergency stop that was made past this agent, found at its start."""

    note: str
    words: str
    by: str


class Ticked(msgspec.Struct, frozen=True):
    """Time passed: reservations and drains look at their deadlines."""


class Disconnected(msgspec.Struct, frozen=True):
    """A connection is gone: its answers go nowhere; the operations run on."""

    conn: int


CoreEvent = (
    Started
    | CommandArrived
    | Synced
    | JournalFailed
    | JournalResumed
    | JournalNoticed
    | Spawned
    | SpawnFailed
    | EngineSaw
    | DriveBroke
    | Ended
    | Stuck
    | Gone
    | Adopted
    | Discovered
    | Tended
    | HealthSeen
    | GlassBroken
    | Ticked
    | Disconnected
)


# What comes out.


class Append(msgspec.Struct, frozen=True):
    """Write these records; ``Synced(token)`` follows when they are durable.

    ``lazy``: progress, which a later record restates; it may be left out when the disk is low.
    """

    token: int
    records: tuple[JournalRecord, ...]
    lazy: bool = False


class Spawn(msgspec.Struct, frozen=True):
    """Start the engine of this shard through a shim, or name whom an engine's own agent is to load."""

    node_id: NodeId
    generation: LoadGeneration
    nonce: str


class Follow(msgspec.Struct, frozen=True):
    """Watch this shard for its end and drive its engine. Of a resident that is not ``adopted`` its load is asked."""

    node_id: NodeId
    generation: LoadGeneration
    adopted: bool


class StopEngine(msgspec.Struct, frozen=True):
    """Stop this engine by its steps, and its whole group; a resident is unloaded by its own agent."""

    node_id: NodeId
    generation: LoadGeneration


class ProveGone(msgspec.Struct, frozen=True):
    """Wait for the proof that ends this hold, then say so."""

    hold: Hold


class Tend(msgspec.Struct, frozen=True):
    """Do this to an engine's own agent; ``Tended`` follows."""

    command: TendResident


class Send(msgspec.Struct, frozen=True):
    """Tell one connection."""

    conn: int
    event: Event


class DropNote(msgspec.Struct, frozen=True):
    """The note is in the journal: remove its file."""

    note: str


Effect = Append | Spawn | Follow | StopEngine | ProveGone | Tend | Send | DropNote


class CoreState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the core knows. ``entities`` is durable by way of the journal; the rest dies with the agent.

    ``awaiting`` holds effects per append token; ``asked`` the connections that wait for an operation's result;
    ``zeros`` the empty readings in a row of a draining replica; the deadlines are monotonic seconds, those of operator
    holds by their keys, that of the keeper's lease None where none holds, that of the cordon None where it has no end;
    ``journal_is_over`` says that nothing that waits for the journal will ever come in this life;
    ``ignored`` counts what a drive saw that no shard in its state can do; ``illnesses`` are those that the journal
    was told of.
    """

    host: HostId
    agent_epoch: str
    entities: Entities
    revision: int = 0
    next_token: int = 1
    awaiting: dict[int, tuple[Effect, ...]] = {}
    asked: dict[OpId, tuple[int, ...]] = {}
    zeros: dict[ReplicaId, int] = {}
    drain_deadlines: dict[ReplicaId, float] = {}
    reservation_deadlines: dict[OpId, float] = {}
    hold_deadlines: dict[str, float] = {}
    lease_deadline: float | None = None
    cordon_deadline: float | None = None
    journal_failed: str = ""
    journal_is_over: bool = False
    ignored: int = 0
    illnesses: tuple[Illness, ...] = ()
