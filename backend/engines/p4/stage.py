"""One stage at the p4 agent of this host: asked for, heard out, compared, and watched by what INSPECT says of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, NoReturn

from backend.contract.durations import duration
from backend.contract.entities import Canary
from backend.contract.findings import Finding
from backend.contract.plans import PlannedShard
from backend.contract.reports import Measurement
from backend.contract.states import ShardState
from backend.contract.words import UnixMs
from backend.engines.driver import (
    CanarySeen,
    Confirmed,
    LeaderGone,
    PhaseSeen,
    Proven,
    Published,
    Run,
    Seen,
    Unfit,
    Unloaded,
)
from backend.engines.p4.adoption import is_adopted
from backend.engines.p4.bridge import Word
from backend.engines.p4.door import Answer, NothingSent
from backend.engines.p4.heads import until_head_is_gone
from backend.engines.p4.loaded import judge_loaded, read_census, release_of, result_of
from backend.engines.p4.record import RecordedStage, record_of, ring_of
from backend.engines.p4.refusals import load_refused, other_release, rank_words, sessionless, unanswered
from backend.engines.p4.seen import node_words
from backend.engines.p4.site import Site, complete_counted, key_of, unload_once
from backend.engines.p4.snapshot import NodeSeen
from backend.engines.p4.stage_words import begun, said_since
from backend.engines.together import together
from backend.planning.engines.p4 import HEAD
from backend.planning.engines.p4_commands import load_body

CANARY_PROMPT = "one two three"
CANARY_TOKENS = 2
ONE_CANARY = "canary once, at the load (p4's journal keeps each)"
NO_CANARY = "no canary by itself: p4's journal keeps each"
_SOURCE = "INSPECT"
_CENSUS = "census of UNLOAD"


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
        self._is_closed: bool | None = None if run.was_drained else False
        self._gate_due, self._gate_pause = 0.0, site.pace.unload_again
        self._gate_told: Published | None = None
        self._subject = f"rank {run.shard.rank} on {run.shard.host}"
        self._is_dead = False
        self._begun = 0
        self._head_words = ""

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
        head = self._head_elsewhere()
        if head is None:
            await self._watch()
            return
        await together(self._watch(), self._watch_head(head))

    # The load

    async def _load(self) -> None:
        """Ask for it and hear the answer out. Silence is unknown: then INSPECT is asked what became of it."""
        run = self._run
        planned = self._planned()
        body = load_body(run.plan, planned, binary=self._site.place.binary, model=str(run.model))
        assert run.shard.resident is not None
        self._enter(ShardState.CONNECTING, f"asks {run.shard.resident.address} for it, stage at {body['endpoint']}")
        limit = run.plan.phase_seconds("connecting") + run.plan.phase_seconds("loading")
        self._begun = begun(await self._site.stderr())
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
        elif not answer.is_loaded:
            stderr = await self._site.stderr()
            self._refuse(load_refused(self._subject, answer, said_since(stderr, self._begun) or stderr))
        else:
            self._judge(answer)

    async def _heard(self, asked: asyncio.Future[Answer]) -> Answer:
        """Wait for the answer; what INSPECT says meanwhile is shown. Raises OSError."""
        began = time.monotonic()
        look = asyncio.ensure_future(self._outlook.next())
        try:
            while True:
                both: list[asyncio.Future[Any]] = [asked, look]
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if asked.done():
                    return asked.result()
                node = look.result().snapshot.node(self.key[0])
                if node is not None and node.generation == self.key[1]:
                    waited = int((time.monotonic() - began) // 10 * 10)
                    since = f" for {waited} s" if waited else ""
                    self._enter(
                        ShardState.LOADING, f"p4 says {node_words(node)}{since}; it loads one stage after the other"
                    )
                look = asyncio.ensure_future(self._outlook.next())
        finally:
            asked.cancel()
            look.cancel()

    def _judge(self, answer: Answer) -> None:
        """LOADED, field by field. Raises StageOver."""
        planned = self._planned()
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
        attempt, pause = 1, self._pace.session_again
        while True:
            session = f"ringtop-{plan.load_generation}-{attempt}"
            unready = await self._door.open_session(ring, session, min(self._pace.session, limit))
            if not unready:
                break
            if time.monotonic() - began + pause >= limit:
                self._refuse(sessionless(self._subject, plan, unready, limit))
            self._enter(ShardState.WARMING, f"no session yet ({rank_words(unready)}); asked again")
            # A refusal comes at once, and each attempt that ends so may cost the p4 agent a connection slot for good.
            await asyncio.sleep(pause)
            attempt, pause = attempt + 1, 2 * pause
        at, began = UnixMs(self._wall_ms()), time.monotonic()
        prompt, tokens, patience = CANARY_PROMPT, CANARY_TOKENS, self._pace.canary
        try:
            done, files = await complete_counted(self._site, ring, session, prompt, tokens, patience)
        except OSError as error:
            words = str(error) or f"nothing for {duration(self._pace.canary)}"
            self._refuse(unanswered(self._subject, words))
        words = f"canary answered in {duration(time.monotonic() - began)}"
        if files is not None:
            words += f"; {done.tokens} tokens grew this host's p4 journal by {files} files"
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

    def _head_elsewhere(self) -> RecordedStage | None:
        """The head of its ring when another host's p4 agent has it: of its own host's, its agent knows by itself."""
        stages = self._site.ring(self._run).stages
        if self._run.shard.role == HEAD or not stages or stages[0].agent == self._site.place.advertise:
            return None
        return stages[0]

    async def _watch_head(self, head: RecordedStage) -> None:
        """Once the head of a drained ring is proven gone there is nothing that this stage could serve."""
        words = await until_head_is_gone(
            self._site.peers,
            head,
            self._run.is_draining,
            every=self._pace.head,
            notice=self._pace.notice,
            say=self._say_of_head,
        )
        self._see(LeaderGone(words))

    def _say_of_head(self, words: str) -> None:
        self._head_words = words

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
        """Admission follows the drain: closed while it runs, open again when it was given up.

        What the bridge did not do is said again, more and more seldom; each new answer is told once. A
        word that a former life of the agent may not have said is said once more.
        """
        draining = self._run.is_draining()
        if draining == self._is_closed or time.monotonic() < self._gate_due:
            return
        word: Word = "close" if draining else "open"
        told = await self._bridge.say(word, record_of(self._run.plan, self._wall_ms()))
        if told.ok:
            self._is_closed, self._gate_pause = draining, self._pace.unload_again
        else:
            self._is_closed = None  # it may have done it all the same
            self._gate_due = time.monotonic() + self._gate_pause
            self._gate_pause = min(2 * self._gate_pause, self._pace.unload_slowest)
        if told != self._gate_told:
            self._gate_told = told
            self._see(told)

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
        said = []
        if self._run.shard.role == HEAD:
            said.append(NO_CANARY if is_adopted(self._run.plan) else ONE_CANARY)
        if node.state and node.state != node.lifecycle_state:
            said.append(f"p4's text: {node.state}")
        if node.lifecycle_state != "loaded":
            said.append(f"p4 says {node.lifecycle_state}")
        if node.load_generation not in (None, self.key[1]):
            said.append(
                f"its load generation is {node.load_generation}, its node's {self.key[1]}: it stops at a release"
            )
        if self._head_words:
            said.append(self._head_words)
        if self._run.shard.role != HEAD or not self._run.is_draining():
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

    def _refuse(self, finding: Finding) -> NoReturn:
        self._see(Unfit(finding))
        raise StageOver(finding.words)


def ring_endpoint(run: Run) -> str:
    """How a ring is named to those who submit to it: the head at its agent, under its generation."""
    name, generation = key_of(run.shard)
    address = run.shard.resident.address if run.shard.resident is not None else ""
    return f"{address}/{name}@{generation}"
