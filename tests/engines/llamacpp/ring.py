"""A real ring for tests: a plan by the real rules, processes started as an agent starts them, and what was seen."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from backend.contract.entities import Shard
from backend.contract.models import ModelFacts
from backend.contract.plans import PhaseBound, Plan, PlannedShard, Profile, sealed
from backend.contract.words import HostId, LoadGeneration, NodeGeneration, OpId, Port, ReplicaId, UnixMs, node_id
from backend.engines.driver import Run, Seen
from backend.engines.llamacpp.drive import LlamaCpp
from backend.engines.llamacpp.model_file import read_header
from backend.engines.llamacpp.pace import Pace
from backend.planning.engines.llamacpp import LLAMACPP, layer_counts

RELEASE = "1-7e4c0a9"
GENERATION = 1_764_412_800_123
PATIENCE = 30.0
S = TypeVar("S")


def free_ports(count: int) -> list[Port]:
    """Ports that nothing listens on now."""
    open_ones = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [Port(one.getsockname()[1]) for one in open_ones]
    for one in open_ones:
        one.close()
    return found


async def until(is_so: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait for something, with a deadline and a name."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        await asyncio.sleep(0.01)


def ring_plan(model: Path, *, ranks: int = 3, seconds: float = 30.0, hosts: str = "abcdefgh", **profile: Any) -> Plan:
    """A plan for a ring of this machine, with bounds from the real derivation and one limit for every phase."""
    facts = read_header(model)
    shape = Profile(ranks=ranks, **{"context": 512, "sequences": 2, "n_ubatch": 64, **profile})
    bounds = LLAMACPP.bounds(facts, shape, layer_counts(shape, facts))
    shards = tuple(
        PlannedShard(
            rank=seat.rank,
            host=HostId(f"host-{hosts[seat.rank]}"),
            node_id=node_id(ReplicaId("tiny-1"), seat.rank),
            node_generation=NodeGeneration(GENERATION),
            role=seat.role,
            device="CPU",
            device_uuid="",
            layers=seat.layers,
            holds_output=seat.holds_output,
            ports=(port,),
            advertise="127.0.0.1",
            bound=bound,
        )
        for seat, bound, port in zip(LLAMACPP.seats(shape, facts), bounds, free_ports(ranks), strict=True)
    )
    return sealed(_plan(model, facts, shape, shards, seconds))


def _plan(model: Path, facts: ModelFacts, shape: Profile, shards: tuple[PlannedShard, ...], seconds: float) -> Plan:
    phases = ("spawning", "connecting", "loading", "warming")
    return Plan(
        replica=ReplicaId("tiny-1"),
        model="tiny",
        model_path=str(model),
        model_facts=facts,
        profile_name="test",
        profile=shape,
        profile_fingerprint="",
        engine="llamacpp",
        load_generation=LoadGeneration(GENERATION),
        shards=shards,
        phases=tuple(PhaseBound(phase, seconds, f"{seconds:g} s, as a test says") for phase in phases),
        facts=(),
        candidates=(),
        findings=(),
        made_unix_ms=UnixMs(GENERATION),
    )


def with_bound(plan: Plan, rank: int, **fields: int) -> Plan:
    """The plan with other bytes in one rank's bound."""
    shards = tuple(
        msgspec.structs.replace(shard, bound=msgspec.structs.replace(shard.bound, **fields))
        if shard.rank == rank
        else shard
        for shard in plan.shards
    )
    return sealed(msgspec.structs.replace(plan, shards=shards))


def shard_of(planned: PlannedShard, plan: Plan, state: str = "spawning") -> Shard:
    """The shard as its agent keeps it."""
    return Shard(
        host=planned.host,
        replica=plan.replica,
        node_id=planned.node_id,
        rank=planned.rank,
        world_size=plan.profile.ranks,
        load_generation=plan.load_generation,
        node_generation=planned.node_generation,
        engine=plan.engine,
        release=RELEASE,
        role=planned.role,
        device=planned.device,
        device_uuid="",
        layers=planned.layers,
        ports=planned.ports,
        advertise=planned.advertise,
        model=plan.model,
        profile_name=plan.profile_name,
        profile_fingerprint="",
        op_id=OpId("op-1"),
        bound=planned.bound,
        state=state,
        since_unix_ms=UnixMs(0),
    )


class Rank:
    """One process of the ring, and everything that its drive said."""

    def __init__(self, process: subprocess.Popen[bytes] | None, pid: int, log: Path) -> None:
        self.process = process
        self.pid = pid
        self.log = log
        self.seen: list[Seen] = []
        self.task: asyncio.Task[None] | None = None

    def see(self, seen: Seen) -> None:
        self.seen.append(seen)

    def all(self, kind: type[S]) -> list[S]:
        """Everything of one kind that was seen."""
        return [seen for seen in self.seen if isinstance(seen, kind)]

    async def first(self, kind: type[S], seconds: float = PATIENCE) -> S:
        """The first of one kind, when it comes."""

        def is_so() -> bool:
            if self.task is not None and self.task.done():
                self.task.result()
            return bool(self.all(kind))

        await until(is_so, f"{kind.__name__} of pid {self.pid}", seconds)
        return self.all(kind)[0]


class Ring:
    """The processes of one plan. ``close`` ends each of them by its pid."""

    def __init__(self, plan: Plan, folder: Path, pace: Pace) -> None:
        self.plan = plan
        self.folder = folder
        self.driver = LlamaCpp(None, pace=pace)
        self.ranks: dict[int, Rank] = {}
        self.free_memory: Callable[[], int] = lambda: 1 << 40
        self._old: list[Rank] = []

    def start(self, rank: int) -> Rank:
        """Start one rank as an agent does, and follow it."""
        planned = self.plan.shards[rank]
        launch = self.driver.launch(planned, self.plan, Path(self.plan.model_path))
        log = self.folder / f"rank-{rank}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                launch.argv,
                env=launch.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                restore_signals=False,
                start_new_session=True,
            )
        return self.follow(rank, process, process.pid, log)

    def follow(self, rank: int, process: subprocess.Popen[bytes] | None, pid: int, log: Path, **run: Any) -> Rank:
        """Follow a process that runs already."""
        shard = run.pop("shard", None) or shard_of(self.plan.shards[rank], self.plan)
        followed = Rank(process, pid, log)
        if rank in self.ranks:
            self._old.append(self.ranks[rank])
        self.ranks[rank] = followed
        request = Run(shard=shard, plan=self.plan, pid=pid, log=log, free_memory=lambda: self.free_memory(), **run)
        followed.task = asyncio.create_task(self.driver.drive(request, followed.see))
        return followed

    async def start_workers(self) -> None:
        """Start every worker and wait until each answers."""
        for shard in self.plan.shards[1:]:
            self.start(shard.rank)
        for shard in self.plan.shards[1:]:
            await until(lambda rank=shard.rank: self.ranks[rank].seen, f"rank {shard.rank} to answer")  # type: ignore[misc]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to one rank's process."""
        os.kill(self.ranks[rank].pid, number)

    async def close(self) -> None:
        """End everything that was started."""
        for rank in [*self.ranks.values(), *self._old]:
            if rank.task is not None:
                rank.task.cancel()
                await asyncio.gather(rank.task, return_exceptions=True)
            if rank.process is not None:
                rank.process.kill()
                rank.process.wait()
