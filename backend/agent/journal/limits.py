"""Sizes and times of a journal, and where it gets its time from."""

from __future__ import annotations

import time
from typing import Protocol

import msgspec

MIB = 1 << 20
GIB = 1 << 30
DAY_NS = 24 * 3600 * 1_000_000_000


class Clock(Protocol):
    """Where the journal gets its time from."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970, for people."""

    def mono_ns(self) -> int:
        """Nanoseconds of a clock that never goes back, for durations."""


class SystemClock:
    """The machine's own clocks."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970."""
        return time.time_ns()

    def mono_ns(self) -> int:
        """Nanoseconds of the monotonic clock."""
        return time.monotonic_ns()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and times of a journal. Bytes, records and seconds.

    A segment ends at ``segment_bytes`` or ``segment_seconds``; its room is made ``allocate_bytes`` at a time. Segments
    are kept for ``keep_days`` and up to ``keep_bytes`` in all, whichever ends first. With less than ``low_bytes`` free,
    progress is not kept. ``scrub_seconds`` is between two passes over the sealed segments.
    """

    segment_bytes: int = 64 * MIB
    segment_seconds: float = 24 * 3600.0
    allocate_bytes: int = 256 * 1024
    group_records: int = 512
    group_bytes: int = 256 * 1024
    ring_records: int = 4096
    head_seconds: float = 1.0
    upkeep_seconds: float = 5.0
    keep_days: float = 30.0
    keep_bytes: int = 8 * GIB
    unlink_seconds: float = 60.0
    reserve_bytes: int = 16 * MIB
    low_bytes: int = 512 * MIB
    scrub_seconds: float = 24 * 3600.0
    scrub_bytes_per_second: int = 32 * MIB
