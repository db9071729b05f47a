"""Holds are proven by looking at real ports and processes, also by an agent that has just started."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend.agent import supervisor
from backend.agent.core.state import CoreEvent, Gone, ProveGone, Stuck
from backend.agent.engine_runs import EngineRuns
from backend.contract.entities import Entities, Hold
from backend.contract.words import LoadGeneration, NodeId, Port
from tests.agent.looking import Looks, looks
from tests.agent.run_world import python, runs, said, until

__all__ = ["looks", "runs"]

SLEEPER = python("import time; print('up', flush=True); time.sleep(600)")
NODE, AT = NodeId("tiny-1/1"), LoadGeneration(17)


class Watched:
    """The runs of an agent that knows nothing but its folders, and what it was told of them."""

    def __init__(self, folder: Path) -> None:
        self.events: list[CoreEvent] = []
        self.runs = EngineRuns(folder, (), {}, self.events.append, lambda node: None, lambda shard: True, lambda: True)

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
