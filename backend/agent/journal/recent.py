"""The last records of a journal, in memory: what consoles that keep up are sent without a look at the disk."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import msgspec

from backend.contract.entities import JournalRecord


class Records:
    """The records of one append, in order; ``first`` is the number of the first.

    Numbers are written into them when somebody asks for the first time, which is after the disk has them.
    """

    __slots__ = ("_are_numbered", "_records", "first")

    def __init__(self, first: int, records: Sequence[JournalRecord]) -> None:
        self.first = first
        self._records = tuple(records)
        self._are_numbered = False

    def __len__(self) -> int:
        return len(self._records)

    @property
    def last(self) -> int:
        """The number of the last."""
        return self.first + len(self._records) - 1

    @property
    def numbered(self) -> tuple[JournalRecord, ...]:
        """The records with their numbers."""
        if not self._are_numbered:
            number = msgspec.structs.replace
            self._records = tuple([number(record, seq=seq) for seq, record in enumerate(self._records, self.first)])
            self._are_numbered = True
        return self._records


class Recent:
    """At most ``most`` records, the newest; each with the chain value of its batch. Not safe between threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: deque[tuple[Records, int]] = deque()

    def add(self, records: Records, chain: int) -> None:
        """Keep what became durable last."""
        self._kept.append((records, chain))
        while self._kept[0][0].last <= records.last - self._most:
            self._kept.popleft()

    def after(self, seq: int, limit: int) -> tuple[JournalRecord, ...] | None:
        """At most ``limit`` records past ``seq``; None when the first of them is not kept any more."""
        if not self._keeps(seq + 1):
            return None
        found: list[JournalRecord] = []
        for index in range(self._place(seq + 1), len(self._kept)):
            records = self._kept[index][0]
            found += records.numbered[max(0, seq + 1 - records.first) :]
            if len(found) >= limit:
                break
        return tuple(found[:limit])

    def chain_of(self, seq: int) -> int | None:
        """The chain value of the batch that holds record ``seq``; None when it is not kept."""
        return self._kept[self._place(seq)][1] if self._keeps(seq) else None

    def _keeps(self, seq: int) -> bool:
        if not self._kept:
            return False
        first, last = self._kept[0][0].first, self._kept[-1][0].last
        return max(first, last - self._most + 1) <= seq <= last

    def _place(self, seq: int) -> int:
        return bisect_right(self._kept, seq, key=lambda kept: kept[0].first) - 1
