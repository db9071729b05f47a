"""One stage at the p4 agent of this host: asked for, heard out, compared, and watched by what INSPECT says of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from backend.contract.entities import Canary, Shard
from backend.contract.findings import Finding
from backend.contract.plans import PlannedShard
from backend.contract.reports import Measurement
from backend.contract.states import ShardState
from backend.contract.words import UnixMs
from backend.engines.driver import CanarySeen, Confirmed, PhaseSeen, Proven, Run, Seen, Unfit, Unloaded
from backend.engines.p4.adoption import is_adopted
from backend.engines.p4.bridge import Bridge, Word
from backend.engines.p4.door import Answer, Door, NothingSent
from backend.engines.p4.journal import JournalSeen
from backend.engines.p4.loaded import judge_loaded, read_census, release_of, result_of
from backend.engines.p4.outlook import Outlook
from backend.engines.p4.place import P4Place
from backend.engines.p4.record import record_of, ring_of
from backend.engines.p4.refusals import load_refused, other_release, sessionless, unanswered
from backend.engines.p4.seen import node_words
from backend.engines.p4.snapshot import NodeSeen
from backend.planning.engines.p4 import HEAD
from backend.planning.engines.p4_commands import load_body

CANARY_PROMPT = "one two three"
CANARY_TOKENS = 2
NO_MORE_CANARIES = "no canary after the load: p4's journal never forgets one"
_SOURCE = "INSPECT"
_CENSUS = "census of UNLOAD"


class P4Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals and deadlines, all in seconds.

    Looks come at the pace of ``inspect`` while something is under way, of ``watched`` while nothing is and a console
    looks on, else of ``rest``; and ``soon`` after something was changed at the agent. A drain is noticed in ``notice``.
    """

    inspect: float = 2.0
    watched: float = 5.0
    rest: float = 10.0
    soon: float = 0.2
    notice: float = 0.5
    slack: float = 30.0
    session: float = 20.0
    canary: float = 30.0
    unload: float = 60.0
    unload_again: float = 1.0
    unload_slowest: float = 8.0


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
    """One p4 agent, as all of its stages share it. ``journal`` looks at its journal's folder now."""

    door: Door
    outlook: Outlook
    places: Places
    pace: P4Pace
    wall_ms: Callable[[], int]
    place: P4Place
    journal: Callable[[], Awaitable[JournalSeen]]
    bridge: Bridge


class StageOver(Exception):
    """Nothing more is to be said of a stage: its start was refused, and its agent stops it."""


class Stage:
    """One stage of one load."""

    def __init__(self, site: Site, run: Run, see: Callable[[Seen], None]) -> None:
        self._site = site
        self._door, self._outlook, self._places = site.door, site.outlook, site.places
        self._pace, self._wall_ms, self._bridge = site.pace, site.wall_ms, site.bridge
        self._run = run
        self._see = see
        self._is_closed = False
        self._subject = f"rank {run.shard.rank} on {run.shard.host}"
        self._is_dead = False

    @property
    def key(self) -> tuple[str, int]:
        """Name and generation: what it is known by at its p4 agent."""
        return key_of(self._run.shard)

    async def follow(self) -> None:
        """Runs until cancelled. Raises StageOver when its start must end, and that was said."""
        self._places.moving.add(self.key)
        try:
            await self._follow()
        finally:
            self._places.moving.discard(self.key)

    async def _follow(self) -> None:
        shard = self._run.shard
        is_up = shard.state in (ShardState.READY.value, ShardState.DRAINING.value)
        if not self._run.adopted:
            await self._load()
        elif not is_up:
            await self._until_loaded("the agent restarted while it loaded; INSPECT is asked")
        if shard.role != HEAD:
            if not is_up:
                self._enter(ShardState.READY, "loaded as planned; sessions reach it through the head")
        elif shard.canary is None and not is_adopted(self._run.plan):
            await self._open()
        await self._watch()

    # The load

    async def _load(self) -> None:
        """Ask for it and hear the answer out. Silence is unknown: then INSPECT is asked what became of it."""
        run = self._run
        planned = self._planned()
        body = load_body(run.plan, planned, binary=self._site.place.binary, model=str(run.model))
        assert run.shard.resident is not None
        self._enter(ShardState.CONNECTING, f"asks {run.shard.resident.address} for it, stage at {body['endpoint']}")
        limit = run.plan.phase_seconds("connecting") + run.plan.phase_seconds("loading")
        self._places.asked.add(self.key)
        try:
            answer = await self._heard(
                asyncio.ensure_future(self._door.load(planned, run.plan, body, limit + self._pace.slack))
            )
        except NothingSent as error:
            self._places.unsent.add(self.key)
            self._refuse(
                load_refused(self._subject, Answer("rejected", "absent", f"nothing, as it was not asked: {error}"))
            )
        except OSError as error:
            answer = None
            unknown = f"what became of its LOAD is unknown ({error or type(error).__name__}); INSPECT is asked"
        finally:
            self._places.asked.discard(self.key)
        self._outlook.hurry()
        if answer is None:
            await self._until_loaded(unknown)
        else:
            self._judge(answer)

    async def _heard(self, asked: asyncio.Future[Answer]) -> Answer:
        """Wait for the answer; what INSPECT says meanwhile is shown. Raises OSError."""
        began = time.monotonic()
        try:
            while True:
                look = asyncio.ensure_future(self._outlook.next())
                both: list[asyncio.Future[Any]] = [asked, look]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    look.cancel()
                    return asked.result()
                node = look.result().snapshot.node(self.key[0])
                if node is not None and node.generation == self.key[1]:
                    waited = int((time.monotonic() - began) // 10 * 10)
                    since = f" for {waited} s" if waited else ""
                    self._enter(
                        ShardState.LOADING, f"p4 says {node_words(node)}{since}; it loads one stage after the other"
                    )
        finally:
            asked.cancel()

    def _judge(self, answer: Answer) -> None:
        """LOADED, field by field. Raises StageOver."""
        planned = self._planned()
        if not answer.is_loaded:
            self._refuse(load_refused(self._subject, answer))
        finding = judge_loaded(self._run.plan, planned, answer.body)
        if finding is not None:
            self._refuse(finding)
        result, release = result_of(answer.body), release_of(answer.body)
        assert result is not None  # it was compared
        said = release.exact if self._run.plan.profile.exact_build else release.words
        wanted = self._site.place.release
        if wanted and wanted not in release.words:
            self._refuse(other_release(self._subject, wanted, release.words))
        words = f"LOADED is as planned, its result bound {result} B is the derived one; release {said}"
        self._see(Confirmed(said, result, words))

    async def _until_loaded(self, words: str) -> None:
        """Until INSPECT says that it is loaded. What p4 compared itself is all that is known then. Raises StageOver."""
        self._enter(ShardState.LOADING, words)
        while True:
            node = (await self._outlook.next()).snapshot.node(self.key[0])
            if node is None or node.generation != self.key[1]:
                continue  # whether it is gone is said elsewhere, once it is proven
            if node.lifecycle_state == "loaded":
                return
            if node.lifecycle_state == "failed":
                self._refuse(
                    load_refused(self._subject, Answer("failed", "unknown", f"INSPECT says {node_words(node)}"))
                )

    # The ring

    async def _open(self) -> None:
        """A session on every stage and one canary that crosses them all. Raises StageOver."""
        plan = self._run.plan
        ring = ring_of(plan)
        limit, began = plan.phase_seconds("warming"), time.monotonic()
        self._enter(ShardState.WARMING, f"loaded as planned; opens a session on {plan.profile.ranks} stages")
        attempt, silent = 0, tuple(shard.rank for shard in plan.shards)
        while silent and time.monotonic() - began < limit:
            attempt += 1
            session = f"ringtop-{plan.load_generation}-{attempt}"
            silent = await self._door.open_session(ring, session, min(self._pace.session, limit))
            if silent:
                ranks = ", ".join(str(rank) for rank in silent)
                self._enter(ShardState.WARMING, f"no session on rank {ranks} yet; asked again")
        if silent:
            named = [shard for shard in plan.shards if shard.rank in silent]
            self._refuse(sessionless(self._subject, named, [plan.address_of(shard) for shard in named], limit))
        before = await self._site.journal()
        at, began = UnixMs(self._wall_ms()), time.monotonic()
        try:
            done = await self._door.complete(ring, session, CANARY_PROMPT, CANARY_TOKENS, self._pace.canary)
        except OSError as error:
            words = str(error) or f"nothing for {self._pace.canary:g} s"
            self._refuse(unanswered(self._subject, words))
        words = f"canary answered in {time.monotonic() - began:.3f} s"
        after = await self._site.journal()
        if after.files is not None and before.files is not None:
            words += f"; {done.tokens} tokens grew this host's p4 journal by {after.files - before.files} files"
        canary = Canary(True, done.seconds, at, words)
        self._see(Proven(canary, ring_endpoint(self._run), ()))
        if self._bridge.is_told:
            self._see(await self._bridge.publish(plan, self._wall_ms()))

    # The service

    async def _watch(self) -> None:
        """Show what INSPECT says, and unload a head that drains once it is not busy."""
        is_head = self._run.shard.role == HEAD
        pause = self._pace.unload_again
        while True:
            node = await self._next_seen()
            if node is not None:
                self._show(node)
            if is_head and self._bridge.is_gate:
                await self._gate()
            if not (is_head and self._run.is_draining()):
                pause = self._pace.unload_again
                continue
            if await self._try_unload():
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._pace.unload_slowest)

    async def _next_seen(self) -> NodeSeen | None:
        """The node at the next look; None when there is none of it, or when a drain began or ended meanwhile."""
        was_draining = self._run.is_draining()
        (self._places.moving.add if was_draining else self._places.moving.discard)(self.key)
        look = asyncio.ensure_future(self._outlook.next())
        try:
            while not look.done():
                await asyncio.wait({look}, timeout=self._pace.notice)
                if self._run.is_draining() != was_draining:
                    return None
        finally:
            look.cancel()
        node = look.result().snapshot.node(self.key[0])
        return node if node is not None and node.generation == self.key[1] else None

    async def _gate(self) -> None:
        """Admission follows the drain: closed while it runs, open again when it was given up."""
        draining = self._run.is_draining()
        if draining == self._is_closed:
            return
        self._is_closed = draining
        word: Word = "close" if draining else "open"
        self._see(await self._bridge.say(word, record_of(self._run.plan, self._wall_ms())))

    async def _try_unload(self) -> bool:
        """Ask once. p4 unloads what is not busy, and says what is open of what is: there is no other count of it."""
        answer = await unload_once(self._site, self.key)
        if isinstance(answer, str):
            self._measure(words=f"its unload was not answered: {answer}")
            return False
        if answer.is_absent:
            self._see(Unloaded("nothing in flight by p4's own census: unloaded"))
            return True
        census = read_census(answer.error)
        if census is None:
            self._measure(words=f"not unloaded: {answer.words}")
        else:
            self._measure(words=census.words, in_flight=census.in_flight, queued=census.queued, source=_CENSUS)
        return False

    def _show(self, node: NodeSeen) -> None:
        said = [NO_MORE_CANARIES] if self._run.shard.role == HEAD else []
        if node.state and node.state != node.lifecycle_state:
            said.append(f"p4's text: {node.state}")
        if node.lifecycle_state != "loaded":
            said.append(f"p4 says {node.lifecycle_state}")
        if node.load_generation not in (None, self.key[1]):
            said.append(
                f"its load generation is {node.load_generation}, its node's {self.key[1]}: it stops at a release"
            )
        if not self._run.is_draining():
            self._measure(words="; ".join(said))
        if node.is_stopped and not self._is_dead:
            self._is_dead = True
            words = "its task at the p4 agent is dead (delivery.stopped): sessions hang. Unload it, and load again"
            self._see(CanarySeen(Canary(False, 0.0, UnixMs(self._wall_ms()), words)))

    def _measure(
        self, *, words: str, in_flight: int | None = None, queued: int | None = None, source: str = _SOURCE
    ) -> None:
        """Told at every look, also when nothing moved: a value that is not told again grows old on the screen."""
        measured = Measurement(
            node_id=self._run.shard.node_id,
            observed_unix_ms=UnixMs(self._wall_ms()),
            in_flight=in_flight,
            queued=queued,
            source=source,
            words=words,
        )
        self._see(measured)

    def _planned(self) -> PlannedShard:
        return next(shard for shard in self._run.plan.shards if shard.node_id == self._run.shard.node_id)

    def _enter(self, state: ShardState, words: str) -> None:
        self._see(PhaseSeen(state, words))

    def _refuse(self, finding: Finding) -> None:
        self._see(Unfit(finding))
        raise StageOver(finding.words)


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


def ring_endpoint(run: Run) -> str:
    """How a ring is named to those who submit to it: the head at its agent, under its generation."""
    name, generation = key_of(run.shard)
    address = run.shard.resident.address if run.shard.resident is not None else ""
    return f"{address}/{name}@{generation}"
