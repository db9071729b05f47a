"""Follows one llama-server from its spawn: its memory plan before the weights, its placement after, then its service.

The engine's own "abort" of a plan that does not fit only aborts the fitting: it goes on to load, for minutes, and fails
after. So its log is read every 5 ms until the plan is printed, and the start is refused from here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from backend.contract.durations import duration
from backend.contract.findings import Finding, refuse
from backend.contract.reports import Measurement
from backend.contract.states import ShardState, shard_state
from backend.contract.words import UnixMs, counted
from backend.engines.driver import CanarySeen, PhaseSeen, Proven, Run, Seen
from backend.engines.llamacpp.client import EngineClient
from backend.engines.llamacpp.log_tail import LogTail
from backend.engines.llamacpp.logs import LoadPicture, read_picture
from backend.engines.llamacpp.pace import Pace, StartRefused, next_look, overrun, phase_limit
from backend.engines.llamacpp.peers import busy_words, find_peers, look_at, worker_addresses
from backend.engines.llamacpp.placement import (
    buffers_by_rank,
    judge_bounds,
    judge_engine_plan,
    judge_placement,
    mib,
    workers_of,
)
from backend.engines.llamacpp.serving import Service
from backend.engines.llamacpp.sockets import SocketDiag, resident_bytes

_HEALTH_SECONDS = 1.0
_MEASURE_SECONDS = 0.5


def endpoint_here(run: Run) -> str:
    """Where the leader of a run takes requests on its own host."""
    return f"http://127.0.0.1:{run.shard.ports[0]}"


class LeaderDrive:
    """One leader, from its spawn on."""

    def __init__(self, run: Run, see: Callable[[Seen], None], pace: Pace, wall_ms: Callable[[], int]) -> None:
        self._run = run
        self._plan = run.plan
        self._see = see
        self._pace = pace
        self._wall_ms = wall_ms
        self._subject = f"rank {run.shard.rank} on {run.shard.host}"
        self._tail = LogTail(run.log)
        self._picture = LoadPicture()
        self._measured = 0.0
        # Looked at before the engine takes any; of an adopted one nobody knows what was free then.
        self._free_before = None if run.adopted else run.free_now()

    async def follow(self) -> None:
        """Runs until cancelled. Raises StartRefused when the start must end."""
        addresses = await worker_addresses(self._plan)
        with SocketDiag() as diag:
            client = EngineClient(endpoint_here(self._run))
            service = Service(self._run, self._see, self._pace, self._wall_ms, client, diag, addresses)
            if self._run.adopted and self._run.shard.buffers:
                await self._prove_again(service)
            else:
                await self._load(client, diag)
                await self._prove(service)
            await service.watch()

    # Load

    async def _load(self, client: EngineClient, diag: SocketDiag) -> None:
        """From the spawn to a loaded model that lies where it was planned."""
        began = time.monotonic()
        workers = len(workers_of(self._plan))
        self._enter(ShardState.CONNECTING, f"connects to {counted(workers, 'worker')}" if workers else "starts alone")
        try:
            await self._until(lambda picture: picture.is_bound, "connecting", began, "its HTTP port is not bound")
        except StartRefused as refused:
            raise await self._named(refused, diag) from None
        began = time.monotonic()
        await self._until(_has_planned, "loading", began, "its memory plan is not printed")
        self._refuse(judge_engine_plan(self._picture, self._plan, self._free_before))
        self._enter(ShardState.LOADING, self._plan_words())
        await self._until(lambda picture: picture.is_loaded, "loading", began, "the model is not loaded")
        self._refuse(judge_placement(self._picture, self._plan))
        self._refuse(judge_bounds(self._picture, self._plan))
        offloaded = self._picture.offloaded
        layers = f"{offloaded.done} of {offloaded.total} layers offloaded" if offloaded else "placed"
        self._enter(ShardState.WARMING, f"{layers}, weights and KV as planned; sends a canary")
        loaded_at = time.monotonic()
        while not await client.is_up(_HEALTH_SECONDS):
            self._check_limit("loading", began, "/health does not say 200")
            await asyncio.sleep(next_look(time.monotonic() - loaded_at, self._pace.loading_look))

    async def _until(self, is_so: Callable[[LoadPicture], bool], phase: str, began: float, missing: str) -> None:
        """Read the log until the picture is so, within the phase's bound."""
        while True:
            self._picture = read_picture(self._tail.new_lines(), self._picture)
            if is_so(self._picture):
                return
            self._check_limit(phase, began, missing)
            self._measure()
            # Before the weights a look comes every 5 ms; while they are sent nothing needs to be that quick.
            longest = self._pace.loading_look if self._picture.is_reading else self._pace.log_look
            await asyncio.sleep(next_look(time.monotonic() - began, longest))

    def _check_limit(self, phase: str, began: float, missing: str) -> None:
        seconds = time.monotonic() - began
        if seconds > phase_limit(self._plan, phase):
            said = f"; the engine said: {self._picture.complaints[-1]}" if self._picture.complaints else ""
            raise overrun(self._plan, self._subject, phase, seconds, missing + said)

    async def _named(self, refused: StartRefused, diag: SocketDiag) -> StartRefused:
        """The same refusal with the worker that the leader waits for, when its sockets name one."""
        try:
            peers = find_peers(diag, self._run.pid, await worker_addresses(self._plan))
            looks = tuple(look_at(diag, peer) for peer in peers)
        except OSError:  # nobody can be named then; the refusal stands
            return refused
        blame = busy_words(peers, looks, waited_ms=500)
        if not blame:
            return refused
        finding = refused.finding
        return StartRefused(
            refuse(
                finding.id,
                finding.subject,
                expected=finding.expected,
                found=f"{finding.found}; {blame}",
                remedy="That worker is silent or serves another leader. Unload this replica and load it again.",
            )
        )

    def _plan_words(self) -> str:
        if not self._picture.plans:
            return "loads; the engine printed no memory plan, so it is checked only after the load"
        total = sum(line.taken for line in self._picture.plans.values())
        return f"the engine's memory plan fits: {total} MiB in {counted(len(self._picture.plans), 'place')}"

    @staticmethod
    def _refuse(finding: Finding | None) -> None:
        if finding is not None:
            raise StartRefused(finding)

    # Proof

    async def _prove(self, service: Service) -> None:
        """The first canary: without it nothing is ready."""
        limit = phase_limit(self._plan, "warming")
        canary = await service.try_canary(limit)
        if not canary.ok:
            raise StartRefused(
                refuse(
                    "canary.failed",
                    self._subject,
                    expected=f"one token through every rank within {duration(limit)}",
                    found=canary.words,
                    remedy="The model is loaded and does not answer. Read the logs of every rank, then load again.",
                )
            )
        buffers = buffers_by_rank(self._picture, self._plan)
        self._see(Proven(canary, endpoint_here(self._run), buffers))
        held = sum(buffer.weights + buffer.kv for buffer in buffers)
        self._see(
            PhaseSeen(ShardState.READY, f"canary {duration(canary.seconds)} through every rank; holds {mib(held)}")
        )

    async def _prove_again(self, service: Service) -> None:
        """An adopted leader that was proven before: it keeps its route, and is proven again when it is idle.

        Its log may have been cut since, so its buffers are those of the record; nothing is refused here.
        """
        canary = await service.try_canary_when_idle()
        if canary is None:
            self._enter(ShardState.READY, "adopted; a canary follows when nothing is in flight")
        elif not canary.ok:
            self._see(CanarySeen(canary))
        else:
            self._see(Proven(canary, endpoint_here(self._run), self._run.shard.buffers))
            self._enter(ShardState.READY, f"adopted; canary {duration(canary.seconds)} through every rank")

    def _enter(self, state: ShardState, words: str) -> None:
        """Tell a phase, unless an adopted leader is known to be past it."""
        before = shard_state(self._run.shard.state)
        if self._run.adopted and before is not None and _ORDER.index(state) < _ORDER.index(before):
            return
        self._see(PhaseSeen(state, words))

    def _measure(self) -> None:
        """Resident memory while it loads: the mapped file counts as soon as it is read."""
        now = time.monotonic()
        if now - self._measured >= _MEASURE_SECONDS:
            self._measured = now
            self._see(
                Measurement(
                    node_id=self._run.shard.node_id,
                    observed_unix_ms=UnixMs(self._wall_ms()),
                    memory=resident_bytes(self._run.pid),
                    source="resident memory",
                )
            )


_ORDER = tuple(ShardState)


def _has_planned(picture: LoadPicture) -> bool:
    """The engine's plan is complete: its verdict is out, or it reads weights without having printed one."""
    return picture.verdict is not None or picture.is_reading
