"""One look at a p4 agent for everybody: INSPECT at an even pace, its last answer, and the wait for the next.

An answer costs the agent its hardware probe, so that all stages of a host share one; silence ends no wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from backend.engines.p4.snapshot import Snapshot


class Look(msgspec.Struct, frozen=True):
    """An answer to INSPECT, and when it was asked for, in monotonic seconds."""

    snapshot: Snapshot
    asked: float


class Outlook:
    """Looks again and again while somebody waits for it. ``ask`` is one INSPECT; what it raises is silence.

    ``every`` says how long to pause between two looks, ``soon`` how long after something was changed at the agent.
    """

    def __init__(self, ask: Callable[[], Awaitable[Snapshot]], every: Callable[[], float], soon: float) -> None:
        self._ask = ask
        self._every = every
        self._soon = soon
        self._waiting: list[asyncio.Future[Look]] = []
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.last: Look | None = None

    def hurry(self) -> None:
        """Something was changed at the agent: look soon."""
        self._hurry.set()

    async def next(self) -> Look:
        """The first answer to a question that is asked after this moment. Waits as long as the agent is silent."""
        since = time.monotonic()
        while True:
            look = await self._wait()
            if look.asked >= since:
                return look

    async def once(self) -> Snapshot:
        """One question at once; everybody who waits hears its answer. Raises OSError when there is none."""
        asked = time.monotonic()
        snapshot = await self._ask()
        self.last = Look(snapshot, asked)
        told, self._waiting = self._waiting, []
        for waiting in told:
            if not waiting.done():
                waiting.set_result(self.last)
        return snapshot

    async def _wait(self) -> Look:
        waiting: asyncio.Future[Look] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look())
        try:
            return await waiting
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)

    async def _look(self) -> None:
        """Until nobody waits. A silent agent is asked again at the same pace: its silence says nothing."""
        while self._waiting:
            self._hurry.clear()
            try:
                await self.once()
            except OSError:
                self._hurry.clear()
            except Exception as error:  # noqa: BLE001  no silence but a fault: whoever waits must hear of it, and not wait on
                told, self._waiting = self._waiting, []
                for waiting in told:
                    if not waiting.done():
                        waiting.set_exception(error)
            await self._pause()

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._hurry.wait(), self._every())
        except TimeoutError:
            return
        await asyncio.sleep(self._soon)
