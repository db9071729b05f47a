"""What fault tests stand on: agents with armed failpoints, kept running as a service manager would, and quiet after."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from backend.contract.commands import Capacities, Command, Load, Reserve, Subscribe, Unload
from backend.contract.entities import JournalRecord, Result
from backend.contract.events import JournalBatch
from backend.contract.plans import PhaseBound, Plan, sealed
from backend.contract.reports import HostReport
from backend.contract.words import AgentAddress, HostId, NodeGeneration, NodeId, OpId
from backend.control.link import Link
from backend.control.link_ends import LinkSettings
from backend.control.link_events import AnyLinkEvent, LinkUp, MeasuredHeard, Noted, RecordsHeard
from backend.control.recalling import ask_until_known
from tests.agent.wire import RawConsole
from tests.e2e.fleet import CATALOG, PATIENCE, Fleet, until
from tests.factories import GENERATION, make_plan

T = TypeVar("T")

QUIET_SECONDS = 1.3
"""More than two ticks of an agent and its head file's second: whatever still wanted to happen has happened."""
QUICK = LinkSettings(open=5.0, send=5.0, silence=6.0, floor=0.1, ceiling=0.2, settled=1.0, refused=1.0)
WORKER = NodeId("tiny-1/1")
PHASES = ("spawning", "connecting", "loading", "warming")


async def eventually(what: str, look: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """Like ``until``, in a running loop."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s; last seen: {seen!r}"
        await asyncio.sleep(0.03)


class FaultFleet(Fleet):
    """A fleet whose agents and commands can be started with armed failpoints. ``hits`` says what was reached."""

    def __init__(self, first_port: int, catalog: str = CATALOG) -> None:
        super().__init__(first_port, catalog)
        self.hits_file = self.home / "hits"
        self.hits_file.touch()

    def arming(self, failpoints: str) -> dict[str, str]:
        """The environment that arms these failpoints; without any it still writes down what is passed."""
        return {
            "RINGTOP_TEST": "1",
            "RINGTOP_FAILPOINTS": failpoints,
            "RINGTOP_FAILPOINT_HITS": str(self.hits_file),
        }

    def spawn_agent(self, name: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start one agent and return at once."""
        with open(self.home / f"{name}.log", "ab") as log:
            agent = subprocess.Popen(
                [sys.executable, "-I", "-m", "backend.agent", "serve", "--config", str(self.home / f"{name}.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        self.agents[name] = agent
        return agent

    def start_armed(self, name: str, failpoints: str, *, listening: bool = True) -> None:
        """Start one agent with failpoints; ``listening`` False: it may be dead before it listens."""
        self.socket(name).unlink(missing_ok=True)
        self.spawn_agent(name, self.arming(failpoints))
        if listening:
            until(f"the socket of {name}", self.socket(name).exists)

    def log_of(self, name: str) -> str:
        """What an agent said."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def acted(self, point: str) -> list[str]:
        """The times that a failpoint did what it was armed to do."""
        lines = self.hits_file.read_text().splitlines()
        return [line for line in lines if line.startswith(f"{point} ") and " passed " not in line]

    def engine_pids(self) -> set[int]:
        """The engines of this fleet that live now."""
        pids = set()
        for process in self.engines():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    pids.add(process.pid)
        return pids


class Keeper:
    """Starts an agent again whenever it ended, as a service manager does, and notes what it left behind."""

    def __init__(self, fleet: FaultFleet, name: str = "host-a") -> None:
        self._fleet = fleet
        self._name = name
        self.deaths: list[tuple[int, set[int]]] = []

    async def keep(self) -> None:
        """Runs until cancelled. ``deaths``: exit code, and the engines that lived on."""
        while True:
            agent = self._fleet.agents.get(self._name)
            if agent is not None and (code := agent.poll()) is not None:
                self.deaths.append((code, self._fleet.engine_pids()))
                self._fleet.socket(self._name).unlink(missing_ok=True)
                self._fleet.spawn_agent(self._name)
            await asyncio.sleep(0.02)


class Asker:
    """A real link to one agent, which asks again until the outcome is known.

    ``records`` is what it was shown, ``broken`` what contradicts that, ``present`` which consoles are connected.
    """

    def __init__(self, fleet: Fleet, host: str = "host-a", console: str = "asker", tail: int = 200) -> None:
        self.records: dict[int, JournalRecord] = {}
        self.broken: list[str] = []
        self.present: set[str] = set()
        settings = msgspec.structs.replace(QUICK, tail=tail)
        address = AgentAddress(f"unix:{fleet.socket(host)}")
        self.link = Link(HostId(host), address, self._hear, console=console, who="tester", settings=settings)

    def _hear(self, event: AnyLinkEvent) -> None:
        if isinstance(event, RecordsHeard):
            for record in event.records:
                if self.records.setdefault(record.seq, record) != record:
                    self.broken.append(f"record {record.seq} was {self.records[record.seq]}, and is {record}")
        elif isinstance(event, LinkUp):
            self.present = {each.console for each in event.report.present}
        elif isinstance(event, MeasuredHeard) and event.measured.present is not None:
            self.present = {each.console for each in event.measured.present}
        elif isinstance(event, Noted) and event.kind in ("link.gap", "link.journal"):
            self.broken.append(event.words)

    async def ask(self, command: Command, seconds: float = PATIENCE) -> Result:
        """The one result of a command, however often the connection breaks."""
        return await ask_until_known(self.link, command, seconds)


@contextlib.asynccontextmanager
async def running(*work: Asker | Keeper) -> AsyncIterator[None]:
    """These, running for as long as the block."""
    tasks = [asyncio.create_task(one.link.run() if isinstance(one, Asker) else one.keep()) for one in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def worker_plan(fleet: Fleet, generation: int = GENERATION, replica: str = "tiny-1", port: int = 0) -> Plan:
    """A plan whose rank 1 is a worker on host-a; its leader belongs to host-b, which no test here needs."""
    plan = make_plan(
        replica, generation, hosts=("host-b", "host-a"), first_port=fleet.first_port + 2 + port, memory=1 << 20
    )
    phases = tuple(PhaseBound(name, 15.0, "15 s") for name in PHASES)
    return sealed(msgspec.structs.replace(plan, phases=phases))


def reserve(plan: Plan, op: str = "r", seconds: float = 60.0, by: str = "alice") -> Reserve:
    return Reserve(op_id=OpId(op), plan=plan, by=by, seconds=seconds)


def load(plan: Plan, op: str = "l", reservation: str = "r", by: str = "alice") -> Load:
    return Load(
        op_id=OpId(op),
        node_id=NodeId(f"{plan.replica}/1"),
        node_generation=NodeGeneration(int(plan.load_generation)),
        adapter_kind="llamacpp",
        adapter_content_type="application/vnd.ringtop.llamacpp.load-v1+json",
        capacities=Capacities(),
        reservation=OpId(reservation),
        plan=plan,
        fence=plan.load_generation,
        by=by,
    )


def unload(plan: Plan, op: str = "u", generation: int | None = None, by: str = "alice") -> Unload:
    return Unload(
        op_id=OpId(op),
        node_id=NodeId(f"{plan.replica}/1"),
        node_generation=NodeGeneration(generation or int(plan.load_generation)),
        adapter_kind="llamacpp",
        by=by,
    )


_NUMBERS = itertools.count(1)


async def report_of(fleet: Fleet, name: str = "host-a", seconds: float = PATIENCE) -> HostReport:
    """Everything that an agent has now, over a connection of its own."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            console = await RawConsole.open(fleet.socket(name), name, f"looker-{next(_NUMBERS)}")
            try:
                return await console.hello()
            finally:
                await console.close()
        except OSError:
            assert time.monotonic() < deadline, f"{name} does not answer within {seconds:g} s"
            await asyncio.sleep(0.05)


async def journal_of(fleet: Fleet, name: str = "host-a") -> list[JournalRecord]:
    """Every record that an agent's journal holds, as it tells a console that begins at its start."""
    console = await RawConsole.open(fleet.socket(name), name, f"reader-{next(_NUMBERS)}")
    try:
        head = (await console.hello()).seq
        await console.say(Subscribe(op_id=OpId("all"), tail=head))
        records: list[JournalRecord] = []
        while len(records) < head:
            records += (await console.hear(JournalBatch)).records
        return records
    finally:
        await console.close()


PROOF_SECONDS = 5.0
"""A hold that stands longer is meant to: a stuck process, say."""


async def assert_quiet(fleet: FaultFleet, seconds: float = QUIET_SECONDS) -> None:
    """Nothing more changes: no record is written, nothing starts and nothing ends. Heartbeats are not recorded.

    A hold that waits for its proof is the end of a recovery, not quiet yet: its proof is waited for first.
    """
    names = [name for name, agent in fleet.agents.items() if agent.poll() is None]
    await _proofs(fleet, names)
    before = {name: await _begun(fleet, name) for name in names}
    engines = fleet.engine_pids()
    await asyncio.sleep(seconds)  # the quiet itself is what is looked at
    for name in names:
        after = await report_of(fleet, name)
        if after.seq != before[name].seq:
            late = [record for record in await journal_of(fleet, name) if record.seq > before[name].seq]
            raise AssertionError(f"{name} is not quiet: {[(r.kind, r.words) for r in late]}")
        assert after.entities == before[name].entities
    assert fleet.engine_pids() == engines


async def _begun(fleet: FaultFleet, name: str) -> HostReport:
    """A report behind the first record of a new journal, whose sync may take as long as the disk likes."""
    while True:
        report = await report_of(fleet, name)
        if report.seq or report.facts.journal != "ok":
            return report


async def _proofs(fleet: FaultFleet, names: list[str]) -> None:
    """Wait until nothing is held for a proof, for as long as proofs go on coming."""
    deadline = asyncio.get_running_loop().time() + PROOF_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        reports = [await report_of(fleet, name) for name in names]
        if not any(report.entities.holds for report in reports):
            return
        await asyncio.sleep(0.1)


def quiet(fleet: FaultFleet, seconds: float = QUIET_SECONDS) -> None:
    """``assert_quiet`` for tests without a loop."""
    asyncio.run(assert_quiet(fleet, seconds))


def spawned_of(records: list[JournalRecord], node: str = WORKER) -> list[JournalRecord]:
    """The records that say a process of this slot was started or found again after its start."""
    return [r for r in records if r.node_id == node and r.kind in ("spawned", "adopted")]


def state_folder(fleet: Fleet, name: str = "host-a") -> Path:
    return fleet.home / name


def journal_folder(fleet: Fleet, name: str = "host-a") -> Path:
    """The folder of the one journal of an agent."""
    (found,) = (path for path in (state_folder(fleet, name) / "journal").iterdir() if len(path.name) == 32)
    return found
