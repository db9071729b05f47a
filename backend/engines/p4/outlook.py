"""One look at a p4 agent for everybody: INSPECT at an even pace, its last answer, and the wait for the next.

An answer costs the agent its hardware probe, so that all stages of a host share one; and silence is only counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from backend.engines.p4.snapshot import Snapshot


class Look(msgspec.Struct, frozen=True):
    """An answer to INSPECT, when it was asked for (monotonic seconds), and its number."""

    snapshot: Snapshot
    asked: float
    number: int


class Outlook:
    """Looks again and again while somebody waits for it; ``ask`` is one INSPECT, and what it raises is silence."""

    def __init__(self, ask: Callable[[], Awaitable[Snapshot]], every: float, soon: float) -> None:
        self._ask = ask
        self._every = every
        self._soon = soon
        self._waiting: list[asyncio.Future[Look]] = []
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._number = 0
        self.last: Look | None = None
        self.silence = ""
        """Why the last question had no answer, or nothing."""
        self.silent_since: float | None = None

    def hurry(self) -> None:
        """Something was changed at the agent: look at once."""
        self._hurry.set()

    async def next(self) -> Look:
        """The first answer to a question that is asked after this moment. Waits as long as the agent is silent."""
        waiting: asyncio.Future[Look] = asyncio.get_running_loop().create_future()
        asked_from = time.monotonic()
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look())
        try:
            look = await waiting
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
        return look if look.asked >= asked_from else await self.next()

    async def once(self) -> Snapshot:
        """One question of its own. Raises what the agent's silence raises."""
        asked = time.monotonic()
        try:
            snapshot = await self._ask()
        except OSError as error:
            self.silent_since = self.silent_since or asked
            self.silence = str(error) or type(error).__name__
            raise
        self._number += 1
        self.last, self.silence, self.silent_since = Look(snapshot, asked, self._number), "", None
        return snapshot

    async def _look(self) -> None:
        while self._waiting:
            self._hurry.clear()
            try:
                await self.once()
            except OSError:
                await self._pause(self._every)
                continue
            assert self.last is not None
            told, self._waiting = self._waiting, []
            for waiting in told:
                if not waiting.done():
                    waiting.set_result(self.last)
            await self._pause(self._every)

    async def _pause(self, seconds: float) -> None:
        """Until the next look is due; one that is in a hurry waits for ``soon`` only."""
        try:
            await asyncio.wait_for(self._hurry.wait(), seconds)
        except TimeoutError:
            return
        await asyncio.sleep(self._soon)
