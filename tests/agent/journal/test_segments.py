"""Rotation, seals, checkpoints, retention, the reserve, and what is read again in the background."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from backend.agent.journal import Disk, Journal, JournalDamaged, JournalWriteFailed
from backend.agent.journal.checkpoint import restating_records
from backend.agent.journal.opening import entities_of
from backend.agent.journal.retention import why_unlink_oldest
from backend.agent.journal.sealing import digest_of, read_seal
from backend.agent.journal.segments import first_wall_ns
from backend.agent.journal.verifying import stats, verify
from backend.contract.cordons import Cordon
from backend.contract.entities import (
    Change,
    Drain,
    Entities,
    Failing,
    Hold,
    JournalRecord,
    KeeperLease,
    LoadRecord,
    OpenOperation,
    OperatorHold,
    Reservation,
    fold,
    moves_revision,
)
from backend.contract.words import NodeId, OpId, ReplicaId, UnixMs
from tests.agent.journal.worlds import (
    HOST,
    SMALL,
    WAIT_SECONDS,
    StillClock,
    TroubledDisk,
    append_each,
    expected_words,
    open_journal,
    place,
    record,
    segments,
    steps,
    words,
)
from tests.contract.factories import shard
from tests.factories import GENERATION, make_plan

ROTATING = msgspec.structs.replace(SMALL, segment_bytes=4096, allocate_bytes=512, ring_records=4, unlink_seconds=60.0)
DAY_NS = 24 * 3600 * 1_000_000_000


def everything(count: int = 1) -> Entities:
    """One of each thing that an agent keeps, ``count`` times."""
    entities = Entities()
    for n in range(count):
        generation = GENERATION + n
        node = NodeId(f"tiny-{n}/0")
        changes = [
            Change(shard=msgspec.structs.replace(shard(), node_id=node, load_generation=generation)),
            Change(load=LoadRecord(OpId(f"op-{n}"), "alice", make_plan(f"tiny-{n}"), UnixMs(1))),
            Change(
                reservation=Reservation(
                    op_id=OpId(f"r-{n}"),
                    by="bob",
                    replica=ReplicaId("x"),
                    load_generation=generation,  # type: ignore[arg-type]  # a number
                    node_ids=(),
                    ports=(),
                    memory={},
                    made_unix_ms=UnixMs(1),
                    expires_unix_ms=UnixMs(2),
                )
            ),
            Change(
                operation=OpenOperation(
                    op_id=OpId(f"o-{n}"), command="load", subject="x", by="b", payload_digest="d", at_unix_ms=UnixMs(1)
                )
            ),
            Change(
                drain=Drain(
                    replica=ReplicaId(f"tiny-{n}"),
                    load_generation=generation,  # type: ignore[arg-type]  # a number
                    op_id=OpId("d"),
                    by="b",
                    why="",
                    left_ms=5,
                    at_unix_ms=UnixMs(1),
                    at_deadline="stop",
                )
            ),
            Change(hold=Hold(node_id=node, load_generation=generation, kind="ports")),  # type: ignore[arg-type]
            Change(failing=Failing(node_id=node, failed_unix_ms=(UnixMs(1),), words="w")),
            Change(
                operator_hold=OperatorHold(
                    subject=f"tiny-{n}", scope="replica", kind="down", by="alice", why="w", at_unix_ms=UnixMs(1)
                ),
                keeper=KeeperLease(keeper_epoch=n + 1, who="alice", console="k", seconds=30.0, at_unix_ms=UnixMs(1)),
                cordon=Cordon(by="alice", why=f"{n}", at_unix_ms=UnixMs(1), left_ms=n),
            ),
        ]
        for change in changes:
            entities = fold(entities, msgspec.structs.replace(record(n), change=change))
    return msgspec.structs.replace(entities, highest_generation=GENERATION + 10_000)


def keeping(entities: Entities) -> list[JournalRecord]:
    return [msgspec.structs.replace(r, kind="test.keep") for r in restating_records(entities, UnixMs(1)) if r.change]


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)


def test_a_checkpoint_restates_everything_that_an_agent_keeps_and_moves_no_revision() -> None:
    entities = everything(3)
    assert all(getattr(entities, name) for name in Entities.__struct_fields__)
    folded = Entities()
    for each in restating_records(entities, UnixMs(7)):
        folded = fold(folded, each)
        assert not moves_revision(each.change)
    assert folded == entities
    for each in restating_records(entities, UnixMs(7)):
        assert fold(entities, each) == entities


async def test_each_full_segment_is_sealed_and_the_next_one_restates_what_is_open(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, limits=ROTATING)
    await journal.append(keeping(everything())).durable
    await append_each(journal, range(1, 100))
    before = journal.entities
    await journal.close()
    *sealed, last = segments(tmp_path)
    assert len(sealed) >= 2
    assert read_seal(last) is None
    for path in sealed:
        seal = read_seal(path)
        assert seal is not None
        assert digest_of(path, seal) == seal.digest
    again = open_journal(tmp_path, limits=ROTATING)
    assert words(again) == expected_words(99)
    assert again.entities == before == everything()
    for n in range(len(sealed) + 1):
        assert entities_of(again.segments()[n:]) == before
    assert verify(again).words == ""
    assert [facts["sealed"] for facts in stats(again)["segments"]] == [True] * len(sealed) + [False]  # type: ignore[attr-defined]
    await again.close()


async def test_a_segment_ends_after_a_day_whatever_the_wall_clock_says(tmp_path: Path) -> None:
    clock = StillClock()
    journal = Journal.open(tmp_path, host=HOST, clock=clock, limits=SMALL)
    await append_each(journal, [1])
    clock.wall += 400 * DAY_NS
    await append_each(journal, [2])
    assert len(segments(tmp_path)) == 1
    clock.mono += DAY_NS
    await append_each(journal, [3])
    assert len(segments(tmp_path)) == 2
    await journal.close()
    clock.wall += 2 * DAY_NS
    again = Journal.open(tmp_path, host=HOST, clock=clock, limits=SMALL)
    await append_each(again, [4])
    assert len(segments(tmp_path)) == 3
    assert words(again) == expected_words(4)
    await again.close()


async def test_the_age_of_a_segment_is_told_by_its_first_record_however_long_the_first_batch_is(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    await journal.append([record(1, "w" * 300_000), record(2, "w" * 300_000)]).durable
    assert first_wall_ns(journal.segments()[0]) == StillClock().wall
    await journal.close()
    again = open_journal(tmp_path)
    assert steps(again)[0][0] == 1
    await again.close()


async def test_opening_believes_sealed_segments_and_the_scrub_and_verify_read_them(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, limits=ROTATING)
    await append_each(journal, range(1, 100))
    await journal.close()
    path = segments(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)
    slow = msgspec.structs.replace(ROTATING, scrub_bytes_per_second=1)
    opened = open_journal(tmp_path, limits=slow)
    assert opened.health == "ok"
    found = verify(opened)
    assert (Path(found.file), "checksum" in found.words) == (path, True)
    await opened.close()
    scrubbed = open_journal(tmp_path, limits=ROTATING)
    until(lambda: scrubbed.health != "ok", "the damage")
    assert str(path) in scrubbed.health
    with pytest.raises(JournalWriteFailed, match="SHA-256"):
        scrubbed.append([record(1)])
    await scrubbed.close()


@pytest.mark.parametrize(("number", "is_damage"), [(errno.EMFILE, False), (errno.ENOMEM, False), (errno.EIO, True)])
async def test_a_segment_that_could_not_be_read_for_want_of_a_descriptor_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_damage: bool
) -> None:
    journal = open_journal(tmp_path, limits=ROTATING)
    await append_each(journal, range(1, 100))
    await journal.close()
    tried = []

    def refused(path: Path, flags: int) -> int:
        tried.append(path)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("backend.agent.journal.scrub.open_regular", refused)
    scrubbed = open_journal(tmp_path, limits=ROTATING)
    until(lambda: scrubbed.health != "ok" or len(tried) == len(segments(tmp_path)) - 1, "the pass is over")
    assert (scrubbed.health != "ok") == is_damage
    await scrubbed.close()


async def test_a_sealed_segment_that_no_head_file_witnessed_is_read_whole_at_the_start(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, limits=ROTATING)
    await append_each(journal, range(1, 10))
    await journal.close()
    head = (place(tmp_path) / "head").read_bytes()
    journal = open_journal(tmp_path, limits=ROTATING)
    await append_each(journal, range(10, 100))
    await journal.close()
    (place(tmp_path) / "head").write_bytes(head)
    path = segments(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged, match=path.name):
        open_journal(tmp_path, limits=ROTATING)


async def test_retention_takes_whole_sealed_segments_one_a_minute_and_what_is_open_stays(tmp_path: Path) -> None:
    clock = StillClock()
    limits = msgspec.structs.replace(ROTATING, keep_bytes=9000)
    journal = Journal.open(tmp_path, host=HOST, clock=clock, limits=limits)
    await journal.append(keeping(everything())).durable
    cursor = journal.cursor(1)
    await append_each(journal, range(1, 120))
    before = segments(tmp_path)
    await journal.keep_up()
    assert segments(tmp_path) == before
    for gone in (1, 2):
        clock.mono += 60 * 1_000_000_000
        await journal.keep_up()
        await journal.keep_up()
        assert segments(tmp_path) == before[gone:]
    assert journal.resolve(cursor).outcome == "gone"
    assert journal.oldest_seq == journal.resolve(cursor).oldest > 1
    assert journal.read(0, 1)[0].seq == journal.oldest_seq
    removed = [notice for notice in journal.take_notices() if notice.kind == "journal.retention"]
    assert ["keep_gib" in notice.words for notice in removed] == [True, True]
    assert journal.entities == everything()
    await journal.close()
    again = Journal.open(tmp_path, host=HOST, clock=clock, limits=limits)
    assert again.entities == everything()
    await again.close()


async def test_a_segment_stays_while_no_later_one_restates_what_is_open(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, limits=ROTATING)
    await append_each(journal, range(1, 60))
    kept, limits = journal.segments(), msgspec.structs.replace(ROTATING, keep_bytes=1)
    await journal.close()
    assert len(kept) > 1
    assert "keep_gib" in why_unlink_oldest(kept, limits, 0)
    for segment in kept[1:]:
        segment.is_base = False
    assert why_unlink_oldest(kept, limits, 0) == ""


async def test_a_clock_that_jumps_ten_years_cannot_wipe_the_history(tmp_path: Path) -> None:
    clock = StillClock()
    journal = Journal.open(tmp_path, host=HOST, clock=clock, limits=ROTATING)
    await append_each(journal, range(1, 120))
    before = segments(tmp_path)
    clock.wall += 3650 * DAY_NS
    clock.mono += 61 * 1_000_000_000
    for _ in range(5):
        await journal.keep_up()
    assert segments(tmp_path) == before[1:]
    for _ in range(2 * len(before)):
        clock.mono += 61 * 1_000_000_000
        await journal.keep_up()
    assert segments(tmp_path) == before[-1:]
    await append_each(journal, [1])
    await journal.close()


async def test_e13_a_full_disk_gives_the_reserve_up_for_stops_and_goes_on_by_itself(tmp_path: Path) -> None:
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    reserve = place(tmp_path) / "reserve"
    assert reserve.stat().st_size == SMALL.reserve_bytes
    await append_each(journal, [1])
    disk.room = 100
    with pytest.raises(JournalWriteFailed, match="No space left") as refused:
        await journal.append([record(2)]).durable
    assert not refused.value.fenced
    assert not reserve.exists()
    disk.room = 5000
    assert journal.resume()
    await journal.append([record(2)]).durable
    assert "no load is begun" in journal.health
    assert journal.append_lazy([record(9)]) is None
    assert journal.dropped_records == 1
    disk.room = None
    await journal.keep_up()
    assert journal.health == "ok"
    assert reserve.exists()
    kinds = [notice.kind for notice in journal.take_notices()]
    assert kinds == ["journal.full", "journal.resumed", "journal.dropped"]
    await append_each(journal, [3])
    assert words(journal) == expected_words(3)
    await journal.close()


async def test_e13_a_disk_that_is_full_at_a_rotation_lets_the_old_segment_go_on(tmp_path: Path) -> None:
    class NoNewFiles(Disk):
        refuses = False

        def draft(self, path: Path, data: bytes, room: int = 0) -> Path:
            if self.refuses:
                raise OSError(28, "No space left on device")
            return super().draft(path, data, room)

    disk, clock = NoNewFiles(), StillClock()
    journal = Journal.open(tmp_path, host=HOST, clock=clock, disk=disk, limits=ROTATING)
    disk.refuses = True
    await append_each(journal, range(1, 60))
    assert len(segments(tmp_path)) == 1
    assert {notice.kind for notice in journal.take_notices()} == {"journal.not_rotated"}
    disk.refuses = False
    clock.mono += 61 * 1_000_000_000
    await append_each(journal, range(60, 70))
    assert len(segments(tmp_path)) == 2
    assert words(journal) == expected_words(69)
    await journal.close()
    again = open_journal(tmp_path, limits=ROTATING)
    assert words(again) == expected_words(69)
    await again.close()


@pytest.mark.parametrize("stage", ["footer written", "footer torn", "next drafted"])
async def test_a_rotation_that_was_cut_short_is_ended_by_the_next_life(tmp_path: Path, stage: str) -> None:
    journal = open_journal(tmp_path, limits=ROTATING)
    await journal.append(keeping(everything())).durable
    await append_each(journal, range(1, 50))
    head = (place(tmp_path) / "head").read_bytes()
    await journal.close()
    (place(tmp_path) / "head").write_bytes(head)
    *_, old, new = segments(tmp_path)
    seal = read_seal(old)
    assert seal is not None
    count = sum(r.kind == "test.step" for s in [*segments(tmp_path)][:-1] for r in _records(journal, s))
    new.rename(new.with_name(new.name + ".tmp")) if stage == "next drafted" else new.unlink()
    if stage == "footer torn":
        data = old.read_bytes()
        old.write_bytes(data[: seal.end] + bytes(64) + data[seal.end + 64 :])
    again = open_journal(tmp_path, limits=ROTATING)
    assert words(again) == expected_words(count)
    assert again.journal_epoch == (2 if stage == "footer torn" else 1)
    assert again.entities == everything()
    await append_each(again, [count + 1])
    assert verify(again).words == ""
    await again.close()


def _records(journal: Journal, path: Path) -> list[JournalRecord]:
    first, *_ = (segment for segment in journal.segments() if segment.path == path)
    return [r for r in journal.replay() if first.header.first_seq <= r.seq < _next_first(journal, path)]


def _next_first(journal: Journal, path: Path) -> int:
    firsts = [segment.header.first_seq for segment in journal.segments() if segment.path > path]
    return min(firsts, default=1 << 62)


async def test_reading_goes_on_while_retention_removes_what_is_read(tmp_path: Path) -> None:
    journal = open_journal(tmp_path, limits=ROTATING)
    await append_each(journal, range(1, 100))
    stale = journal.segments()
    os.unlink(stale[0].path)
    with journal._shared.lock:
        journal._shared.segments.pop(0)
    assert journal.read(3, 5)[0].seq == journal.oldest_seq > 3
    await journal.close()


async def test_after_a_refusal_nothing_is_taken_until_the_owner_resumes_from_what_is_durable(tmp_path: Path) -> None:
    disk = TroubledDisk()
    journal = open_journal(tmp_path, disk=disk)
    kept = everything()
    await journal.append(keeping(kept)).durable
    disk.failing_writes = 1
    dropped = msgspec.structs.replace(record(1), change=Change(drop_shards=tuple(kept.shards)))
    lost = journal.append([dropped])
    with pytest.raises(JournalWriteFailed):
        await lost.durable
    with pytest.raises(JournalWriteFailed):
        journal.append([record(2)])
    assert journal.entities == kept
    assert journal.resume()
    taken = journal.append([record(3)])
    assert taken.records[0].seq == lost.records[0].seq
    await taken.durable
    assert journal.entities == kept
    await journal.close()


async def test_a_segment_without_a_record_is_never_sealed(tmp_path: Path) -> None:
    clock = StillClock()
    journal = Journal.open(tmp_path, host=HOST, clock=clock, limits=ROTATING)
    clock.mono += 2 * DAY_NS
    await journal.append([record(1, "x" * 9000)]).durable
    (only,) = segments(tmp_path)
    assert read_seal(only) is None
    assert journal.read(0, 1)[0].words == "x" * 9000
    await journal.close()
