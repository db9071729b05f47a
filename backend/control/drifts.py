"""The drift lens: every contract that two sides can hold differently, with both values, what follows and what to do.

Pure. A drift's id names the thing and the place, never the values, so that ``since`` and an acknowledgement outlive a
value that moves. What is unknown on one side is no drift.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from backend.contract.words import UnixMs
from backend.control.drift_lens import Lens
from backend.control.drift_rules import RULES
from backend.control.views import Acknowledgement, Drift


def derive_drifts(lens: Lens) -> tuple[Drift, ...]:
    """Every drift of one replica, the alarms first, in the order of the rules and then of the ranks."""
    return in_order(drift for rule in RULES for drift in rule(lens))


def in_order(drifts: Iterable[Drift]) -> tuple[Drift, ...]:
    """The alarms before the warnings; otherwise as they came."""
    return tuple(sorted(drifts, key=lambda drift: drift.severity != "alarm"))


def since_when(found: Iterable[Drift], before: Iterable[Drift], unix_ms: UnixMs) -> tuple[Drift, ...]:
    """The drifts with the time since which each is known: its own, else that of the same id before, else now."""
    known = {drift.id: drift.since_unix_ms for drift in before}
    return tuple(
        drift
        if drift.since_unix_ms
        else msgspec.structs.replace(drift, since_unix_ms=known.get(drift.id, unix_ms) or unix_ms)
        for drift in found
    )


def with_acknowledgements(
    drifts: Iterable[Drift], known: dict[str, Acknowledgement], unix_ms: UnixMs
) -> tuple[Drift, ...]:
    """The drifts, each with the acknowledgement that holds for it now."""
    if not known:
        return tuple(_acknowledged(drift, None) for drift in drifts)
    return tuple(_acknowledged(drift, holding(drift, known.get(drift.id), unix_ms)) for drift in drifts)


def _acknowledged(drift: Drift, by: Acknowledgement | None) -> Drift:
    return drift if drift.acknowledged == by else msgspec.structs.replace(drift, acknowledged=by)


def holding(drift: Drift, known: Acknowledgement | None, unix_ms: UnixMs) -> Acknowledgement | None:
    """The acknowledgement when it has not run out and was given for this version of the drift."""
    if known is None or known.until_unix_ms <= unix_ms or known.version != drift.version:
        return None
    return known
