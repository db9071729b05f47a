"""What is asked about drifts: that one is known, that it is open again, and what the model files hold now."""

from __future__ import annotations

import asyncio
import time

from backend.contract.models import ModelFacts
from backend.contract.naming import no_such
from backend.contract.words import HostId, UnixMs
from backend.control.acknowledgements import AcknowledgementsUnreadable, acknowledge, withdraw
from backend.control.cannot_answer import CannotAnswer
from backend.control.contexts import Context
from backend.control.drift_lens import Header, header_key
from backend.control.exit_codes import REFUSED
from backend.control.fleet_events import HeadersRead
from backend.control.requests import AcknowledgeDrift, ReopenDrift
from backend.control.views import Acknowledgement, Drift, FleetState

LONGEST_SECONDS = 30 * 86_400.0


async def acknowledge_drift(context: Context, state: FleetState, who: str, request: AcknowledgeDrift) -> str:
    """Write down that somebody knows of a drift. Raises CannotAnswer."""
    drift = _drift(state, request.drift)
    if not request.note.strip():
        raise CannotAnswer(REFUSED, "the note is empty; say why this may stay as it is, for whoever reads it next")
    if not 0 < request.seconds <= LONGEST_SECONDS:
        raise CannotAnswer(REFUSED, f"{request.seconds:g} s is refused; expected more than 0 and at most 30 days")
    now = time.time_ns() // 1_000_000
    made = Acknowledgement(
        drift=drift.id,
        note=request.note.strip(),
        by=who,
        at_unix_ms=UnixMs(now),
        until_unix_ms=UnixMs(now + int(request.seconds * 1000)),
        version=drift.version,
    )
    try:
        await asyncio.to_thread(acknowledge, context.home, context.name, made)
    except (OSError, AcknowledgementsUnreadable) as error:
        raise CannotAnswer(REFUSED, f"{drift.id} is not acknowledged: {error}") from error
    return f"{drift.id} is acknowledged by {who}: {made.note}"


async def reopen_drift(context: Context, state: FleetState, request: ReopenDrift) -> str:
    """Take an acknowledgement back. Raises CannotAnswer."""
    now = UnixMs(time.time_ns() // 1_000_000)
    try:
        was_there = await asyncio.to_thread(withdraw, context.home, context.name, request.drift, now)
    except (OSError, AcknowledgementsUnreadable) as error:
        raise CannotAnswer(REFUSED, f"{request.drift} stays acknowledged: {error}") from error
    if not was_there:
        raise CannotAnswer(REFUSED, f"{request.drift} is not acknowledged")
    return f"{request.drift} is open again"


def _drift(state: FleetState, drift_id: str) -> Drift:
    found = next((drift for drift in state.drifts if drift.id == drift_id), None)
    if found is None:
        raise CannotAnswer(REFUSED, no_such("drift", drift_id, (drift.id for drift in state.drifts)))
    return found


def model_files(state: FleetState) -> list[tuple[HostId, str]]:
    """The model files of what runs: the host of each leader, and the path that it loaded."""
    return sorted(
        {
            (view.shard.host, replica.plan.model_path)
            for replica in state.replicas.values()
            for view in replica.shards
            if replica.plan is not None and view.shard.rank == 0 and view.state not in ("stopped", "failed")
        }
    )


def header_read(host: HostId, path: str, facts: ModelFacts, unix_ms: UnixMs) -> HeadersRead:
    """A header was read just now."""
    header = Header(digest=facts.header_digest, file_bytes=facts.file_bytes, read_unix_ms=unix_ms)
    return HeadersRead(at=time.monotonic(), unix_ms=unix_ms, headers={header_key(host, path): header})
