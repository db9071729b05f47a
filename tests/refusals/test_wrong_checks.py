"""What only the checks at the hosts can find, over stand-in agents: refused before any LOAD leaves, and released."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backend.contract.commands import Load, Release
from backend.contract.entities import Result
from backend.control.operations import load as load_module
from tests.control.stand_in_agent import agents, failed
from tests.control.test_operations import World
from tests.refusals.rows import as_parameters

pytestmark = pytest.mark.refusals


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a path short enough for unix sockets."""
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
async def world(place: Path) -> AsyncIterator[World]:
    made = World(place)
    async with agents(made.a, made.b):
        yield made


class WrongCheck(NamedTuple):
    """What the agents say when they are asked, and the finding that must come of it."""

    title: str
    id: str
    words: tuple[str, ...]
    spoil: Callable[[World], None]


def says(host: str, command: str, **value: Any) -> Callable[[World], None]:
    """One host answers this to a command, whenever it is asked."""

    def spoil(world: World) -> None:
        agent = world.a if host == "host-a" else world.b
        agent.rules[command] = lambda asked: Result(status="succeeded", resource_state="absent", value=value)

    return spoil


def both(*spoils: Callable[[World], None]) -> Callable[[World], None]:
    def spoil(world: World) -> None:
        for each in spoils:
            each(world)

    return spoil


def fails(world: World) -> None:
    world.b.rules["check"] = lambda command: failed("the engine's folder went away")


def is_silent(world: World) -> None:
    world.b.rules["check"] = lambda command: None


STRANGER = "127.0.0.1:18002 is the listener of host-q rank 2, and host-b rank 2 was expected there"
ROWS = [
    WrongCheck(
        "an address that nobody answers at",
        "address.unreachable",
        ("host-a reaches 127.0.0.1:18002 of host-b", "connection refused", "Set advertise in host-b's agent.toml"),
        says("host-a", "probe.dial", answered=False, words="connection refused"),
    ),
    WrongCheck(
        "an address at which another host answers",
        "address.unreachable",
        ("is the listener of host-q rank 2", "host-b rank 2 was expected there"),
        says("host-a", "probe.dial", answered=False, words=STRANGER),
    ),
    WrongCheck(
        "an address where its own host cannot listen",
        "address.unlistenable",
        ("host-b could not listen there", "in use by another process", "Free the port"),
        both(
            says("host-b", "probe.listen", heard=False, words="port 18002 at 127.0.0.1 is in use by another process"),
            says("host-a", "probe.dial", answered=False, words="connection refused"),
        ),
    ),
    WrongCheck(
        "a host whose check breaks",
        "check.failed",
        ("host-b", "the engine's folder went away", "Look at the agent of host-b"),
        fails,
    ),
    WrongCheck(
        "a host that never answers its check",
        "check.failed",
        ("host-b", "no answer to check", "Look at the agent of host-b"),
        is_silent,
    ),
    WrongCheck(
        "findings that nobody here can read",
        "check.unreadable",
        ("host-b", "expected findings", "Update the older side"),
        says("host-b", "check", findings=[{"id": "new.guard", "severity": 7}]),
    ),
    WrongCheck(
        "a severity that only a newer agent knows",
        "new.guard",
        ("severe new.guard host-b", "expected this", "Do that"),
        says(
            "host-b",
            "check",
            findings=[
                {
                    "id": "new.guard",
                    "severity": "severe",
                    "subject": "host-b",
                    "expected": "this",
                    "found": "that",
                    "remedy": "Do that.",
                }
            ],
        ),
    ),
]


@pytest.mark.parametrize("row", as_parameters(ROWS))
async def test_check(row: WrongCheck, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a check at a host: refused by id, every reservation released, and no LOAD sent."""
    monkeypatch.setattr(load_module, "CHECK_SECONDS", 1.5 if row.spoil is is_silent else 60.0)
    row.spoil(world)
    world.write()
    assert await world.run() == 2
    said = world.view().words
    assert row.id in said, said
    for word in row.words:
        assert word in said, f"{word!r} is not in: {said}"
    assert not world.heard(Load)
    assert len(world.heard(Release)) == 2


async def test_checks_that_only_warn(world: World) -> None:
    """A warning of a host is told and loads all the same."""
    warning = {"id": "new.hint", "severity": "warn", "subject": "b", "expected": "x", "found": "y", "remedy": "z."}
    says("host-b", "check", findings=[warning])(world)
    world.write()
    assert await world.run() == 0
    assert len(world.heard(Load)) == 3
