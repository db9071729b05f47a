"""Holds are proven by looking at real ports and processes, also by an agent that has just started."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from backend.agent import supervisor
from backend.agent.core.state import (
    CoreEvent,
    DriveBroke,
    Ended,
    Follow,
    Gone,
    ProveGone,
    Spawn,
    SpawnFailed,
    StopEngine,
    Stuck,
)
from backend.agent.engine_runs import EngineRuns
from backend.contract.commands import ChangeDrain, StartDrain
from backend.contract.entities import Entities, Hold, LoadRecord, Resident, Shard
from backend.contract.words import LoadGeneration, NodeGeneration, NodeId, OpId, Port, UnixMs
from backend.engines.driver import Run
from tests.agent.bare_agent import BareAgent
from tests.agent.core.world import World
from tests.agent.looking import Looks, looks
from tests.agent.run_world import python, runs, said, until
from tests.factories import make_plan

__all__ = ["looks", "runs"]

SLEEPER = python("import time; print('up', flush=True); time.sleep(600)")
NODE, AT = NodeId("tiny-1/1"), LoadGeneration(17)
PLAN = make_plan(generation=17)


def shard(**fields: object) -> Shard:
    """The worker of this host, ready."""
    world = World()
    world.bring_up(PLAN)
    return msgspec.structs.replace(world.state.entities.shards[NODE], **fields)


class Watched:
    """The runs of an agent without engines, which knows its folders and ``shard``, and what it was told of them."""

    def __init__(self, folder: Path) -> None:
        self.events: list[CoreEvent] = []
        self.shard: Shard | None = None
        self.runs = EngineRuns(folder, (), {}, self.events.append, self.find, lambda shard: True, lambda: True)

    def find(self, node_id: NodeId) -> tuple[Shard, LoadRecord] | None:
        return None if self.shard is None else (self.shard, LoadRecord(self.shard.op_id, "alice", PLAN, UnixMs(1)))

    def prove(self, kind: str, ports: tuple[Port, ...] = ()) -> None:
        device = "" if kind == "ports" else "CPU"
        hold = Hold(node_id=NODE, load_generation=AT, kind=kind, ports=ports, device=device)
        self.runs.prove_gone(ProveGone(hold))

    async def heard(self, count: int) -> list[CoreEvent]:
        await asyncio.to_thread(until, lambda: len(self.events) >= count, f"{count} events")
        return self.events


@pytest.fixture
async def watched(runs: Path) -> AsyncIterator[Watched]:
    made = Watched(runs)
    yield made
    await made.runs.close()


async def test_each_hold_ends_by_its_own_proof(runs: Path, watched: Watched, looks: Looks) -> None:
    identity = await supervisor.spawn(runs / "tiny-1_1-17", "nonce-1", SLEEPER, {})
    until(lambda: "up" in said(runs / "tiny-1_1-17"), "it is up")
    listener = socket.create_server(("127.0.0.1", 0))
    watched.prove("ports", (Port(listener.getsockname()[1]),))
    watched.prove("ports", (Port(listener.getsockname()[1]),))
    watched.prove("device")
    watched.prove("stuck")
    await looks.several(12)
    assert watched.events == []
    listener.close()
    assert await watched.heard(1) == [Gone(NODE, AT, "ports")]
    assert (await supervisor.stop(identity, runs / "tiny-1_1-17", ())).stopped
    assert set(await watched.heard(3)) == {Gone(NODE, AT, kind) for kind in ("ports", "device", "stuck")}
    await asyncio.to_thread(until, lambda: not watched.runs._tasks, "no proof is under way")
    assert len(watched.events) == 3, "one proof, however often it was asked for"


async def test_a_record_that_cannot_be_read_proves_nothing_and_is_said(runs: Path, watched: Watched) -> None:
    folder = runs / "tiny-1_1-17"
    folder.mkdir(parents=True)
    (folder / "spawn.json").write_text("{")
    watched.prove("device")
    (event,) = await watched.heard(1)
    assert isinstance(event, Stuck)
    assert "nothing proves that the device of tiny-1/1 are free" in event.words
    (folder / "spawn.json").unlink()


async def test_old_runs_are_removed_beside_everything_else(runs: Path, watched: Watched) -> None:
    for generation in range(1, 6):
        (runs / f"tiny-1_1-{generation}").mkdir(parents=True)
    watched.runs.tidy(Entities())

    def kept() -> list[str]:
        return sorted(path.name for path in runs.iterdir())

    await asyncio.to_thread(until, lambda: kept() == [f"tiny-1_1-{number}" for number in (3, 4, 5)], "three are kept")


async def test_an_engine_that_left_agent_toml_is_followed_no_more_and_stopped_all_the_same(
    runs: Path, watched: Watched
) -> None:
    identity = await supervisor.spawn(runs / "tiny-1_1-17", "nonce-1", SLEEPER, {})
    watched.shard = shard(identity=identity)
    watched.runs.follow(Follow(NODE, AT, True))
    (broke,) = await watched.heard(1)
    assert isinstance(broke, DriveBroke)
    assert broke.words == "[engines.llamacpp] is not in agent.toml, which has: none. Write it there"
    watched.runs.stop(StopEngine(NODE, AT))
    ended = (await watched.heard(2))[1]
    assert isinstance(ended, Ended)
    assert (ended.signal, watched.runs._faults.empty()) == (15, True)


async def test_a_start_of_an_engine_that_is_not_there_has_failed(watched: Watched) -> None:
    watched.shard = shard(identity=None)
    watched.runs.spawn(Spawn(NODE, AT, "nonce-1"))
    (failed,) = await watched.heard(1)
    assert isinstance(failed, SpawnFailed)
    assert "[engines.llamacpp] is not in agent.toml" in failed.words


async def test_a_resident_that_nobody_can_be_asked_about_is_unknown_and_not_gone(watched: Watched) -> None:
    watched.shard = shard(engine="p4", identity=None, resident=Resident("tcp://h:1", "tiny-1/1", NodeGeneration(17)))
    watched.runs.resume(watched.shard)
    watched.runs.stop(StopEngine(NODE, AT))
    for event in await watched.heard(2):
        assert isinstance(event, Stuck)
        assert "whether it runs is not known" in event.words
    assert watched.runs._faults.empty()


@pytest.fixture
def spoiled(runs: Path) -> Iterator[Path]:
    """Two runs: one has a file in the place of its folder, the other a folder in the place of its record."""
    (runs / "tiny-1_1-18" / "spawn.json").mkdir(parents=True)
    (runs / "tiny-1_1-17").touch()
    yield runs
    (runs / "tiny-1_1-18" / "spawn.json").rmdir()


@pytest.mark.parametrize(("generation", "words"), [(17, "cannot be made: Not a dir"), (18, "cannot be read: Is a dir")])
async def test_a_run_whose_folder_cannot_be_read_is_unknown_after_a_restart(
    spoiled: Path, watched: Watched, generation: int, words: str
) -> None:
    watched.shard = shard(identity=None, load_generation=generation, state="spawning")
    watched.runs.resume(watched.shard)
    (event,) = await watched.heard(1)
    assert isinstance(event, Stuck)
    assert words in event.words


async def test_an_end_whose_record_cannot_be_read_is_an_end_all_the_same(runs: Path, watched: Watched) -> None:
    folder = runs / "tiny-1_1-17"
    watched.shard = shard(identity=await supervisor.spawn(folder, "nonce-1", SLEEPER, {}))
    watched.runs.follow(Follow(NODE, AT, True))
    await watched.heard(1)
    (folder / "exit.tmp").unlink()
    (folder / "exit.json").write_text("{")
    assert watched.shard.identity is not None
    assert supervisor.send_signal(watched.shard.identity, 9)
    ended = (await watched.heard(2))[1]
    assert isinstance(ended, Ended)
    assert (ended.code, ended.signal) == (None, None)
    assert ended.words.startswith("exit unknown: ")
    assert "exit.json is damaged" in ended.words
    assert watched.runs._faults.empty()


async def test_a_drive_knows_whether_its_replica_drains_and_whether_it_ever_did(tmp_path: Path) -> None:
    agent, world = BareAgent(tmp_path), World()
    world.bring_up(PLAN)

    def run() -> Run:
        agent.daemon.core = msgspec.structs.replace(agent.daemon.core, entities=world.state.entities)
        found = agent.daemon.find(NODE)
        assert found is not None
        return agent.daemon.runs._run(*found, adopted=True)

    seen = [run()]
    world.command(
        StartDrain(op_id=OpId("d"), replica=PLAN.replica, load_generation=AT, by="a", why="", deadline_seconds=9)
    )
    seen.append(run())
    assert [(each.is_draining(), each.may_canary(), each.was_drained) for each in seen] == [
        (True, False, False),
        (True, False, True),
    ]
    world.command(ChangeDrain(op_id=OpId("c"), replica=PLAN.replica, by="a", action="cancel"))
    after = run()
    assert (after.is_draining(), after.may_canary(), after.was_drained) == (False, True, True)
    await agent.close()


async def test_what_is_over_is_forgotten(watched: Watched) -> None:
    watched.shard = shard(identity=None)
    watched.runs.stop(StopEngine(NODE, AT))
    watched.runs.tidy(Entities(shards={NODE: watched.shard}))
    assert set(watched.runs._stops) == {(NODE, AT)}
    watched.runs.tidy(Entities())
    assert watched.runs._stops == {}
