"""Links to several hosts folded into one fleet state: what a console and an operation have in common."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from backend.contract.durations import duration
from backend.contract.states import HostState
from backend.contract.words import HostId
from backend.control.contexts import Context
from backend.control.fleet import Folded, empty_fleet, fold_event, fold_reports
from backend.control.fleet_events import AnyFleetEvent, Slept, Ticked
from backend.control.link import Link
from backend.control.link_ends import LinkSettings
from backend.control.link_events import LinkUp
from backend.control.views import FleetState, JournalLine
from backend.control.wall_clock import now_unix_ms

TICK_SECONDS = 1.0
SETTLE_SECONDS = 10.0
SLEPT_SECONDS = 5.0
"""A jump of the clock that counts suspended time against the one that does not: this machine slept."""
SETTLED = (HostState.LIVE, HostState.UNREACHABLE, HostState.LOST, HostState.REFUSED)


class Reach:
    """Keeps links up and the state folded until ``run`` is cancelled. Everything happens in the loop's thread.

    Reports that come in one turn of the loop are folded together, before anything that comes later: a console that
    starts hears a whole fleet at once.

    ``show`` gets the journal lines of each event, ``ticked`` is called once a second.
    ``told`` gets every event before it is folded, ``tap`` the frames that events of the links came of.
    """

    def __init__(
        self,
        context: Context,
        hosts: Iterable[HostId],
        *,
        console: str,
        who: str,
        read_only: bool = False,
        settings: LinkSettings | None = None,
        show: Callable[[tuple[JournalLine, ...]], None] | None = None,
        ticked: Callable[[], None] | None = None,
        tap: Callable[[HostId, str], None] | None = None,
        told: Callable[[AnyFleetEvent], None] | None = None,
    ) -> None:
        self.context = context
        chosen = {host: context.hosts[host] for host in hosts}
        self._fleet = empty_fleet(context.name, context.label, chosen, read_only=read_only)
        self._show = show
        self._ticked = ticked
        self._told = told
        self._reports: dict[HostId, LinkUp] = {}
        self._reported = asyncio.Event()
        self._changed = asyncio.Event()
        self.links = {
            host: Link(
                host,
                address,
                self.apply,
                console=console,
                who=who,
                read_only=read_only,
                settings=settings,
                addresses=context.hosts,
                tap=tap,
            )
            for host, address in chosen.items()
        }

    @property
    def state(self) -> FleetState:
        """The latest state."""
        return self._fleet.state

    async def run(self) -> None:
        """Keep everything going. Ends by cancellation, or with the exception of a bug."""
        async with asyncio.TaskGroup() as group:
            for link in self.links.values():
                group.create_task(link.run())
            group.create_task(self._fold_each_turn())
            group.create_task(self._tick())

    def apply(self, event: AnyFleetEvent) -> None:
        """Fold one event and wake everybody who waits for a change; a report at the end of this turn of the loop."""
        if self._told is not None:
            self._told(event)
        if isinstance(event, LinkUp):
            if event.host in self._reports:
                self._fold_reports()
            self._reports[event.host] = event
            self._reported.set()
            return
        self._fold_reports()
        self._take(fold_event(self._fleet, event))

    async def _fold_each_turn(self) -> None:
        while True:
            await self._reported.wait()
            self._fold_reports()

    def _fold_reports(self) -> None:
        self._reported.clear()
        if self._reports:
            reports, self._reports = tuple(self._reports.values()), {}
            self._take(fold_reports(self._fleet, reports))

    def _take(self, folded: Folded) -> None:
        before = self._fleet
        self._fleet, lines = folded
        if lines and self._show is not None:
            self._show(lines)
        if self._fleet.state is not before.state:
            self._changed.set()
            self._changed = asyncio.Event()

    async def until(self, holds: Callable[[FleetState], bool], seconds: float) -> bool:
        """Whether ``holds`` became true within ``seconds``; it is tried again at each change of the state."""
        try:
            async with asyncio.timeout(seconds):
                while not holds(self.state):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def settle(self) -> None:
        """Wait until every host is heard, or known not to be, for as long as a person waits for a first answer."""
        await self.until(is_settled, SETTLE_SECONDS)

    async def _tick(self) -> None:
        slept = _suspended_seconds()
        while True:
            at, unix_ms = time.monotonic(), now_unix_ms()
            if (now := _suspended_seconds()) - slept > SLEPT_SECONDS:
                self.apply(Slept(at=at, unix_ms=unix_ms, seconds=now - slept))
                for link in self.links.values():
                    link.reconnect(f"this machine slept for {duration(now - slept)}")
            slept = now
            self.apply(Ticked(at=at, unix_ms=unix_ms))
            if self._ticked is not None:
                self._ticked()
            await asyncio.sleep(TICK_SECONDS)


def is_settled(state: FleetState) -> bool:
    """Every host is live, or it is known why it is not."""
    return all(host.state in SETTLED for host in state.hosts.values())


def _suspended_seconds() -> float:
    """Seconds that this machine was suspended since its boot; 0 where the system has no clock for it."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.clock_gettime(boottime) - time.clock_gettime(time.CLOCK_MONOTONIC) if boottime is not None else 0.0
