"""Watches a leader that serves: its own counters, a canary while it is idle, and its sockets to the workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from backend.contract.durations import duration
from backend.contract.entities import Canary
from backend.contract.plans import PlannedShard
from backend.contract.reports import ClientSeen, Measurement
from backend.contract.words import UnixMs
from backend.engines.driver import CanarySeen, PeerLost, Run, Seen
from backend.engines.llamacpp.arrivals import Arrivals, count_arrivals
from backend.engines.llamacpp.census import GivenUpCanary, Progress, Reading, Track, follow, missed
from backend.engines.llamacpp.client import EngineClient, Unanswered
from backend.engines.llamacpp.clients import connected_clients
from backend.engines.llamacpp.metrics import Census
from backend.engines.llamacpp.pace import Pace, beat
from backend.engines.llamacpp.peers import Peer, busy_words, find_peers, links_of, look_at, lost_words
from backend.engines.llamacpp.sockets import SocketDiag, SocketSeen, has_ended, resident_bytes
from backend.engines.together import together
from backend.planning.engines.llamacpp import canary_slot

_SOURCE = "engine metrics"


class Service:
    """One serving leader. ``addresses`` names its workers by numeric address and port."""

    def __init__(
        self,
        run: Run,
        see: Callable[[Seen], None],
        pace: Pace,
        wall_ms: Callable[[], int],
        client: EngineClient,
        diag: SocketDiag,
        addresses: dict[tuple[str, int], PlannedShard],
    ) -> None:
        self._run = run
        self._see = see
        self._pace = pace
        self._wall_ms = wall_ms
        self._client = client
        self._diag = diag
        self._addresses = addresses
        self._peers: tuple[Peer, ...] = ()
        self._looks: tuple[SocketSeen | None, ...] = ()
        self._track = Track()
        self._canaries = 0
        self._canary: Canary | None = None
        self._canary_due = 0.0
        self._given_up: GivenUpCanary | None = None
        self._has_lost = False
        self._sockets_unread = ""
        self._arrivals: Arrivals | None = None
        self._has_served = False

    async def watch(self) -> None:
        """Runs until cancelled."""
        await together(self._count(), self._watch_peers())

    async def try_canary(self, deadline: float) -> Canary:
        """One canary, good or bad, within its own deadline. The counters are not read while it is under way."""
        at = UnixMs(self._wall_ms())
        began = time.monotonic()
        try:
            seconds = await self._client.canary(canary_slot(self._run.plan), deadline)
        except (TimeoutError, Unanswered) as error:
            seconds = time.monotonic() - began
            guilty = self._blame(waited_ms=int(seconds * 500))
            canary = Canary(False, seconds, at, f"canary: {error}" + (f"; {guilty}" if guilty else ""))
            self._given_up = GivenUpCanary(canary_slot(self._run.plan))
        else:
            self._canaries += 1
            canary = Canary(True, seconds, at, f"canary answered in {duration(seconds)}")
        self._canary = canary
        self._canary_due = time.monotonic() + (self._pace.canary_every if canary.ok else self._pace.canary_again)
        return canary

    async def try_canary_when_idle(self) -> Canary | None:
        """One canary when the engine says that nothing is in flight and none is forbidden; else None."""
        try:
            census = await self._client.census(self._pace.poll_deadline)
        except (TimeoutError, Unanswered):
            return None  # the watch reads the counters at once again, and says so
        if not census.is_idle or not self._run.may_canary():
            return None
        return await self.try_canary(self._pace.canary_deadline)

    def _blame(self, *, waited_ms: int) -> str:
        """Which rank the sockets name, in words; empty when they name none."""
        try:
            self._look_at_peers()
        except OSError as error:
            return f"sockets cannot be looked at: {error}"
        return busy_words(self._peers, self._looks, waited_ms=waited_ms)

    # Counters and canaries

    async def _count(self) -> None:
        """Read the counters, and send a canary when nothing is in flight and one is due."""
        failing_since: float | None = None
        while not self._has_lost:
            census: Census | None = None
            try:
                census = await self._read()
                failing_since = None
            except (TimeoutError, Unanswered) as error:
                failing_since = failing_since or time.monotonic() - self._pace.poll_deadline
                self._track = missed(self._track)
                self._report_silence(error, time.monotonic() - failing_since)
            if census is not None and census.is_idle and self._is_canary_due():
                self._see(CanarySeen(await self.try_canary(self._pace.canary_deadline)))
            is_busy = census is None or not census.is_idle
            idle = self._pace.poll if self._run.is_watched() else self._pace.poll_unwatched
            await beat(self._pace.poll_busy if is_busy else idle)

    def _is_canary_due(self) -> bool:
        return time.monotonic() >= self._canary_due and self._run.may_canary()

    async def _read(self) -> Census:
        """One reading, told as a measurement without canaries. Returns what the engine itself counts."""
        deadline = self._pace.poll_deadline
        census = await self._client.census(deadline)
        slots = () if census.processing == 0 else await self._client.slots(deadline)
        self._given_up = self._given_up.found_in(slots) if self._given_up else None
        users, busy = census, slots
        if self._given_up is not None and slots is not None:
            users, busy = self._given_up.taken_out(census, slots)
        reading = Reading(time.monotonic(), users, busy, self._canaries)
        self._track, progress = follow(self._track, reading)
        self._count_arrivals(reading)
        self._see(self._measurement(users, progress, self._words(users, progress)))
        return census

    def _count_arrivals(self, reading: Reading) -> None:
        """Requests since the drain began; unknown for a drain whose beginning this watch did not see."""
        if self._run.may_canary():
            self._has_served, self._arrivals = True, None
        elif self._has_served:
            self._arrivals = count_arrivals(self._arrivals, reading)

    def _clients(self) -> tuple[tuple[ClientSeen, ...] | None, int]:
        """Who is connected, while the replica drains: a look at every socket of a host takes 2 ms where it has many."""
        if self._run.may_canary():
            return None, 0
        try:
            return connected_clients(self._diag, self._run.pid, self._run.shard.ports[0]) or (None, 0)
        except OSError:
            return None, 0  # unknown: where the kernel shows no sockets, the words on the workers' sockets say so

    def _words(self, census: Census, progress: Progress) -> str:
        """What the counters and the sockets say of requests that do not get on, and of what is not known."""
        said = []
        if progress.stalled_seconds >= self._pace.stall:
            said.append(f"requests in flight, and no decode for {duration(progress.stalled_seconds)}")
        if census.processing:
            said.append(busy_words(self._peers, self._looks, waited_ms=int(self._pace.stall * 1000)))
            if self._given_up is not None and self._given_up.task is None:
                said.append("a canary that was given up may be among those in flight")
        unseen = sorted({shard.rank for shard in self._addresses.values()} - {peer.shard.rank for peer in self._peers})
        if unseen:
            ranks = ", ".join(str(rank) for rank in unseen)
            said.append(f"no socket to rank {ranks} was found: its loss would show only at the next request")
        said.append(self._sockets_unread)
        return "; ".join(words for words in said if words)

    def _report_silence(self, error: Exception, seconds: float) -> None:
        """The counters are unknown now; say for how long, and whom the sockets name."""
        if has_ended(self._run.pid):
            return  # the agent sees the exit; there is nothing to measure
        words = f"metrics did not answer for {duration(seconds)} ({error})"
        blame = self._blame(waited_ms=int(self._pace.poll_deadline * 1000))
        self._see(self._measurement(None, None, words + (f"; {blame}" if blame else "")))

    def _measurement(self, census: Census | None, progress: Progress | None, words: str) -> Measurement:
        # An earlier life of the agent sent canaries that nobody can subtract: then only differences are known.
        total = progress.tokens_generated if progress and not self._run.adopted else None
        is_busy = census is None or not census.is_idle or self._given_up is not None
        clients, beyond = self._clients()
        return Measurement(
            node_id=self._run.shard.node_id,
            observed_unix_ms=UnixMs(self._wall_ms()),
            memory=resident_bytes(self._run.pid),
            tokens_per_second=progress.tokens_per_second if progress else None,
            tokens_total=total,
            in_flight=census.processing if census else None,
            queued=census.deferred if census else None,
            oldest_seconds=progress.oldest_seconds if progress else None,
            canary_seconds=self._canary.seconds if self._canary else None,
            canary_unix_ms=self._canary.at_unix_ms if self._canary else None,
            source=_SOURCE,
            words=words,
            arrived=self._arrivals.least if self._arrivals else None,
            clients=clients,
            clients_beyond=beyond,
            links=links_of(self._peers, self._looks, is_busy=is_busy),
        )

    # Sockets

    def _look_at_peers(self) -> None:
        """Find the sockets once, and look at each. Raises OSError."""
        if {peer.shard.rank for peer in self._peers} != {shard.rank for shard in self._addresses.values()}:
            self._peers = find_peers(self._diag, self._run.pid, self._addresses)
        self._looks = tuple(look_at(self._diag, peer) for peer in self._peers)

    async def _watch_peers(self) -> None:
        """Look at every socket to a worker; the first lost one is told, and ends the watch."""
        while self._addresses:
            try:
                lost = await self._lost_peer()
                self._sockets_unread = ""
            except OSError as error:
                lost = None
                self._sockets_unread = f"sockets cannot be looked at: {error}"
            if lost is not None:
                self._has_lost = True
                self._see(lost)
                return
            await beat(self._pace.ready_look)

    async def _lost_peer(self) -> PeerLost | None:
        """The first rank whose socket says that it is gone. Raises OSError."""
        self._look_at_peers()
        for peer, seen in zip(self._peers, self._looks, strict=True):
            words = lost_words(peer, seen)
            if words is not None and await self._is_really_lost(peer):
                return PeerLost(peer.shard.rank, words)
        return None

    async def _is_really_lost(self, peer: Peer) -> bool:
        """Look again: a leader that ends takes its own sockets along, and no rank is to blame for that."""
        seen = look_at(self._diag, peer)
        if seen is None or seen.inode == 0:
            await asyncio.sleep(self._pace.gone_again)
        return not has_ended(self._run.pid) and lost_words(peer, look_at(self._diag, peer)) is not None
