"""A journal folder is moved aside: renamed whole within its parent, an empty one left in its place, nothing deleted."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from pathlib import Path

from backend.contract.residents import MARK, FolderCount, move_by_hand
from backend.engines.driver import TendingFailed, TendingRefused
from backend.engines.p4.journal import look_at_journal


def count_folder(folder: str) -> FolderCount:
    """How much is in a journal folder."""
    seen = look_at_journal(folder, None)
    return FolderCount(folder=folder, files=seen.files, bytes=seen.bytes, admissions=seen.admissions, words=seen.words)


def move_aside(folder: Path, aside: Path, files: int, size: int) -> str:
    """Move a folder that holds exactly this much. Says so when that was done before.

    Raises TendingRefused when anything is not as it was approved, TendingFailed and OSError when it cannot be done.
    """
    if aside.parent != folder.parent or not aside.name.startswith(f"{folder.name}{MARK}"):
        raise TendingRefused(f"{aside} is no place beside {folder}; a journal is moved to {folder}{MARK}…")
    before = count_folder(str(folder))
    if os.path.lexists(aside):
        return _moved_before(folder, aside, before, files, size)
    if folder.is_symlink():
        raise TendingRefused(
            f"{folder} is a symbolic link to {os.readlink(folder)}: moving the link would move nothing. Move what it "
            "points to by hand."
        )
    if (before.files, before.bytes) != (files, size):
        raise TendingRefused(
            f"{folder} holds {before.said}, and {files} files, {size} bytes were approved to be moved. Look again."
        )
    about = folder.stat()
    try:
        folder.rename(aside)
    except OSError as error:
        by_hand = move_by_hand(str(folder), str(aside))
        raise TendingFailed(
            f"{folder} cannot be moved to {aside}: {error.strerror}. A person who may: {by_hand}"
        ) from error
    _leave_empty(folder, about)
    after = count_folder(str(aside))
    if (after.files, after.bytes) != (files, size):
        raise TendingFailed(f"{aside} holds {after.said} after the move, and {files} files, {size} bytes were moved")
    return f"{folder} was moved to {aside}: {after.said}, nothing deleted"


def _moved_before(folder: Path, aside: Path, before: FolderCount, files: int, size: int) -> str:
    there = count_folder(str(aside))
    if (there.files, there.bytes) != (files, size) or before.files:
        raise TendingRefused(
            f"{aside} is there already with {there.said}, {folder} holds {before.said}, and {files} files, {size} "
            "bytes were approved to be moved. Nothing was touched; look at both."
        )
    if not folder.exists():
        _leave_empty(folder, aside.stat())
    return f"{folder} was moved to {aside} before: {there.said}"


def _leave_empty(folder: Path, like: os.stat_result) -> None:
    """An empty folder with the owner and mode of the one that was moved, on disk."""
    folder.mkdir(mode=stat.S_IMODE(like.st_mode))
    folder.chmod(stat.S_IMODE(like.st_mode))
    if (like.st_uid, like.st_gid) != (os.geteuid(), os.getegid()):
        try:
            shutil.chown(folder, like.st_uid, like.st_gid)
        except PermissionError as error:
            raise TendingFailed(
                f"the journal is moved, and {folder} is empty and not owned by {like.st_uid}:{like.st_gid} as before: "
                f"{error.strerror}. A person who may: chown {like.st_uid}:{like.st_gid} {shlex.quote(str(folder))}"
            ) from error
    parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
