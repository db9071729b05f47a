"""A host around the pure core: a simulated journal, clock and processes, driven one event at a time."""

from __future__ import annotations

from typing import TypeVar

from backend.agent.core import initial, step
from backend.agent.core.state import (
    Append,
    Capacity,
    CommandArrived,
    CoreEvent,
    CoreState,
    Effect,
    Ended,
    EngineSaw,
    Gone,
    Now,
    Send,
    Spawn,
    Spawned,
    Synced,
)
from backend.contract.commands import Capacities, Command, Load, Reserve, Unload
from backend.contract.entities import Buffers, Canary, Entities, JournalRecord, ProcessIdentity, Result, fold
from backend.contract.envelopes import payload_digest
from backend.contract.events import Answered
from backend.contract.plans import Plan
from backend.contract.reports import DeviceFacts, Measurement
from backend.contract.states import ShardState
from backend.contract.words import HostId, LoadGeneration, NodeGeneration, NodeId, OpId, Port, UnixMs
from backend.engines.driver import PhaseSeen, Proven, Seen

E = TypeVar("E")


class World:
    """One agent core with everything around it simulated. The journal syncs at once unless ``hold_sync`` is set."""

    def __init__(self, host: str = "host-a", memory: int = 10_000) -> None:
        self.host = HostId(host)
        self.mono = 100.0
        self.wall = 1_764_412_900_000
        self.memory = memory
        self.gpus: tuple[DeviceFacts, ...] = ()
        self.records: list[JournalRecord] = []
        self.durable = Entities()
        self.effects: list[Effect] = []
        self.unsynced: list[Append] = []
        self.hold_sync = False
        self.state: CoreState = initial(self.host, "epoch", Entities(), self.now())

    def now(self) -> Now:
        return Now(UnixMs(self.wall), self.mono)

    def pass_time(self, seconds: float) -> None:
        self.mono += seconds
        self.wall += int(seconds * 1000)

    def event(self, event: CoreEvent) -> None:
        self.state, effects = step(self.state, event, self.now())
        for effect in effects:
            if isinstance(effect, Append):
                self.unsynced.append(effect)
            else:
                self.effects.append(effect)
        if not self.hold_sync:
            self.sync()

    def sync(self) -> None:
        while self.unsynced:
            append = self.unsynced.pop(0)
            for record in append.records:
                self.records.append(record)
                self.durable = fold(self.durable, record)
            self.event(Synced(append.token))

    def restart(self) -> None:
        """A new life of the agent on the same journal; what was not synced is lost."""
        self.unsynced = []
        self.effects = []
        self.state = initial(self.host, "epoch-2", self.durable, self.now())

    def capacity(self) -> Capacity:
        device = DeviceFacts(name="CPU", uuid="cpu", kind="cpu", total=self.memory, free=self.memory)
        return Capacity(devices=(device, *self.gpus), ports=(Port(18_000), Port(18_999)))

    def command(self, command: Command, conn: int = 1) -> None:
        self.event(CommandArrived(conn, command, payload_digest(command), self.capacity()))

    def take(self, kind: type[E]) -> list[E]:
        """The effects of this kind since the last look, removed."""
        taken: list[E] = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return taken

    def answer(self, op_id: str) -> Result:
        """The one result that was sent for an operation."""
        sent = [s.event for s in self.effects if isinstance(s, Send) and isinstance(s.event, Answered)]
        results = [event.result for event in sent if event.op_id == op_id]
        assert len(results) == 1, f"{len(results)} results for {op_id}: {sent}"
        return results[0]

    # Steps of a load

    def reserve(self, plan: Plan, op: str = "op", by: str = "alice") -> None:
        self.command(Reserve(op_id=OpId(f"{op}-reserve"), plan=plan, by=by, seconds=60.0))

    def load(self, plan: Plan, rank: int, op: str = "op", **changes: object) -> None:
        fields: dict[str, object] = {
            "op_id": OpId(f"{op}-load-{rank}"),
            "node_id": NodeId(f"{plan.replica}/{rank}"),
            "node_generation": NodeGeneration(int(plan.load_generation)),
            "adapter_kind": "llamacpp",
            "adapter_content_type": "application/vnd.ringtop.load-v1+json",
            "capacities": Capacities(),
            "reservation": OpId(f"{op}-reserve"),
            "plan": plan,
            "fence": plan.load_generation,
            "by": "alice",
        }
        self.command(Load(**{**fields, **changes}))  # type: ignore[arg-type]  # fields are checked by msgspec

    def spawned(self, plan: Plan, rank: int) -> None:
        node = NodeId(f"{plan.replica}/{rank}")
        identity = ProcessIdentity(1000 + rank, 7, "boot", "nonce")
        self.event(Spawned(node, plan.load_generation, identity))

    def saw(self, plan: Plan, rank: int, seen: Seen) -> None:
        self.event(EngineSaw(NodeId(f"{plan.replica}/{rank}"), plan.load_generation, seen))

    def prove(self, plan: Plan) -> None:
        canary = Canary(ok=True, seconds=0.1, at_unix_ms=UnixMs(self.wall), words="")
        buffers = (Buffers(rank=0, weights=1, kv=0, compute=0),)
        self.saw(plan, 0, Proven(canary, "http://127.0.0.1:18000", buffers))

    def bring_up(self, plan: Plan, op: str = "op") -> None:
        """Reserve and load every rank that the plan puts on this host, up to ready."""
        self.reserve(plan, op)
        for shard in reversed(plan.on_host(self.host)):
            self.load(plan, shard.rank, op)
            self.spawned(plan, shard.rank)
            if shard.rank == 0:
                self.saw(plan, 0, PhaseSeen(ShardState.CONNECTING, "bound"))
                self.prove(plan)
            else:
                for state in (ShardState.CONNECTING, ShardState.LOADING, ShardState.READY):
                    self.saw(plan, shard.rank, PhaseSeen(state, state.value))
        self.effects = []

    def ended(self, plan: Plan, rank: int, code: int | None = None, signal: int | None = 9) -> None:
        node = NodeId(f"{plan.replica}/{rank}")
        self.event(Ended(node, plan.load_generation, code, signal, f"signal {signal} (killed)", ("last line",)))

    def gone(self, plan: Plan, rank: int, *kinds: str) -> None:
        """The proofs of these kinds of hold come; of both that an exit leaves when none is named."""
        for kind in kinds or ("ports", "device"):
            self.event(Gone(NodeId(f"{plan.replica}/{rank}"), plan.load_generation, kind))

    def unload(self, plan: Plan, rank: int, op: str = "un", generation: int | None = None) -> None:
        self.command(
            Unload(
                op_id=OpId(f"{op}-{rank}"),
                node_id=NodeId(f"{plan.replica}/{rank}"),
                node_generation=NodeGeneration(generation or int(plan.load_generation)),
                adapter_kind="llamacpp",
                by="alice",
            )
        )

    def counted(self, plan: Plan, in_flight: int | None, queued: int | None = 0) -> None:
        self.saw(
            plan,
            0,
            Measurement(
                node_id=NodeId(f"{plan.replica}/0"),
                observed_unix_ms=UnixMs(self.wall),
                in_flight=in_flight,
                queued=queued,
            ),
        )

    def state_of(self, plan: Plan, rank: int) -> str:
        return self.state.entities.shards[NodeId(f"{plan.replica}/{rank}")].state

    def is_quiet(self) -> bool:
        """Time passes, ticks come, and nothing is written or done."""
        from backend.agent.core.state import Ticked

        self.effects = []
        before = len(self.records)
        for _ in range(5):
            self.pass_time(0.5)
            self.event(Ticked())
        return len(self.records) == before and not self.effects and not self.unsynced


def spawns(world: World) -> list[str]:
    return [spawn.node_id for spawn in world.take(Spawn)]


def generation(number: int) -> LoadGeneration:
    return LoadGeneration(number)
