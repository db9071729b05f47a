"""A torn tail is cut and kept; everything else that does not check is refused, and nothing is changed then."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from backend.agent.journal import Journal, JournalDamaged, Limits
from backend.agent.journal.format import SEGMENT_HEADER_BYTES, FormatError, read_batch
from backend.agent.journal.head import decode_head
from backend.agent.journal.recovery import Damage, scan_segment
from backend.agent.journal.sealing import read_seal
from tests.agent.journal.worlds import (
    HOST,
    SMALL,
    StillClock,
    append_each,
    closed_with,
    expected,
    open_journal,
    place,
    segments,
    steps,
)


def batch_offsets(data: bytes) -> list[int]:
    """Where each batch begins, and where the last one ends."""
    offsets, at = [], SEGMENT_HEADER_BYTES
    while True:
        offsets.append(at)
        try:
            at += read_batch(data, at).size
        except FormatError:
            return offsets


async def journal_of(folder: Path, count: int) -> tuple[Path, bytes, list[int]]:
    """A closed journal whose head file has witnessed only the first half, as after a crash within a second."""
    await closed_with(folder, count // 2)
    head = (place(folder) / "head").read_bytes()
    journal = open_journal(folder)
    await append_each(journal, range(count // 2 + 1, count + 1))
    await journal.close()
    (place(folder) / "head").write_bytes(head)
    (segment,) = segments(folder)
    data = segment.read_bytes()
    return segment, data, batch_offsets(data)


async def test_a_file_cut_at_any_byte_of_its_last_batch_keeps_the_longest_valid_prefix(tmp_path: Path) -> None:
    _, data, offsets = await journal_of(tmp_path / "whole", 4)
    start, end = offsets[-2], offsets[-1]
    for cut in range(start, end + 1):
        scan = scan_segment(data[:cut], after=None, is_last=True)
        kept = 4 if cut == end else 3
        assert scan.position.next_seq - 1 == kept
        assert scan.end == offsets[kept]
        assert scan.is_torn == (start < cut < end)


@pytest.mark.parametrize("zeros", [0, 4096])
@pytest.mark.parametrize("part", [0.02, 0.4, 0.9])
async def test_a_torn_tail_is_kept_beside_cut_off_and_said_in_the_journal(
    tmp_path: Path, part: float, zeros: int
) -> None:
    segment, data, offsets = await journal_of(tmp_path, 4)
    start, end = offsets[-2], offsets[-1]
    cut = start + max(1, int((end - start) * part))
    segment.write_bytes(data[:cut] + bytes(zeros))
    journal = open_journal(tmp_path)
    assert (journal.journal_epoch, journal.head_seq) == (2, 4)
    assert steps(journal) == expected(3)
    recovered = journal.read(3, 1)[0]
    assert (recovered.kind, recovered.level, recovered.seq) == ("journal.recovered", "warn", 4)
    (torn,) = place(tmp_path).glob("*.torn")
    assert torn.read_bytes() == data[start:cut].rstrip(b"\0")
    assert batch_offsets(segment.read_bytes())[-1] == start
    assert read_seal(segment) is not None
    await append_each(journal, [5, 6])
    await journal.close()
    again = open_journal(tmp_path)
    assert (again.journal_epoch, again.recovered_bytes, again.head_seq) == (2, 0, 6)
    await again.close()


@pytest.mark.parametrize("stage", ["copied", "cut", "begun"])
async def test_a_recovery_that_was_interrupted_is_finished_by_the_next_life(tmp_path: Path, stage: str) -> None:
    segment, data, offsets = await journal_of(tmp_path, 4)
    head = place(tmp_path) / "head"
    witness, torn = head.read_bytes(), data[: offsets[-2] + 50]
    segment.write_bytes(torn)
    await open_journal(tmp_path).close()
    first, second = segments(tmp_path)
    head.write_bytes(witness)
    if stage == "begun":
        second.write_bytes(second.read_bytes()[:SEGMENT_HEADER_BYTES])
    else:
        second.unlink()
    if stage == "copied":
        first.write_bytes(torn)
    again = open_journal(tmp_path)
    assert (again.journal_epoch, steps(again)) == (2, expected(3))
    assert [r.kind for r in again.read(3, 10)] == ["journal.recovered"]
    await again.close()


async def test_every_single_bit_flip_in_a_middle_batch_is_refused_and_never_taken_for_a_torn_tail(
    tmp_path: Path,
) -> None:
    _, data, offsets = await journal_of(tmp_path, 5)
    for at in range(offsets[2], offsets[3]):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            with pytest.raises(Damage) as refused:
                scan_segment(bytes(broken), after=None, is_last=True)
            assert refused.value.offset == offsets[2]


async def test_every_byte_of_a_segment_header_is_guarded(tmp_path: Path) -> None:
    _, data, _ = await journal_of(tmp_path, 2)
    for at in range(SEGMENT_HEADER_BYTES):
        broken = bytearray(data)
        broken[at] ^= 0x10
        with pytest.raises(Damage):
            scan_segment(bytes(broken), after=None, is_last=True)


async def test_damage_names_the_file_and_the_byte_and_changes_nothing(tmp_path: Path) -> None:
    segment, data, offsets = await journal_of(tmp_path, 5)
    broken = bytearray(data)
    broken[offsets[1] + 60] ^= 4
    segment.write_bytes(broken)
    before = {path.name: path.read_bytes() for path in place(tmp_path).iterdir()}
    with pytest.raises(JournalDamaged, match=rf"{segment.name} at byte {offsets[1]}") as refused:
        open_journal(tmp_path)
    assert (refused.value.file, refused.value.offset) == (segment, offsets[1])
    assert {path.name: path.read_bytes() for path in place(tmp_path).iterdir()} == before


async def test_a_dropped_or_swapped_batch_is_refused(tmp_path: Path) -> None:
    _, data, at = await journal_of(tmp_path, 5)
    dropped = data[: at[1]] + data[at[2] :]
    swapped = data[: at[1]] + data[at[2] : at[3]] + data[at[1] : at[2]] + data[at[3] :]
    for broken in (dropped, swapped):
        with pytest.raises(Damage, match="missing or were moved"):
            scan_segment(broken, after=None, is_last=True)


async def test_more_garbage_than_one_batch_is_no_torn_tail(tmp_path: Path) -> None:
    _, data, offsets = await journal_of(tmp_path, 2)
    with pytest.raises(Damage, match="more than one batch"):
        scan_segment(data[: offsets[-1]] + b"\xff" * (2 << 20), after=None, is_last=True)


async def test_the_last_acknowledged_batch_is_guarded_by_the_head_file(tmp_path: Path) -> None:
    await closed_with(tmp_path, 4)
    (segment,) = segments(tmp_path)
    data = segment.read_bytes()
    offsets = batch_offsets(data)
    flipped = bytearray(data)
    flipped[offsets[-2] + 50] ^= 1
    for broken in (bytes(flipped), data[: offsets[-2]], data[: offsets[-1] - 3]):
        segment.write_bytes(broken)
        with pytest.raises(JournalDamaged, match="went backwards: record 4"):
            open_journal(tmp_path)
        assert segment.read_bytes() == broken


async def test_an_older_copy_of_the_log_is_refused_by_its_chain(tmp_path: Path) -> None:
    await closed_with(tmp_path, 3)
    shutil.copytree(tmp_path, tmp_path.with_name("old"))
    kept = tmp_path.with_name("old")
    journal = open_journal(tmp_path)
    await append_each(journal, [4])
    await journal.close()
    forked = open_journal(kept)
    await append_each(forked, [40])
    await forked.close()
    segments(tmp_path)[0].write_bytes(segments(kept)[0].read_bytes())
    with pytest.raises(JournalDamaged, match="witnessed with chain"):
        open_journal(tmp_path)
    shutil.rmtree(kept)


ROTATING = Limits(segment_bytes=2048, allocate_bytes=512, head_seconds=3600.0, reserve_bytes=8192)


@pytest.mark.parametrize("which", ["first", "middle", "last"])
async def test_a_missing_segment_is_refused(tmp_path: Path, which: str) -> None:
    await closed_with(tmp_path, 40, limits=ROTATING)
    paths = segments(tmp_path)
    {"first": paths[0], "middle": paths[2], "last": paths[-1]}[which].unlink()
    with pytest.raises(JournalDamaged, match=r"missing|went backwards|was witnessed"):
        open_journal(tmp_path)


async def test_swapped_segments_and_a_cut_older_segment_are_refused(tmp_path: Path) -> None:
    await closed_with(tmp_path, 40, limits=ROTATING)
    paths = segments(tmp_path)
    one, two = paths[1].read_bytes(), paths[2].read_bytes()
    paths[1].write_bytes(two)
    paths[2].write_bytes(one)
    with pytest.raises(JournalDamaged):
        open_journal(tmp_path)
    paths[1].write_bytes(one[: batch_offsets(one)[-2] + 20])
    paths[2].write_bytes(two)
    with pytest.raises(JournalDamaged, match="a later segment exists"):
        open_journal(tmp_path)


async def test_missing_witnesses_and_foreign_files_are_refused(tmp_path: Path) -> None:
    await closed_with(tmp_path, 2)
    (segment,) = segments(tmp_path)
    head = place(tmp_path) / "head"
    kept, log = head.read_bytes(), segment.read_bytes()
    head.unlink()
    with pytest.raises(JournalDamaged, match="head file is missing"):
        open_journal(tmp_path)
    head.write_bytes(bytes(1024))
    with pytest.raises(JournalDamaged, match="neither of its two slots"):
        open_journal(tmp_path)
    head.write_bytes(kept)
    segment.unlink()
    with pytest.raises(JournalDamaged, match="no segment at all"):
        open_journal(tmp_path)
    elsewhere = tmp_path.with_name(f"{tmp_path.name}-elsewhere")
    elsewhere.write_bytes(log)
    segment.symlink_to(elsewhere)
    with pytest.raises(JournalDamaged, match="not a plain file"):
        open_journal(tmp_path)
    segment.unlink()
    os.mkfifo(segment)
    with pytest.raises(JournalDamaged, match=r"no plain file|not a plain file"):
        open_journal(tmp_path)


async def test_one_torn_slot_of_the_head_file_leaves_the_other(tmp_path: Path) -> None:
    await closed_with(tmp_path, 2)
    head = place(tmp_path) / "head"
    data = head.read_bytes()
    for torn in (bytes(100) + data[100:], data[:512] + bytes(100) + data[612:]):
        head.write_bytes(torn)
        journal = open_journal(tmp_path)
        assert steps(journal) == expected(2)
        await journal.close()


@pytest.mark.parametrize("lives", [[2, 1, 1], [4]])
async def test_the_head_file_is_written_into_its_older_slot(tmp_path: Path, lives: list[int]) -> None:
    for count in lives:
        journal = open_journal(tmp_path, limits=msgspec.structs.replace(SMALL, head_seconds=0.0))
        await append_each(journal, range(count))
        await journal.close()
    data = (place(tmp_path) / "head").read_bytes()
    slots = [decode_head(data[:512]), decode_head(data[512:])]
    assert sorted(slot.seq for slot in slots if slot is not None) == [3, 4]


async def test_the_journal_of_another_host_and_a_second_journal_are_refused(tmp_path: Path) -> None:
    await closed_with(tmp_path, 1)
    with pytest.raises(JournalDamaged, match=HOST):
        Journal.open(tmp_path, host="host-b", clock=StillClock())
    (tmp_path / ("ab" * 16)).mkdir()
    with pytest.raises(JournalDamaged, match="2 journals"):
        open_journal(tmp_path)


@pytest.mark.parametrize("left", ["folder", "head"])
async def test_a_creation_that_was_interrupted_is_finished(tmp_path: Path, left: str) -> None:
    await closed_with(tmp_path, 0)
    for path in place(tmp_path).iterdir():
        if left == "folder" or path.name != "head":
            path.unlink()
    journal = open_journal(tmp_path)
    await append_each(journal, [1])
    assert steps(journal) == expected(1)
    await journal.close()
