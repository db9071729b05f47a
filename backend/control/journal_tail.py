"""The newest journal lines of all hosts, written by the backend's thread and read by the console's."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice

from backend.control.views import JournalLine


class JournalTail:
    """Keeps the newest ``limit`` lines. Indexes are dense, so a reader's cursor is the last index it saw."""

    def __init__(self, limit: int = 20_000) -> None:
        self._lines: deque[JournalLine] = deque(maxlen=limit)
        self._lock = threading.Lock()

    def extend(self, lines: tuple[JournalLine, ...]) -> None:
        """Add lines that follow the last one."""
        with self._lock:
            self._lines.extend(lines)

    def after(self, index: int, limit: int) -> tuple[JournalLine, ...]:
        """At most ``limit`` lines after ``index``, oldest first. Lines that are gone already are left out."""
        with self._lock:
            if not self._lines or limit <= 0:
                return ()
            skip = max(0, index + 1 - self._lines[0].index)
            return tuple(islice(self._lines, skip, skip + limit))
