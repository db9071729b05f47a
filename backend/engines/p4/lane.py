"""One lane of a client: at most one connection for one purpose, dialled when it is needed and kept.

A lane dials in a task of its own, so that a caller who gives up does not leave a half-made connection behind: every
connection that comes up is left with FINISH, and what it may have cost is written down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backend.contract.p4.addresses import P4Address
from backend.contract.p4.events import P4Outer
from backend.engines.p4.asked import Questions
from backend.engines.p4.connection import Counters, P4Connection, P4Settings
from backend.engines.p4.dialling import DialPace
from backend.engines.p4.outcomes import NotSent
from backend.engines.p4.slots import Mode, SlotCount, SlotsSpent, SlotsUnreadable


class Lane:
    """Control, inspection or submission at one p4 agent. ``modes`` are tried in order: the second only when the p4
    agent closes a connection in answer to Hello, as one that knows no hop mode does."""

    def __init__(
        self,
        name: str,
        modes: tuple[Mode, ...],
        dial: tuple[str, int],
        advertised: P4Address,
        slots: SlotCount,
        settings: P4Settings,
        *,
        now: Callable[[], float],
        make_channel: Callable[[], str],
    ) -> None:
        self.name = name
        self.questions = Questions(settings.max_asked)
        self.counters = Counters()
        """What the connections that are over could not use."""
        self.ending_words = ""
        """How the last connection ended."""
        self._modes = modes
        self._host, self._port = dial
        self._advertised = advertised
        self._slots = slots
        self._settings = settings
        self._now = now
        self._make_channel = make_channel
        self._pace = DialPace()
        self._dials = 0
        self._connection: P4Connection | None = None
        self._opening: asyncio.Task[NotSent | None] | None = None
        self._watching: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def mode(self) -> Mode:
        """The mode of its connections."""
        return self._modes[0]

    @property
    def connection(self) -> P4Connection | None:
        """Its connection, when there is one that is not over."""
        return self._connection if self._connection is not None and self._connection.is_open else None

    async def ready(self, seconds: float) -> P4Connection | NotSent:
        """A connection on which events may be sent, dialled if there is none.

        Waits up to ``seconds``. A connection that is slow to come up is kept and waited for by the next call.
        """
        deadline = self._now() + seconds
        while True:
            trouble = await self._opened(deadline - self._now())
            if trouble is not None:
                return trouble
            connection = self._connection
            if connection is None:  # it came up and was over again
                return NotSent(self.ending_words)
            if await connection.greeted(deadline - self._now()):
                return connection
            if connection.ending is None and self._is_closed:
                return self._left()
            if connection.ending is None:
                return NotSent(
                    f"the p4 agent at {self._host}:{self._port} took the connection and has not answered Hello "
                    f"within {seconds:g} s; it is waited for, and no other is dialled"
                )
            await self._settled(connection)
            if self._now() >= deadline or self._pace.wait(self._now()):
                return NotSent(self.ending_words)

    async def close(self) -> None:
        """Leave with FINISH, also a connection that is just coming up. Dials no more."""
        self._is_closed = True
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if self._connection is not None:
            await self._connection.finish()
        if self._watching:
            await asyncio.wait(self._watching)

    async def _opened(self, seconds: float) -> NotSent | None:
        if self.connection is None and self._connection is not None:
            await self._settled(self._connection)
        if self._is_closed:  # perhaps just now: what is dialled behind a close would never be left
            return self._left()
        if self.connection is not None:
            return None
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name=f"p4 dial {self.name}")
        opening = self._opening
        await asyncio.wait({opening}, timeout=max(0.0, seconds))
        if not opening.done():
            return NotSent(f"no connection to the p4 agent at {self._host}:{self._port} within {seconds:.3g} s")
        if self._opening is opening:
            self._opening = None
        return opening.result()

    def _left(self) -> NotSent:
        return NotSent(f"this client has left the p4 agent at {self._host}:{self._port}")

    async def _open(self) -> NotSent | None:
        wait = self._pace.wait(self._now())
        if wait:
            why = f": {self.ending_words}" if self.ending_words else ""
            return NotSent(f"the p4 agent is not dialled for another {wait:.1f} s{why}")
        self._dials += 1
        route = P4Outer(self._advertised, self._make_channel(), self._dials)
        try:
            await asyncio.to_thread(self._slots.begin, route.channel, self.mode)
        except SlotsSpent as spent:
            return NotSent(str(spent), spent.finding)
        except SlotsUnreadable as error:
            return NotSent(str(error))
        connection = P4Connection(
            route, self.mode, self._settings, hear=self.questions.hear, settle=self.questions.settle
        )
        try:
            await connection.open(self._host, self._port)
        except OSError as error:
            self._pace.refused(self._now())
            self.ending_words = (
                f"{self._host}:{self._port} does not answer: {error.strerror or str(error) or 'not in time'}"
            )
            await self._count(route.channel, returned=True)
            return NotSent(self.ending_words)
        self._connection = connection
        watching = asyncio.create_task(self._watch(connection, self._now()), name=f"p4 watch {self.name}")
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        return None

    async def _watch(self, connection: P4Connection, opened_at: float) -> None:
        """Follow a connection to its end, and write down what it cost."""
        await connection.ended()
        try:
            was_left = connection.was_left
            await connection.finish()
            self.ending_words = connection.ending_words
            self.questions.close(connection.ending_words)
            self.counters.ignored += connection.counters.ignored
            if was_left and connection.ending == "finished":
                self._pace.left()
            elif not self._falls_back(connection):
                self._pace.lost(self._now(), self._now() - opened_at)
        finally:
            if self._connection is connection:
                self._connection = None
        await self._count(connection.route.channel, returned=connection.is_slot_returned)

    def _falls_back(self, connection: P4Connection) -> bool:
        """Whether the p4 agent showed that it knows no hop mode, and another may be tried at once."""
        if connection.is_greeted or connection.ending != "closed" or connection.was_left or len(self._modes) == 1:
            return False
        self._modes = self._modes[1:]
        return True

    async def _settled(self, connection: P4Connection) -> None:
        """Wait until what a connection cost is written down."""
        while self._connection is connection:
            await asyncio.wait(self._watching)

    async def _count(self, channel: str, *, returned: bool) -> None:
        try:
            await asyncio.to_thread(self._slots.end, channel, returned=returned)
        except SlotsUnreadable as error:
            # the channel stays open in the count, which errs on the safe side, and the next dial says the same
            self.ending_words = f"{self.ending_words}; {error}"
