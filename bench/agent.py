"""What an agent costs and how quickly it acts, each figure beside its floor in the same interleaved run.

``python -m bench.agent --json`` prints one object. A1 memory, A2 idle processor time, A3 command to spawned shim,
A4 killed shard to ``failed`` at a console, A5 journal to console. Real agents, real engines, the tiny model.

A4 stands beside two floors: a program of 1 MiB that is killed, and the same engine without an agent, whose memory the
kernel takes longer to free before anybody can be told.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import psutil
from websockets.asyncio.client import ClientConnection, unix_connect

from backend.agent.journal import Journal, SystemClock
from backend.agent.run_folder import run_folder
from backend.api import Backend, Plan, load_context
from backend.contract.commands import Capacities, Hello, Load, Reserve, Subscribe, Unload
from backend.contract.endpoints import Agent, Outer
from backend.contract.entities import JournalRecord
from backend.contract.envelopes import SUBPROTOCOL, command_envelope, decode_event, encode, event_envelope
from backend.contract.events import Answered, Event, JournalBatch, Reported
from backend.contract.words import HostId, LoadGeneration, OpId, UnixMs
from backend.control.fleet_events import AnyFleetEvent
from backend.control.link_ends import LinkSettings
from backend.control.link_events import LinkDown, RecordsHeard
from backend.control.reach import Reach
from bench.fleet import Fleet, floor, make_plan, median, percentile, ratio, start_load, until, wait_ready

HOST = HostId("host-a")
MEMORY_FOLDER = "/dev/shm"
BATCH = 64
RECORDS = 16_384


# --- A1, A2 -------------------------------------------------------------------------------------------------------


def resident_mib(pid: int) -> float:
    """Resident memory of one process."""
    return float(psutil.Process(pid).memory_info().rss / 2**20)


def busy_ms(pid: int) -> float:
    """Processor time of every thread of a process so far, as the scheduler counts it."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that ended between the two looks
            spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e6


def busy_of(seconds: float, *pids: int) -> list[float]:
    """Milliseconds of processor time per second of each process, over the same seconds."""
    before = [busy_ms(pid) for pid in pids]
    time.sleep(seconds)
    return [(busy_ms(pid) - spent) / seconds for pid, spent in zip(pids, before, strict=True)]


def memory_and_idling(rounds: int, seconds: float) -> dict[str, Any]:
    """A1 and A2: one agent idle, then with two replicas of four shards, beside the bare programs."""
    with Fleet([HOST]) as fleet, floor("server", fleet.home / "bare.sock") as bare:
        agent = fleet.agents[HOST].pid
        time.sleep(3.0)
        idle, floor_mib = resident_mib(agent), resident_mib(bare.pid)
        with fleet.backend() as backend:
            for _ in range(2):
                plan = make_plan(backend, "tiny:wide")
                start_load(backend, plan)
                wait_ready(backend, plan)
        time.sleep(3.0)
        shards = [engine.pid for engine in fleet.engines()]
        grown = (resident_mib(agent) - idle) / len(shards)
        alone: list[tuple[float, float]] = []
        followed: list[tuple[float, float]] = []
        with floor("watcher", fleet.home / "watcher.sock", *shards) as watcher:
            time.sleep(2.0)
            for _ in range(rounds):
                ours, theirs = busy_of(seconds, agent, watcher.pid)
                alone.append((ours, theirs))
                with fleet.backend():
                    time.sleep(1.0)
                    ours, theirs = busy_of(seconds, agent, watcher.pid)
                    followed.append((ours, theirs))
    return {
        "A1_rss_idle": figure("MiB", [idle], [floor_mib], 1.3),
        "A1_rss_per_shard": {"unit": "MiB", "median": round(grown, 3), "shards": len(shards), "goal_at_most": 0.5},
        "A2_idle_cpu_8_shards": beside("ms/s", alone, 3.0),
        "A2_idle_cpu_8_shards_one_console": beside("ms/s", followed, 3.0),
    }


def figure(unit: str, ours: list[float], floors: list[float], goal: float) -> dict[str, Any]:
    """A value beside its floor."""
    return {
        "unit": unit,
        "median": median(ours),
        "floor": median(floors),
        "ratio": ratio(ours, floors),
        "goal_ratio": goal,
        "rounds": len(ours),
    }


def beside(unit: str, pairs: list[tuple[float, float]], goal: float) -> dict[str, Any]:
    """The same from pairs of our value and the floor's."""
    return figure(unit, [ours for ours, _ in pairs], [floors for _, floors in pairs], goal)


# --- A3, A4 -------------------------------------------------------------------------------------------------------


class Console:
    """A raw websocket to one agent."""

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        self._sequence = 0

    def frame(self, command: Any) -> str:
        """One command as it travels."""
        self._sequence += 1
        source = Outer(HOST, "bench", 1)
        return encode(command_envelope(command, source=source, target=Agent(HOST), sequence=self._sequence))

    async def hear(self, is_it: Callable[[Event], bool]) -> None:
        """Read until an event is the one."""
        async with asyncio.timeout(30):
            while True:
                _, event = decode_event(await self.ws.recv(decode=True))
                if isinstance(event, Event) and is_it(event):
                    return

    async def ask(self, command: Any) -> None:
        """Send a command and wait for its result, which must be a success."""
        await self.ws.send(self.frame(command))
        await self.hear_result(command.op_id)

    async def hear_result(self, op_id: OpId) -> None:
        """Read until the one result of a command, which must be a success."""
        await self.hear(lambda event: isinstance(event, Answered) and self._is_success(event, op_id))

    async def introduce(self) -> None:
        """Hello, report, and the journal from now on."""
        hello = Hello(
            op_id=OpId("hello"), host=HOST, console="bench", who="bench", connection_generation=1, major=1, minor=0
        )
        await self.ws.send(self.frame(hello))
        await self.hear(lambda event: isinstance(event, Reported))
        await self.ws.send(self.frame(Subscribe(op_id=OpId("subscribe"))))

    @staticmethod
    def _is_success(event: Answered, op_id: OpId) -> bool:
        if event.op_id == op_id and event.result.status != "succeeded":
            raise click.ClickException(f"{op_id}: {event.result.first_error}")
        return event.op_id == op_id


def _load_of(plan: Plan, rank: int, reservation: OpId) -> Load:
    shard = next(shard for shard in plan.shards if shard.rank == rank)
    return Load(
        op_id=OpId(f"{reservation}-load-{rank}"),
        node_id=shard.node_id,
        node_generation=shard.node_generation,
        adapter_kind=plan.engine,
        adapter_content_type="application/json",
        capacities=Capacities(),
        reservation=reservation,
        plan=plan,
        fence=LoadGeneration(plan.load_generation),
        by="bench",
    )


async def _round_trip(ws: ClientConnection) -> float:
    began = time.perf_counter()
    await ws.send("x" * 300)
    await ws.recv()
    return time.perf_counter() - began


def _spawn(*argv: str) -> int:
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    return os.posix_spawn(argv[0], argv, {}, setsid=True, file_actions=quiet)


def _reap(pid: int) -> None:
    os.waitpid(pid, 0)


def _bare_spawn() -> float:
    began = time.perf_counter()
    pid = _spawn("/bin/true")
    seconds = time.perf_counter() - began
    _reap(pid)
    return seconds


async def _bare_exit_notice(*argv: str, port: int = 0) -> float:
    """From KILL to the notice of a pidfd. A program with a ``port`` listens there first."""
    pid = _spawn(*argv)
    pidfd = os.pidfd_open(pid)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    await asyncio.sleep(0.002)
    if port:
        await asyncio.to_thread(until, "its socket", lambda: _listens(port), 0.01)
    began = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    await ended.wait()
    seconds = time.perf_counter() - began
    loop.remove_reader(pidfd)
    os.close(pidfd)
    _reap(pid)
    return seconds


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _elsewhere(argv: list[str]) -> tuple[list[str], int]:
    """The same command line at a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    at = argv.index("-p") + 1
    return [*argv[:at], str(port), *argv[at + 1 :]], port


def _sync_seconds(folder: Path) -> float:
    """One batch written and synced as a journal does it, on the disk that holds ``folder``."""
    with open(folder / "sync", "ab") as file:
        file.write(b"x" * 4096)
        file.flush()
        began = time.perf_counter()
        os.fdatasync(file.fileno())
        return time.perf_counter() - began


class Appearance:
    """Tells the moment at which a file appears, by inotify: to poll for it would take a processor from the agent."""

    def __init__(self, above: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_CLOEXEC)
        self._watch(above)

    def __enter__(self) -> Appearance:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _watch(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._libc.inotify_add_watch(self._fd, os.fsencode(folder), 0x100) < 0:  # IN_CREATE
            raise OSError(ctypes.get_errno(), f"inotify cannot watch {folder}")

    def wait(self, file: Path) -> float:
        """When ``file`` appeared. Its folder may appear first. Raises ClickException after 20 s."""
        is_watched = False
        while not file.exists():
            if not select.select([self._fd], [], [], 20)[0]:
                raise click.ClickException(f"{file} never appeared")
            os.read(self._fd, 4096)
            if not is_watched and file.parent.exists():
                self._watch(file.parent)
                is_watched = True
        return time.perf_counter()


class Times:
    """Seconds of each sample, ours and the floor's side by side."""

    def __init__(self) -> None:
        self.spawned: list[tuple[float, float]] = []
        self.failed: list[tuple[float, float]] = []
        self.same_program: list[float] = []
        self.sync: list[float] = []


async def _one_round(console: Console, bare: ClientConnection, backend: Backend, fleet: Fleet, times: Times) -> None:
    """Load every worker of one plan, kill each, and clear up."""
    plan = await asyncio.to_thread(make_plan, backend, "tiny:wide")
    reservation = OpId(f"bench-{plan.load_generation}")
    await console.ask(Reserve(op_id=reservation, plan=plan, by="bench", seconds=60))
    workers = [shard for shard in plan.shards if shard.rank != 0]
    for shard in workers:
        command = _load_of(plan, shard.rank, reservation)
        frame = console.frame(command)
        folder = run_folder(fleet.home / HOST / "runs", shard.node_id, plan.load_generation)
        with Appearance(folder.parent) as appearance:
            began = time.perf_counter()
            await console.ws.send(frame)
            # shim.err is opened by the shim's own process as it is spawned
            spawned = appearance.wait(folder / "shim.err") - began
        times.spawned.append((spawned, _bare_spawn() + await _round_trip(bare)))
        times.sync.append(_sync_seconds(fleet.home))
        await console.hear_result(command.op_id)
    for engine in fleet.engines():
        argv, port = _elsewhere(engine.cmdline())
        began = time.perf_counter()
        engine.send_signal(signal.SIGKILL)
        async with asyncio.timeout(30):
            while '"state":"failed"' not in (await console.ws.recv(decode=True)):
                continue
        failed = time.perf_counter() - began
        half = (await _round_trip(bare)) / 2
        times.failed.append((failed, await _bare_exit_notice("/bin/sleep", "60") + half))
        times.same_program.append(await _bare_exit_notice(*argv, port=port) + half)
        await asyncio.sleep(0.2)
    for shard in workers:
        op_id = OpId(f"{reservation}-unload-{shard.rank}")
        await console.ask(
            Unload(
                op_id=op_id,
                node_id=shard.node_id,
                node_generation=shard.node_generation,
                adapter_kind=plan.engine,
                by="bench",
            )
        )


async def _reactions(fleet: Fleet, backend: Backend, rounds: int) -> Times:
    times = Times()
    path = fleet.home / "echo.sock"
    with floor("server", path):
        async with (
            unix_connect(str(path), uri="ws://localhost/", compression=None) as bare,
            unix_connect(
                str(fleet.socket(HOST)), uri="ws://localhost/", subprotocols=[SUBPROTOCOL], compression=None
            ) as ws,
        ):
            console = Console(ws)
            await console.introduce()
            for number in range(rounds + 1):
                if number == 1:
                    times = Times()  # the first round warms up
                await _one_round(console, bare, backend, fleet, times)
    return times


def _spread(unit: str, pairs: list[tuple[float, float]], p50_goal: float, p99_goal: float) -> dict[str, Any]:
    ours, floors = [a * 1000 for a, _ in pairs], [b * 1000 for _, b in pairs]
    return {
        **figure(unit, ours, floors, p50_goal),
        "p99": percentile(ours, 0.99),
        "floor_p99": percentile(floors, 0.99),
        "p99_ratio": round(percentile(ours, 0.99) / percentile(floors, 0.99), 2),
        "p99_goal_ratio": p99_goal,
    }


def reactions(rounds: int) -> dict[str, Any]:
    """A3 and A4 with the agent's state in memory, and what the disk adds."""
    found: dict[str, Any] = {}
    on_disk: dict[str, list[float]] = {}
    for folder in (MEMORY_FOLDER, "/tmp"):
        with Fleet([HOST], folder=folder) as fleet, fleet.backend() as backend:
            times = asyncio.run(_reactions(fleet, backend, rounds if folder == MEMORY_FOLDER else 2))
        if folder == MEMORY_FOLDER:
            found["A3_command_to_spawn"] = _spread("ms", times.spawned, 3.0, 4.0)
            found["A4_killed_to_failed"] = _spread("ms", times.failed, 3.0, 10.0)
            same = [(ours, floor) for (ours, _), floor in zip(times.failed, times.same_program, strict=True)]
            found["A4_beside_the_same_program"] = _spread("ms", same, 3.0, 10.0)
        else:
            on_disk = {"A3": [a * 1000 for a, _ in times.spawned], "A4": [a * 1000 for a, _ in times.failed]}
            found["one_sync_of_4_KiB"] = {"unit": "ms", "median": median([each * 1000 for each in times.sync])}
    found["A3_command_to_spawn"]["with_disk_sync"] = median(on_disk["A3"])
    found["A4_killed_to_failed"]["with_disk_sync"] = median(on_disk["A4"])
    return found


# --- A5 -----------------------------------------------------------------------------------------------------------


def _record(number: int) -> JournalRecord:
    return JournalRecord(
        kind="loading",
        words=f"rank 1 of generation 1764412800123 has sent {number} of {RECORDS} parts of its weights to its worker",
        at_unix_ms=UnixMs(1_764_412_800_123 + number),
        replica="tiny-1",
        node_id="tiny-1/1",
        by="bench",
    )


async def _fill_journal(folder: Path) -> None:
    """A journal of an earlier life, long enough to be read for a while."""
    journal = Journal.open(folder, host=HOST, clock=SystemClock())
    for first in range(0, RECORDS, BATCH):
        await journal.append([_record(number) for number in range(first, first + BATCH)]).durable
    await journal.close()


def _batch_frame() -> str:
    records = tuple(msgspec.structs.replace(_record(n), seq=n + 1) for n in range(BATCH))
    event = JournalBatch(records=records, cursor=f"{'0123456789abcdef' * 2}:1:{BATCH}:12345")
    target = Outer(HOST, "bench", 1)
    return encode(
        event_envelope(
            event, source=Agent(HOST), target=target, sequence=1, correlation_id="journal", causation_id=None
        )
    )


class _Tagged(msgspec.Struct):
    """The floor's idea of a frame: typed, and nothing else."""

    body: JournalBatch


async def _read_floor(path: Path, frames: int, take: Callable[[str], None]) -> float:
    """Events per second from a bare server."""
    async with unix_connect(str(path), uri="ws://localhost/", compression=None, max_size=1 << 24) as ws:
        take(await ws.recv(decode=True))
        began = time.perf_counter()
        for _ in range(frames - 1):
            take(await ws.recv(decode=True))
        return (frames - 1) * BATCH / (time.perf_counter() - began)


class _CountingReach(Reach):
    """Counts the records that were folded, from the end of the first whole batch on."""

    seen = 0
    first = last = 0.0

    def apply(self, event: AnyFleetEvent) -> None:
        """Fold one event and note the time after it."""
        super().apply(event)
        if isinstance(event, RecordsHeard):
            self.last = time.perf_counter()
            if self.first:
                self.seen += len(event.records)
            elif len(event.records) == BATCH:
                self.first = self.last

    async def until_read(self) -> float:
        """Events per second, once the whole journal was read."""
        async with asyncio.timeout(60):
            while self.seen < RECORDS - 2 * BATCH:  # noqa: ASYNC110  the event to wait for is inside the product
                await asyncio.sleep(0.01)
        return self.seen / (self.last - self.first)


async def _read_agent(fleet: Fleet) -> float:
    """Events per second from a real agent through a real link into the fleet's state."""
    settings = LinkSettings(tail=RECORDS)
    context = load_context("bench", fleet.home)
    reach = _CountingReach(context, [HOST], console=f"bench-{os.urandom(2).hex()}", who="bench", settings=settings)
    links = asyncio.create_task(reach.run())
    try:
        return await reach.until_read()
    finally:
        links.cancel()
        await asyncio.wait({links})


def _folding(context_home: Path) -> Callable[[str], None]:
    reach = Reach(load_context("bench", context_home), [HOST], console="bench", who="bench")
    # the first second of a console holds lines back to sort them; what is measured comes after it
    for second in (0.0, 5.0):
        reach.apply(LinkDown(host=HOST, at=second, unix_ms=UnixMs(1), words="not dialled"))

    def take(frame: str) -> None:
        _, event = decode_event(frame)
        assert isinstance(event, JournalBatch)
        reach.apply(RecordsHeard(host=HOST, at=9.0, unix_ms=UnixMs(1), records=event.records))

    return take


@contextlib.contextmanager
def _batches(fleet: Fleet) -> Iterator[Path]:
    file, path = fleet.home / "frame.json", fleet.home / "batches.sock"
    file.write_text(_batch_frame())
    with floor("batches", path, file, RECORDS // BATCH):
        yield path


def throughput(rounds: int) -> dict[str, Any]:
    """A5: from an agent's journal into the state of a console, and the same frames from a bare server."""
    decoder = msgspec.json.Decoder(_Tagged)

    def read_only(frame: str) -> None:
        decoder.decode(frame)

    floors, decoded_and_folded, through = [], [], []
    fleet = Fleet([HOST])
    asyncio.run(_fill_journal(fleet.home / HOST / "journal"))
    with fleet, _batches(fleet) as path:
        take = _folding(fleet.home)
        for _ in range(rounds + 1):
            floors.append(asyncio.run(_read_floor(path, RECORDS // BATCH, read_only)))
            decoded_and_folded.append(asyncio.run(_read_floor(path, RECORDS // BATCH, take)))
            through.append(asyncio.run(_read_agent(fleet)))
    return {
        "A5_decoded_and_folded": figure("events/s", decoded_and_folded[1:], floors[1:], 0.25),
        "A5_agent_to_console": figure("events/s", through[1:], floors[1:], 0.25),
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.option("--rounds", default=5, type=click.IntRange(1, 50), help="counted rounds of each figure")
@click.option("--seconds", default=10.0, help="how long each idle reading takes")
@click.option("--only", type=click.Choice(["A1", "A3", "A5"]), help="only this part: A1 with A2, A3 with A4, or A5")
def main(as_json: bool, rounds: int, seconds: float, only: str | None) -> None:
    """Measure the agent beside its floors."""
    figures: dict[str, Any] = {}
    if only in (None, "A1"):
        figures |= memory_and_idling(rounds, seconds)
    if only in (None, "A3"):
        figures |= reactions(3 * rounds)
    if only in (None, "A5"):
        figures |= throughput(rounds)
    if as_json:
        print(json.dumps(figures))
        return
    for name, values in figures.items():
        print(f"{name:34}", "  ".join(f"{key} {value}" for key, value in values.items()))


if __name__ == "__main__":
    main()
