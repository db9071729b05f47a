"""The ledger: whole before anything is sent, readable after any crash, and honest about who owns what."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.contract.words import LoadGeneration, NodeGeneration, NodeId, OpId, UnixMs
from backend.control import ledger, ledger_views
from backend.control.ledger import (
    ENDED,
    LedgerError,
    Operation,
    OwnerLives,
    Step,
    create,
    has_owner,
    ledger_path,
    mend,
    new_op_id,
    reopen,
)
from backend.control.ledger_views import LedgerReader, read_operation
from backend.control.views import Target
from tests.control.factories import GENERATION, A, a_plan

APPENDER = """
import sys
from pathlib import Path
from backend.contract.words import OpId
from backend.control.ledger import Step, reopen
writer = reopen(Path(sys.argv[1]), OpId(sys.argv[2]))
n = 0
while True:
    n += 1
    writer.append(Step(at_unix_ms=n, target="t", what="note", words=f"{n} " + "x" * 2000, lines=("y" * 4000,)))
"""


def an_operation(op_id: str = "load-1-ab") -> Operation:
    target = Target(
        host=A, node_id=NodeId("tiny-1/0"), rank=0, node_generation=NodeGeneration(GENERATION), adapter_kind="llamacpp"
    )
    return Operation(
        op_id=OpId(op_id),
        kind="load",
        subject="tiny-1",
        by="alice",
        context="local",
        load_generation=LoadGeneration(GENERATION),
        targets=(target,),
        options={"keep_on_failure": False},
        started_unix_ms=UnixMs(5),
        plan=a_plan(),
    )


def a_step(words: str = "w", **fields: object) -> Step:
    return Step(at_unix_ms=UnixMs(6), target="tiny-1/0", what=str(fields.pop("what", "load")), words=words, **fields)  # type: ignore[arg-type]


@pytest.fixture
def appender(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real process that owns an operation and appends without end."""
    create(tmp_path, an_operation()).close()
    process = subprocess.Popen([sys.executable, "-c", APPENDER, str(tmp_path), "load-1-ab"])
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()


def wait_for(holds: object, seconds: float = 30.0) -> None:
    assert callable(holds)
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def test_an_operation_is_read_back_whole_with_its_steps(tmp_path: Path) -> None:
    writer = create(tmp_path, an_operation())
    writer.append(a_step("sent", phase="loading", lines=("a", "b")))
    view = read_operation(ledger_path(tmp_path, OpId("load-1-ab")))
    assert (view.state, view.words, view.phase, view.plan) == ("running", "sent", "loading", a_plan())
    assert view.steps[0].lines == ("a", "b")
    writer.append(a_step("ready", what=ENDED, exit_code=0))
    writer.close()
    view = read_operation(ledger_path(tmp_path, OpId("load-1-ab")))
    assert (view.state, view.exit_code, view.phase, view.ended_unix_ms) == ("succeeded", 0, "", 6)
    assert os.stat(ledger_path(tmp_path, OpId("load-1-ab"))).st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("code", "state"), [(0, "succeeded"), (2, "refused"), (3, "unknown"), (4, "failed"), (5, "failed")]
)
def test_the_end_of_an_operation_is_its_state(tmp_path: Path, code: int, state: str) -> None:
    writer = create(tmp_path, an_operation())
    writer.append(a_step(what=ENDED, exit_code=code))
    writer.close()
    assert read_operation(ledger_path(tmp_path, OpId("load-1-ab"))).state == state


def test_the_file_and_its_folder_are_synced_before_create_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def watched(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", watched)
    writer = create(tmp_path / "ledger", an_operation())
    assert [Path(name).name for name in synced] == [".load-1-ab.new", "ledger"]
    writer.append(a_step())
    assert len(synced) == 3
    writer.close()


def test_an_id_is_never_used_twice_and_is_a_file_name(tmp_path: Path) -> None:
    create(tmp_path, an_operation()).close()
    with pytest.raises(FileExistsError):
        create(tmp_path, an_operation())
    assert [path.name for path in tmp_path.iterdir()] == ["load-1-ab.jsonl"]
    with pytest.raises(LedgerError, match="is refused"):
        ledger_path(tmp_path, OpId("../x"))
    assert ledger_path(tmp_path, new_op_id("load", 1_764_412_800_123)).parent == tmp_path


def test_an_owner_that_is_killed_while_it_appends_leaves_whole_lines_and_an_ownerless_operation(
    tmp_path: Path, appender: subprocess.Popen[bytes]
) -> None:
    path = ledger_path(tmp_path, OpId("load-1-ab"))
    wait_for(lambda: path.stat().st_size > 60_000)
    assert read_operation(path).state == "running"
    with pytest.raises(OwnerLives, match="its process lives"):
        reopen(tmp_path, OpId("load-1-ab"))
    os.kill(appender.pid, signal.SIGKILL)
    appender.wait()
    view = read_operation(path)
    assert view.state == "ownerless"
    assert [step.words.split()[0] for step in view.steps] == [str(n + 1) for n in range(len(view.steps))]
    writer = reopen(tmp_path, OpId("load-1-ab"))
    assert len(writer.steps) == len(view.steps)
    writer.close()


def test_a_line_cut_at_any_byte_is_left_out_and_then_removed(tmp_path: Path) -> None:
    path = ledger_path(tmp_path, OpId("load-1-ab"))
    writer = create(tmp_path, an_operation())
    writer.append(a_step("first"))
    whole = path.read_bytes()
    writer.append(a_step("second"))
    writer.close()
    second = path.read_bytes()[len(whole) :]
    for cut in (1, len(second) // 2, len(second) - 1):
        path.write_bytes(whole + second[:cut])
        assert [step.words for step in read_operation(path).steps] == ["first"]
    writer = reopen(tmp_path, OpId("load-1-ab"))
    assert path.read_bytes() == whole
    writer.append(a_step("third"))
    writer.close()
    assert [step.words for step in read_operation(path).steps] == ["first", "third"]


def test_a_damaged_file_is_set_aside_and_shown_and_the_others_go_on(tmp_path: Path) -> None:
    create(tmp_path, an_operation("load-1-aa")).close()
    writer = create(tmp_path, an_operation("load-2-bb"))
    writer.append(a_step())
    writer.append(a_step())
    writer.close()
    path = ledger_path(tmp_path, OpId("load-2-bb"))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"#" + lines[1][1:] + lines[2])
    seen = LedgerReader(tmp_path).read()
    assert seen[OpId("load-1-aa")].state == "ownerless"
    assert seen[OpId("load-2-bb")].state == "damaged"
    assert "set aside" in seen[OpId("load-2-bb")].words
    assert "line 2 is damaged" in seen[OpId("load-2-bb")].words
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="line 2 is damaged"):
        reopen(tmp_path, OpId("load-2-bb"))
    assert path.read_bytes() == before, "what is damaged is kept for a person"


def test_ownership_can_be_inherited_so_that_a_starting_operation_never_looks_ownerless(tmp_path: Path) -> None:
    writer = create(tmp_path, an_operation())
    path = ledger_path(tmp_path, OpId("load-1-ab"))
    heir = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(writer.fd,))
    try:
        writer.close()
        assert has_owner(path)
    finally:
        heir.communicate(b"\n", timeout=30)
    assert not has_owner(path)


def test_a_reader_takes_up_what_is_new_and_what_is_gone(tmp_path: Path) -> None:
    reader = LedgerReader(tmp_path / "ledger")
    assert reader.read() == {}
    writer = create(tmp_path / "ledger", an_operation())
    assert reader.read()[OpId("load-1-ab")].state == "running"
    writer.append(a_step("sent"))
    assert reader.read()[OpId("load-1-ab")].words == "sent"
    writer.append(a_step("ready", what=ENDED, exit_code=0))
    writer.close()
    first = reader.read()[OpId("load-1-ab")]
    assert reader.read()[OpId("load-1-ab")] is first, "an ended operation is not read again"
    ledger_path(tmp_path / "ledger", OpId("load-1-ab")).unlink()
    assert reader.read() == {}


def damaged(path: Path, number: int, *, at: int = 40) -> None:
    """One byte of a line becomes another, as a bad block or an editor makes it."""
    lines = path.read_bytes().splitlines(keepends=True)
    line = bytearray(lines[number - 1])
    line[at] ^= 0x01
    path.write_bytes(b"".join([*lines[: number - 1], bytes(line), *lines[number:]]))


def four_lines(folder: Path) -> Path:
    writer = create(folder, an_operation())
    for words in ("first", "second", "third"):
        writer.append(a_step(words))
    writer.close()
    return ledger_path(folder, OpId("load-1-ab"))


@pytest.mark.parametrize("at", [2, 12, 20, 60, -3])
@pytest.mark.parametrize("number", [2, 3, 4])
def test_one_changed_byte_anywhere_in_a_line_is_damage_and_never_another_step(
    tmp_path: Path, number: int, at: int
) -> None:
    path = four_lines(tmp_path)
    damaged(path, number, at=at)
    view = read_operation(path)
    assert view.state == "damaged"
    assert f"line {number} is damaged" in view.words
    assert [step.words for step in view.steps] == ["first", "second", "third"][: number - 2]
    assert view.targets == an_operation().targets, "what it was about is still told"


def test_a_damaged_first_line_says_how_the_entry_is_written_anew(tmp_path: Path) -> None:
    path = four_lines(tmp_path)
    damaged(path, 1)
    view = read_operation(path)
    assert (view.state, view.targets) == ("damaged", ())
    assert "ringtop ledger rebuild" in view.words


def test_a_last_line_that_the_disk_never_got_is_torn_and_not_damaged(tmp_path: Path) -> None:
    path = four_lines(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 100 + b"\n")
    assert [step.words for step in read_operation(path).steps] == ["first", "second", "third"]
    reopen(tmp_path, OpId("load-1-ab")).close()
    assert path.read_bytes() == whole


def test_a_mended_file_keeps_what_can_be_read_and_the_damaged_one_beside_it(tmp_path: Path) -> None:
    path = four_lines(tmp_path)
    with pytest.raises(LedgerError, match="is not damaged"):
        mend(tmp_path, OpId("load-1-ab"))
    damaged(path, 3)
    before = path.read_bytes()
    aside = mend(tmp_path, OpId("load-1-ab"))
    assert aside.read_bytes() == before
    view = read_operation(path)
    assert view.state == "ownerless"
    assert [step.words for step in view.steps][:1] == ["first"]
    assert "line 3 is damaged" in view.steps[-1].words
    assert list(LedgerReader(tmp_path).read()) == ["load-1-ab"], "the file beside it is no ledger"


# --- a disk that takes no more, and files that go while they are looked at ----------------------------------------


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """Files of this process end at so many bytes: a write takes what still fits, and the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_step_that_fits_only_in_part_leaves_nothing_and_the_next_one_is_whole(tmp_path: Path) -> None:
    writer = create(tmp_path, an_operation())
    path = ledger_path(tmp_path, OpId("load-1-ab"))
    writer.append(a_step("first"))
    whole = path.stat().st_size
    with room_for(whole + 20), pytest.raises(OSError, match="File too large"):
        writer.append(a_step("second"))
    assert path.stat().st_size == whole
    writer.append(a_step("third"))
    writer.close()
    view = read_operation(path)
    assert (view.state, [step.words for step in view.steps]) == ("ownerless", ["first", "third"])


def test_an_operation_that_fits_only_in_part_is_not_there_at_all(tmp_path: Path) -> None:
    with room_for(100), pytest.raises(OSError, match="File too large"):
        create(tmp_path, an_operation())
    assert not list(tmp_path.iterdir())
    create(tmp_path, an_operation()).close()


def test_an_operation_whose_folder_cannot_be_synced_has_no_owner_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path) -> None:
        raise OSError(5, "Input/output error", str(folder))

    monkeypatch.setattr(ledger, "sync_folder", fails)
    with pytest.raises(OSError, match="Input/output error"):
        create(tmp_path, an_operation())
    assert read_operation(ledger_path(tmp_path, OpId("load-1-ab"))).state == "ownerless"


def test_a_file_that_vanishes_while_the_folder_is_read_hides_no_other(tmp_path: Path) -> None:
    for number in range(10):
        create(tmp_path, an_operation(f"load-{number}-aa")).close()
        (tmp_path / f"gone-{number}.jsonl").symlink_to(tmp_path / "nowhere")
    assert len(LedgerReader(tmp_path).read()) == 10


def test_a_file_that_vanishes_before_its_owner_is_looked_for_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(tmp_path, an_operation()).close()
    path = ledger_path(tmp_path, OpId("load-1-ab"))
    real = ledger.parse

    def parse_and_lose(found: Path, data: bytes) -> ledger.Parsed:
        path.unlink()
        return real(found, data)

    monkeypatch.setattr(ledger_views, "parse", parse_and_lose)
    assert read_operation(path).state == "damaged"
    assert LedgerReader(tmp_path).read() == {}


def test_an_open_operation_is_followed_however_many_come_after_it(tmp_path: Path) -> None:
    reader = LedgerReader(tmp_path, newest=2)
    create(tmp_path, an_operation("load-1-aa")).close()
    assert list(reader.read()) == ["load-1-aa"]
    for number in range(2, 5):
        writer = create(tmp_path, an_operation(f"load-{number}-aa"))
        writer.append(a_step(what=ENDED, exit_code=0))
        writer.close()
        os.utime(ledger_path(tmp_path, OpId(f"load-{number}-aa")), (2_000_000_000 + number,) * 2)
    assert list(reader.read()) == ["load-1-aa", "load-3-aa", "load-4-aa"]
    writer = reopen(tmp_path, OpId("load-1-aa"))
    writer.append(a_step(what=ENDED, exit_code=0))
    writer.close()
    os.utime(ledger_path(tmp_path, OpId("load-1-aa")), (1_000_000_000,) * 2)
    assert reader.read()[OpId("load-1-aa")].state == "succeeded", "its end is seen"
    assert list(reader.read()) == ["load-3-aa", "load-4-aa"]


def test_a_folder_in_which_no_name_moved_is_not_listed_again_and_its_open_operations_are_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    real = os.scandir

    def counted(path: str) -> Any:
        listed.append(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", counted)
    writer = create(tmp_path, an_operation("load-1-aa"))
    os.utime(tmp_path, (1_000_000_000,) * 2)
    reader = LedgerReader(tmp_path)
    assert [reader.read()[OpId("load-1-aa")].state for _ in range(3)] == ["running"] * 3
    assert len(listed) == 1
    writer.append(a_step(what=ENDED, exit_code=0))
    writer.close()
    assert reader.read()[OpId("load-1-aa")].state == "succeeded"
    assert len(listed) == 1
    create(tmp_path, an_operation("load-2-bb")).close()
    assert list(reader.read()) == ["load-1-aa", "load-2-bb"]
    reader.read()
    assert len(listed) == 3, "what changed a moment ago may change again within one tick"
    monkeypatch.setattr(ledger_views, "_RELIST_SECONDS", 0.0)
    os.utime(tmp_path, (1_000_000_000,) * 2)
    reader.read()
    reader.read()
    assert len(listed) == 5
