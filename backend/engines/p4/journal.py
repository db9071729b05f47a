"""The folder of a p4 agent's journal, counted: one file per record, nothing ever deleted, and a census at each start.

What is inside a record is not known; how many there are, how they grow and which of them stop a restart is.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

ADMISSION = ".admission"
"""A request that was admitted: it stays counted after its end, and a start is refused while any is."""


class JournalSeen(msgspec.Struct, frozen=True):
    """One look at a journal folder. ``words`` says what is wrong with it, and is empty when it can be used."""

    files: int | None = None
    bytes: int | None = None
    admissions: int | None = None
    words: str = ""

    @property
    def state(self) -> str:
        """``ok``, or what is wrong."""
        return self.words or "ok"

    @property
    def restart(self) -> str:
        """Why its agent would not start again on it, or nothing: every request that it ever admitted is counted."""
        if not self.admissions:
            return ""
        return (
            f"its journal holds {self.admissions} admitted requests: its agent would refuse to start again (recovery "
            "census), also when all of them are long answered. Moving the folder aside is the way that is known"
        )


def look_at_journal(folder: str, given: str | None) -> JournalSeen:
    """Count a journal folder. ``given`` is what its agent was started with: empty for none, None when not known.

    Reads the folder's list and each file's size once; thousands take tens of milliseconds.
    """
    if given == "":
        return JournalSeen(words="its agent was started without one (P4_EVENT_OUTBOUND_JOURNAL_DIR is not set)")
    path = given or folder
    if not path:
        return JournalSeen(words="nobody says where it is: set journal of [engines.p4] in agent.toml")
    if given and folder and os.path.realpath(given) != os.path.realpath(folder):
        return JournalSeen(words=f"its agent writes to {given}, and agent.toml says {folder}")
    return _count(Path(path))


def _count(folder: Path) -> JournalSeen:
    files = size = admissions = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    files += 1
                    size += entry.stat(follow_symlinks=False).st_size
                    admissions += entry.name.endswith(ADMISSION)
    except OSError as error:
        return JournalSeen(words=f"{folder} cannot be read: {error.strerror}")
    writable = os.access(folder, os.W_OK | os.X_OK) or _is_others(folder)
    return JournalSeen(files, size, admissions, "" if writable else f"{folder} cannot be written")


def _is_others(folder: Path) -> bool:
    """Another user's folder: whether its agent may write there is not ours to try."""
    return folder.stat().st_uid != os.geteuid()
