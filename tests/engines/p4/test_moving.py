"""A journal is moved aside whole: counted before and after, refused when anything is not as approved, never deleted."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from backend.contract.residents import move_by_hand
from backend.engines.driver import TendingFailed, TendingRefused
from backend.engines.p4.moving import move_aside


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal with three records."""
    folder = tmp_path / "journal"
    folder.mkdir(mode=0o750)
    for name in ("a.admission", "b.inbound", "c.outbound"):
        (folder / name).write_text(name)
    return folder


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_all_of_it_is_aside_and_an_empty_one_of_the_same_mode_in_its_place(journal: Path) -> None:
    aside = Path(f"{journal}.aside-1")
    words = move_aside(journal, aside, 3, size_of(journal))
    assert "3 files" in words
    assert sorted(path.name for path in aside.iterdir()) == ["a.admission", "b.inbound", "c.outbound"]
    assert list(journal.iterdir()) == []
    assert stat.S_IMODE(journal.stat().st_mode) == 0o750


def test_one_file_more_than_was_approved_is_not_moved(journal: Path) -> None:
    with pytest.raises(TendingRefused, match=r"holds 3 files, \d+ bytes, and 2 files, 7 bytes were approved"):
        move_aside(journal, Path(f"{journal}.aside-1"), 2, 7)
    assert len(list(journal.iterdir())) == 3


def test_it_goes_beside_itself_or_nowhere(journal: Path, tmp_path: Path) -> None:
    for elsewhere in (tmp_path / "other", tmp_path.parent / f"{journal.name}.aside-1"):
        with pytest.raises(TendingRefused, match="is no place beside"):
            move_aside(journal, elsewhere, 3, size_of(journal))


def test_done_before_is_said_and_done_once(journal: Path) -> None:
    aside, size = Path(f"{journal}.aside-1"), size_of(journal)
    move_aside(journal, aside, 3, size)
    assert "before" in move_aside(journal, aside, 3, size)
    journal.rmdir()  # as after a kill between the move and the new folder
    move_aside(journal, aside, 3, size)
    assert journal.is_dir()
    (journal / "new.admission").write_text("a")
    with pytest.raises(TendingRefused, match="is there already"):
        move_aside(journal, aside, 3, size)


def test_a_link_is_not_taken_for_what_it_points_to(journal: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(journal)
    with pytest.raises(TendingRefused, match="is a symbolic link"):
        move_aside(link, Path(f"{link}.aside-1"), 3, size_of(journal))


def test_who_may_not_move_it_says_how_a_person_does(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(TendingFailed) as raised:
        move_aside(journal, Path(f"{journal}.aside-1"), 3, size_of(journal))
    assert move_by_hand(str(journal), f"{journal}.aside-1") in str(raised.value)
    assert len(list(journal.iterdir())) == 3
