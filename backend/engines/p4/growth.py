"""How fast a p4 agent's journal grows: within the last hour, and per 1000 tokens of prompts of ours. Pure.

Nothing in it is ever deleted, so that its growth says how long it will do. Of the tokens that others submit nobody here
knows the number.
"""

from __future__ import annotations

from collections import deque

from backend.contract.reports import JournalGrowth

WINDOW_SECONDS = 3600.0
_SETTLED_SECONDS = 60.0
"""A rate per hour of less than this would be of its moment only."""
_RETOLD_SECONDS = 600.0
"""Where nothing grew any more the figure goes down in steps of this, so that it is told seldom."""


class Growth:
    """The sizes of one journal as they were seen, in order."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()
        self._told: tuple[float, JournalGrowth] | None = None
        self._tokens = self._token_files = self._token_bytes = 0

    def see(self, at: float, files: int | None, size: int | None) -> None:
        """Its files and bytes at a monotonic time in seconds; unknown is no size. A smaller one was moved aside."""
        if files is None or size is None:
            return
        if self._seen and (files < self._seen[-1][1] or size < self._seen[-1][2]):
            self._seen.clear()
            self._told = None
        if self._seen and at <= self._seen[-1][0]:
            return
        self._seen.append((at, files, size))
        while len(self._seen) > 2 and self._seen[1][0] <= at - WINDOW_SECONDS:
            self._seen.popleft()

    def count(self, tokens: int, files: int, size: int) -> None:
        """A prompt of ours was answered, and what the journal grew by meanwhile."""
        if tokens > 0 and files >= 0 and size >= 0:
            self._tokens += tokens
            self._token_files += files
            self._token_bytes += size
            self._told = None

    @property
    def figure(self) -> JournalGrowth | None:
        """The running figure; None before two looks."""
        if len(self._seen) < 2:
            return None
        at, files, size = self._seen[-1]
        is_due = (files, size) != self._seen[-2][1:]
        if self._told is not None and self._told[1].files_per_hour is None:
            is_due |= at - self._seen[0][0] >= _SETTLED_SECONDS
        if self._told is None or is_due or at - self._told[0] >= _RETOLD_SECONDS:
            self._told = at, self._figure()
        return self._told[1]

    def _figure(self) -> JournalGrowth:
        (since, files, size), (at, files_now, size_now) = self._seen[0], self._seen[-1]
        grown, bytes_grown, seconds = files_now - files, size_now - size, at - since
        is_settled, tokens = seconds >= _SETTLED_SECONDS, self._tokens
        return JournalGrowth(
            files=grown,
            bytes=bytes_grown,
            seconds=round(seconds),
            files_per_hour=round(grown * 3600 / seconds) if is_settled else None,
            bytes_per_hour=round(bytes_grown * 3600 / seconds) if is_settled else None,
            tokens=tokens,
            files_per_1000_tokens=round(self._token_files * 1000 / tokens) if tokens else None,
            bytes_per_1000_tokens=round(self._token_bytes * 1000 / tokens) if tokens else None,
        )
