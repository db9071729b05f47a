"""Rows of the fault table about consoles and the way to them: silent, slow, doubled, gone, of another version."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from backend.agent import clock
from backend.agent.core.state import Ticked
from backend.contract.commands import OperationStatus, Release, Subscribe
from backend.contract.endpoints import Agent, Outer
from backend.contract.envelopes import encode, event_envelope
from backend.contract.events import Accepted, Answered, Heartbeat, Refused, Welcome
from backend.contract.words import AgentAddress, HostId, OpId, UnixMs
from backend.control.link import Link
from backend.control.link_ends import AnswerUnknown
from backend.control.link_events import AnyLinkEvent, BeatHeard, LinkDown, LinkUp, Noted
from backend.control.recalling import ask_until_known
from tests.agent.core.world import World
from tests.agent.journal.worlds import append_each, open_journal, segments
from tests.agent.wire import RawConsole
from tests.e2e.fleet import until
from tests.e2e.terminal import Terminal
from tests.factories import GENERATION, make_plan
from tests.faults.stand import (
    QUICK,
    Asker,
    FaultFleet,
    assert_quiet,
    eventually,
    journal_of,
    load,
    quiet,
    report_of,
    reserve,
    running,
    spawned_of,
    unload,
    worker_plan,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(100)]


class Middle:
    """A unix socket between a console and an agent that passes everything on, until it is frozen or cut."""

    def __init__(self, fleet: FaultFleet, name: str = "host-a") -> None:
        self.path = fleet.home / f"middle-{name}.sock"
        self._behind = fleet.socket(name)
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Middle]:
        server = await asyncio.start_unix_server(self._accept, str(self.path))
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_unix_connection(str(self._behind))
        self._writers += [writer, inner_writer]
        for source, sink in ((reader, inner_writer), (inner_reader, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                await self.flowing.wait()
                sink.write(data)
                await sink.drain()
        sink.close()

    def insert(self, body: dict[str, object]) -> None:
        """Say an event of this body to the console, as if the agent had. Only while nothing else is on the way."""
        beat = event_envelope(
            Heartbeat(head_seq=0, at_unix_ms=UnixMs(1)),
            source=Agent(HostId("host-a")),
            target=Outer(HostId("host-a"), "over", 1),
            sequence=1_000_000,
            correlation_id="inserted",
            causation_id=None,
        )
        frame = json.dumps({**json.loads(encode(beat)), "body": body}).encode()
        self._writers[0].write(b"\x81\x7e" + len(frame).to_bytes(2, "big") + frame)

    def cut(self) -> None:
        """End every connection at once."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


def link_over(middle: Middle, heard: list[AnyLinkEvent], **settings: float) -> Link:
    """A real link through the middle, that gives up soon."""
    quick = msgspec.structs.replace(QUICK, **settings)
    address = AgentAddress(f"unix:{middle.path}")
    return Link(HostId("host-a"), address, heard.append, console="over", who="tester", settings=quick)


# 24, 25, 26: silence and slowness


@pytest.mark.faults("the host stands still (the agent is stopped, as in a suspend): its data is stale, then it is back")
async def test_e24_host_suspended_by_stopping_the_agent_injected(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    heard: list[AnyLinkEvent] = []
    async with Middle(fleet).open() as middle:
        link = asyncio.create_task(link_over(middle, heard, silence=1.5, open=1.0).run())
        await eventually("the link", lambda: [e for e in heard if isinstance(e, LinkUp)])
        os.kill(fleet.agents["host-a"].pid, signal.SIGSTOP)
        try:
            await eventually("the link's end", lambda: [e for e in heard if isinstance(e, LinkDown)], 30.0)
        finally:
            os.kill(fleet.agents["host-a"].pid, signal.SIGCONT)
        (down, *_) = [e for e in heard if isinstance(e, LinkDown)]
        assert "silent" in down.words
        await eventually("the next link", lambda: len([e for e in heard if isinstance(e, LinkUp)]) >= 2)
        link.cancel()
        await asyncio.gather(link, return_exceptions=True)
    await assert_quiet(fleet)


@pytest.mark.faults("the host slept for an hour (its clock, injected): what was reserved has expired when it wakes")
def test_e24_claims_run_out_in_a_suspend_injected(monkeypatch: pytest.MonkeyPatch) -> None:
    world, plan = World(), make_plan()
    monkeypatch.setattr(world, "now", clock.now)
    world.reserve(plan)
    world.event(Ticked())
    assert world.state.entities.reservations, "a minute has not passed"
    awake = time.clock_gettime

    def slept(which: int) -> float:
        return awake(which) + (3600.0 if which == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", slept)
    world.event(Ticked())
    assert world.state.entities.reservations == {}
    assert "expired unused" in world.records[-1].words
    world.effects = []
    world.event(Ticked())
    assert world.is_quiet()


@pytest.mark.faults("half-open, idle: a console that hears nothing for its limit says so and dials again")
async def test_e25_half_open_while_idle(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    heard: list[AnyLinkEvent] = []
    async with Middle(fleet).open() as middle:
        link = asyncio.create_task(link_over(middle, heard, silence=1.5, open=1.0).run())
        await eventually("the link", lambda: [e for e in heard if isinstance(e, LinkUp)])
        middle.flowing.clear()
        began = time.monotonic()
        await eventually("the link's end", lambda: [e for e in heard if isinstance(e, LinkDown)])
        assert time.monotonic() - began < 20.0
        middle.flowing.set()
        await eventually("the next link", lambda: len([e for e in heard if isinstance(e, LinkUp)]) >= 2)
        link.cancel()
        await asyncio.gather(link, return_exceptions=True)


@pytest.mark.faults("half-open while a command is sent: unknown, never failed, and the truth comes with the next link")
async def test_e25_half_open_while_sending(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    heard: list[AnyLinkEvent] = []
    async with Middle(fleet).open() as middle:
        link = link_over(middle, heard, silence=2.0, open=1.0)
        task = asyncio.create_task(link.run())
        assert await link.wait_live(20.0)
        middle.flowing.clear()
        plan = worker_plan(fleet)
        with pytest.raises(AnswerUnknown) as unknown:
            await link.ask(reserve(plan), 1.0)
        assert unknown.value.sent
        middle.cut()
        middle.flowing.set()
        assert (await ask_until_known(link, reserve(plan), 30.0)).status == "succeeded"
        assert len([r for r in await journal_of(fleet) if r.kind == "reserved"]) == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await assert_quiet(fleet)


@pytest.mark.thorough
@pytest.mark.faults("a console never reads: it is cut off, the others see no delay, the agent's memory is bounded")
async def test_e26_console_never_reads(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    raw = await RawConsole.open(fleet.socket("host-a"), "host-a", "deaf")
    await raw.hello()
    await raw.say(Subscribe(op_id=OpId("sub"), tail=10))
    transport = raw.ws.transport
    assert isinstance(transport, asyncio.Transport)
    transport.pause_reading()
    asker = Asker(fleet)
    before = _resident(fleet)
    slowest = 0.0
    async with running(asker):
        why = "x" * 4_000
        for number in range(1100):
            began = time.monotonic()
            command = Release(op_id=OpId(f"n{number}-{why}"[:120]), reservation=OpId(why), by="alice")
            await asker.ask(command)
            slowest = max(slowest, time.monotonic() - began)
        await eventually(
            "the deaf console's end",
            lambda: "deaf" not in asker.present,
            30.0,
        )
        assert slowest < 5.0, f"another console waited {slowest:.1f} s"
        assert _resident(fleet) - before < 96 << 20
    transport.abort()


def _resident(fleet: FaultFleet) -> int:
    with open(f"/proc/{fleet.agents['host-a'].pid}/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


# 27, 28, 29, 30: commands that come twice, late, without an answer, or against each other


@pytest.mark.faults("a command arrives twice, and once with another payload: one run, one result, the other refused")
async def test_e27_duplicate_command(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    plan = worker_plan(fleet)
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    await console.ask(reserve(plan))
    for _ in range(3):
        await console.say(load(plan))
    answers = [await console.hear(Answered) for _ in range(3)]
    assert len({msgspec.json.encode(answer.result) for answer in answers}) == 1
    await console.say(load(plan, by="mallory"))
    assert (await console.hear(Refused)).code == "E_OP_REUSED"
    assert len(spawned_of(await journal_of(fleet))) == 1
    assert len(fleet.engine_pids()) == 1
    await console.close()
    await assert_quiet(fleet)


@pytest.mark.faults("commands arrive in the wrong order: each says what it lacks, none half happens")
async def test_e27_reordered_commands(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    plan = worker_plan(fleet)
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    early = await console.ask(load(plan, "early"))
    assert early.result.status == "rejected"
    assert "E_NOT_RESERVED" in early.result.first_error
    gone = await console.ask(unload(plan, "first"))
    assert (gone.result.status, gone.result.resource_state) == ("succeeded", "absent")
    assert (await console.ask(reserve(plan))).result.status == "succeeded"
    assert (await console.ask(load(plan))).result.status == "succeeded"
    stale = await console.ask(unload(plan, "stale", GENERATION - 1))
    assert stale.result.status == "rejected"
    assert "E_FENCED" in stale.result.first_error
    assert len(fleet.engine_pids()) == 1
    await console.close()
    await assert_quiet(fleet)


@pytest.mark.faults("a command arrives after its reservation has ended: refused, nothing is started")
async def test_e27_delayed_command(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    plan = worker_plan(fleet)
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    assert (await console.ask(reserve(plan, seconds=0.3))).result.status == "succeeded"

    async def expired() -> bool:
        return not (await report_of(fleet)).entities.reservations

    deadline = time.monotonic() + 20
    while not await expired():
        assert time.monotonic() < deadline, "the reservation did not end"
        await asyncio.sleep(0.1)
    late = await console.ask(load(plan))
    assert late.result.status == "rejected"
    assert "expired" in late.result.first_error
    assert not fleet.engine_pids()
    await console.close()
    await assert_quiet(fleet)


@pytest.mark.faults("the answer is lost after `accepted`: a new connection asks by op id and hears the one result")
async def test_e28_reply_lost_after_accepted(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    plan = worker_plan(fleet)
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    await console.ask(reserve(plan))
    await console.say(load(plan))
    await console.hear(Accepted)
    console.ws.transport.abort()
    again = await RawConsole.open(fleet.socket("host-a"), "host-a", "again")
    await again.hello()
    deadline = time.monotonic() + 30
    while True:
        known = (await again.ask(OperationStatus(op_id=OpId(f"s{time.monotonic()}"), asked=OpId("l")))).result.value
        assert known["known"] is True
        if known["result"] is not None:
            break
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    assert known["result"]["status"] == "succeeded"
    assert (await again.ask(load(plan))).result.status == "succeeded"
    assert len(fleet.engine_pids()) == 1
    await again.close()
    await assert_quiet(fleet)


def one_host(fleet: FaultFleet) -> None:
    fleet.write_contexts({"host-a": f"unix:{fleet.socket('host-a')}"})
    fleet.start("host-a")


@pytest.mark.faults("a console is killed in the middle of its load: the operation runs to its end, owner named")
def test_e29_console_crash_mid_command(fleet: FaultFleet) -> None:
    one_host(fleet)
    console = subprocess.Popen(
        fleet.command("load", "tiny:one-worker", "--yes"),
        env=fleet.env(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    ledger = fleet.home / "ledger"
    until("its first step", lambda: any(len(f.read_text().splitlines()) > 1 for f in ledger.glob("*.jsonl")))
    console.kill()
    console.wait()

    def ended() -> dict[str, object] | None:
        (operation,) = fleet.json("ls", "operations")
        return dict(operation) if operation["state"] == "succeeded" else None

    operation = until("its end", ended)
    assert operation["by"]
    replica = fleet.replica()
    assert replica is not None
    assert replica["state"] == "ready"
    quiet(fleet)


@pytest.mark.faults("two consoles load into one slot: one wins, the other is told who")
async def test_e30_load_against_load(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    alice, bob = Asker(fleet, console="alice"), Asker(fleet, console="bob")
    one, two = worker_plan(fleet), worker_plan(fleet, GENERATION + 1)
    async with running(alice, bob):
        results = await asyncio.gather(alice.ask(reserve(one, "ra", by="alice")), bob.ask(reserve(two, "rb", by="bob")))
        statuses = [result.status for result in results]
        assert sorted(statuses) == ["rejected", "succeeded"]
        lost = results[statuses.index("rejected")].first_error
        winner = "alice" if statuses[0] == "succeeded" else "bob"
        assert "E_CONFLICT" in lost
        assert winner in lost
        plan, op = (one, "ra") if winner == "alice" else (two, "rb")
        assert (await alice.ask(load(plan, "l", op))).status == "succeeded"
        assert len(fleet.engine_pids()) == 1
        await assert_quiet(fleet)


@pytest.mark.faults("one console loads, another unloads: the unload names its generation, and each has one result")
async def test_e30_load_against_unload(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    alice, bob = Asker(fleet, console="alice"), Asker(fleet, console="bob")
    plan = worker_plan(fleet)
    async with running(alice, bob):
        await alice.ask(reserve(plan))
        loaded, unloaded = await asyncio.gather(alice.ask(load(plan)), bob.ask(unload(plan, by="bob")))
        assert unloaded.status == "succeeded"
        assert loaded.status in ("succeeded", "failed")
        gone = await bob.ask(unload(plan, "u2", by="bob"))
        assert (gone.status, gone.resource_state) == ("succeeded", "absent")
        await eventually("no engine", lambda: not fleet.engine_pids())
        assert len(spawned_of(await journal_of(fleet))) <= 1
        await assert_quiet(fleet)


@pytest.mark.faults("two consoles unload the same generation: both succeed, it is stopped once")
async def test_e30_unload_against_unload(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    alice, bob = Asker(fleet, console="alice"), Asker(fleet, console="bob")
    plan = worker_plan(fleet)
    async with running(alice, bob):
        await alice.ask(reserve(plan))
        assert (await alice.ask(load(plan))).status == "succeeded"
        results = await asyncio.gather(alice.ask(unload(plan, "ua")), bob.ask(unload(plan, "ub", by="bob")))
        assert [(r.status, r.resource_state) for r in results] == [("succeeded", "absent")] * 2
        assert not fleet.engine_pids()
        assert len([r for r in await journal_of(fleet) if r.kind == "exited"]) == 1
        await assert_quiet(fleet)


# 31: other versions


@pytest.mark.faults("a console of another major version: it is greeted, sees everything, and may not write")
async def test_e31_console_of_another_major(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.say(console.hello_command(major=2))
    welcome = await console.hear(Welcome)
    assert (welcome.major, welcome.read_only) == (1, True)
    await console.say(reserve(worker_plan(fleet)))
    assert (await console.hear(Refused)).code == "E_READ_ONLY"
    await console.close()
    await assert_quiet(fleet)


@pytest.mark.faults("an event that only a newer agent knows: shown raw, the host stays in sight")
async def test_e31_unknown_event_of_a_newer_agent_injected(fleet: FaultFleet) -> None:
    heard: list[AnyLinkEvent] = []
    address = AgentAddress("unix:/nonexistent")
    link = Link(HostId("host-a"), address, heard.append, console="c", who="w", settings=QUICK)
    from backend.contract.events import UnknownEvent

    link._heard(UnknownEvent(type="telepathy", raw={"type": "telepathy", "strength": 7}))  # as a decoded frame would be
    (noted,) = [event for event in heard if isinstance(event, Noted)]
    assert noted.kind == "unknown.telepathy"
    assert "strength" in noted.words


@pytest.mark.faults("commands, fields and values of a newer console only: refused by name, and nothing else ends")
async def test_e31_unknown_commands_of_a_newer_console(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    for body, name in (
        ({"type": "replica.teleport", "op_id": "t"}, "replica.teleport"),
        ({"type": "release", "op_id": "t", "reservation": "x", "by": "alice", "gently": True}, "gently"),
        ({"type": "op.status", "op_id": "t", "asked": 7}, "asked"),
    ):
        await console.say_raw({}, body)
        refused = await console.hear(Refused)
        assert (refused.op_id, refused.code) == ("t", "E_INVALID")
        assert name in refused.words
    known = await console.ask(OperationStatus(op_id=OpId("s"), asked=OpId("t")))
    assert known.result.value == {"known": False, "result": None}, "something of a refused command was kept"
    await console.close()
    await assert_quiet(fleet)


@pytest.mark.thorough
@pytest.mark.faults("an event of a newer agent comes over a real link (its frame, injected): noted raw, the link stays")
async def test_e31_unknown_event_over_a_real_link_injected(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    heard: list[AnyLinkEvent] = []
    async with Middle(fleet).open() as middle:
        link = asyncio.create_task(link_over(middle, heard).run())
        await eventually("the link", lambda: [e for e in heard if isinstance(e, LinkUp)])
        await eventually("a quiet line", lambda: [e for e in heard if isinstance(e, BeatHeard)])
        middle.insert({"type": "telepathy", "strength": 7})
        await eventually("its note", lambda: [e for e in heard if isinstance(e, Noted) and "telepathy" in e.kind])
        assert not [e for e in heard if isinstance(e, LinkDown)]
        link.cancel()
        await asyncio.gather(link, return_exceptions=True)
    await assert_quiet(fleet)


@pytest.mark.faults("a journal of a newer format: an older agent never opens it for writing, and says both formats")
async def test_e31_newer_journal_format(fleet: FaultFleet) -> None:
    (fleet.home / "host-a").mkdir(mode=0o700)
    folder = fleet.home / "host-a" / "journal"
    journal = open_journal(folder)
    await append_each(journal, [1, 2])
    await journal.close()
    (segment,) = segments(folder)
    data = bytearray(segment.read_bytes())
    data[8] += 1
    segment.write_bytes(data)
    fleet.start_armed("host-a", "")
    report = await report_of(fleet)
    assert segment.name in report.facts.journal
    assert segment.read_bytes() == bytes(data)
    await assert_quiet(fleet)


# 34, 36, 46: cut off, out of descriptors, hung up


@pytest.mark.faults("the console is cut off and comes back: a plan made before is refused for what moved meanwhile")
def test_e34_command_from_a_stale_view(fleet: FaultFleet) -> None:
    one_host(fleet)
    plan = fleet.home / "plan.json"
    made = fleet.run("plan", "tiny:one-worker", "-o", str(plan))
    assert made.returncode == 1, made.stdout + made.stderr
    fleet.load("tiny:alone")
    engines = fleet.engine_pids()
    stale = fleet.run("load", "--plan", str(plan), "--yes")
    assert stale.returncode == 2, stale.stdout + stale.stderr
    assert "revision" in stale.stdout + stale.stderr
    assert fleet.engine_pids() == engines
    quiet(fleet)


@pytest.mark.faults("no descriptor is left when an engine is to be stopped: the stop waits, and ends with the next one")
async def test_e36_out_of_file_descriptors_at_a_stop(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    pid, asker, plan = fleet.agents["host-a"].pid, Asker(fleet), worker_plan(fleet)
    async with running(asker):
        assert (await asker.ask(reserve(plan))).status == "succeeded"
        assert (await asker.ask(load(plan))).status == "succeeded"
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        stopping = asyncio.ensure_future(asker.ask(unload(plan)))
        await eventually("its words", lambda: "the stop of tiny-1/1 waits" in fleet.log_of("host-a") or None)
        assert fleet.agents["host-a"].poll() is None, fleet.log_of("host-a")[-500:]
        assert fleet.engine_pids(), "the engine is gone, and nobody could have looked"
        assert not stopping.done()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
        assert (await stopping).status == "succeeded"
        assert not fleet.engine_pids()
        assert fleet.agents["host-a"].poll() is None
    await assert_quiet(fleet)


@pytest.mark.faults("the agent has no descriptor left: consoles are refused aloud, those that are there are served on")
async def test_e36_out_of_file_descriptors(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    pid = fleet.agents["host-a"].pid
    there = Asker(fleet)
    async with running(there):
        assert (await there.ask(Release(op_id=OpId("a"), reservation=OpId("x"), by="a"))).status == "succeeded"
        used = len(os.listdir(f"/proc/{pid}/fd"))
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 2, hard))
        others: list[RawConsole] = []
        refused = 0
        for number in range(8):
            try:
                async with asyncio.timeout(10):
                    others.append(await RawConsole.open(fleet.socket("host-a"), "host-a", f"n{number}"))
            except (InvalidStatus, InvalidMessage, ConnectionClosed, OSError, TimeoutError):
                refused += 1
        assert refused, "every console was let in"
        assert fleet.agents["host-a"].poll() is None, fleet.log_of("host-a")[-500:]
        assert (await there.ask(Release(op_id=OpId("b"), reservation=OpId("x"), by="a"))).status == "succeeded"
        for other in others:
            other.ws.transport.abort()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))

        async def let_in() -> bool:
            try:
                console = await RawConsole.open(fleet.socket("host-a"), "host-a", "later")
                await console.hello()
                await console.close()
            except (InvalidStatus, InvalidMessage, ConnectionClosed, OSError):
                return False
            return True

        deadline = time.monotonic() + 20
        while not await let_in():
            assert time.monotonic() < deadline, "nobody is let in again"
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("how", ["SIGHUP", "terminal closed", "terminal blocked"])
@pytest.mark.faults("the console's terminal hangs up or blocks: the load goes on, the agent notices nothing")
def test_e46_console_lost(fleet: FaultFleet, how: str) -> None:
    one_host(fleet)
    terminal = Terminal(fleet.command(), fleet.env())
    try:
        terminal.wait_for("1/1 hosts")
        loading = subprocess.run(
            fleet.command("load", "tiny:one-worker", "--yes"), env=fleet.env(), capture_output=True, check=False
        )
        assert loading.returncode == 0
        if how == "SIGHUP":
            terminal.kill(signal.SIGHUP)
            assert terminal.wait_end() == 129
        elif how == "terminal closed":
            os.close(terminal.fd)
            terminal.fd = os.open(os.devnull, os.O_RDONLY)
            until("its end", lambda: os.waitpid(terminal.pid, os.WNOHANG)[0] or None)
            terminal.status = 1
        else:
            terminal.kill(signal.SIGSTOP)
        replica = fleet.replica()
        assert replica is not None
        assert replica["state"] == "ready"
        assert fleet.run("unload", "tiny-1", "--yes").returncode == 0
        until("no engine", lambda: not fleet.engine_pids() or None)
        quiet(fleet)
    finally:
        terminal.close()
