"""What the drift lens compares for whole hosts: their clocks, their journals and the generations they have seen."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

import msgspec

from backend.contract.states import HostState
from backend.contract.words import HostId, UnixMs
from backend.control.drift_lens import make_drift
from backend.control.views import Drift, HostView

CLOCK_WARN_MS = 2_000
CLOCK_ALARM_MS = 300_000
"""From here on no load generation is minted."""
AHEAD_MS = 86_400_000
THIS_CLOCK = "this machine"


class JournalBreak(msgspec.Struct, frozen=True, kw_only=True):
    """A journal that does not go on where this console left it."""

    was_id: str
    was_head: int
    is_id: str
    is_head: int
    at_unix_ms: UnixMs


def derive_host_drifts(
    hosts: Mapping[HostId, HostView],
    breaks: Mapping[HostId, JournalBreak],
    unix_ms: UnixMs,
    *,
    majority_agrees: bool = False,
) -> tuple[Drift, ...]:
    """Every drift of the hosts, in the order of their names. ``majority_agrees``: most clocks are as this one."""
    return (*_clocks(hosts, majority_agrees=majority_agrees), *_journals(breaks), *_generations(hosts, unix_ms))


def journal_break(before: HostView, journal_id: str, head: int, unix_ms: UnixMs) -> JournalBreak | None:
    """The break between what was heard of a host's journal before and what it says now; None when it goes on."""
    if not before.journal_id or (before.journal_id == journal_id and head >= before.head_seq):
        return None
    return JournalBreak(
        was_id=before.journal_id, was_head=before.head_seq, is_id=journal_id, is_head=head, at_unix_ms=unix_ms
    )


def is_suspect(view: HostView, unix_ms: UnixMs) -> bool:
    """Whether this host alone may be a drift: no other one can, but by this machine's own clock."""
    ahead = view.clock_ahead_ms
    return (ahead is not None and abs(ahead) > CLOCK_WARN_MS) or view.entities.highest_generation > unix_ms + AHEAD_MS


def _clocks(hosts: Mapping[HostId, HostView], *, majority_agrees: bool) -> Iterator[Drift]:
    """Each clock against this one; when most hosts agree against it, this machine's is the one that is off."""
    offsets = {
        name: ahead
        for name, view in hosts.items()
        if (ahead := view.clock_ahead_ms) is not None and view.state is HostState.LIVE
    }
    median = statistics.median(offsets.values()) if len(offsets) >= 3 and not majority_agrees else 0.0
    ours_is_off = abs(median) > CLOCK_WARN_MS
    if ours_is_off:
        yield _clock_drift(THIS_CLOCK, "median of the agents", -median, "Correct this machine's clock.")
    for name, offset in offsets.items():
        apart = offset - median if ours_is_off else float(offset)
        if abs(apart) > CLOCK_WARN_MS:
            against = "median of the agents" if ours_is_off else THIS_CLOCK
            yield _clock_drift(name, against, apart, f"Set the clock of {name} right, for example by its NTP service.")


def _clock_drift(subject: str, against: str, apart_ms: float, remedy: str) -> Drift:
    side = "ahead" if apart_ms > 0 else "behind"
    is_far = abs(apart_ms) > CLOCK_ALARM_MS
    consequence = "Its times in journals and its deadlines are off by as much."
    if is_far:
        consequence = "Generations are times: a load from here is refused, or fences out those that come after it."
    return make_drift(
        "clock",
        subject,
        (against, "0 s"),
        (subject, f"{abs(apart_ms) / 1000:.1f} s {side}"),
        what="clock offset",
        severity="alarm" if is_far else "warn",
        version=f"{side} {'far' if is_far else 'near'}",
        consequence=consequence,
        remedy=remedy,
    )


def _journals(breaks: Mapping[HostId, JournalBreak]) -> Iterator[Drift]:
    for name, broken in sorted(breaks.items()):
        is_other = broken.was_id != broken.is_id
        one, other = f"record {broken.was_head}", f"record {broken.is_head}"
        yield make_drift(
            "journal",
            name,
            ("this console followed", f"{broken.was_id[:12]} to {one}" if is_other else one),
            (f"{name} has now", f"{broken.is_id[:12]} to {other}" if is_other else other),
            severity="alarm",
            since_unix_ms=broken.at_unix_ms,
            consequence="What the agent decided and then lost may still run: it no longer knows of it.",
            remedy=f"Compare the processes on {name} with ls shards; if its state was reset on purpose, "
            "acknowledge this.",
        )


def _generations(hosts: Mapping[HostId, HostView], unix_ms: UnixMs) -> Iterator[Drift]:
    for name, view in hosts.items():
        highest = view.entities.highest_generation
        if highest > unix_ms + AHEAD_MS:
            yield make_drift(
                "highest generation",
                name,
                ("this clock", unix_ms),
                (f"seen by {name}", highest),
                version=str(highest),
                consequence="A generation is a time, and this one is over a day ahead: newer loads are fenced out.",
                remedy=f"Find the operation that minted it in the journal of {name}; its machine's clock was wrong.",
            )
