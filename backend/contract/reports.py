"""What an agent says of its host. Reports and events are open: a field that is missing is unknown, never a default."""

from __future__ import annotations

import msgspec

from backend.contract.entities import Entities
from backend.contract.words import HostId, NodeId, Port, UnixMs


class ClientSeen(msgspec.Struct, frozen=True):
    """Open connections from one address to a leader. A proxy is one address, whoever stands behind it."""

    address: str
    connections: int


class LinkSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A leader's connection to the worker of a rank, by the leader's kernel: numeric addresses of both ends.

    ``round_trip_us`` is the shortest of the last minutes, in microseconds: later ones also hold the work of the rank.
    ``owed_seconds`` is how long the rank has owed an answer; None when it owes none or nothing is under way.
    """

    rank: int
    local: str
    remote: str
    round_trip_us: int | None = None
    owed_seconds: float | None = None


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One device under the name that the engine on this host gives it. Memory in bytes.

    ``total`` is what the agent may hand out (its configuration can lower it), ``free`` what the operating system or
    driver says is free now, ``committed`` what reservations and live shards of this agent have been promised.
    """

    name: str
    uuid: str
    kind: str
    total: int
    free: int
    committed: int = 0
    words: str = ""


class ResidentNode(msgspec.Struct, frozen=True, kw_only=True):
    """A shard at an engine's own agent. ``is_ours``: this agent had it loaded; else ``replica`` and ``rank`` are what
    the record of whoever did says, empty and None where it says nothing.

    ``state`` is the engine's own text: shown, never interpreted.
    """

    name: str
    generation: int
    phase: str
    state: str = ""
    is_ours: bool = False
    replica: str = ""
    rank: int | None = None
    world_size: int | None = None


class ResidentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's own agent on the host. None and empty are unknown, never 0.

    ``address`` is what it advertises, under which its peers and ours name it. ``journal`` is the state of its own
    journal in words, ``ok`` when a load may rely on it; ``restart`` why it would refuse to start again, or empty.
    ``sockets`` are descriptors of sockets that it holds, ``unique`` the sockets behind them, ``hidden`` those that the
    kernel lists nowhere: each is a connection slot lost for its life. ``taught`` says that whoever submits to its
    rings is told of a load.
    """

    address: str
    nodes: tuple[ResidentNode, ...] = ()
    journal: str = ""
    journal_files: int | None = None
    journal_bytes: int | None = None
    restart: str = ""
    sockets: int | None = None
    unique: int | None = None
    hidden: int | None = None
    taught: bool | None = None
    words: str = ""


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One engine installed on the host. ``release`` must be equal on every rank of a ring.

    ``flavour`` names the backends it was built with, which an exact build has equal as well; empty is unknown.
    ``resident`` is its own agent, for an engine whose shards are that agent's and not ours.
    """

    engine: str
    folder: str
    release: str
    devices: tuple[str, ...]
    cpu_needs: tuple[str, ...] = ()
    words: str = ""
    flavour: str = ""
    resident: ResidentFacts | None = None


class Illness(msgspec.Struct, frozen=True):
    """A degree of illness of a host, in words that say what to do. ``subject`` is the slot, device or path it is of."""

    kind: str
    words: str
    since_unix_ms: UnixMs
    refuses_loads: bool = False
    subject: str = ""


class ForeignProcess(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that this agent did not start: shown, and never touched before a person adopts it.

    ``pid``, ``start_ticks`` and ``boot_id`` say who it is; ``memory`` is the resident bytes of it and of all that it
    started, ``device_memory`` what the driver says it holds on ``devices``. ``engine`` and ``role`` (leader, worker, or
    broker for what serves no model itself) come from its command line, as does ``ranks``, the world size that it was
    started for. ``model`` is the file or name that it was started with, ``served`` the names that it answers to,
    ``release`` the build that it says it is. ``address`` is where on its host it takes connections, ``can_signal``
    whether the agent's user may end it.

    ``answers`` says what its port told: ``ready``, ``loading``, ``closed`` (it wants a key, which proves nothing),
    ``silent``, ``other`` (something that this engine never says), or empty while nobody asked; ``words`` is more of it.
    """

    pid: int
    program: str
    started_unix_ms: UnixMs | None = None
    user: str = ""
    ports: tuple[Port, ...] = ()
    model: str = ""
    memory: int | None = None
    start_ticks: int = 0
    boot_id: str = ""
    engine: str = ""
    role: str = ""
    ranks: int | None = None
    devices: tuple[str, ...] = ()
    device_memory: int | None = None
    address: str = ""
    served: tuple[str, ...] = ()
    release: str = ""
    answers: str = ""
    words: str = ""
    can_signal: bool | None = None

    @property
    def holds(self) -> int | None:
        """Bytes that it keeps from others: on its devices where a driver counts them, else in main memory."""
        return self.memory if self.device_memory is None else self.device_memory


class HostFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The host as its agent measured it. Memory in bytes; ``ports`` is the inclusive range it may use.

    ``pool`` and ``fabric`` are labels, ``cores`` and ``power_w`` (watts) budgets, all of the agent's configuration;
    empty or 0 means not given. ``ephemeral`` is the range that the kernel gives to outgoing connections, ``addresses``
    what the host's interfaces have beyond loopback and link-local, ``memory_limit`` what the agent's unit or container
    may take with all that it starts, page cache of mapped files included; empty, (0, 0) and 0 mean unknown.
    """

    host: HostId
    agent_version: str
    boot_id: str
    cpu_count: int
    cpu_flags: tuple[str, ...]
    memory_total: int
    memory_free: int
    devices: tuple[DeviceFacts, ...]
    engines: tuple[EngineFacts, ...]
    ports: tuple[Port, Port]
    ports_in_use: tuple[Port, ...]
    advertise: str
    model_roots: tuple[str, ...]
    journal: str
    refuses_loads: str = ""
    measured_unix_ms: UnixMs = UnixMs(0)
    illnesses: tuple[Illness, ...] = ()
    foreign: tuple[ForeignProcess, ...] = ()
    pool: str = ""
    fabric: str = ""
    power_w: int = 0
    cores: int = 0
    ephemeral: tuple[int, int] = (0, 0)
    addresses: tuple[str, ...] = ()
    memory_limit: int = 0


class HostVitals(msgspec.Struct, frozen=True, kw_only=True):
    """What of the facts of a host moves while its agent lives; the rest was said in the report and stays said.

    The fields are those of ``HostFacts`` by the same names.
    """

    memory_free: int
    devices: tuple[DeviceFacts, ...]
    ports_in_use: tuple[Port, ...]
    journal: str
    refuses_loads: str = ""
    measured_unix_ms: UnixMs = UnixMs(0)
    illnesses: tuple[Illness, ...] = ()
    foreign: tuple[ForeignProcess, ...] = ()


def vitals_of(facts: HostFacts) -> HostVitals:
    """The part of the facts that moves."""
    return HostVitals(**{name: getattr(facts, name) for name in HostVitals.__struct_fields__})


def with_vitals(facts: HostFacts, vitals: HostVitals) -> HostFacts:
    """The facts with what has moved since."""
    return msgspec.structs.replace(facts, **{name: getattr(vitals, name) for name in vitals.__struct_fields__})


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one shard. None is unknown, never 0. Bytes, tokens per second, seconds.

    ``source`` says where the counts come from. Canaries are already subtracted. ``arrived`` is how many requests came
    since the drain began, at least: what begins and ends between two readings is not seen. ``clients`` names the
    addresses with most connections, ``clients_beyond`` counts the other addresses; the agent's own are left out.
    """

    node_id: NodeId
    observed_unix_ms: UnixMs
    memory: int | None = None
    loaded: int | None = None
    to_load: int | None = None
    tokens_per_second: float | None = None
    tokens_total: int | None = None
    in_flight: int | None = None
    queued: int | None = None
    oldest_seconds: float | None = None
    canary_seconds: float | None = None
    canary_unix_ms: UnixMs | None = None
    source: str = ""
    words: str = ""
    arrived: int | None = None
    clients: tuple[ClientSeen, ...] | None = None
    clients_beyond: int = 0
    links: tuple[LinkSeen, ...] = ()


class Presence(msgspec.Struct, frozen=True):
    """Another console or operation that is connected to the same agent."""

    who: str
    console: str
    since_unix_ms: UnixMs


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the agent has, as of journal ``seq``. Events after it carry on from there."""

    host: HostId
    agent_epoch: str
    journal_id: str
    journal_epoch: int
    seq: int
    oldest_seq: int
    revision: int
    facts: HostFacts
    entities: Entities
    measurements: tuple[Measurement, ...] = ()
    present: tuple[Presence, ...] = ()
