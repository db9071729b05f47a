"""p4 on one host: what its agent has, how a stage is asked for, followed and unloaded. No process of it is ours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from backend.contract.entities import Resident
from backend.contract.findings import Finding
from backend.contract.models import ModelFacts
from backend.contract.plans import Plan, PlannedShard
from backend.contract.reports import EngineFacts, HostFacts, ResidentFacts, ResidentNode
from backend.engines.driver import Completion, EngineMissing, Run, Seen, Tender
from backend.engines.llamacpp.model_file import read_header
from backend.engines.p4.adoption import is_adopted
from backend.engines.p4.bridge import Bridge
from backend.engines.p4.checks import check_stage
from backend.engines.p4.door import Door
from backend.engines.p4.growth import Growth
from backend.engines.p4.heads import Peers
from backend.engines.p4.journal import JournalSeen
from backend.engines.p4.link import P4Link
from backend.engines.p4.loaded import read_census
from backend.engines.p4.memory_plan import inspect_memory_plan, judge_memory_plan
from backend.engines.p4.outlook import Look, Outlook
from backend.engines.p4.place import P4Place
from backend.engines.p4.record import RecordedLoad, RecordUnreadable, read_record, ring_of
from backend.engines.p4.refusals import rank_words
from backend.engines.p4.seen import devices_of
from backend.engines.p4.site import P4Pace, Places, Site, complete_counted, key_of, unload_once
from backend.engines.p4.snapshot import NodeSeen, Snapshot
from backend.engines.p4.stage import Stage, StageOver, ring_endpoint
from backend.engines.p4.stage_processes import IdleStages
from backend.engines.p4.stage_words import StderrSeen
from backend.engines.p4.surroundings import Lookout, Surroundings
from backend.engines.p4.tending import P4Tender
from backend.planning.engines.p4_commands import load_body

CHECK_SECONDS = 0.2
"""How old a look may be for a check: all stages of a host are checked with one."""
FACTS_SECONDS = 2.0
"""How long the host's facts wait for the p4 agent: it answers at once, or something is slow there."""


def unix_ms() -> int:
    """Wall-clock milliseconds."""
    return time.time_ns() // 1_000_000


class P4:
    """The driver of p4. ``state`` is the folder in which this agent remembers what outlives it."""

    engine = "p4"

    def __init__(
        self,
        place: P4Place,
        state: Path,
        *,
        door: Door | None = None,
        pace: P4Pace | None = None,
        wall_ms: Callable[[], int] = unix_ms,
    ) -> None:
        self._place = place
        self._lookout = Lookout(place)
        self._door: Door = door or P4Link(place, state, self._lookout)
        self._pace = pace or P4Pace()
        self._wall_ms = wall_ms
        self._outlook = Outlook(self._door.inspect, self._every, self._pace.soon)
        self._places = Places()
        self._site = Site(
            door=self._door,
            outlook=self._outlook,
            places=self._places,
            pace=self._pace,
            wall_ms=wall_ms,
            place=place,
            journal=self._journal,
            bridge=Bridge(place.bridge),
            growth=Growth(),
            stderr=self._stderr,
            peers=Peers(self._door.reach),
            ring=self._ring,
        )
        self._idle = IdleStages()
        self._ports: dict[int, str] = {}
        self._ours: set[tuple[str, int]] = set()
        self._rings: dict[str, RecordedLoad] = {}
        self.tender: Tender = P4Tender(place, self._lookout, self._nodes_now, self._door.leave)

    # What is there

    def _every(self) -> float:
        """The pause between two looks: nothing of ours is under way most of the time, and a look costs a probe."""
        is_busy = self._places.asked or self._places.unloading or self._places.moving
        return self._pace.inspect if is_busy else self._pace.rest

    async def facts(self) -> EngineFacts:
        """Its agent's address, devices and nodes. Raises EngineMissing while it does not answer."""
        snapshot = await self._look()
        around = await self._lookout.seen()
        gauge, journal, growth = around.gauge, around.journal, self._site.growth
        growth.see(around.at, journal.files, journal.bytes)
        self._idle.see(around.at, around.stages, self._rest_mark(snapshot, around))
        record, words = await asyncio.to_thread(self._record)
        return EngineFacts(
            engine=self.engine,
            folder=str(Path(self._place.binary).parent),
            release=self._place.release or await self._lookout.build(),
            devices=devices_of(snapshot),
            resident=ResidentFacts(
                address=self._place.advertise,
                nodes=tuple(self._node(node, record) for node in snapshot.nodes),
                journal=journal.state,
                journal_files=journal.files,
                journal_bytes=journal.bytes,
                restart=journal.restart,
                sockets=gauge.sockets if gauge else None,
                unique=gauge.unique if gauge else None,
                hidden=gauge.hidden if gauge else None,
                taught=self._place.bridge.is_told,
                words=words,
                stderr=around.stderr.words,
                stderr_file=around.stderr.file,
                growth=growth.figure,
                processes=self._idle.processes(around.stages, self._ports),
            ),
        )

    def _rest_mark(self, snapshot: Snapshot, around: Surroundings) -> object:
        """What is another one when something crossed a stage or changed it: each event leaves a record in the journal.

        None while a stage is not at rest, or when the journal cannot be counted.
        """
        at_rest = all(node.lifecycle_state == "loaded" and not node.pending_requests for node in snapshot.nodes)
        if self._places.asked or self._places.unloading or not at_rest or around.journal.files is None:
            return None
        nodes = tuple((node.node_id, node.generation) for node in snapshot.nodes)
        return around.life, around.journal.files, around.journal.bytes, nodes

    async def log_file(self) -> Path:
        """The file that its stages write to. Raises ValueError with what to set when there is none."""
        stderr = await self._stderr()
        if not stderr.file:
            raise ValueError(f"its standard error is {stderr.words}")
        return Path(stderr.file)

    async def _nodes_now(self) -> tuple[ResidentNode, ...]:
        """Its nodes by an INSPECT of this moment. Raises EngineMissing while it does not answer."""
        snapshot = await self._look(within=0.0)
        record, _ = await asyncio.to_thread(self._record)
        return tuple(self._node(node, record) for node in snapshot.nodes)

    def _record(self) -> tuple[RecordedLoad | None, str]:
        """The record of whoever loads past ringtop, and why there is none."""
        if not self._place.record:
            return None, ""
        try:
            return read_record(Path(self._place.record)), ""
        except RecordUnreadable as error:
            return None, str(error)

    async def _look(self, within: float | None = None) -> Snapshot:
        """A look that is not older than ``within`` seconds. Raises EngineMissing with what stands in its way."""
        last = self._outlook.last
        if within is None:
            within = min(self._every(), self._pace.watched)
        if last is not None and time.monotonic() - last.asked < within:
            return last.snapshot
        try:
            async with asyncio.timeout(FACTS_SECONDS):
                return await self._outlook.once()
        except OSError as error:
            said = str(error) or f"nothing for {FACTS_SECONDS:g} s"
            raise EngineMissing(
                f"the p4 agent at {self._place.agent} does not answer as {self._place.advertise}: {said}. Start "
                "it, or correct agent and advertise of [engines.p4] in agent.toml; what it runs is unknown until then."
            ) from error

    def _node(self, node: NodeSeen, record: RecordedLoad | None) -> ResidentNode:
        """A node, and where the record of whoever loaded it places it."""
        rank = record.rank_of(self._place.advertise, node.node_id, node.generation) if record else None
        return ResidentNode(
            name=node.node_id,
            generation=node.generation,
            phase=node.lifecycle_state,
            state=node.state,
            is_ours=(node.node_id, node.generation) in self._ours,
            replica=record.model if record is not None and rank is not None else "",
            rank=rank,
            world_size=len(record.stages) if record is not None and rank is not None else None,
        )

    async def inspect(self, path: Path) -> ModelFacts:
        """Geometry of a model file from its header. Raises ModelUnreadable."""
        return await asyncio.to_thread(read_header, path)

    async def check(self, shard: PlannedShard, plan: Plan, facts: HostFacts) -> tuple[Finding, ...]:
        """What the plan relied on here, looked at once more. Raises EngineMissing while the p4 agent is silent."""
        await self._look(within=CHECK_SECONDS)
        found = tuple(check_stage(shard, plan, await self.facts()))
        if found:
            return found
        model = _model_here(plan.model_path, facts.model_roots)
        try:
            planned = await inspect_memory_plan(plan, shard, self._place.binary, model)
        except ValueError:
            return ()  # a stage that cannot be asked for; ``residence`` says why
        return tuple(judge_memory_plan(plan, shard, planned))

    async def check_workers(self, plan: Plan) -> tuple[Finding, ...]:
        """Stages do not wait for each other while they load: there is nobody to greet."""
        return ()

    # A stage

    def residence(self, shard: PlannedShard, plan: Plan) -> Resident:
        """The node that the p4 agent will be asked for. Raises ValueError for a stage that cannot be asked for."""
        load_body(plan, shard, binary=self._place.binary, model=plan.model_path)
        address = plan.address_of(shard)
        if address != self._place.advertise:
            raise ValueError(
                f"{shard.node_id} is planned at {address or 'no p4 agent'}, and the p4 agent of {shard.host} "
                f"advertises {self._place.advertise}. Plan again."
            )
        return Resident(address=address, name=shard.node_id, generation=shard.node_generation)

    async def drive(self, run: Run, see: Callable[[Seen], None]) -> None:
        """Follow one stage until cancelled; after a refusal nothing more is said."""
        self._ours.add(key_of(run.shard))
        self._ports.update((int(port), run.shard.node_id) for port in run.shard.ports)
        if run.shard.rank == 0:
            self._rings[ring_endpoint(run)] = self._ring(run)
        with contextlib.suppress(StageOver):  # it was told why; the agent unloads it
            await Stage(self._site, run, see).follow()
        await asyncio.get_running_loop().create_future()

    def _ring(self, run: Run) -> RecordedLoad:
        """The stages of a ring: as planned, or as the record has them of one that somebody else loaded."""
        if not is_adopted(run.plan):
            return ring_of(run.plan)
        record, _ = self._record()
        known = record is not None and record.generation == run.plan.load_generation
        return record if record is not None and known else RecordedLoad(run.plan.model, 0, ())

    async def _journal(self) -> JournalSeen:
        return (await self._lookout.seen(now=True)).journal

    async def _stderr(self) -> StderrSeen:
        return (await self._lookout.seen(now=True)).stderr

    async def until_gone(self, run: Run) -> str:
        """Wait until INSPECT shows no such node, twice, while nothing of ours is under way that could explain it."""
        key = key_of(run.shard)
        missing, was_there = 0, False
        while (look := await self._next(key)) is not None:
            node = look.snapshot.node(key[0])
            is_there = node is not None and node.generation == key[1]
            if is_there or key in self._places.asked or key in self._places.unloading:
                missing, was_there = 0, was_there or is_there
                continue
            missing += 1
            if key in self._places.unloaded:
                return f"{self._place.advertise} {self._places.unloaded.pop(key)}"
            if missing > 1:
                return f"{self._place.advertise} {_lost_words(node, was_there=was_there)}"
            self._outlook.hurry()
        return f"{self._place.advertise} was never asked for it"

    async def _next(self, key: tuple[str, int]) -> Look | None:
        """The next look; None for a load that never left, which a silent agent must not keep open."""
        look = asyncio.ensure_future(self._outlook.next())
        try:
            while not look.done():
                await asyncio.wait({look}, timeout=self._pace.notice)
                if key in self._places.unsent:
                    return None
            return look.result()
        finally:
            look.cancel()

    async def unload(self, run: Run, refused: Callable[[str], None]) -> None:
        """Ask for the unload until nothing is there; each new reason against it is told once."""
        pause, told = self._pace.unload_again, ""
        while key_of(run.shard) not in self._places.unsent:
            answer = await unload_once(self._site, key_of(run.shard))
            if isinstance(answer, str):
                words = f"its unload was not answered ({answer}); asked again"
            elif answer.is_absent or "generation is stale" in answer.error:
                return
            else:
                census = read_census(answer.error)
                words = f"{census.words if census else f'not unloaded: {answer.words}'}; asked again until it is"
            if words != told:
                told = words
                refused(words)
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._pace.unload_slowest)

    async def leave(self) -> None:
        """This agent ends: say FINISH on every connection, so that the p4 agent loses no slot."""
        await self._door.leave()

    async def complete(self, endpoint: str, prompt: str, max_tokens: int, seconds: float) -> Completion:
        """One completion in a session of its own. Raises TimeoutError, ConnectionError."""
        ring = self._rings.get(endpoint)
        if ring is None or not ring.stages:
            raise ConnectionError(f"the stages of {endpoint} are not known here")
        session = f"ringtop-{ring.generation}-{self._wall_ms()}"
        unready = await self._door.open_session(ring, session, seconds)
        if unready:
            raise TimeoutError(f"no session within {seconds:g} s: {rank_words(unready)}")
        done, _ = await complete_counted(self._site, ring, session, prompt, max_tokens, seconds)
        return done


def _model_here(path: str, roots: Sequence[str]) -> str:
    """Where the model lies on this host; whether it may be read is checked elsewhere."""
    return next((found for root in roots if os.path.exists(found := os.path.join(root, path))), path)


def _lost_words(node: NodeSeen | None, *, was_there: bool) -> str:
    """How a node went that nobody here unloaded."""
    instead = f"; it has generation {node.generation} of that name" if node is not None else ""
    if was_there:
        return f"has no such node any more{instead}: its p4 agent was started again, or somebody else unloaded it"
    why = "its LOAD did not arrive or ended without a stage, or its p4 agent was started again"
    return f"has no such node{instead}: {why}"
