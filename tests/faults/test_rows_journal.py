"""Rows of the fault table about the journal: full, failing, slow, cut, flipped, missing, and clocks that jump."""

from __future__ import annotations

import asyncio
import errno
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.agent.journal import Journal, JournalDamaged, Limits
from backend.contract.commands import OperationStatus, Release
from backend.contract.events import Refused
from backend.contract.words import NodeId, OpId
from backend.control.link_ends import AnswerUnknown, Refusal
from tests.agent.core.world import World
from tests.agent.journal.worlds import HOST, StillClock, append_each, open_journal, segments, steps
from tests.agent.wire import RawConsole
from tests.e2e.fleet import until
from tests.factories import GENERATION, make_plan
from tests.faults.stand import (
    WORKER,
    Asker,
    FaultFleet,
    Keeper,
    assert_quiet,
    eventually,
    journal_folder,
    journal_of,
    load,
    report_of,
    reserve,
    running,
    unload,
    worker_plan,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(100)]

ROTATING = Limits(segment_bytes=1024, allocate_bytes=512, head_seconds=3600.0)
HOUR_MS = 3_600_000
TEN_YEARS_MS = 10 * 365 * 24 * HOUR_MS


async def with_an_engine(fleet: FaultFleet, asker: Asker) -> int:
    """One real worker on host-a; returns its pid."""
    plan = worker_plan(fleet)
    assert (await asker.ask(reserve(plan))).status == "succeeded"
    assert (await asker.ask(load(plan))).status == "succeeded"
    (pid,) = fleet.engine_pids()
    return pid


def leave(fleet: FaultFleet) -> None:
    """End the agent as it should be ended: its head file is exact afterwards."""
    agent = fleet.agents.pop("host-a")
    agent.terminate()
    assert agent.wait(30) == 0


async def refused(fleet: FaultFleet, op: str, seconds: float = 10.0) -> str:
    """The words with which a new command is refused now."""
    console = await RawConsole.open(fleet.socket("host-a"), "host-a", f"try-{op}")
    try:
        await console.hello()
        await console.say(Release(op_id=OpId(op), reservation=OpId("none"), by="alice"))
        return (await console.hear(Refused, seconds)).words
    finally:
        await console.close()


def log_end(segment: Path) -> int:
    """Where the written part of a segment ends: what follows is preallocated zeros."""
    return len(segment.read_bytes().rstrip(b"\0"))


def flip(path: Path, offset: int) -> None:
    """Change one bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


# 13, 14, 15, 16: the disk says no, or says it late


@pytest.mark.faults("disk full at an intent (injected): refused, nothing is started; resumes when space returns")
async def test_e13_disk_full_at_intent_injected(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "journal.before_write=raise:ENOSPC@3-4")
    asker, plan = Asker(fleet), worker_plan(fleet)
    async with running(asker):
        assert (await asker.ask(reserve(plan))).status == "succeeded"
        with pytest.raises((Refusal, AnswerUnknown)):
            await asker.ask(load(plan, "full"), 3.0)
        assert not fleet.engine_pids()

        async def resumed() -> bool:
            try:
                return (await asker.ask(load(plan, "later"), 3.0)).status == "succeeded"
            except (Refusal, AnswerUnknown):
                return False

        deadline = time.monotonic() + 30.0
        while not await resumed():
            assert time.monotonic() < deadline, "the journal did not go on when there was room again"
        assert len(fleet.engine_pids()) == 1
        records = await journal_of(fleet)
        assert [r.seq for r in records] == list(range(1, len(records) + 1))
        assert (await asker.ask(unload(plan))).resource_state == "absent"
        await assert_quiet(fleet)


@pytest.fixture
def small_disk(fleet: FaultFleet) -> Iterator[Path]:
    """A real file system of 48 MiB under the agent's state."""
    state = fleet.home / "host-a"
    state.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(state)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield state
    fleet.close()
    subprocess.run(["umount", "-l", str(state)], check=False)


@pytest.mark.faults("a real disk runs full: refused with the disk named, and taken again when space returns")
async def test_e13_disk_full_and_room_again(fleet: FaultFleet, small_disk: Path) -> None:
    fleet.start_armed("host-a", "")
    asker = Asker(fleet)
    async with running(asker):
        assert (await asker.ask(Release(op_id=OpId("a"), reservation=OpId("x"), by="alice"))).status == "succeeded"
        ballast = small_disk / "ballast"
        _fill(ballast)
        full = worker_plan(fleet)
        words = ""
        for number in range(200):
            try:
                result = await asker.ask(reserve(full, f"full-{number}"), 3.0)
            except (Refusal, AnswerUnknown) as error:
                words = str(error)
                break
            if result.status == "rejected" and ("space" in result.first_error or "free" in result.first_error):
                words = result.first_error
                break
        assert words, "a full disk went unnoticed"
        await asyncio.to_thread(ballast.unlink)

        async def taken(number: int) -> bool:
            try:
                command = Release(op_id=OpId(f"b{number}"), reservation=OpId("x"), by="alice")
                return (await asker.ask(command, 3.0)).status == "succeeded"
            except (Refusal, AnswerUnknown):
                return False

        deadline, number = time.monotonic() + 30.0, 0
        while not await taken(number):
            number += 1
            assert time.monotonic() < deadline, "it did not resume when space came back"
        records = await journal_of(fleet)
        assert [r.seq for r in records] == list(range(1, len(records) + 1))


def _fill(path: Path) -> None:
    """Take every byte that the file system has."""
    done = subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=64k"], capture_output=True, text=True, check=False)
    assert "No space left" in done.stderr


@pytest.mark.faults("disk full during rotation (injected): the old segment goes on, nothing acknowledged is lost")
async def test_e13_disk_full_during_rotation_injected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(tmp_path, limits=ROTATING)
    left = 2

    def rotation(name: str) -> None:
        nonlocal left
        if name == "journal.before_rotation" and left:
            left -= 1
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("backend.agent.journal.segment_writer.failpoint", rotation)
    await append_each(journal, range(1, 25))
    assert left < 2, "no rotation was tried"
    assert [words for _, words in steps(journal)] == [f"step {n}" for n in range(1, 25)]
    await journal.close()
    again = open_journal(tmp_path)
    assert again.health == "ok"
    assert len(steps(again)) == 24
    await again.close()


@pytest.mark.thorough
@pytest.mark.faults("a sync fails (EIO, injected): fenced at once, never tried again, engines live, a restart recovers")
async def test_e14_fsync_eio_injected(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker = Asker(fleet)
    async with running(asker):
        pid = await with_an_engine(fleet, asker)
        leave(fleet)
        fleet.start_armed("host-a", "journal.after_write_before_sync=raise:EIO@2")
        console = await RawConsole.open(fleet.socket("host-a"), "host-a", "at once")
        await console.hello()
        lost = (await console.ask(Release(op_id=OpId("lost"), reservation=OpId("x"), by="alice"))).result
        await console.close()
        assert (lost.status, lost.resource_state) == ("failed", "unknown")
        assert "E_JOURNAL" in lost.first_error, lost.first_error
        assert "fenced" in lost.first_error, lost.first_error
        with pytest.raises(AnswerUnknown, match="fenced"):  # who asks until the outcome is known learns why it is not
            await asker.ask(Release(op_id=OpId("lost"), reservation=OpId("x"), by="alice"), 5.0)
        assert len(fleet.acted("journal.after_write_before_sync")) == 1
        words = await refused(fleet, "after")
        assert "fenced" in words
        assert "failpoint" in words, words
        assert len(fleet.acted("journal.after_write_before_sync")) == 1
        assert fleet.engine_pids() == {pid}
        fleet.kill_agent("host-a")
        fleet.start_armed("host-a", "")
        assert (await asker.ask(Release(op_id=OpId("z"), reservation=OpId("x"), by="alice"))).status == "succeeded"
        assert (await report_of(fleet)).entities.shards[WORKER].identity is not None
        assert fleet.engine_pids() == {pid}
        await assert_quiet(fleet)


@pytest.mark.faults("the file system turns read-only (EROFS, injected): commands refused with the reason, engines live")
async def test_e15_read_only_remount_injected(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker = Asker(fleet)
    async with running(asker):
        pid = await with_an_engine(fleet, asker)
        leave(fleet)
        fleet.start_armed("host-a", "journal.before_write=raise:EROFS@2-")
        with pytest.raises((Refusal, AnswerUnknown)):
            await asker.ask(Release(op_id=OpId("lost"), reservation=OpId("x"), by="alice"), 3.0)
        assert "Read-only file system" in await refused(fleet, "after")
        report = await report_of(fleet)
        assert report.entities.shards[WORKER].identity is not None, "what runs is not shown any more"
        assert fleet.engine_pids() == {pid}
        await assert_quiet(fleet)


@pytest.mark.faults("a sync takes seconds: its answers wait, questions do not, and consoles see `journal slow`")
async def test_e16_sync_takes_long(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "journal.after_write_before_sync=delay:4@2")
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    began = time.monotonic()
    slow = Release(op_id=OpId("slow"), reservation=OpId("x"), by="alice")
    await console.say(slow)
    asked = time.monotonic()
    known = await console.ask(OperationStatus(op_id=OpId("s"), asked=OpId("slow")))
    assert time.monotonic() - asked < 2.0, "a question waited for the journal"
    assert known.result.value["result"] is None, "a result was said before it was durable"
    kinds: set[str] = set()
    while "journal slow" not in kinds and time.monotonic() - began < 3.9:
        kinds |= {ill.kind for ill in (await report_of(fleet)).facts.illnesses}
        await asyncio.sleep(0.2)
    answered = await console.ask(slow)
    assert answered.result.status == "succeeded"
    assert time.monotonic() - began >= 3.9
    assert "journal slow" in kinds
    await console.close()


@pytest.mark.thorough
@pytest.mark.timeout(150)
@pytest.mark.faults("a sync takes 30 s: questions are answered all along, loads refused after 10 s, the answer comes")
async def test_e16_sync_takes_thirty_seconds(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "journal.after_write_before_sync=delay:30@2")
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    other = await RawConsole.open(fleet.socket("host-a"), "host-a", "other")
    await other.hello()
    began = time.monotonic()
    slow = asyncio.create_task(console.ask(Release(op_id=OpId("slow"), reservation=OpId("x"), by="alice")))
    longest, degrees, refused_at = 0.0, set(), 0.0
    number = 0
    while not slow.done():
        number += 1
        asked = time.monotonic()
        known = await other.ask(OperationStatus(op_id=OpId(f"s{number}"), asked=OpId("slow")))
        longest = max(longest, time.monotonic() - asked)
        if not slow.done():
            assert known.result.value["result"] is None, "a result was said before it was durable"
        facts = (await report_of(fleet)).facts
        degrees |= {(ill.kind, ill.refuses_loads) for ill in facts.illnesses}
        if "journal" in facts.refuses_loads and not refused_at:
            refused_at = time.monotonic() - began
        await asyncio.sleep(0.3)
    assert longest < 5.0, f"a question waited {longest:.1f} s: the event loop stood still"
    assert {("journal slow", False), ("journal slow", True)} <= degrees
    assert 9.0 < refused_at < 25.0, refused_at
    assert (await slow).result.status == "succeeded"
    assert time.monotonic() - began >= 29.5
    await console.close()
    await other.close()
    await assert_quiet(fleet)


# 17, 19, 20, 22: the log is not what was written


@pytest.mark.faults("the tail is cut at every byte of the last batch: the longest prefix, a copy, a new epoch")
async def test_e17_tail_cut_at_any_byte(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    journal = open_journal(whole)
    await append_each(journal, range(1, 4))
    await append_each(journal, [4])
    killed = tmp_path / "killed"
    shutil.copytree(whole, killed)  # as KILL leaves it: the head file has not seen the last second
    await journal.close()
    end = log_end(segments(killed)[-1])
    begin = _batch_starts(killed)[-1]
    for cut in range(begin + 1, end):
        folder = tmp_path / f"cut-{cut}"
        shutil.copytree(killed, folder)
        segment = segments(folder)[-1]
        data = segment.read_bytes()
        segment.write_bytes(data[:cut] + b"\0" * (len(data) - cut))
        again = open_journal(folder)
        assert [words for _, words in steps(again)] == ["step 1", "step 2", "step 3"], f"cut at {cut}"
        assert again.journal_epoch == 2
        assert again.recovered_bytes > 0
        await again.close()
        assert list(segment.parent.glob("*.torn"))
        shutil.rmtree(folder)


def _batch_starts(folder: Path) -> list[int]:
    """The offsets of the batches of the last segment."""
    from backend.agent.journal.format import SEGMENT_HEADER_BYTES, read_batch

    data, offset, found = segments(folder)[-1].read_bytes(), SEGMENT_HEADER_BYTES, []
    end = log_end(segments(folder)[-1])
    while offset < end:
        found.append(offset)
        offset += read_batch(data, offset).size
    return found


@pytest.mark.faults("agent killed between write and sync, the batch cut on disk: a new epoch begins")
async def test_e17_agent_starts_on_a_torn_tail(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "journal.after_write_before_sync=kill@3")
    asker = Asker(fleet)
    async with running(asker):
        plan = worker_plan(fleet)
        assert (await asker.ask(reserve(plan))).status == "succeeded"
        asking = asyncio.create_task(asker.ask(load(plan)))
        await eventually("the agent's death", lambda: fleet.agents["host-a"].poll() is not None)
        (segment,) = sorted(journal_folder(fleet).glob("*.rtj"))
        data = segment.read_bytes()
        end = log_end(segment)
        segment.write_bytes(data[: end - 100] + b"\0" * (len(data) - end + 100))
        fleet.start_armed("host-a", "")
        assert (await asking).status == "succeeded"
        records = await journal_of(fleet)
        assert [r.kind for r in records if r.kind == "journal.recovered"] == ["journal.recovered"]
        assert (await report_of(fleet)).journal_epoch == 2
        assert list(segment.parent.glob("*.torn"))
        assert len(fleet.engine_pids()) == 1
        await assert_quiet(fleet)


@pytest.mark.faults("one bit of a middle batch flips while an engine runs: read-only, file named, engine lives")
async def test_e19_bit_flip_in_the_middle(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker = Asker(fleet)
    async with running(asker):
        pid = await with_an_engine(fleet, asker)
    leave(fleet)
    (segment,) = sorted(journal_folder(fleet).glob("*.rtj"))
    flip(segment, log_end(segment) // 2)
    await _read_only(fleet, segment.name)
    assert fleet.engine_pids() == {pid}


async def _read_only(fleet: FaultFleet, named: str) -> None:
    """The agent starts, shows what is wrong and where, takes no command, and writes nothing."""
    before = {path: path.read_bytes() for path in sorted((fleet.home / "host-a/journal").rglob("*.rtj"))}
    fleet.start_armed("host-a", "")
    report = await report_of(fleet)
    assert named in report.facts.journal, report.facts.journal
    assert "fork" in report.facts.journal or "offset" in report.facts.journal
    words = await refused(fleet, "no")
    assert named in words
    await assert_quiet(fleet)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("damage", ["missing", "swapped"])
@pytest.mark.faults("a middle segment is missing, or two are swapped: refused with the file named, nothing is written")
async def test_e19_segments(fleet: FaultFleet, damage: str) -> None:
    folder = fleet.home / "host-a" / "journal"
    (fleet.home / "host-a").mkdir(mode=0o700)
    journal = Journal.open(folder, host=HOST, clock=StillClock(), limits=ROTATING)
    await append_each(journal, range(1, 31))
    await journal.close()
    found = segments(folder)
    assert len(found) >= 4
    middle, after = found[1], found[2]
    if damage == "missing":
        middle.unlink()
    else:
        kept = middle.read_bytes()
        middle.write_bytes(after.read_bytes())
        after.write_bytes(kept)
    with pytest.raises(JournalDamaged):
        open_journal(folder)
    await _read_only(fleet, (after if damage == "missing" else middle).name)


@pytest.mark.faults("a bit of the last acknowledged batch flips: the head file has seen it, so it is no torn tail")
async def test_e20_bit_flip_in_the_last_acknowledged_batch(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker = Asker(fleet)
    async with running(asker):
        assert (await asker.ask(reserve(worker_plan(fleet)))).status == "succeeded"
    leave(fleet)
    (segment,) = sorted(journal_folder(fleet).glob("*.rtj"))
    flip(segment, log_end(segment) - 20)
    await _read_only(fleet, segment.name)


@pytest.mark.thorough
@pytest.mark.faults("the journal is put back to an older copy: the console's cursor notices that it went backwards")
async def test_e20_the_console_is_a_witness(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker = Asker(fleet)
    async with running(asker):
        plan = worker_plan(fleet)
        assert (await asker.ask(reserve(plan))).status == "succeeded"
        leave(fleet)
        journal = fleet.home / "host-a" / "journal"
        shutil.copytree(journal, fleet.home / "older")
        fleet.start_armed("host-a", "")
        release = Release(op_id=OpId("rel"), reservation=OpId("r"), by="alice")
        assert (await asker.ask(release)).status == "succeeded"
        await eventually("the record", lambda: [r for r in asker.records.values() if r.kind == "released"])
        leave(fleet)
        shutil.rmtree(journal)
        shutil.move(fleet.home / "older", journal)
        fleet.start_armed("host-a", "")
        await eventually("the console's word", lambda: asker.broken)
        assert "journal" in asker.broken[0]


@pytest.mark.parametrize("how", ["missing", "empty"])
@pytest.mark.faults("the journal is gone while engines run: foreign and untouched, no load until a person acts")
async def test_e22_journal_gone_while_engines_run(fleet: FaultFleet, how: str) -> None:
    fleet.start_armed("host-a", "")
    asker = Asker(fleet)
    async with running(asker):
        pid = await with_an_engine(fleet, asker)
    leave(fleet)
    shutil.rmtree(fleet.home / "host-a" / "journal")
    if how == "empty":
        (fleet.home / "host-a" / "journal").mkdir(mode=0o700)
    fleet.start_armed("host-a", "")
    other = Asker(fleet, console="second")
    async with running(other):
        again = await other.ask(reserve(worker_plan(fleet, GENERATION + 1, "tiny-2", 4), "r2"))
        assert again.status == "rejected", "a load was taken beside engines that nobody knows"
        assert "fork" in again.first_error
        assert fleet.engine_pids() == {pid}
        report = await report_of(fleet)
        assert report.entities.shards == {}
        await assert_quiet(fleet)


# 23: clocks


@pytest.mark.parametrize(
    "jump", [TEN_YEARS_MS, -HOUR_MS, 1000, -1000], ids=["+10y", "-1h", "leap second", "NTP step back"]
)
@pytest.mark.faults("the wall clock jumps in the middle of a load (injected): no deadline moves, order is by number")
def test_e23_wall_clock_jumps_injected(jump: int) -> None:
    world, plan = World(), make_plan()
    world.reserve(plan)
    world.wall += jump
    for _ in range(4):
        world.pass_time(5.0)
        _tick(world)
    assert "op-reserve" in world.state.entities.reservations, "a reservation of 60 s ended after 20 s"
    world.load(plan, 1)
    assert world.state.entities.shards[NodeId("tiny-1/1")].state == "spawning"
    world.spawned(plan, 1)
    world.pass_time(50.0)
    _tick(world)
    assert "op-reserve" not in world.state.entities.reservations, "a reservation outlived its 60 s"
    kinds = [r.kind for r in world.records]
    assert kinds.index("reserved") < kinds.index("spawning") < kinds.index("spawned")
    assert world.is_quiet()


def _tick(world: World) -> None:
    from backend.agent.core.state import Ticked

    world.event(Ticked())


@pytest.mark.faults("the wall clock jumps ten years ahead (injected): retention cannot take the history away at once")
async def test_e23_wall_clock_jump_and_retention_injected(tmp_path: Path) -> None:
    clock = StillClock()
    limits = Limits(segment_bytes=1024, allocate_bytes=512, head_seconds=3600.0, keep_days=30.0)
    journal = Journal.open(tmp_path, host=HOST, clock=clock, limits=limits)
    await append_each(journal, range(1, 41))
    before = len(segments(tmp_path))
    clock.wall += TEN_YEARS_MS * 1_000_000
    for _ in range(5):
        await journal.keep_up()
    assert len(segments(tmp_path)) >= before - 1, "a jump of the clock took the history away"
    await append_each(journal, [41])
    assert journal.health == "ok"
    await journal.close()


@pytest.mark.faults("an agent is killed at every write of a life in turn: no number twice, no hole")
async def test_e01_killed_at_every_write_of_a_life(fleet: FaultFleet) -> None:
    asker, keeper, plan = Asker(fleet), Keeper(fleet), worker_plan(fleet)
    async with running(asker, keeper):
        for at in range(1, 8):
            if "host-a" in fleet.agents:
                agent = fleet.agents.pop("host-a")
                agent.kill()
                agent.wait()
            fleet.start_armed("host-a", f"journal.after_write_before_sync=kill@{at}", listening=False)
            assert (await asker.ask(reserve(plan, "r", 600.0))).status == "succeeded"
            loaded = await asker.ask(load(plan))
            assert loaded.status == "succeeded" or loaded.resource_state == "absent"
            assert len(fleet.engine_pids()) <= 1
        assert all(code in (-signal.SIGKILL, 0) for code, _ in keeper.deaths)
        await asker.ask(unload(plan))
        until("no engine", lambda: not fleet.engine_pids() or None)
        records = await journal_of(fleet)
        assert [r.seq for r in records] == list(range(1, len(records) + 1))
        assert asker.broken == []
        await assert_quiet(fleet)
