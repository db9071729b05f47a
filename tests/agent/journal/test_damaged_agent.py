"""An agent whose journal is damaged: it starts, shows what it can, touches nothing, and goes on when a person forks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from backend.agent.journal import Journal, JournalLocked, Limits, SystemClock
from backend.contract.commands import ForkJournal, Reserve, Subscribe
from backend.contract.entities import Change
from backend.contract.events import JournalBatch, JournalGap, Refused, Subscribed
from backend.contract.plans import Plan
from backend.contract.words import OpId, UnixMs
from tests.agent.core.world import World
from tests.agent.journal.test_recovery import batch_offsets
from tests.agent.journal.worlds import append_each, place, record, segments
from tests.agent.wire import RawConsole
from tests.e2e.fleet import Fleet, until
from tests.factories import make_plan
from tests.ports import claim_block


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with contextlib.closing(Fleet(claim_block())) as made:
        made.write_contexts({"host-a": f"unix:{made.socket('host-a')}"})
        made.start("host-a")
        yield made


def flip_a_middle_batch(folder: Path, which: int = 1) -> int:
    """One bit of one batch; returns where that batch begins. A later batch is whole, so no tail was torn."""
    (segment,) = segments(folder)
    data = bytearray(segment.read_bytes())
    at = batch_offsets(bytes(data))[which]
    data[at + 60] ^= 1
    segment.write_bytes(data)
    return at


async def reserved_and_damaged(fleet: Fleet) -> tuple[str, int]:
    """Two reservations, the second of them unreadable afterwards; returns a cursor behind it and the byte of damage."""
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    for n in (1, 2, 3):
        plan = make_plan(f"tiny-{n}", first_port=fleet.first_port + 4 * n, hosts=("host-a",))
        answer = await console.ask(Reserve(op_id=OpId(f"r{n}"), plan=plan, by="alice", seconds=600))
        assert answer.result.status == "succeeded", answer.result.first_error
    await console.say(Subscribe(op_id=OpId("sub"), tail=1))
    batch = await console.hear(JournalBatch)
    fleet.kill_agent("host-a")
    return batch.cursor, flip_a_middle_batch(fleet.home / "host-a" / "journal", which=2)


async def test_e19_a_damaged_journal_starts_read_only_and_says_file_and_offset(fleet: Fleet) -> None:
    _, at = await reserved_and_damaged(fleet)
    before = {path: path.read_bytes() for path in place(fleet.home / "host-a" / "journal").iterdir()}
    fleet.start("host-a")
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    report = await console.hello()
    assert set(report.entities.reservations) == {"r1"}
    assert f".rtj at byte {at}" in report.facts.journal
    assert "fork HOST --accept-loss" in report.facts.journal
    plan = make_plan("tiny-9", first_port=fleet.first_port + 30, hosts=("host-a",))
    await console.say(Reserve(op_id=OpId("r9"), plan=plan, by="bob", seconds=60))
    refused = await console.hear(Refused)
    assert (refused.op_id, refused.code) == ("r9", "E_JOURNAL")
    assert f"at byte {at}" in refused.words
    assert "--accept-loss" in refused.words
    assert {path: path.read_bytes() for path in before} == before
    found = fleet.json("journal", "verify", "host-a", code=5)
    assert (found["host-a"]["is_sound"], f"byte {at}" in found["host-a"]["words"]) == (False, True)
    assert fleet.json("journal", "stats")["host-a"]["is_read_only"] is True


async def test_e19_a_fork_begins_a_new_epoch_and_keeps_the_old_files_and_what_was_readable(fleet: Fleet) -> None:
    cursor, at = await reserved_and_damaged(fleet)
    old = place(fleet.home / "host-a" / "journal")
    kept = {path.name: path.read_bytes() for path in old.glob("*.rtj")}
    fleet.start("host-a")
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    report = await console.hello()
    assert fleet.run("journal", "fork", "host-a", "--yes").returncode == 2
    await console.say(ForkJournal(op_id=OpId("f"), by="mallory"))
    assert (await console.hear(Refused)).code == "E_FORK"
    forked = fleet.json("journal", "fork", "host-a", "--accept-loss", "--yes")
    assert "journal_epoch 2 begins" in forked["words"]
    (folder,) = old.parent.glob("*.forked-1")
    assert {path.name: path.read_bytes() for path in folder.glob("*.rtj")} == kept
    again = await RawConsole.open(fleet.socket("host-a"), "host-a")
    fresh = await again.hello()
    assert (fresh.journal_id, fresh.journal_epoch) == (report.journal_id, 2)
    assert fresh.agent_epoch != report.agent_epoch
    assert (fresh.facts.journal, set(fresh.entities.reservations)) == ("ok", {"r1"})
    await again.say(Subscribe(op_id=OpId("old"), cursor=cursor))
    assert (await again.hear(Subscribed)).outcome == "diverged"
    plan = make_plan("tiny-9", first_port=fleet.first_port + 30, hosts=("host-a",))
    answer = await again.ask(Reserve(op_id=OpId("r9"), plan=plan, by="bob", seconds=60))
    assert answer.result.status == "succeeded", answer.result.first_error
    lines = [json.loads(line) for line in fleet.run("journal", "export", "host-a").stdout.splitlines()]
    assert (lines[0]["kind"], lines[0]["level"]) == ("journal.forked", "alarm")
    assert lines[0]["by"]
    assert f"at byte {at}" in lines[0]["words"]
    assert lines[0]["seq"] == fresh.oldest_seq > report.seq
    assert [line["seq"] for line in lines] == list(range(fresh.oldest_seq, lines[-1]["seq"] + 1))
    refused = fleet.run("journal", "fork", "host-a", "--accept-loss", "--yes")
    assert (refused.returncode, "is sound" in refused.stderr) == (5, True)
    fleet.kill_agent("host-a")
    fleet.start("host-a")
    assert fleet.json("journal", "verify", "host-a")["host-a"]["is_sound"] is True


async def test_two_forks_at_once_are_one_fork(fleet: Fleet) -> None:
    await reserved_and_damaged(fleet)
    fleet.start("host-a")
    consoles = [await RawConsole.open(fleet.socket("host-a"), "host-a", name) for name in ("a", "b")]
    for console in consoles:
        await console.hello()
    for console in consoles:
        await console.say(ForkJournal(op_id=OpId(console.console), by=console.console, accept_loss=True))
    for console in consoles:
        with pytest.raises(ConnectionClosed):
            await console.hear_to_the_end()
    again = await RawConsole.open(fleet.socket("host-a"), "host-a")
    report = await again.hello()
    assert (report.journal_epoch, report.facts.journal) == (2, "ok")
    (kept,) = (fleet.home / "host-a" / "journal").glob("*.forked-*")
    assert kept.name == f"{report.journal_id}.forked-1"
    assert (await again.turned_down(ForkJournal(op_id=OpId("c"), by="c", accept_loss=True))).count("is sound") == 1
    with pytest.raises(JournalLocked):  # the agent holds it as before
        Journal.open(fleet.home / "host-a" / "journal", host="host-a", clock=SystemClock())


async def _rotated(folder: Path, plan: Plan) -> None:
    """More of a journal: sealed segments, and behind them a reservation of this plan."""
    world = World()
    world.reserve(plan)
    (made,) = (record.change.reservation for record in world.records if record.change and record.change.reservation)
    kept = msgspec.structs.replace(made, expires_unix_ms=UnixMs(1 << 45))
    journal = Journal.open(folder, host="host-a", clock=SystemClock(), limits=Limits(segment_bytes=4096))
    await append_each(journal, range(1, 120))
    await journal.append([msgspec.structs.replace(record(120), change=Change(reservation=kept))]).durable
    await journal.close()


@pytest.mark.faults("the scrub finds a bit flipped in a sealed segment: writing ends, a fork goes on without a restart")
async def test_e19_damage_that_the_scrub_finds_is_forked_without_a_restart_and_no_state_is_lost(fleet: Fleet) -> None:
    folder = fleet.home / "host-a" / "journal"
    plan = make_plan("tiny-8", hosts=("host-a",))
    fleet.kill_agent("host-a")
    await _rotated(folder, plan)
    sealed = segments(folder)[0]
    data = bytearray(sealed.read_bytes())
    data[700] ^= 1
    sealed.write_bytes(data)
    fleet.start("host-a")
    pid = fleet.agents["host-a"].pid
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    report = await console.hello()
    await console.say(Subscribe(op_id=OpId("sub"), tail=1000))
    gap = await console.hear(JournalGap)
    assert (gap.first, sealed.name in gap.words) == (1, True)
    assert (await console.hear(JournalBatch)).records[0].seq == gap.last + 1
    await asyncio.to_thread(
        until, "the damage", lambda: sealed.name in fleet.json("journal", "stats")["host-a"]["health"]
    )
    early = Reserve(op_id=OpId("early"), plan=make_plan("tiny-7", hosts=("host-a",)), by="bob", seconds=60)
    assert "E_JOURNAL" in await console.turned_down(early), "whether or not it was the first to meet the damage"
    forked = fleet.json("journal", "fork", "host-a", "--accept-loss", "--yes")
    assert "begins" in forked["words"], forked
    assert "what they made true is known and goes on" in forked["words"], forked
    again = await RawConsole.open(fleet.socket("host-a"), "host-a")
    fresh = await again.hello()
    assert fleet.agents["host-a"].pid == pid
    assert fleet.agents["host-a"].poll() is None
    assert (fresh.journal_id, fresh.journal_epoch) == (report.journal_id, report.journal_epoch + 1)
    assert (fresh.facts.journal, set(fresh.entities.reservations)) == ("ok", {"op-reserve"})
    other = make_plan("tiny-9", first_port=fleet.first_port + 30, hosts=("host-a",))
    answer = await again.ask(Reserve(op_id=OpId("r9"), plan=other, by="bob", seconds=600))
    assert answer.result.status == "succeeded", answer.result.first_error
    assert fleet.json("journal", "verify", "host-a")["host-a"]["is_sound"] is True
    fleet.kill_agent("host-a")
    fleet.start("host-a")
    third = await RawConsole.open(fleet.socket("host-a"), "host-a")
    assert set((await third.hello()).entities.reservations) == {"op-reserve", "r9"}


@pytest.mark.engine
def test_e19_engines_outlive_a_damaged_journal_and_its_fork_untouched(fleet: Fleet) -> None:
    fleet.load("tiny:alone")
    pid = fleet.pid_of("tiny-1/0")
    fleet.kill_agent("host-a")
    folder = fleet.home / "host-a" / "journal"
    (segment,) = segments(folder)
    ready = batch_offsets(segment.read_bytes())
    flip_a_middle_batch(folder, which=len(ready) - 3)
    fleet.start("host-a")
    assert fleet.pid_of("tiny-1/0") == pid
    unload = fleet.run("unload", "tiny-1", "--yes")
    assert unload.returncode != 0
    assert [engine.pid for engine in fleet.engines()] == [pid]
    fleet.json("journal", "fork", "host-a", "--accept-loss", "--yes")
    until("the replica after the fork", lambda: (fleet.replica() or {}).get("state") == "ready")
    assert fleet.pid_of("tiny-1/0") == pid
    done = fleet.run("unload", "tiny-1", "--yes")
    assert done.returncode == 0, done.stderr
    assert fleet.engines() == []


@pytest.mark.engine
def test_e22_a_journal_that_is_gone_while_engines_run_takes_no_load_until_a_person_accepts_it(fleet: Fleet) -> None:
    fleet.load("tiny:alone")
    (engine,) = fleet.engines()
    fleet.kill_agent("host-a")
    (fleet.home / "host-a" / "journal").rename(fleet.home / "lost-journal")
    fleet.start("host-a")
    refused = fleet.run("load", "tiny:alone", "--yes")
    assert refused.returncode == 2
    assert f"process {engine.pid}" in refused.stderr
    assert "--accept-loss" in refused.stderr
    words = fleet.json("journal", "fork", "host-a", "--accept-loss", "--yes")["words"]
    assert "foreign" in words
    fleet.kill_agent("host-a")
    fleet.start("host-a")
    assert fleet.load("tiny:alone")["state"] == "ready"
    assert engine.is_running()
