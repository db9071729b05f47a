"""Room on the journal's disk: the levels, and a reserve file that is given up so that a full disk can be recorded."""

from __future__ import annotations

import os
from pathlib import Path

from backend.agent.journal.disk import Disk
from backend.agent.journal.limits import MIB, Limits

RESERVE_NAME = "reserve"
OK, LOW, FULL = "ok", "low", "full"


class Space:
    """How much room there is. Used by the writer thread alone, after opening.

    ``level`` is ok, low (progress is not kept) or full: the reserve was given up, and ``words`` says what that means.
    """

    def __init__(self, folder: Path, disk: Disk, limits: Limits) -> None:
        self._folder = folder
        self._path = folder / RESERVE_NAME
        self._disk = disk
        self._limits = limits
        self._is_given_up = False
        self.level = OK
        self.words = ""

    @property
    def is_low(self) -> bool:
        """Progress is not kept."""
        return self.level in (LOW, FULL)

    def look(self) -> bool:
        """Measure, and take the reserve back when there is room for it; whether the level changed. Raises OSError."""
        before = self.level
        free, _ = self._disk.free_room(self._folder)
        if not self._path.exists():
            self._take_back(free)
        limits = self._limits
        where = f"{free // MIB} MiB are free under {self._folder}"
        if self._is_given_up:
            self.level = FULL
            self.words = (
                f"the disk was full: {where}. The reserve of {limits.reserve_bytes // MIB} MiB is in use; stops and "
                "drains are recorded, no load is begun. Free some space: the journal goes on by itself then."
            )
        else:
            self.level, self.words = (LOW if free < limits.low_bytes else OK), ""
        return self.level != before

    def give_up(self) -> None:
        """Give the reserve's room to the journal. Raises OSError."""
        if self._path.exists():
            os.unlink(self._path)
            self._disk.fsync_folder(self._folder)
        self._is_given_up = True
        self.level = FULL

    def _take_back(self, free: int) -> None:
        """Make the reserve anew, once twice its size is free: then the disk is not full any more."""
        if free < 2 * self._limits.reserve_bytes:
            self._is_given_up = True
            return
        try:
            self._disk.publish(self._disk.draft(self._path, b"", self._limits.reserve_bytes), self._path)
        except OSError:
            self._is_given_up = True
            raise
        self._is_given_up = False
