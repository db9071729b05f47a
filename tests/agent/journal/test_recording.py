"""The core beside a journal that refuses: what was not written never happened, and engines are still followed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from backend.agent.core import initial, step
from backend.agent.core.state import (
    Append,
    CommandArrived,
    CoreEvent,
    Discovered,
    Ended,
    EngineSaw,
    JournalFailed,
    Now,
    Send,
    Ticked,
)
from backend.agent.journal import Journal
from backend.agent.recording import Recording
from backend.contract.commands import Command, Release, Reserve
from backend.contract.entities import Canary, JournalRecord
from backend.contract.envelopes import payload_digest
from backend.contract.events import Answered, Refused
from backend.contract.states import ShardState
from backend.contract.words import HostId, NodeId, OpId, UnixMs
from backend.engines.driver import CanarySeen, PhaseSeen
from tests.agent.core.world import World
from tests.agent.journal.worlds import WAIT_SECONDS, StillClock, TroubledDisk, open_journal
from tests.factories import make_plan


class Agent:
    """The pure core with its real recording and journal; everything else that it would do is only noted."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.core = initial(HostId("host-a"), "epoch", journal.entities, self.now())
        self.sent: list[object] = []
        self.done: list[object] = []
        self.broken: list[BaseException] = []
        self.recording = Recording(journal, self.hear, self.written, self.announce, self.broken.append)
        self.records: list[JournalRecord] = []
        self.announced = self.core
        self.failed = asyncio.Event()

    def now(self) -> Now:
        return Now(UnixMs(1_764_412_900_000), 100.0)

    def hear(self, event: CoreEvent) -> None:
        if self.recording.keeps(event):
            return
        if isinstance(event, JournalFailed):
            self.failed.set()
        self.core, effects = step(self.core, event, self.now())
        for effect in effects:
            if isinstance(effect, Append):
                self.recording.append(effect, event)
            elif isinstance(effect, Send):
                self.sent.append(effect.event)
            else:
                self.done.append(effect)

    def written(self, records: tuple[JournalRecord, ...]) -> None:
        self.records += records

    def announce(self) -> None:
        self.announced = self.core

    def command(self, command: Command) -> None:
        self.hear(CommandArrived(1, command, payload_digest(command), World().capacity()))

    async def tick(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0.01)
        self.recording.resume()
        self.hear(Ticked())

    async def until(self, kind: type[object], op_id: str) -> object:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                for event in self.sent:
                    if isinstance(event, kind) and getattr(event, "op_id", "") == op_id:
                        return event
                await self.tick()


def reserve(op: str, n: int = 1) -> Reserve:
    plan = make_plan(f"tiny-{n}", first_port=18_000 + 8 * n, memory=10)
    return Reserve(op_id=OpId(op), plan=plan, by="alice", seconds=60.0)


async def test_e13_a_command_that_could_not_be_written_is_refused_never_happened_and_works_later(
    tmp_path: Path,
) -> None:
    disk = TroubledDisk()
    agent = Agent(open_journal(tmp_path, disk=disk))
    disk.room = 60
    agent.command(reserve("r1"))
    refused = await agent.until(Refused, "r1")
    assert isinstance(refused, Refused)
    assert (refused.code, "No space left" in refused.words) == ("E_JOURNAL", True)
    assert agent.core.entities == agent.journal.entities
    assert (agent.core.entities.reservations, agent.core.awaiting, agent.core.asked) == ({}, {}, {})
    disk.room = None
    await agent.tick()
    agent.command(reserve("r1"))
    answered = await agent.until(Answered, "r1")
    assert isinstance(answered, Answered)
    assert answered.result.status == "succeeded", answered.result.first_error
    assert agent.core.entities == agent.journal.entities
    assert not agent.broken
    await agent.journal.close()


async def test_what_was_durable_before_the_refusal_is_kept_and_answered(tmp_path: Path) -> None:
    disk = TroubledDisk()
    agent = Agent(open_journal(tmp_path, disk=disk))
    disk.syncing.clear()
    disk.go_on.clear()
    agent.command(reserve("r1"))
    assert await asyncio.to_thread(disk.syncing.wait, WAIT_SECONDS)
    agent.command(reserve("r2", 2))
    disk.failing_writes = 1
    disk.go_on.set()
    assert isinstance(await agent.until(Answered, "r1"), Answered)
    assert isinstance(await agent.until(Refused, "r2"), Refused)
    assert set(agent.core.entities.reservations) == {"r1"}
    assert agent.core.entities == agent.journal.entities
    agent.command(Release(op_id=OpId("x1"), reservation=OpId("r1"), by="alice"))
    assert isinstance(await agent.until(Answered, "x1"), Answered)
    assert agent.core.entities.reservations == {}
    await agent.journal.close()


async def test_what_engines_did_during_a_refusal_is_recorded_in_order_when_the_journal_resumes(tmp_path: Path) -> None:
    world, plan = World(), make_plan()
    world.reserve(plan)
    world.load(plan, 1)
    world.spawned(plan, 1)
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    await journal.append(world.records).durable
    agent = Agent(journal)
    shard = agent.core.entities.shards[plan.shards[1].node_id]

    def saw(state: ShardState, words: str) -> None:
        agent.hear(EngineSaw(shard.node_id, shard.load_generation, PhaseSeen(state, words)))

    disk.room = 0
    saw(ShardState.CONNECTING, "listens")
    await asyncio.wait_for(agent.failed.wait(), WAIT_SECONDS)
    for n in range(50):
        saw(ShardState.LOADING, f"{n} of 50")
    await agent.tick()
    assert agent.journal.entities.shards[shard.node_id].state == ShardState.SPAWNING.value
    disk.room = None
    async with asyncio.timeout(WAIT_SECONDS):
        while agent.journal.entities.shards[shard.node_id].state != ShardState.LOADING.value:
            await agent.tick()
    assert [record.kind for record in agent.records][:2] == ["connecting", "loading"]
    assert agent.journal.entities.shards[shard.node_id].words == "49 of 50"
    assert agent.core.entities == agent.journal.entities
    await agent.journal.close()


async def test_an_end_is_not_lost_among_what_is_said_again_and_again_during_a_long_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.agent.recording.MOST_HELD", 10)
    world, plan = World(), make_plan()
    world.bring_up(plan)
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    await journal.append(world.records).durable
    agent = Agent(journal)
    other, gone = (agent.core.entities.shards[plan.shards[rank].node_id] for rank in (0, 1))
    ring = msgspec.structs.replace(other, node_id=NodeId("step37-1/0"), replica="step37-1")
    disk.room = 0
    agent.hear(Ended(gone.node_id, gone.load_generation, 1, None, "exit code 1", ()))
    await asyncio.wait_for(agent.failed.wait(), WAIT_SECONDS)
    for n in range(50):
        agent.hear(Discovered(ring, world.state.entities.loads[other.op_id]))
        for shard in (other, gone):
            canary = Canary(ok=True, seconds=n, at_unix_ms=UnixMs(n), words="")
            agent.hear(EngineSaw(shard.node_id, shard.load_generation, CanarySeen(canary)))
    disk.room = None
    async with asyncio.timeout(WAIT_SECONDS):
        while agent.recording.failed or agent.core.awaiting:
            await agent.tick()
    assert agent.journal.entities.shards[gone.node_id].state == ShardState.FAILED.value
    await agent.journal.close()


async def test_progress_is_left_out_while_the_disk_is_low_and_decisions_are_not(tmp_path: Path) -> None:
    world, plan = World(), make_plan()
    world.reserve(plan)
    world.load(plan, 1)
    world.spawned(plan, 1)
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    await journal.append(world.records).durable
    agent = Agent(journal)
    shard = agent.core.entities.shards[plan.shards[1].node_id]
    disk.room = 100_000
    await journal.keep_up()
    for state, words in (
        (ShardState.CONNECTING, "listens"),
        (ShardState.LOADING, "begins"),
        (ShardState.LOADING, "half"),
        (ShardState.LOADING, "nearly"),
    ):
        agent.hear(EngineSaw(shard.node_id, shard.load_generation, PhaseSeen(state, words)))
    await agent.tick()
    assert [record.words for record in agent.records] == ["listens", "begins"]
    assert journal.dropped_records == 2
    await journal.close()


async def test_e14_a_fenced_journal_takes_nothing_and_never_resumes(tmp_path: Path) -> None:
    disk = TroubledDisk()
    agent = Agent(open_journal(tmp_path, disk=disk))
    disk.sync_error = True
    agent.command(reserve("r1"))
    async with asyncio.timeout(WAIT_SECONDS):
        while not agent.core.journal_failed:
            await agent.tick()
    disk.sync_error = False
    for _ in range(3):
        await agent.tick()
    agent.command(reserve("r2", 2))
    assert [e.code for e in agent.sent if isinstance(e, Refused) and e.op_id == "r2"] == ["E_JOURNAL"]
    assert not agent.recording.resume()
    assert agent.journal.head_seq == 0
    await agent.journal.close()


@pytest.mark.parametrize("room", [0, 200, 700])
async def test_whatever_room_is_left_the_core_and_the_journal_agree_in_the_end(tmp_path: Path, room: int) -> None:
    disk = TroubledDisk()
    journal = Journal.open(tmp_path, host="host-a", clock=StillClock(), disk=disk)
    agent = Agent(journal)
    disk.room = room
    for n in range(1, 6):
        agent.command(reserve(f"r{n}", n))
    for _ in range(4):
        await agent.tick()
    disk.room = None
    async with asyncio.timeout(WAIT_SECONDS):
        while agent.recording.failed or agent.core.awaiting:
            await agent.tick()
    answered = {e.op_id for e in agent.sent if isinstance(e, Answered) and e.result.status == "succeeded"}
    refused = {e.op_id for e in agent.sent if isinstance(e, Refused)}
    assert answered | refused == {f"r{n}" for n in range(1, 6)}
    assert set(agent.core.entities.reservations) == answered
    assert agent.core.entities == journal.entities
    await journal.close()
