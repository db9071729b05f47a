"""From two readings of an engine's counters to what a person wants to know: speed, work in flight, age. Pure."""

from __future__ import annotations

import msgspec

from backend.engines.llamacpp.metrics import Census, SlotSeen


class Reading(msgspec.Struct, frozen=True):
    """One look at ``/metrics`` and, when something was in flight, at ``/slots``. ``at`` is monotonic seconds.

    ``canaries`` is how many completed canaries the counters hold that this agent knows of: enough for differences.
    ``slots`` is None when the engine did not tell them.
    """

    at: float
    census: Census
    slots: tuple[SlotSeen, ...] | None
    canaries: int


class GivenUpCanary(msgspec.Struct, frozen=True):
    """A canary that passed its deadline: while a rank hangs, the engine still has it in the spare slot.

    ``task`` is its number at the engine, None until it was found there.
    """

    slot: int
    task: int | None = None

    def found_in(self, slots: tuple[SlotSeen, ...] | None) -> GivenUpCanary | None:
        """The same once found in its slot; None when it is no longer there; itself while the slots are unknown.

        It was sent when nothing was in flight, so the first request seen in the spare slot after it is itself.
        """
        if slots is None:
            return self
        here = [seen.task for seen in slots if seen.slot == self.slot and self.task in (None, seen.task)]
        return GivenUpCanary(self.slot, here[0]) if here else None

    def taken_out(self, census: Census, slots: tuple[SlotSeen, ...]) -> tuple[Census, tuple[SlotSeen, ...]]:
        """Census and slots without it: a canary is no work in flight."""
        if self.task is None or not census.processing:
            return census, slots
        others = tuple(seen for seen in slots if seen.task != self.task)
        return msgspec.structs.replace(census, processing=census.processing - 1), others


class Progress(msgspec.Struct, frozen=True):
    """What follows from a reading and those before it. None is unknown.

    ``stalled_seconds`` is how long requests have been in flight without one decode: a hang can look like this.
    """

    tokens_per_second: float | None
    tokens_generated: int | None
    oldest_seconds: float | None
    stalled_seconds: float


class Track(msgspec.Struct, frozen=True):
    """What must be remembered between readings. ``first_seen`` has None for a request whose start was not watched."""

    last: Reading | None = None
    first_seen: dict[int, float | None] = {}
    decoded_at: float = 0.0


def tokens_so_far(reading: Reading) -> int | None:
    """Tokens that users got: of ended requests by the counter, of running ones by their slots, without canaries."""
    ended = reading.census.tokens_predicted
    if ended is None or (reading.slots is None and reading.census.processing != 0):
        return None
    return ended - reading.canaries + sum(slot.decoded for slot in reading.slots or ())


def follow(track: Track, reading: Reading) -> tuple[Track, Progress]:
    """Fold one reading in."""
    first_seen = _first_seen(track, reading)
    decoded_at = _decoded_at(track, reading)
    progress = Progress(
        tokens_per_second=_speed(track.last, reading),
        tokens_generated=tokens_so_far(reading),
        oldest_seconds=_oldest(reading, first_seen),
        stalled_seconds=reading.at - decoded_at if reading.census.processing else 0.0,
    )
    return Track(reading, first_seen, decoded_at), progress


def missed(track: Track) -> Track:
    """A reading that failed: speed and the age of newcomers are unknown across the gap."""
    return msgspec.structs.replace(track, last=None)


def _speed(last: Reading | None, reading: Reading) -> float | None:
    """Tokens per second between two readings.

    A negative difference is unknown, not 0: a request that ended or was cut between the two calls of one reading.
    """
    if last is None or reading.at <= last.at:
        return None
    before, after = tokens_so_far(last), tokens_so_far(reading)
    if before is None or after is None or after < before:
        return None
    return (after - before) / (reading.at - last.at)


def _first_seen(track: Track, reading: Reading) -> dict[int, float | None]:
    """When each running request was first in a slot, None when it may have waited or run before that."""
    if reading.slots is None:
        return {}
    was_watched = track.last is not None and track.last.census.deferred == 0
    if track.last is not None and track.last.slots is None and track.last.census.processing != 0:
        was_watched = False
    fresh = reading.at if was_watched else None
    return {slot.task: track.first_seen.get(slot.task, fresh) for slot in reading.slots}


def _oldest(reading: Reading, first_seen: dict[int, float | None]) -> float | None:
    """Age of the oldest request in seconds, right to one poll; None when one of them was not watched from its start."""
    starts = list(first_seen.values())
    if not starts or len(starts) != reading.census.processing:
        return None
    known = [start for start in starts if start is not None]
    return reading.at - min(known) if len(known) == len(starts) else None


def _decoded_at(track: Track, reading: Reading) -> float:
    """When the engine was last seen to decode, or to have nothing to decode."""
    last = track.last
    has_moved = last is None or last.census.decodes != reading.census.decodes
    return reading.at if has_moved or not reading.census.processing else track.decoded_at
