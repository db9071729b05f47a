"""Carries out what the core decides about engine processes, and tells the core what became of them."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backend.agent import cgroup, devices, engine_logs, foreign_runs, proofs, supervisor
from backend.agent.core.state import (
    Adopted,
    CoreEvent,
    DriveBroke,
    Ended,
    EngineSaw,
    Follow,
    Gone,
    ProveGone,
    Spawn,
    Spawned,
    SpawnFailed,
    StopEngine,
    Stuck,
)
from backend.agent.descriptors import once_there_are
from backend.agent.model_files import resolve_model
from backend.agent.process_identity import SeenProcess, group_members, process_tree
from backend.agent.run_folder import RunFolder, RunUnreadable, run_folder
from backend.contract.entities import Entities, Hold, LoadRecord, ProcessIdentity, Resident, Shard, hold_key
from backend.contract.plans import Plan, PlannedShard
from backend.contract.words import LoadGeneration, NodeId
from backend.engines.driver import AskingDriver, Driver, EngineMissing, Run, Seen, SpawningDriver
from backend.engines.taken_over import STOP_STEPS, follow_taken_over
from backend.failpoints import failpoint

LOG_TAIL_LINES = 12
LOG_TAIL_BYTES = 8192

Key = tuple[NodeId, LoadGeneration]


class EngineRuns:
    """The shards of this host, one set of tasks per shard and generation."""

    def __init__(
        self,
        folder: Path,
        model_roots: tuple[str, ...],
        drivers: dict[str, Driver],
        dispatch: Callable[[CoreEvent], None],
        find: Callable[[NodeId], tuple[Shard, LoadRecord] | None],
        may_canary: Callable[[Shard], bool],
        is_watched: Callable[[], bool],
        is_draining: Callable[[Shard], bool] = lambda shard: False,
        was_drained: Callable[[Shard], bool] = lambda shard: False,
    ) -> None:
        self.folder = folder
        self.drivers = drivers
        self._model_roots = model_roots
        self._dispatch = dispatch
        self._find = find
        self._may_canary = may_canary
        self._is_draining = is_draining
        self._was_drained = was_drained
        self._is_watched = is_watched
        self._tasks: set[asyncio.Task[None]] = set()
        self._drives: dict[Key, asyncio.Task[None]] = {}
        self._stops: dict[Key, asyncio.Task[None]] = {}
        self._followed: set[Key] = set()
        self._trees: dict[Key, foreign_runs.Tree] = {}
        self._proving: set[str] = set()
        self._tidying: asyncio.Task[None] | None = None
        self._faults: asyncio.Queue[BaseException] = asyncio.Queue()

    def run_folder(self, node_id: NodeId, generation: int) -> Path:
        """Where one run keeps its log and its process records."""
        return run_folder(self.folder, node_id, generation)

    # Effects

    def spawn(self, effect: Spawn) -> None:
        """Start an engine; ``Spawned`` or ``SpawnFailed`` follows."""
        self._start(self._spawn(effect))

    def follow(self, effect: Follow) -> None:
        """Watch a process for its end, and drive its engine."""
        key = (effect.node_id, effect.generation)
        if key in self._followed:
            return
        found = self._find(effect.node_id)
        if found is None or not found[0].is_begun:
            return
        self._followed.add(key)
        if found[0].resident is not None:
            self._start(self._watch_resident(key, *found))
        else:
            if found[0].taken_over is not None and found[0].identity is not None:
                self._trees[key] = foreign_runs.Tree(found[0].identity)
            self._start(self._watch(key, found[0]))
        self._drives[key] = self._start(self._drive(found[0], found[1], adopted=effect.adopted))

    def stop(self, effect: StopEngine) -> None:
        """Stop an engine by its steps; its end is seen by the watch."""
        key = (effect.node_id, effect.generation)
        if key not in self._stops:
            self._stops[key] = self._start(self._stop(key))

    def prove_gone(self, effect: ProveGone) -> None:
        """Wait for the proof that ends a hold; ``Gone`` follows, once however often it was asked for."""
        key = hold_key(effect.hold)
        if key not in self._proving:
            self._proving.add(key)
            self._start(self._prove(effect.hold))

    def resume(self, shard: Shard) -> None:
        """After a restart: find what became of a shard that the journal says was live."""
        failpoint("runs.before_resume")
        node, generation = shard.node_id, shard.load_generation
        if shard.taken_over is not None and shard.identity is not None:
            self._dispatch(foreign_runs.found_again(shard, shard.identity))
            return
        driver = self.drivers.get(shard.engine)
        if shard.resident is not None and not isinstance(driver, AskingDriver):
            self._dispatch(Stuck(node, generation, f"quarantined: {_unasked(shard, shard.resident)}"))
            return
        if isinstance(driver, AskingDriver):
            # It is named before anything is asked: without a name nothing was. What became of it, its drive asks.
            words = "the agent restarted before the load was asked for; nothing runs"
            named = shard.resident
            self._dispatch(SpawnFailed(node, generation, words) if named is None else Adopted(node, generation, named))
            return
        folder = self.run_folder(shard.node_id, shard.load_generation)
        nonce = shard.identity.nonce if shard.identity else None
        try:
            found = supervisor.adopt(folder, nonce)
        except RunUnreadable as error:
            self._dispatch(Stuck(node, generation, f"quarantined: {error}"))
            return
        if found is None:
            words = "the agent restarted before its process was recorded; nothing runs"
            self._dispatch(SpawnFailed(node, generation, words))
        elif isinstance(found, supervisor.EndedRun):
            words = supervisor.exit_words(found.code, found.signal) + " while its agent was down"
            self._dispatch(Ended(node, generation, found.code, found.signal, words, self.log_tail(folder)))
        else:
            self._dispatch(Adopted(node, generation, found))

    def report_fault(self, error: BaseException) -> None:
        """Let ``watch_faults`` end the agent with this."""
        self._faults.put_nowait(error)

    async def watch_faults(self) -> None:
        """Raise what escaped from any task: an agent that cannot follow its engines must not go on quietly."""
        raise await self._faults.get()

    async def close(self) -> None:
        """End the tasks. Engines are left alone: they outlive their agent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(driver.leave() for driver in self.drivers.values() if isinstance(driver, AskingDriver)))

    def log_tail(self, folder: Path) -> tuple[str, ...]:
        """The last lines that an engine wrote."""
        return engine_logs.last_lines(RunFolder(folder), LOG_TAIL_LINES, LOG_TAIL_BYTES)

    def tidy(self, entities: Entities) -> None:
        """Rotate long logs of what runs and remove folders of runs that are long over, beside everything else."""
        used = {(shard.node_id, shard.load_generation) for shard in entities.shards.values()}
        used |= {(hold.node_id, hold.load_generation) for hold in entities.holds.values()}
        self._followed &= used
        for kept in (self._stops, self._trees):
            for key in [key for key in kept if key not in used]:
                del kept[key]
        if self._tidying is None or self._tidying.done():
            self._tidying = self._start(self._tidy([self.run_folder(*key) for key in used]))

    def _driver(self, engine: str) -> Driver:
        """The driver of an engine. Raises EngineMissing."""
        driver = self.drivers.get(engine)
        if driver is None:
            known = ", ".join(sorted(self.drivers)) or "none"
            raise EngineMissing(f"[engines.{engine}] is not in agent.toml, which has: {known}. Write it there")
        return driver

    # Tasks

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._faults.put_nowait(error)

    async def _spawn(self, effect: Spawn) -> None:
        found = self._find(effect.node_id)
        if found is None:
            return
        shard, record = found
        planned = next(s for s in record.plan.shards if s.node_id == shard.node_id)
        who: ProcessIdentity | Resident
        try:
            driver = self._driver(shard.engine)
            if isinstance(driver, AskingDriver):
                resolve_model(record.plan.model_path, self._model_roots)
                who = driver.residence(planned, record.plan)
            else:
                who = await self._spawn_process(driver, planned, record.plan, effect.nonce)
        except (ValueError, supervisor.SpawnFailed) as error:
            self._dispatch(SpawnFailed(effect.node_id, effect.generation, str(error)))
        except RunUnreadable as error:
            self._dispatch(Stuck(effect.node_id, effect.generation, f"quarantined: {error}"))
        else:
            self._dispatch(Spawned(effect.node_id, effect.generation, who))

    async def _spawn_process(
        self, driver: SpawningDriver, planned: PlannedShard, plan: Plan, nonce: str
    ) -> ProcessIdentity:
        """Start the process of a shard. Raises ValueError and SpawnFailed, with nothing left running."""
        # A worker is sent its weights; only the leader opens the file.
        is_leader = planned.role == "leader"
        model = resolve_model(plan.model_path, self._model_roots) if is_leader else Path()
        against = await driver.check_workers(plan) if is_leader else ()
        if against:
            raise supervisor.SpawnFailed(" ".join(finding.words for finding in against))
        launch = driver.launch(planned, plan, model)
        folder = self.run_folder(planned.node_id, planned.node_generation)
        return await supervisor.spawn(folder, nonce, launch.argv, launch.env)

    async def _watch(self, key: Key, shard: Shard) -> None:
        assert shard.identity is not None
        folder = self.run_folder(*key)
        identity, what = shard.identity, f"the watch of {shard.node_id}"
        kills_before = await once_there_are(_oom_kills, what)
        tree = self._trees.get(key)
        looking = None if tree is None else self._start(tree.follow())
        code = signal = None
        try:
            code, signal = await once_there_are(lambda: supervisor.wait_ended(identity, folder), what)
            words = supervisor.exit_words(code, signal)
        except RunUnreadable as error:  # the process is gone by then; only how it ended cannot be read
            words = f"exit unknown: {error}"
        if looking is not None:
            looking.cancel()
        drive = self._drives.pop(key, None)
        if drive is not None:
            drive.cancel()
        unasked = signal == 9 and key not in self._stops
        kills = await once_there_are(_oom_kills, what) if unasked else None
        if kills is not None and kills_before is not None and kills > kills_before:
            words += "; the kernel's out-of-memory killer struck in this control group"
        tail = await once_there_are(lambda: self._log_tail(folder), what) if shard.taken_over is None else ()
        self._dispatch(Ended(*key, code, signal, words, tail))

    async def _watch_resident(self, key: Key, shard: Shard, record: LoadRecord) -> None:
        """Nobody's child here: its end is what the engine's own agent says."""
        driver = self.drivers[shard.engine]
        assert isinstance(driver, AskingDriver)
        words = await driver.until_gone(self._run(shard, record, adopted=True))
        drive = self._drives.pop(key, None)
        if drive is not None:
            drive.cancel()
        self._dispatch(Ended(*key, None, None, words, ()))

    def _run(self, shard: Shard, record: LoadRecord, *, adopted: bool) -> Run:
        return Run(
            shard=shard,
            plan=record.plan,
            pid=shard.identity.pid if shard.identity is not None else 0,
            log=self.run_folder(shard.node_id, shard.load_generation) / "engine.log",
            free_memory=lambda: devices.device_free(shard.device),
            adopted=adopted,
            was_drained=adopted and self._was_drained(shard),
            may_canary=lambda: self._may_canary(shard),
            is_watched=self._is_watched,
            is_draining=lambda: self._is_draining(shard),
        )

    async def _log_tail(self, folder: Path) -> tuple[str, ...]:
        return self.log_tail(folder)

    async def _drive(self, shard: Shard, record: LoadRecord, *, adopted: bool) -> None:
        key = (shard.node_id, shard.load_generation)

        def see(seen: Seen) -> None:
            self._dispatch(EngineSaw(*key, seen))

        run = self._run(shard, record, adopted=adopted)
        try:
            if shard.resident is not None and not adopted:
                model = resolve_model(record.plan.model_path, self._model_roots)
                run = msgspec.structs.replace(run, model=model)
            if shard.taken_over is not None:
                await follow_taken_over(run, see, lambda: time.time_ns() // 1_000_000)
            else:
                await self._driver(shard.engine).drive(run, see)
        except EngineMissing as error:
            self._dispatch(DriveBroke(*key, str(error)))
        except Exception as error:  # noqa: BLE001  one engine's odd answer must not take the other engines' agent along
            sys.stderr.write(f"the drive of {shard.node_id} broke:\n{traceback.format_exc()}")
            self._dispatch(DriveBroke(*key, f"{type(error).__name__}: {error}"))

    async def _stop(self, key: Key) -> None:
        found = self._find(key[0])
        if found is None or not found[0].is_begun:
            return
        shard = found[0]
        drive = self._drives.pop(key, None)
        if drive is not None:
            drive.cancel()
        failpoint("runs.before_stop")
        if shard.resident is not None:
            driver = self.drivers.get(shard.engine)
            if isinstance(driver, AskingDriver):
                await driver.unload(self._run(*found, adopted=True), lambda words: self._dispatch(Stuck(*key, words)))
            else:
                self._dispatch(Stuck(*key, _unasked(shard, shard.resident)))
            return  # its end is seen by the watch
        assert shard.identity is not None
        try:
            outcome = await once_there_are(lambda: self._stopped(key, shard), f"the stop of {shard.node_id}")
        except RunUnreadable as error:  # every process of it is gone by then; only how it ended cannot be read
            self._dispatch(Ended(*key, None, None, f"exit unknown: {error}", ()))
            return
        if not outcome.stopped:
            pids = ", ".join(str(pid) for pid in outcome.stuck_pids)
            words = f"process {pids} is still there after KILL (stuck); nothing it uses is given out"
            self._dispatch(Stuck(*key, words, outcome.stuck_pids))
        elif key not in self._followed:  # nobody follows it: what its folder said of it could not be believed
            self._dispatch(Ended(*key, None, None, supervisor.exit_words(None, None), ()))

    async def _stopped(self, key: Key, shard: Shard) -> supervisor.StopOutcome:
        assert shard.identity is not None
        if shard.taken_over is not None:
            return await foreign_runs.stop(self._tree(key, shard.identity), STOP_STEPS)
        driver = self.drivers.get(shard.engine)
        # Of an engine that stands in agent.toml no more nobody knows the steps, and its process must end all the same.
        steps = driver.stop_steps(shard.role) if isinstance(driver, SpawningDriver) else STOP_STEPS
        return await supervisor.stop(shard.identity, self.run_folder(*key), steps)

    async def _prove(self, hold: Hold) -> None:
        failpoint("runs.before_prove")
        await asyncio.sleep(0)  # to look at every process of the host takes milliseconds: the end itself is told first
        try:
            await once_there_are(lambda: self._wait_for(hold), f"the proof that {hold.node_id} is gone")
        except RunUnreadable as error:
            words = f"nothing proves that the {hold.kind} of {hold.node_id} are free: {error}"
            self._dispatch(Stuck(hold.node_id, hold.load_generation, words))
            return
        self._proving.discard(hold_key(hold))
        self._dispatch(Gone(hold.node_id, hold.load_generation, hold.kind))

    async def _tidy(self, used: list[Path]) -> None:
        try:
            for folder in used:
                await asyncio.to_thread(engine_logs.rotate_log, RunFolder(folder))
            await asyncio.to_thread(engine_logs.prune_runs, self.folder, used)
        except OSError as error:  # tried again in a moment; a host that is this ill says so by itself
            sys.stderr.write(f"logs could not be rotated or old runs removed: {error}\n")

    async def _wait_for(self, hold: Hold) -> None:
        if hold.kind == "ports":
            await proofs.ports_are_free(hold.ports)
            return
        identity, members = self._identity_of(hold), self._members_of(hold)
        if hold.kind == "stuck":
            await proofs.processes_are_gone(identity, members)
        else:
            await proofs.device_is_released(identity, hold.device, members=members)

    def _members_of(self, hold: Hold) -> Callable[[ProcessIdentity], Sequence[SeenProcess]]:
        """Who belongs to the run of a hold: what a shim started, or an adopted engine and what it was seen to start."""
        tree, found = self._trees.get((hold.node_id, hold.load_generation)), self._find(hold.node_id)
        if tree is not None:
            return lambda _: tree.look()
        return process_tree if found is not None and found[0].taken_over is not None else group_members

    def _tree(self, key: Key, identity: ProcessIdentity) -> foreign_runs.Tree:
        """What is known of an adopted engine's processes; nothing yet of one that nobody followed."""
        return self._trees.setdefault(key, foreign_runs.Tree(identity))

    def _identity_of(self, hold: Hold) -> ProcessIdentity | None:
        """Whose end a hold waits for: as the journal has it, else as its run's folder has it."""
        found = self._find(hold.node_id)
        if found is not None and found[0].load_generation == hold.load_generation:
            return found[0].identity
        record = RunFolder(self.run_folder(hold.node_id, hold.load_generation)).read_spawn()
        return None if record is None else record.identity


def _unasked(shard: Shard, resident: Resident) -> str:
    """Why nothing is known of a resident, and nothing done to it."""
    return (
        f"{shard.node_id} is {resident.words}, and [engines.{shard.engine}] stands in agent.toml no more: whether it "
        "runs is not known. Put it back and restart the agent"
    )


async def _oom_kills() -> int | None:
    return cgroup.oom_kills()
