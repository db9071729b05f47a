"""Engine output: rotated under a real engine that goes on writing, read across the cut, kept for three generations."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import IO

import pytest

from backend.agent import engine_logs, supervisor
from backend.agent.engine_logs import generations_of, last_lines, prune_runs, read_log, rotate_log
from backend.agent.run_folder import RunFolder
from backend.contract.words import NodeId
from tests.agent.run_world import python, runs, until

__all__ = ["runs"]

COUNTING = python(
    "import time\nnumber = 0\n"
    "while True:\n    print(f'line {number:06d}', flush=True); number += 1; time.sleep(0.001)\n"
)


def a_log(folder: Path, text: bytes) -> RunFolder:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "engine.log").write_bytes(text)
    return RunFolder(folder)


def write(run: RunFolder, text: bytes) -> None:
    with open(run.log, "ab") as log:
        log.write(text)


def whole(run: RunFolder) -> bytes:
    """Everything that is kept, read in small pieces as a follower does."""
    offset, text = 0, b""
    while True:
        piece = read_log(run, offset, 7)
        if not piece.data:
            return text
        offset, text = piece.offset, text + piece.data


def test_a_short_log_is_left_alone(tmp_path: Path) -> None:
    run = a_log(tmp_path / "a-1", b"short")
    assert not rotate_log(run, 5)
    assert not rotate_log(RunFolder(tmp_path / "none-1"), 5)
    assert whole(run) == b"short"


def test_offsets_hold_across_rotations_and_what_is_gone_is_counted(tmp_path: Path) -> None:
    run = a_log(tmp_path / "a-1", b"0123456789")
    assert rotate_log(run, 5)
    write(run, b"abcdefghij")
    assert whole(run) == b"0123456789abcdefghij"
    assert read_log(run, 15, 3).data == b"fgh"
    assert read_log(run, -4, 100) == engine_logs.LogPiece(b"ghij", 20, 20)
    assert read_log(run, 500, 10) == engine_logs.LogPiece(b"", 20, 20)
    assert rotate_log(run, 5)
    write(run, b"KL")
    piece = read_log(run, 4, 100)
    assert (piece.data, piece.offset, piece.size, piece.skipped) == (b"abcdefghijKL", 22, 22, 6)
    assert last_lines(run, 3, 1000) == ("abcdefghijKL",)


async def test_an_engine_writes_on_while_its_log_is_rotated_and_no_line_is_torn(runs: Path) -> None:
    await supervisor.spawn(runs / "a-1", "nonce-1", COUNTING, {})
    run = RunFolder(runs / "a-1")
    for round_number in range(1, 4):
        until(lambda: run.log.exists() and run.log.stat().st_size > 600, "it has written")
        assert rotate_log(run, 500)
        base, before = int(run.log_base.read_text()), run.log.stat().st_size
        size, after = read_log(run, 0, 0).size, run.log.stat().st_size
        assert base + before <= size <= base + after, round_number
    until(lambda: run.log.stat().st_size > 600, "it writes on")
    lines = [line for line in whole(run).split(b"\n") if line.startswith(b"line ") and len(line) == 11]
    numbers = [int(line[5:]) for line in lines]
    assert numbers == sorted(numbers)
    assert len(numbers) > 50


def test_without_room_for_the_copy_the_old_output_goes_and_the_log_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_log(tmp_path / "a-1", b"0123456789")
    rotate_log(run, 5)
    write(run, b"abcdefghij")

    def full(source: IO[bytes], to: IO[bytes], length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", full)
    assert rotate_log(run, 5)
    write(run, b"XY")
    piece = read_log(run, 0, 100)
    assert (piece.data, piece.skipped, piece.size) == (b"XY", 20, 22)
    assert sorted(os.listdir(run.path)) == ["engine.log", "engine.log.base"]


def test_the_last_three_generations_of_a_slot_are_kept_and_what_is_in_use_always(tmp_path: Path) -> None:
    for name in ("big-1_0-1", "big-1_0-2", "big-1_0-10", "big-1_0-11", "big-1_0-12", "big-1_1-3", "notes"):
        (tmp_path / name).mkdir()
    gone = prune_runs(tmp_path, [tmp_path / "big-1_0-1"])
    assert [path.name for path in gone] == ["big-1_0-2"]
    assert generations_of(tmp_path, NodeId("big-1/0")) == (1, 10, 11, 12)
    assert generations_of(tmp_path, NodeId("big-1/1")) == (3,)
    assert generations_of(tmp_path / "absent", NodeId("big-1/1")) == ()


async def test_a_run_that_lives_is_never_removed_however_old(runs: Path) -> None:
    await supervisor.spawn(runs / "a_0-1", "nonce-1", COUNTING, {})
    for generation in (2, 3, 4):
        (runs / f"a_0-{generation}").mkdir()
    assert prune_runs(runs, []) == ()


def test_a_run_with_a_damaged_record_is_kept_for_a_person(tmp_path: Path) -> None:
    for generation in (1, 2, 3, 4):
        (tmp_path / f"a_0-{generation}").mkdir()
    (tmp_path / "a_0-1" / "spawn.json").write_text("{")
    assert prune_runs(tmp_path, []) == ()
