"""The core under random events: at most one owner per slot, nothing spawned without a synced intent, then quiet."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from backend.agent.core.state import Adopted, Spawn, Spawned, SpawnFailed, StopEngine, Stuck
from backend.contract.commands import CordonHost, UncordonHost
from backend.contract.entities import ProcessIdentity, Resident, fold
from backend.contract.plans import Plan
from backend.contract.states import ShardState, shard_state
from backend.contract.words import LoadGeneration, NodeGeneration, NodeId, OpId
from backend.engines.driver import Confirmed, PeerLost, PhaseSeen, Published, Unloaded
from tests.agent.core.world import World
from tests.factories import GENERATION, make_plan

RANKS = st.sampled_from([0, 1])
STATES = st.sampled_from([ShardState.CONNECTING, ShardState.LOADING, ShardState.WARMING, ShardState.READY])


class CoreMachine(RuleBasedStateMachine):
    """One host; processes start when the core says so and end when they are stopped or die on their own."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(memory=4500)
        self.generation = GENERATION
        self.plans: list[Plan] = []
        self.running: dict[tuple[NodeId, LoadGeneration], ProcessIdentity | Resident] = {}
        self.starting: set[tuple[NodeId, LoadGeneration]] = set()
        self.highest = 0
        self.ops = 0

    def _settle(self) -> None:
        """Carry out what the core asked for, as a host would."""
        for spawn in self.world.take(Spawn):
            key = (spawn.node_id, spawn.generation)
            recorded = self.world.durable.shards.get(spawn.node_id)
            assert recorded is not None, "spawned before its intent was durable"
            assert recorded.load_generation == spawn.generation
            assert not any(node == spawn.node_id for node, _ in self.running), "a second owner of one slot"
            assert self.world.durable.cordon is None, "a new shard on a cordoned host"
            self.starting.add(key)
        for stop in self.world.take(StopEngine):
            key = (stop.node_id, stop.generation)
            if key in self.running:
                self._end(key, signal=15)

    def _end(self, key: tuple[NodeId, LoadGeneration], signal: int) -> None:
        del self.running[key]
        plan, rank = self._of(key)
        self.world.ended(plan, rank, signal=signal)
        self.world.gone(plan, rank)
        self._settle()

    def _of(self, key: tuple[NodeId, LoadGeneration]) -> tuple[Plan, int]:
        replica, _, rank = key[0].rpartition("/")
        return next(p for p in self.plans if (p.replica, p.load_generation) == (replica, key[1])), int(rank)

    def _op(self) -> str:
        self.ops += 1
        return f"op{self.ops}"

    @rule(seconds=st.none() | st.floats(1.0, 200.0))
    def cordon(self, seconds: float | None) -> None:
        self.world.command(CordonHost(op_id=OpId(self._op()), by="alice", why="fan", seconds=seconds))
        self._settle()

    @rule()
    def uncordon(self) -> None:
        self.world.command(UncordonHost(op_id=OpId(self._op()), by="bob"))
        self._settle()

    @rule(slot=st.sampled_from(["tiny-1", "tiny-2", "tiny-3"]), stale=st.booleans())
    def reserve_and_load(self, slot: str, stale: bool) -> None:
        self.generation += 1
        generation = self.generation - 3 if stale else self.generation
        plan = make_plan(slot, max(generation, GENERATION), first_port=18_000 + 10 * int(slot[-1]))
        op = self._op()
        self.world.reserve(plan, op)
        if self.world.answer(f"{op}-reserve").status == "succeeded":
            self.plans.append(plan)
            for rank in (1, 0):
                self.world.load(plan, rank, op)
        self._settle()

    @precondition(lambda self: self.starting)
    @rule(data=st.data(), works=st.booleans())
    def start_ends(self, data: st.DataObject, works: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.starting)))
        self.starting.remove(key)
        if works:
            self._begun(key)
        else:
            self.world.event(SpawnFailed(*key, "no such program"))
        self._settle()

    def _begun(self, key: tuple[NodeId, LoadGeneration]) -> None:
        self.running[key] = ProcessIdentity(2000 + self.ops, 7, "boot", "nonce")
        self.world.spawned(*self._of(key))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), state=STATES)
    def engine_speaks(self, data: st.DataObject, state: ShardState) -> None:
        plan, rank = self._of(data.draw(st.sampled_from(sorted(self.running))))
        if rank == 0 and state is ShardState.READY:
            self.world.prove(plan)
        else:
            self.world.saw(plan, rank, PhaseSeen(state, state.value))
        self._settle()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def engine_dies(self, data: st.DataObject) -> None:
        self._end(data.draw(st.sampled_from(sorted(self.running))), signal=9)

    @precondition(lambda self: self.plans)
    @rule(data=st.data())
    def a_rank_elsewhere_is_lost(self, data: st.DataObject) -> None:
        plan = data.draw(st.sampled_from(self.plans))
        self.world.saw(plan, 0, PeerLost(2, "gone"))
        self._settle()

    @precondition(lambda self: self.plans)
    @rule(data=st.data(), rank=RANKS)
    def unload(self, data: st.DataObject, rank: int) -> None:
        self.world.unload(data.draw(st.sampled_from(self.plans)), rank, self._op())
        self._settle()

    @rule()
    def agent_restarts(self) -> None:
        self.world.restart()
        for key in list(self.starting):
            # Its start was given up before it was recorded, or it is found running: here the former.
            self.starting.remove(key)
            self.world.event(SpawnFailed(*key, "the agent restarted"))
        for (node, generation), identity in list(self.running.items()):
            self.world.event(Adopted(node, generation, identity))
        self._settle()

    @invariant()
    def generations_only_grow(self) -> None:
        assert self.world.state.entities.highest_generation >= self.highest
        self.highest = self.world.state.entities.highest_generation

    @invariant()
    def what_runs_is_live_in_the_books(self) -> None:
        for node, generation in self.running:
            shard = self.world.state.entities.shards[node]
            state = shard_state(shard.state)
            assert shard.load_generation == generation
            assert state is not None
            assert state.is_live

    @invariant()
    def the_journal_alone_gives_the_same_state(self) -> None:
        entities = type(self.world.durable)()
        for record in self.world.records:
            entities = fold(entities, record)
        assert entities == self.world.state.entities

    @invariant()
    def memory_is_never_promised_twice(self) -> None:
        from backend.agent.core.capacity import committed_memory

        assert committed_memory(self.world.state.entities, "CPU") <= self.world.memory

    def teardown(self) -> None:
        for key in list(self.starting):
            self.world.event(SpawnFailed(*key, "the end"))
        for key in list(self.running):
            if key in self.running:
                self._end(key, signal=9)
        self.world.pass_time(300)  # longer than any cordon or hold here
        self.world.is_quiet()
        assert self.world.is_quiet()
        open_ones = [op for op in self.world.state.entities.operations.values() if op.result is None]
        assert open_ones == [], "an accepted command without a result"
        assert self.world.state.entities.holds == {}


class ResidentMachine(CoreMachine):
    """The same host with an engine that has its own agent: its shards are asked for, and unloaded when it will."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: set[tuple[NodeId, LoadGeneration]] = set()

    def _begun(self, key: tuple[NodeId, LoadGeneration]) -> None:
        who = Resident("tcp://10.0.0.7:4201", key[0], NodeGeneration(int(key[1])))
        self.running[key] = who
        self.world.event(Spawned(*key, who))

    def _settle(self) -> None:
        """A busy one says so, and is unloaded later by the unload that goes on asking."""
        for stop in [each for each in self.world.effects if isinstance(each, StopEngine)]:
            key = (stop.node_id, stop.generation)
            if key in self.refuses and key in self.running:
                self.world.effects.remove(stop)
                self.world.event(Stuck(*key, "unload is busy: requests 1"))
        super()._settle()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def becomes_busy(self, data: st.DataObject) -> None:
        self.refuses.add(data.draw(st.sampled_from(sorted(self.running))))

    @precondition(lambda self: self.refuses)
    @rule(data=st.data())
    def is_idle_again(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.refuses)))
        self.refuses.discard(key)
        shard = self.world.state.entities.shards.get(key[0])
        if key in self.running and shard is not None and shard.state == ShardState.STOPPING.value:
            self._end(key, signal=0)

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(), seen=st.sampled_from([Confirmed("r", 8200, "as planned"), Published(False, "no"), Unloaded("")])
    )
    def its_agent_speaks(self, data: st.DataObject, seen: Confirmed | Published | Unloaded) -> None:
        plan, rank = self._of(data.draw(st.sampled_from(sorted(self.running))))
        self.world.saw(plan, rank, seen)
        self._settle()

    @invariant()
    def no_process_of_it_is_claimed(self) -> None:
        assert all(shard.identity is None for shard in self.world.state.entities.shards.values())


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestResidents = ResidentMachine.TestCase
TestResidents.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
