"""What may be asked of an agent. Commands are closed both ways: an unknown type, field or value is refused by name."""

from __future__ import annotations

from typing import Literal

import msgspec

from backend.contract.numbers import BadValue, check_port, check_seconds, check_text, check_u64
from backend.contract.plans import Plan
from backend.contract.words import HostId, LoadGeneration, NodeGeneration, NodeId, OpId, ReplicaId

LONGEST_OP_ID = 512
LONGEST_WORDS = 4096
"""Characters of what a person says with a command: it stands in reports, which every console has to be able to read."""
_WORDS = (
    *("by", "why", "who", "console", "subject", "replica", "node_id", "reservation"),
    *("admission_closed_by", "engine", "life", "folder", "aside"),
)
LONGEST_HOLD_SECONDS = 366 * 86_400
"""Of whatever an agent keeps until a time: a hold, a cordon, a reservation, a drain."""
LONGEST_LEASE_SECONDS = 3600
LONGEST_ANSWER_SECONDS = 3600
"""Of what one answer may be waited for: a probe, a prompt."""


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    """The base of every command. ``op_id`` is made before the first send and kept for every retry."""

    op_id: OpId

    def __post_init__(self) -> None:
        check_text("op_id", self.op_id)
        if len(self.op_id) > LONGEST_OP_ID:
            raise BadValue(f"op_id has {len(self.op_id)} characters, more than {LONGEST_OP_ID}")
        for name in _WORDS:
            if (length := len(getattr(self, name, ""))) > LONGEST_WORDS:
                raise BadValue(f"{name} has {length} characters, more than {LONGEST_WORDS}: say it shorter")


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must equal the agent's present state; None is not checked."""

    agent_epoch: str | None = None
    revision: int | None = None
    generation: LoadGeneration | None = None


class Hello(Command, frozen=True, kw_only=True, tag="hello"):
    """The first frame of a connection. ``host`` is the id that the console expects to find."""

    host: HostId
    console: str
    who: str
    connection_generation: int
    major: int
    minor: int
    read_only: bool = False
    sent_unix_ms: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("connection_generation", self.connection_generation, least=1)


class Subscribe(Command, frozen=True, kw_only=True, tag="journal.subscribe"):
    """Stream the journal after a cursor (``journal_id:journal_epoch:seq:chain``), or the last ``tail`` records."""

    cursor: str | None = None
    tail: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("tail", self.tail)


class InspectModel(Command, frozen=True, kw_only=True, tag="model.inspect"):
    """Read a model file's header under the agent's model roots."""

    path: str


class Check(Command, frozen=True, kw_only=True, tag="check"):
    """Run every guard that only this host can run for the plan's shards here; nothing is started."""

    plan: Plan


class ProbeListen(Command, frozen=True, kw_only=True, tag="probe.listen"):
    """Listen on a reserved address for one dial that must carry ``nonce``; for at most ``seconds``."""

    address: str
    port: int
    nonce: str
    seconds: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_port("port", self.port)
        check_seconds("seconds", self.seconds, most=LONGEST_ANSWER_SECONDS)


class ProbeDial(Command, frozen=True, kw_only=True, tag="probe.dial"):
    """Dial an address of another host and expect it to answer ``nonce``."""

    address: str
    port: int
    nonce: str
    seconds: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_port("port", self.port)
        check_seconds("seconds", self.seconds, most=LONGEST_ANSWER_SECONDS)


class Reserve(Command, frozen=True, kw_only=True, tag="reserve"):
    """Hold node ids, generation, ports and device memory for a plan's shards here, durably, for ``seconds``."""

    plan: Plan
    by: str
    seconds: float
    expect: Expect = Expect()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seconds("seconds", self.seconds, most=LONGEST_HOLD_SECONDS)


class Release(Command, frozen=True, kw_only=True, tag="release"):
    """End the reservation that ``reservation`` made. One that is gone already succeeds as absent."""

    reservation: OpId
    by: str


class Capacities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lifecycle envelope's four capacities, all positive."""

    queue_capacity: int = 65_536
    completion_capacity: int = 65_536
    retained_capacity: int = 65_536
    retained_bytes: int = 268_435_456

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_u64(name, getattr(self, name), least=1)


class Load(Command, frozen=True, kw_only=True, tag="load"):
    """Start one shard. Goes to the agent, never to the node it creates. ``body`` is for the engine module alone.

    ``fence`` is a new claim: it must exceed the highest generation stored for the slot.
    """

    node_id: NodeId
    node_generation: NodeGeneration
    adapter_kind: str
    adapter_content_type: str
    capacities: Capacities
    reservation: OpId
    plan: Plan
    fence: LoadGeneration
    by: str
    body: str = ""
    expect: Expect = Expect()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("node_generation", self.node_generation, least=1)
        check_u64("fence", self.fence, least=1)


class Unload(Command, frozen=True, kw_only=True, tag="unload"):
    """Stop one shard of the generation named. One already gone succeeds as absent; an ended one is dismissed."""

    node_id: NodeId
    node_generation: NodeGeneration
    adapter_kind: str
    by: str
    why: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("node_generation", self.node_generation, least=1)


class StartDrain(Command, frozen=True, kw_only=True, tag="drain.start"):
    """Begin to empty a replica at this agent. ``deadline_seconds`` counts from its arrival."""

    replica: ReplicaId
    load_generation: LoadGeneration
    by: str
    why: str
    deadline_seconds: float
    at_deadline: Literal["stop", "give-up"] = "give-up"
    admission_closed_by: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("load_generation", self.load_generation, least=1)
        check_seconds("deadline_seconds", self.deadline_seconds, most=LONGEST_HOLD_SECONDS)


class ChangeDrain(Command, frozen=True, kw_only=True, tag="drain.change"):
    """Extend, force or cancel a drain that runs. ``extend_seconds`` belongs to ``extend`` alone."""

    replica: ReplicaId
    by: str
    action: Literal["extend", "force", "cancel"]
    extend_seconds: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action == "extend":
            check_seconds("extend_seconds", self.extend_seconds, most=LONGEST_HOLD_SECONDS)


class AdoptForeign(Command, frozen=True, kw_only=True, tag="foreign.adopt"):
    """Record an engine that no agent started as the one shard of ``plan``: exactly this process, or nothing.

    From then on it is shown, counted, drained and stopped like any other shard.
    """

    pid: int
    start_ticks: int
    boot_id: str
    plan: Plan
    by: str
    why: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("pid", self.pid, least=1)
        check_u64("start_ticks", self.start_ticks, least=1)
        check_text("boot_id", self.boot_id)


class SetOperatorHold(Command, frozen=True, kw_only=True, tag="operator.hold"):
    """Hold a replica or a model down or paused, durably; it replaces what held it before. None: until released."""

    subject: str
    scope: Literal["replica", "model"]
    kind: Literal["down", "paused", "quarantined"]
    by: str
    why: str = ""
    seconds: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text("subject", self.subject)
        if self.seconds is not None:
            check_seconds("seconds", self.seconds, most=LONGEST_HOLD_SECONDS)


class EndOperatorHold(Command, frozen=True, kw_only=True, tag="operator.release"):
    """Release what holds a replica or a model. One that is gone already succeeds as absent."""

    subject: str
    scope: Literal["replica", "model"]
    by: str


class ClaimKeeper(Command, frozen=True, kw_only=True, tag="keeper.claim"):
    """Claim the keeper's lease for ``seconds``, or renew it: the same console and epoch again.

    ``keeper_epoch`` is a fence: it must exceed the stored one. Refused while the lease of another keeper lasts.
    """

    keeper_epoch: int
    who: str
    console: str
    seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("keeper_epoch", self.keeper_epoch, least=1)
        check_text("console", self.console)
        check_seconds("seconds", self.seconds, most=LONGEST_LEASE_SECONDS)


class ResignKeeper(Command, frozen=True, kw_only=True, tag="keeper.resign"):
    """Give the keeper's lease back, so that another takes over at once. One that has ended succeeds as absent."""

    keeper_epoch: int
    console: str
    by: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("keeper_epoch", self.keeper_epoch, least=1)


class CordonHost(Command, frozen=True, kw_only=True, tag="host.cordon"):
    """Take no new shards here, durably; what runs runs on. None: until somebody uncordons the host."""

    by: str
    why: str = ""
    seconds: float | None = None
    expect: Expect = Expect()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seconds is not None:
            check_seconds("seconds", self.seconds, most=LONGEST_HOLD_SECONDS)


class UncordonHost(Command, frozen=True, kw_only=True, tag="host.uncordon"):
    """Take new shards again. A host that is not cordoned succeeds as absent."""

    by: str
    expect: Expect = Expect()


class OperationStatus(Command, frozen=True, kw_only=True, tag="op.status"):
    """Ask what became of a command whose answer was not heard."""

    asked: OpId


class TestReplica(Command, frozen=True, kw_only=True, tag="replica.test"):
    """Send one short prompt through rank 0 at this host and return the answer and its latency."""

    __test__ = False

    node_id: NodeId
    prompt: str
    max_tokens: int = 16
    seconds: float = 30.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("max_tokens", self.max_tokens, least=1)
        check_seconds("seconds", self.seconds, most=LONGEST_ANSWER_SECONDS)


class ReadLog(Command, frozen=True, kw_only=True, tag="log.read"):
    """Read engine output of one shard: ``limit`` bytes from ``offset``; a negative offset counts from the end.

    Offsets count from the first byte of that run, also of what was rotated away since. Without ``generation`` it is
    the slot's present one, with ``previous`` the one that ran before it.
    """

    node_id: NodeId
    generation: LoadGeneration | None = None
    offset: int = -16_384
    limit: int = 65_536
    previous: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("limit", self.limit)
        check_u64("offset without its sign", abs(self.offset))


class VerifyJournal(Command, frozen=True, kw_only=True, tag="journal.verify"):
    """Read every byte of the agent's journal again and check it."""


class JournalStats(Command, frozen=True, kw_only=True, tag="journal.stats"):
    """Ask what there is of the agent's journal: segments, sizes, numbers, health."""


class ExportJournal(Command, frozen=True, kw_only=True, tag="journal.export"):
    """Read at most ``limit`` records after ``after``; fewer come when they are large."""

    after: int = 0
    limit: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("after", self.after)
        check_u64("limit", self.limit, least=1)


class LookAtResident(Command, frozen=True, kw_only=True, tag="resident.look"):
    """Measure an engine's own agent at this moment: its process, stages, sockets, journal folder. Changes nothing.

    ``processes`` are lives (``pid:start ticks``) of which the answer says which still run. ``aside`` is where its
    journal folder is moved to, which is counted beside it.
    """

    engine: str
    processes: tuple[str, ...] = ()
    aside: str = ""


class TendResident(Command, frozen=True, kw_only=True):
    """The base of what is done to an engine's own agent, by the means that agent.toml gives and nothing else."""

    engine: str
    by: str
    why: str = ""
    expect: Expect = Expect()


class EndResident(TendResident, frozen=True, kw_only=True, tag="resident.end"):
    """End the engine's own agent: this ``life`` of it (``pid:start ticks``), or nothing. Its stages end with it."""

    life: str

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text("life", self.life, "it says which run of the process is to end")


class BeginResident(TendResident, frozen=True, kw_only=True, tag="resident.begin"):
    """Start the engine's own agent. Refused while something listens where it would, or its journal would refuse it."""


class MoveResidentJournal(TendResident, frozen=True, kw_only=True, tag="resident.move_journal"):
    """Move the journal folder of the engine's own agent to ``aside`` and leave an empty one. Nothing is deleted.

    ``by`` and ``why`` are who approved it and the reason. ``files`` and ``bytes`` are what was approved to be moved.
    """

    folder: str
    aside: str
    files: int
    bytes: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check_u64("files", self.files)
        check_u64("bytes", self.bytes)
        for name in ("folder", "aside"):
            if not getattr(self, name).startswith("/"):
                raise BadValue(f"{name} is {getattr(self, name)!r}; it must be an absolute path")
        check_text("why", self.why, "a journal is moved for a reason that is kept")


class RestartBridge(TendResident, frozen=True, kw_only=True, tag="bridge.restart"):
    """Restart the bridge that submits to the rings whose head is here, which clears its dial back-off."""


class ForkJournal(Command, frozen=True, kw_only=True, tag="journal.fork"):
    """Accept what a damaged journal has lost, and begin a new journal_epoch. For the host's own user only."""

    by: str
    accept_loss: bool = False


AnyCommand = (
    Hello
    | Subscribe
    | InspectModel
    | Check
    | ProbeListen
    | ProbeDial
    | Reserve
    | Release
    | Load
    | Unload
    | StartDrain
    | ChangeDrain
    | OperationStatus
    | TestReplica
    | ReadLog
    | VerifyJournal
    | JournalStats
    | ExportJournal
    | ForkJournal
    | SetOperatorHold
    | EndOperatorHold
    | ClaimKeeper
    | ResignKeeper
    | LookAtResident
    | EndResident
    | BeginResident
    | MoveResidentJournal
    | RestartBridge
    | CordonHost
    | UncordonHost
    | AdoptForeign
)
