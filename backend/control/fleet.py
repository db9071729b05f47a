"""The fleet state as a pure fold: an event in, a new state and journal lines out. Nothing changed: the same object."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from backend.contract.entities import JournalRecord
from backend.contract.states import HostState
from backend.contract.words import HostId
from backend.control.fleet_derive import rederive, touching
from backend.control.fleet_events import (
    AcknowledgementsRead,
    AnswerGiven,
    AnyFleetEvent,
    CatalogRead,
    Faulted,
    HeadersRead,
    OperationsRead,
    Slept,
    Ticked,
)
from backend.control.fleet_links import fold_link, reported
from backend.control.fleet_state import (
    Fleet,
    Folded,
    empty_fleet,
    gather_drifts,
    show,
    show_each,
    with_host,
    with_state,
)
from backend.control.link_events import LinkEvent, LinkUp
from backend.control.open_operations import touched_by
from backend.control.opening import begun, in_time_order, is_over
from backend.control.recovering import GRACE_SECONDS, hosts_of, still_recovering
from backend.control.views import JournalLine, ReplicaView

__all__ = ["LEASE_SECONDS", "Fleet", "Folded", "empty_fleet", "fold_event", "fold_reports"]

LEASE_SECONDS = 90.0
"""How long a silent host's shards stay unreachable before they count as lost, on the local monotonic clock."""
KEPT_ANSWERS = 100


def fold_event(fleet: Fleet, event: AnyFleetEvent) -> Folded:
    """The fleet after one event, and the journal lines to show. Raises KeyError for a host that is not its own."""
    return _opened(*_fold(fleet, event), is_of_link=isinstance(event, LinkEvent), at=event.at)


def fold_reports(fleet: Fleet, events: Sequence[LinkUp]) -> Folded:
    """The fleet after reports of different hosts at once, and the journal lines to show.

    The same as one after the other, but each replica that they touch is worked out once, when all of them are known:
    a fleet of a thousand hosts is taken over in the time that its reports take to be read. Raises KeyError for a host
    that is not its own, and ValueError when one is there twice, or there is none.
    """
    return _opened(*reported(fleet, events), is_of_link=True, at=events[-1].at)


def _opened(fleet: Fleet, lines: tuple[JournalLine, ...], *, is_of_link: bool, at: float) -> Folded:
    """The fleet with its opening ended if that is over, and the lines to show then: all that it held back."""
    opening = fleet.opening
    if opening is None:
        return fleet, lines
    if is_of_link:
        opening = begun(opening, at)
    if not is_over(opening, fleet.state.hosts, at):
        return msgspec.structs.replace(fleet, opening=opening), lines
    fleet = msgspec.structs.replace(fleet, opening=None)
    return show_each(fleet, in_time_order(opening.held))


def _fold(fleet: Fleet, event: AnyFleetEvent) -> Folded:
    match event:
        case LinkEvent():
            return fold_link(fleet, event)
        case OperationsRead():
            return _fold_operations(fleet, event), ()
        case CatalogRead():
            if event.models == fleet.state.models and event.words == fleet.state.catalog_words:
                return fleet, ()
            fleet = with_state(fleet, models=event.models, catalog_words=event.words)
            return rederive(fleet, set(fleet.state.replicas), event.unix_ms), ()
        case AnswerGiven():
            return _fold_answer(fleet, event), ()
        case AcknowledgementsRead():
            fleet = msgspec.structs.replace(fleet, acknowledged=event.known)
            if event.words != fleet.state.acknowledgement_words:
                fleet = with_state(fleet, acknowledgement_words=event.words)
            return gather_drifts(fleet, event.unix_ms), ()
        case HeadersRead():
            fleet = msgspec.structs.replace(fleet, headers={**fleet.headers, **event.headers})
            return rederive(fleet, set(fleet.state.replicas), event.unix_ms), ()
        case Ticked():
            return _fold_tick(fleet, event)
        case Slept():
            since = dict.fromkeys(fleet.silent_since, event.at)
            recovering = dict.fromkeys(fleet.recovering, event.at)
            return msgspec.structs.replace(fleet, silent_since=since, recovering=recovering), ()
        case Faulted():
            return with_state(fleet, fault=fleet.state.fault or event.words), ()


def _fold_operations(fleet: Fleet, event: OperationsRead) -> Fleet:
    before = fleet.state.operations
    ours = {op: view for op, view in event.operations.items() if view.context in ("", fleet.state.context)}
    after = {op: before[op] if before.get(op) == view else view for op, view in ours.items()}
    if list(after) == list(before) and all(after[op] is before[op] for op in after):
        return fleet
    moved = [view for op, view in after.items() if before.get(op) is not view]
    moved += [view for op, view in before.items() if op not in after]
    changed = {replica for view in moved for replica in touched_by(view)}
    fleet = with_state(fleet, operations=after)
    return rederive(fleet, changed, event.unix_ms)


def _fold_answer(fleet: Fleet, event: AnswerGiven) -> Fleet:
    answers = {op: answer for op, answer in fleet.state.answers.items() if op != event.answer.op_id}
    answers[event.answer.op_id] = event.answer
    for oldest in list(answers)[:-KEPT_ANSWERS]:
        del answers[oldest]
    return with_state(fleet, answers=answers)


def _fold_tick(fleet: Fleet, event: Ticked) -> Folded:
    lines: tuple[JournalLine, ...] = ()
    for name, since in fleet.silent_since.items():
        host = fleet.state.hosts[name]
        over = event.at - since >= LEASE_SECONDS
        if host.state is not HostState.UNREACHABLE or not host.reported_at or not over:
            continue
        if brake := _brake_words(fleet, since):
            if brake not in host.words:
                fleet = with_host(fleet, msgspec.structs.replace(host, words=f"{host.words}; {brake}"))
            continue
        words = f"lost: silent for {event.at - since:.0f} s, lease {LEASE_SECONDS:.0f} s"
        fleet = with_host(fleet, msgspec.structs.replace(host, state=HostState.LOST, words=words))
        fleet = rederive(fleet, touching(fleet, name), event.unix_ms)
        record = JournalRecord(kind="link.lost", words=words, at_unix_ms=event.unix_ms, level="alarm")
        fleet, more = show(fleet, name, (record,))
        lines += more
    draining = {name for name, view in fleet.state.replicas.items() if view.drain_left_ms}
    fleet = rederive(fleet, draining, event.unix_ms, look_for_drift=False)
    fleet = _give_up(fleet, event)
    if any(drift.acknowledged and drift.acknowledged.until_unix_ms <= event.unix_ms for drift in fleet.state.drifts):
        fleet = gather_drifts(fleet, event.unix_ms)
    return fleet, lines


def _give_up(fleet: Fleet, event: Ticked) -> Fleet:
    """What has been recovering for its whole grace has failed, unless the brake holds for one of its hosts."""
    replicas = fleet.state.replicas
    recovering = still_recovering(replicas, fleet.recovering, fleet.given_up, event.at)
    over = {
        name: generation
        for (name, generation), since in recovering.items()
        if fleet.given_up.get(name) == generation
        or (event.at - since >= GRACE_SECONDS and not _is_braked(fleet, replicas[name]))
    }
    if recovering == fleet.recovering and over == fleet.given_up:
        return fleet
    moved = {name for name in over.keys() | fleet.given_up.keys() if over.get(name) != fleet.given_up.get(name)}
    fleet = msgspec.structs.replace(fleet, recovering=recovering, given_up=over)
    return rederive(fleet, moved, event.unix_ms, look_for_drift=False)


def _is_braked(fleet: Fleet, view: ReplicaView) -> bool:
    silent = fleet.silent_since.keys() & hosts_of(view)
    return any(_brake_words(fleet, fleet.silent_since[HostId(host)]) for host in silent)


def _brake_words(fleet: Fleet, since: float) -> str:
    """Why nobody is declared lost: half the hosts (at least 3), or all, fell silent within one lease."""
    together = sum(1 for other in fleet.silent_since.values() if abs(other - since) <= LEASE_SECONDS)
    total = len(fleet.state.hosts)
    if together == total or (together >= 3 and 2 * together >= total):
        return f"not declared lost: {together} of {total} hosts fell silent together, look at this side's network"
    return ""
