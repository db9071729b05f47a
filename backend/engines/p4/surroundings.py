"""What is seen of a p4 agent on its host and not in its snapshot: slots, journal, the stage's program.

Blocking looks run in threads; a value is as old as ``EVERY_SECONDS`` says, and None where this user may not look.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path

import msgspec

from backend.contract.p4.addresses import host_and_port
from backend.engines.driver import EngineMissing
from backend.engines.p4.journal import JournalSeen, look_at_journal
from backend.engines.p4.own_agent import Gauge, find_listener, gauge, journal_given, life_of
from backend.engines.p4.place import P4Place
from backend.engines.p4.stage_processes import StageSeen, look_at_stages
from backend.engines.p4.stage_words import StderrSeen, look_at_stderr

EVERY_SECONDS = 10.0
"""A journal has tens of thousands of files, and a look lists them all."""


class Surroundings(msgspec.Struct, frozen=True):
    """One look, ``at`` a monotonic time in seconds. ``pid`` is the p4 agent's process, looked at and never touched;
    ``life`` one run of it."""

    at: float = 0.0
    pid: int | None = None
    life: str = ""
    gauge: Gauge | None = None
    journal: JournalSeen = JournalSeen(words="not looked at yet")
    stderr: StderrSeen = StderrSeen("not looked at yet")
    stages: tuple[StageSeen, ...] = ()


class Lookout:
    """Looks around one p4 agent."""

    def __init__(self, place: P4Place) -> None:
        self._place = place
        self._seen = Surroundings()
        self._at = -EVERY_SECONDS
        self._build: tuple[tuple[int, int, int], str] | None = None

    async def seen(self, *, now: bool = False) -> Surroundings:
        """The last look, or a new one when that is old or ``now`` is asked for."""
        if not now and time.monotonic() - self._at < EVERY_SECONDS:
            return self._seen
        try:
            self._seen = await asyncio.to_thread(self._look)
        except OSError as error:  # such as no descriptor that is free: unknown is all that there is then
            why = f"cannot be looked at: {error.strerror or error}"
            self._seen = Surroundings(time.monotonic(), journal=JournalSeen(words=why), stderr=StderrSeen(why))
        self._at = time.monotonic()
        return self._seen

    def sockets(self) -> int | None:
        """The sockets that the p4 agent's process held at the last look, None when nobody knows."""
        return self._seen.gauge.sockets if self._seen.gauge is not None else None

    async def build(self) -> str:
        """The stage's program by its content. Raises EngineMissing when it is not there or cannot be run."""
        return await asyncio.to_thread(self._digest)

    def _look(self) -> Surroundings:
        pid = self._seen.pid
        if pid is not None and life_of(pid) != self._seen.life:
            pid = None
        given = journal_given(pid) if pid is not None else None
        if pid is None or given is None:
            pid = find_listener(host_and_port(self._place.agent)[1])
            given = journal_given(pid) if pid is not None else None
        return Surroundings(
            at=time.monotonic(),
            pid=pid,
            life=life_of(pid) if pid is not None else "",
            gauge=gauge(pid) if pid is not None else None,
            journal=look_at_journal(self._place.journal, given),
            stderr=look_at_stderr(pid),
            stages=look_at_stages(pid) if pid is not None else (),
        )

    def _digest(self) -> str:
        path = Path(self._place.binary)
        try:
            facts = path.stat()
            key = (facts.st_size, facts.st_mtime_ns, facts.st_ino)
            if self._build is None or self._build[0] != key:
                with path.open("rb") as file:
                    self._build = key, hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise EngineMissing(
                f"the stage's program {path} cannot be read: {error.strerror}. Correct binary of [engines.p4] in "
                "agent.toml."
            ) from error
        if not os.access(path, os.X_OK):
            raise EngineMissing(f"the stage's program {path} cannot be executed. Give it its mode (chmod +x).")
        return f"build {self._build[1][:12]}"
