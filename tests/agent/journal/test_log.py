"""What is appended is read back, in order, by this life and the next."""

from __future__ import annotations

import asyncio
import stat
import time
from pathlib import Path

import msgspec
import pytest

from backend.agent.journal import Journal, JournalWriteFailed, SystemClock
from backend.agent.journal.head import Head, decode_head
from backend.contract.entities import Canary, Change, JournalRecord, OpenOperation, Result
from backend.contract.words import OpId, UnixMs
from tests.agent.journal.worlds import (
    HOST,
    SMALL,
    WAIT_SECONDS,
    StillClock,
    TroubledDisk,
    append_each,
    closed_with,
    expected,
    expected_words,
    open_journal,
    place,
    record,
    segments,
    steps,
    words,
)
from tests.contract.factories import shard


async def test_a_new_journal_is_empty_and_says_that_it_is_new(tmp_path: Path) -> None:
    journal = open_journal(tmp_path / "journal")
    assert (journal.is_new, journal.head_seq, journal.oldest_seq, journal.journal_epoch) == (True, 0, 1, 1)
    assert (journal.health, list(journal.replay()), journal.read(0, 10)) == ("ok", [], ())
    await journal.close()


async def test_folders_and_files_are_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir(mode=0o755)
    await closed_with(folder, 1)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items()), modes


async def test_appended_records_get_numbers_at_once_and_are_durable_in_order(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    first = journal.append([record(1), record(2)])
    second = journal.append([record(3)])
    assert [r.seq for r in (*first.records, *second.records)] == [1, 2, 3]
    await second.durable
    assert first.durable.done()
    assert journal.head_seq == 3
    assert steps(journal) == expected(3)
    await journal.close()


async def test_the_next_life_reads_what_the_last_one_wrote_and_goes_on(tmp_path: Path) -> None:
    await closed_with(tmp_path, 3)
    journal = open_journal(tmp_path)
    journal_id = journal.journal_id
    assert (journal.is_new, journal.head_seq, journal.journal_epoch) == (False, 3, 1)
    await append_each(journal, [4, 5])
    await journal.close()
    again = open_journal(tmp_path)
    assert (again.journal_id, again.journal_epoch) == (journal_id, 1)
    assert steps(again) == expected(5)
    await again.close()


async def test_every_field_of_a_record_comes_back(tmp_path: Path) -> None:
    operation = OpenOperation(
        op_id=OpId("op-1"),
        command="load",
        subject="tiny-1/0",
        by="alice",
        payload_digest="ab",
        at_unix_ms=UnixMs(5),
        result=Result(status="succeeded", resource_state="present", value={"layers": [1, 2]}),
    )
    written = JournalRecord(
        kind="op.ended",
        words="naïve \x1b[31m ≠",
        at_unix_ms=UnixMs(7),
        level="alarm",
        by="alice",
        replica="tiny-1",
        node_id="tiny-1/0",
        change=Change(operation=operation, drop_loads=(OpId("op-0"),)),
    )
    journal = open_journal(tmp_path)
    await journal.append([written]).durable
    await journal.close()
    again = open_journal(tmp_path)
    assert list(again.replay()) == [msgspec.structs.replace(written, seq=1)]
    await again.close()


async def test_while_one_sync_is_in_flight_appends_queue_and_go_out_as_one_batch(tmp_path: Path) -> None:
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    disk.calls.clear()
    disk.syncing.clear()
    disk.go_on.clear()
    first = journal.append([record(1)])
    assert await asyncio.to_thread(disk.syncing.wait, WAIT_SECONDS)
    later = [journal.append([record(n)]) for n in range(2, 6)]
    await asyncio.sleep(0)
    assert [call.split()[0] for call in disk.calls] == ["write", "sync"]
    assert (journal.head_seq, first.durable.done()) == (0, False)
    disk.go_on.set()
    await asyncio.gather(*(appended.durable for appended in later))
    assert [call.split()[0] for call in disk.calls] == ["write", "sync", "write", "sync"]
    assert steps(journal) == expected(5)
    await journal.close()


async def test_a_group_ends_at_its_limits_and_never_splits_one_append(tmp_path: Path) -> None:
    disk = TroubledDisk()
    limits = msgspec.structs.replace(SMALL, group_records=4)
    journal = open_journal(tmp_path, disk=disk, limits=limits)
    disk.calls.clear()
    disk.syncing.clear()
    disk.go_on.clear()
    journal.append([record(1)])
    assert await asyncio.to_thread(disk.syncing.wait, WAIT_SECONDS)
    sizes = [3, 2, 6]
    done = [journal.append([record(n) for n in range(size)]) for size in sizes]
    disk.go_on.set()
    await done[-1].durable
    assert disk.calls.count("sync") == 1 + len(sizes)
    assert journal.head_seq == 1 + sum(sizes)
    await journal.close()


async def test_a_running_sync_shows_how_long_it_has_taken(tmp_path: Path) -> None:
    disk, clock = TroubledDisk(), StillClock()
    journal = Journal.open(tmp_path, host=HOST, clock=clock, disk=disk, limits=SMALL)
    disk.syncing.clear()
    disk.go_on.clear()
    appended = journal.append([record(1)])
    assert await asyncio.to_thread(disk.syncing.wait, WAIT_SECONDS)
    clock.mono += 12_000_000_000
    assert journal.last_sync_seconds == 12.0
    disk.go_on.set()
    await appended.durable
    assert journal.last_sync_seconds == 12.0
    await journal.close()


@pytest.mark.parametrize("ring", [1, 7, 4096])
async def test_reading_gives_the_same_records_from_memory_and_from_the_file(tmp_path: Path, ring: int) -> None:
    journal = open_journal(tmp_path, limits=msgspec.structs.replace(SMALL, ring_records=ring))
    for start in range(0, 60, 3):
        await journal.append([record(start + n) for n in (1, 2, 3)]).durable
    for after in (0, 1, 30, 52, 59, 60, 99):
        seqs = [r.seq for r in journal.read(after, 10)]
        assert seqs == list(range(after + 1, min(after + 10, 60) + 1))
    await journal.close()


@pytest.mark.parametrize("limit", [1, 3, 7, 64, 500])
async def test_who_reads_on_from_the_file_gets_every_record_once_and_the_cursors_of_a_fresh_look(
    tmp_path: Path, limit: int
) -> None:
    limits = msgspec.structs.replace(SMALL, segment_bytes=8192, allocate_bytes=1024, ring_records=1)
    journal = open_journal(tmp_path, limits=limits)
    for size in (1, 9, 40, 2, 1, 25, 130, 3):
        await journal.append([record(n) for n in range(size)]).durable
    assert len(segments(tmp_path)) > 1
    fresh = {seq: journal.cursor(seq) for seq in range(journal.head_seq + 1)}
    whole = list(journal.replay())
    for _ in range(2):  # the second reader finds the places of the first
        read: list[JournalRecord] = []
        while some := journal.read(len(read), limit):
            read += some
            assert journal.cursor(len(read)) == fresh[len(read)]
            assert journal.resolve(fresh[len(read)]).outcome == "ok"
        assert read == whole
    await journal.close()


async def test_the_log_rotates_into_segments_that_continue_one_another(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(SMALL, segment_bytes=2048, allocate_bytes=1024, ring_records=4)
    await closed_with(tmp_path, 60, limits=limits)
    assert len(segments(tmp_path)) > 2
    journal = open_journal(tmp_path, limits=limits)
    assert words(journal) == expected_words(60)
    assert [r.seq for r in journal.read(17, 30)] == list(range(18, 48))
    assert all(journal.resolve(journal.cursor(seq)).from_seq == seq for seq in range(journal.head_seq + 1))
    await journal.close()


@pytest.mark.parametrize("size", [250_000, 270_000, 500_000])
async def test_records_larger_than_a_read_come_back(tmp_path: Path, size: int) -> None:
    journal = open_journal(tmp_path, limits=msgspec.structs.replace(SMALL, ring_records=1))
    for n in (1, 2, 3):
        await journal.append([record(n), record(n, "p" * size)]).durable
    assert [len(r.words) for r in journal.read(0, 9)][1::2] == [size] * 3
    await journal.close()
    again = open_journal(tmp_path)
    assert [len(r.words) for r in again.replay()][1::2] == [size] * 3
    await again.close()


async def test_records_that_are_not_durable_cannot_be_read(tmp_path: Path) -> None:
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    disk.syncing.clear()
    disk.go_on.clear()
    appended = journal.append([record(1)])
    assert await asyncio.to_thread(disk.syncing.wait, WAIT_SECONDS)
    assert (journal.read(0, 10), list(journal.replay()), journal.head_seq) == ((), [], 0)
    disk.go_on.set()
    await appended.durable
    assert len(journal.read(0, 10)) == 1
    await journal.close()


def with_canary_seconds(seconds: float) -> JournalRecord:
    canary = Canary(ok=True, seconds=seconds, at_unix_ms=UnixMs(1), words="")
    return msgspec.structs.replace(record(1), change=Change(shard=msgspec.structs.replace(shard(), canary=canary)))


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (record(1, "x" * (1 << 19)), "bytes of JSON"),
        (record(1, "\ud800"), "cannot be stored"),
        (record(1, words="ok"), "smaller groups"),
        (with_canary_seconds(float("nan")), "cannot be stored"),
    ],
    ids=["too long", "lone surrogate", "too many", "NaN"],
)
async def test_a_record_that_could_not_be_read_back_is_refused_and_takes_no_number(
    tmp_path: Path, bad: JournalRecord, why: str
) -> None:
    journal = open_journal(tmp_path)
    with pytest.raises(ValueError, match=why):
        journal.append([bad] * 4097)
    assert journal.append([record(1)]).records[0].seq == 1
    await journal.close()


async def test_closing_writes_what_is_queued_and_refuses_what_comes_later(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    queued = [journal.append([record(n)]) for n in range(1, 20)]
    await journal.close()
    await asyncio.gather(*(appended.durable for appended in queued))
    with pytest.raises(JournalWriteFailed, match="closed"):
        journal.append([record(20)])
    await journal.close()
    again = open_journal(tmp_path)
    assert steps(again) == expected(19)
    await again.close()


async def test_an_empty_append_is_durable_at_once(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    appended = journal.append([])
    assert appended.records == ()
    await appended.durable
    await journal.close()


async def test_a_preallocated_tail_of_zeros_is_no_damage(tmp_path: Path) -> None:
    await closed_with(tmp_path, 2)
    (segment,) = segments(tmp_path)
    assert segment.read_bytes().endswith(bytes(1000))
    journal = open_journal(tmp_path)
    assert (journal.journal_epoch, steps(journal)) == (1, expected(2))
    assert not list(place(tmp_path).glob("*.torn"))
    await journal.close()


def witnessed(path: Path, seq: int) -> Head:
    """The head file once it has reached a record."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        head = decode_head(path.read_bytes())
        if head is not None and head.seq >= seq:
            return head
        time.sleep(0.01)
    raise AssertionError(f"the head file never reached record {seq}")


async def test_the_head_file_follows_the_log_without_a_close(tmp_path: Path) -> None:
    limits = msgspec.structs.replace(SMALL, head_seconds=0.05)
    journal = Journal.open(tmp_path, host=HOST, clock=SystemClock(), limits=limits)
    await append_each(journal, [1, 2, 3])
    head = await asyncio.to_thread(witnessed, place(tmp_path) / "head", 3)
    assert (head.journal_id, head.epoch, head.oldest) == (journal.journal_id, 1, 1)
    assert journal.cursor(3).endswith(f"{head.chain:08x}")
    await journal.close()
