"""Recording stand-in agents: every frame that was folded is in the file, which appears whole and rehearses the same."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from backend.contract.commands import Hello, Subscribe
from backend.control import recording
from backend.control.link_ends import LinkSettings
from backend.control.recording import Recorded, RecordRefused, record_fleet
from backend.control.rehearsal import Shown
from backend.control.rehearsing import rehearse_file
from tests.control.factories import REPLICA, A, B
from tests.control.stand_in_agent import agents, wait_for
from tests.control.test_operations import World

QUICK = LinkSettings(open=5.0, floor=0.2, ceiling=0.3, silence=5.0)
CATALOG = '[models.tiny]\npath = "tiny.gguf"\n[models.tiny.profiles.two-host]\nranks = 3\n'


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def recorded(world: World, path: Path, seconds: float | None = None) -> Recorded:
    return await asyncio.to_thread(record_fleet, world.context, path, seconds=seconds, who="alice", settings=QUICK)


class Person:
    """Whoever ends a recording: by a signal in life, here from the thread of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started: list[tuple[asyncio.AbstractEventLoop, recording._Recorder]] = []

        class Known(recording._Recorder):
            async def run(self, seconds: float | None, who: str, settings: LinkSettings | None) -> Recorded:
                started.append((asyncio.get_running_loop(), self))
                return await super().run(seconds, who, settings)

        monkeypatch.setattr(recording, "_Recorder", Known)
        self._started = started

    def stop(self) -> None:
        loop, recorder = self._started[-1]
        loop.call_soon_threadsafe(recorder._stop.set)


@pytest.fixture
def person(monkeypatch: pytest.MonkeyPatch) -> Person:
    return Person(monkeypatch)


async def test_what_the_links_heard_is_in_the_file_and_rehearses_to_the_same_fleet(place: Path, person: Person) -> None:
    world, path = World(place), place / "events.jsonl"
    world.context.catalog_path.write_text(CATALOG)
    async with agents(world.a, world.b):
        part = path.with_name("events.jsonl.part")
        recording = asyncio.create_task(recorded(world, path))
        await wait_for(lambda: world.heard(Hello) and len(world.heard(Hello)) >= 2)
        await world.serving()
        await wait_for(lambda: all(f"{REPLICA}/{rank}" in part.read_text() for rank in range(3)))
        assert not path.exists(), "it appears when it is closed"
        await world.b.stop()
        await wait_for(lambda: '"link":"down"' in part.read_text())
        person.stop()
        found = await recording
        await world.b.start()
    assert found.end == "stopped by a person"
    assert found.frames[A] >= 3, "welcome, report and what it recorded"
    head, *lines = lines_of(path)
    assert head["hosts"] == {"host-a": f"unix:{world.a.socket}", "host-b": f"unix:{world.b.socket}"}
    bodies = [line["frame"]["body"]["type"] for line in lines if "frame" in line and line["host"] == "host-a"]
    assert bodies[:2] == ["welcome", "report"]
    assert any(line.get("link") == "down" and line["host"] == "host-b" for line in lines)
    assert lines[-1]["end"] == "stopped by a person"
    assert len(lines) + 1 == found.lines
    assert not path.with_name("events.jsonl.part").exists()
    shown: list[Shown] = []
    rehearsed = rehearse_file(path, world.context.catalog_path, shown.append)
    assert rehearsed.bad == ()
    assert rehearsed.state.hosts[B].state.value == "unreachable"
    assert rehearsed.state.hosts[A].entities == world.a.entities
    states = [s.after for s in shown if (s.what, s.subject) == ("replica", REPLICA)]
    assert states[-1] == "recovering"
    assert "ready" in states


async def test_a_recording_ends_when_its_time_is_over(place: Path) -> None:
    assert (await recorded(World(place), place / "events.jsonl", 0.1)).end == "the time was over"


async def test_a_name_that_is_taken_is_kept_and_hosts_that_are_silent_are_named(place: Path, person: Person) -> None:
    world, path = World(place), place / "events.jsonl"
    async with agents(world.a):
        part = path.with_name("events.jsonl.part")
        running = asyncio.create_task(recorded(world, path))
        await wait_for(lambda: part.exists() and '"type":"report"' in part.read_text())
        person.stop()
        found = await running
    assert list(found.never_heard) == [B]
    assert "no agent at" in found.never_heard[B]
    before = path.read_bytes()
    with pytest.raises(RecordRefused, match="is there already, and is kept"):
        await recorded(world, path, 0.1)
    assert path.read_bytes() == before
    path.rename(path.with_name("events.jsonl.part"))
    with pytest.raises(RecordRefused, match="another recorder writes it, or one was killed"):
        await recorded(world, path, 0.1)
    with pytest.raises(RecordRefused, match="cannot be written"):
        await recorded(world, place / "no" / "folder.jsonl", 0.1)


async def test_a_recorder_asks_for_nothing_but_to_listen(place: Path, person: Person) -> None:
    world = World(place)
    async with agents(world.a, world.b):
        running = asyncio.create_task(recorded(world, place / "events.jsonl"))
        await wait_for(lambda: len(world.heard(Subscribe)) == 2)
        person.stop()
        await running
    assert {type(command).__name__ for command in (*world.a.heard, *world.b.heard)} == {"Hello", "Subscribe"}
    assert all(command.read_only for command in world.heard(Hello))


async def test_a_disk_that_takes_no_more_ends_the_recording_with_its_name(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, path = World(place), place / "events.jsonl"
    monkeypatch.setattr(recording, "_opened", lambda part: open("/dev/full", "wb"))  # noqa: SIM115  the recorder closes it
    async with agents(world.a, world.b):
        with pytest.raises(RecordRefused, match=r"cannot be written as .*events.jsonl: No space left on device"):
            await asyncio.wait_for(recorded(world, path, 60.0), 20)
    assert not path.exists()
