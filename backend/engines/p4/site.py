"""One p4 agent as all of its stages share it: who asks it, how it looked last, at what pace, and what is under way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from backend.contract.entities import Shard
from backend.engines.driver import Completion, Run
from backend.engines.p4.bridge import Bridge
from backend.engines.p4.door import Answer, Door
from backend.engines.p4.growth import Growth
from backend.engines.p4.heads import Peers
from backend.engines.p4.journal import JournalSeen
from backend.engines.p4.outlook import Outlook
from backend.engines.p4.place import P4Place
from backend.engines.p4.record import RecordedLoad
from backend.engines.p4.stage_words import StderrSeen


class P4Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals and deadlines, all in seconds.

    Looks come at the pace of ``inspect`` while something is under way, of ``watched`` while nothing is and a console
    looks on, else of ``rest``; and ``soon`` after something was changed at the agent. A session that was not opened is
    asked for again after ``session_again``, and twice that each time. A drain is noticed in ``notice``; the head's
    agent on another host is asked every ``head`` while one lasts.
    """

    inspect: float = 2.0
    watched: float = 5.0
    rest: float = 10.0
    soon: float = 0.2
    notice: float = 0.5
    slack: float = 30.0
    session: float = 20.0
    session_again: float = 2.0
    canary: float = 30.0
    unload: float = 60.0
    unload_again: float = 1.0
    unload_slowest: float = 8.0
    head: float = 10.0


class Places:
    """What the driver knows of its stages beside INSPECT: loads that are asked for, unloads under way, and done."""

    def __init__(self) -> None:
        self.asked: set[tuple[str, int]] = set()
        self.unloading: set[tuple[str, int]] = set()
        self.unloaded: dict[tuple[str, int], str] = {}
        self.moving: set[tuple[str, int]] = set()
        """Stages that are not at rest: they load, or drain."""
        self.unsent: set[tuple[str, int]] = set()
        """Loads that never left this host: nothing has to prove that nothing is there."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """One p4 agent, as all of its stages share it. ``journal`` and ``stderr`` look at its host now."""

    door: Door
    outlook: Outlook
    places: Places
    pace: P4Pace
    wall_ms: Callable[[], int]
    place: P4Place
    journal: Callable[[], Awaitable[JournalSeen]]
    bridge: Bridge
    growth: Growth
    stderr: Callable[[], Awaitable[StderrSeen]]
    peers: Peers
    ring: Callable[[Run], RecordedLoad]


def key_of(shard: Shard) -> tuple[str, int]:
    """What a shard is known by at its p4 agent; one that somebody else loaded may have another name there than here."""
    assert shard.resident is not None  # it is named before anything is asked of it
    return shard.resident.name, int(shard.resident.generation)


async def unload_once(site: Site, key: tuple[str, int]) -> Answer | str:
    """One UNLOAD: its answer, or in words why there is none. While it is open nobody takes the node for lost."""
    site.places.unloading.add(key)
    try:
        answer = await site.door.unload(*key, site.pace.unload)
    except OSError as error:
        return str(error) or type(error).__name__
    finally:
        site.places.unloading.discard(key)
        site.outlook.hurry()
    if answer.is_absent:
        site.places.unloaded[key] = "unloaded it" if answer.status == "succeeded" else "has no such node"
    return answer


async def complete_counted(
    site: Site, ring: RecordedLoad, session: str, prompt: str, max_tokens: int, seconds: float
) -> tuple[Completion, int | None]:
    """One prompt, and by how many files the journal of the head's host grew meanwhile; None where nobody knows.

    Raises TimeoutError, ConnectionError.
    """
    before = await site.journal()
    done = await site.door.complete(ring, session, prompt, max_tokens, seconds)
    after = await site.journal()
    if before.files is None or before.bytes is None or after.files is None or after.bytes is None:
        return done, None
    files = after.files - before.files
    site.growth.count(done.tokens, files, after.bytes - before.bytes)
    return done, files
