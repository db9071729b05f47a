"""Requests that came while a leader drained, out of readings of its slots: never more than really came. Pure."""

from __future__ import annotations

import msgspec

from backend.engines.llamacpp.census import Reading


class Arrivals(msgspec.Struct, frozen=True):
    """What is remembered of a drain. ``least`` is how many requests came since it began, at least.

    ``running`` are the engine's numbers of those in its slots at the last reading, ``started`` how many were seen to
    get a slot since the first one, ``queued_before`` how many waited then and get one as well.
    """

    running: frozenset[int]
    queued_before: int
    started: int = 0
    least: int = 0


def count_arrivals(before: Arrivals | None, reading: Reading) -> Arrivals | None:
    """Fold one reading of a draining leader in; the first one only says what was there. None: not known yet.

    What came either has had a slot since, or waits. The engine has no counter of requests; one that began and ended
    between two readings stays unseen, so the count is a least one. It never falls.
    """
    queued = reading.census.deferred
    if reading.slots is None or queued is None:
        return before
    running = frozenset(slot.task for slot in reading.slots)
    if before is None:
        return Arrivals(running, queued)
    started = before.started + len(running - before.running)
    least = max(before.least, started + queued - before.queued_before)
    return Arrivals(running, before.queued_before, started, least)
