"""The opening of the journal: what every host tells of its past, put in the order of time before it is shown.

Hosts that answer within the first second share one order; whoever comes later is shown as it arrives.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from backend.contract.entities import JournalRecord
from backend.contract.states import HostState
from backend.contract.words import HostId
from backend.control.views import HostView

OPENING_SECONDS = 1.0
_SILENT = (HostState.UNREACHABLE, HostState.LOST, HostState.REFUSED)
Held = tuple[tuple[HostId, tuple[JournalRecord, ...]], ...]
"""What each batch of a host told, as it came."""


class Opening(msgspec.Struct, frozen=True):
    """What is held back so far. ``began_at`` is when the first host was heard of, in monotonic seconds.

    ``due`` is the seq at which a host's past ends, ``reached`` up to where it has been told.
    """

    began_at: float | None = None
    held: Held = ()
    due: dict[HostId, int] = {}
    reached: dict[HostId, int] = {}


def begun(opening: Opening, at: float) -> Opening:
    """The opening with its clock running."""
    return opening if opening.began_at is not None else msgspec.structs.replace(opening, began_at=at)


def expecting(opening: Opening, due: Mapping[HostId, int]) -> Opening:
    """Hosts have reported, each as of a seq: its past ends there."""
    return msgspec.structs.replace(opening, due={**opening.due, **due})


def holding_back(opening: Opening, host: HostId, records: tuple[JournalRecord, ...]) -> Opening:
    """The opening with these records held back too."""
    last = max((record.seq for record in records), default=0)
    reached = {**opening.reached, host: max(last, opening.reached.get(host, 0))}
    return msgspec.structs.replace(opening, held=(*opening.held, (host, records)), reached=reached)


def is_over(opening: Opening, hosts: Mapping[HostId, HostView], at: float) -> bool:
    """Every host has told its past or is silent, or the first second has passed."""
    if opening.began_at is None:
        return False
    if at - opening.began_at >= OPENING_SECONDS:
        return True
    return all(
        view.state in _SILENT
        or (view.state is HostState.LIVE and opening.reached.get(name, 0) >= opening.due.get(name, 1))
        for name, view in hosts.items()
    )


def in_time_order(held: Held) -> tuple[tuple[HostId, JournalRecord], ...]:
    """The records by wall clock over all hosts; those of one host stay in their own order."""
    latest: dict[HostId, int] = {}
    keyed = []
    for host, records in held:
        for record in records:
            latest[host] = max(latest.get(host, 0), record.at_unix_ms)
            keyed.append((latest[host], host, record))
    return tuple((host, record) for _, host, record in sorted(keyed, key=lambda entry: entry[0]))
