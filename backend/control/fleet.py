"""The fleet state as a pure fold: an event in, a new state and journal lines out. Nothing changed: the same object."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.entities import JournalRecord, fold, moves_revision
from backend.contract.reports import with_vitals
from backend.contract.states import HostState
from backend.contract.words import HostId, ReplicaId, UnixMs
from backend.control.derive import derive_replica
from backend.control.drift_hosts import journal_break
from backend.control.drift_lens import Lens
from backend.control.drifts import derive_drifts, since_when
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
from backend.control.fleet_state import (
    Fleet,
    Folded,
    compare_hosts,
    empty_fleet,
    gather_drifts,
    with_drifts,
    with_host,
    with_replicas,
    with_state,
)
from backend.control.holdings import Holdings, Part, index_host, kept_entities
from backend.control.link_events import (
    AnyLinkEvent,
    BeatHeard,
    LinkDown,
    LinkEvent,
    LinkRefused,
    LinkUp,
    MeasuredHeard,
    Noted,
    RecordsHeard,
)
from backend.control.open_operations import open_operations, touched_by
from backend.control.opening import begun, expecting, holding_back, in_time_order, is_over
from backend.control.recovering import GRACE_SECONDS, hosts_of, still_recovering
from backend.control.views import Drift, JournalLine, OperationView, ReplicaView

__all__ = ["LEASE_SECONDS", "Fleet", "empty_fleet", "fold_event"]

LEASE_SECONDS = 90.0
"""How long a silent host's shards stay unreachable before they count as lost, on the local monotonic clock."""
KEPT_ANSWERS = 100


def fold_event(fleet: Fleet, event: AnyFleetEvent) -> Folded:
    """The fleet after one event, and the journal lines to show. Raises KeyError for a host that is not its own."""
    fleet, lines = _fold(fleet, event)
    opening = fleet.opening
    if opening is None:
        return fleet, lines
    if isinstance(event, LinkEvent):
        opening = begun(opening, event.at)
    if not is_over(opening, fleet.state.hosts, event.at):
        return msgspec.structs.replace(fleet, opening=opening), lines
    fleet = msgspec.structs.replace(fleet, opening=None)
    return _show_each(fleet, in_time_order(opening.held))


def _fold(fleet: Fleet, event: AnyFleetEvent) -> Folded:
    match event:
        case LinkEvent():
            return _fold_link(fleet, event)
        case OperationsRead():
            return _fold_operations(fleet, event), ()
        case CatalogRead():
            if event.models == fleet.state.models and event.words == fleet.state.catalog_words:
                return fleet, ()
            fleet = with_state(fleet, models=event.models, catalog_words=event.words)
            return _derive(fleet, set(fleet.state.replicas), event.unix_ms), ()
        case AnswerGiven():
            return _fold_answer(fleet, event), ()
        case AcknowledgementsRead():
            fleet = msgspec.structs.replace(fleet, acknowledged=event.known)
            if event.words != fleet.state.acknowledgement_words:
                fleet = with_state(fleet, acknowledgement_words=event.words)
            return gather_drifts(fleet, event.unix_ms), ()
        case HeadersRead():
            fleet = msgspec.structs.replace(fleet, headers={**fleet.headers, **event.headers})
            return _derive(fleet, set(fleet.state.replicas), event.unix_ms), ()
        case Ticked():
            return _fold_tick(fleet, event)
        case Slept():
            since = dict.fromkeys(fleet.silent_since, event.at)
            recovering = dict.fromkeys(fleet.recovering, event.at)
            return msgspec.structs.replace(fleet, silent_since=since, recovering=recovering), ()
        case Faulted():
            return with_state(fleet, fault=fleet.state.fault or event.words), ()


# --- links --------------------------------------------------------------------------------------------------------


def _fold_link(fleet: Fleet, event: AnyLinkEvent) -> Folded:
    match event:
        case LinkUp():
            return _fold_up(fleet, event)
        case LinkDown() | LinkRefused():
            return _fold_down(fleet, event)
        case RecordsHeard():
            return _fold_records(fleet, event)
        case MeasuredHeard():
            return _fold_measured(fleet, event), ()
        case BeatHeard():
            host = fleet.state.hosts[event.host]
            heard = msgspec.structs.replace(host, heard_at=event.at, head_seq=max(host.head_seq, event.head_seq))
            return with_host(fleet, heard), ()
        case Noted():
            return _show(fleet, event, (_local_record(event, event.kind, event.words, event.level),))


def _fold_up(fleet: Fleet, event: LinkUp) -> Folded:
    before, report = fleet.state.hosts[event.host], event.report
    head = max(report.seq, event.welcome.head_seq)
    broken = journal_break(before, report.journal_id, head, event.unix_ms)
    entities = kept_entities(before.entities, report.entities)
    facts = before.facts if before.facts == report.facts else report.facts
    host = msgspec.structs.replace(
        before,
        state=HostState.LIVE,
        words="",
        agent_epoch=report.agent_epoch,
        agent_version=event.welcome.agent_version,
        journal_id=report.journal_id,
        head_seq=head,
        revision=report.revision,
        clock_offset_ms=event.clock_offset_ms,
        round_trip_ms=event.round_trip_ms,
        heard_at=event.at,
        reported_at=event.at,
        facts=facts,
        entities=entities,
        measurements={measurement.node_id: measurement for measurement in report.measurements},
        measured_at={measurement.node_id: event.at for measurement in report.measurements},
        present=report.present,
    )
    fleet = msgspec.structs.replace(
        with_host(fleet, host),
        folded={**fleet.folded, event.host: report.seq},
        silent_since=_heard_again(fleet.silent_since, event.host),
        opening=expecting(fleet.opening, event.host, report.seq) if fleet.opening is not None else None,
    )
    fleet = compare_hosts(fleet, event.host, broken, event.unix_ms)
    fleet, changed = _reindex(fleet, event.host)
    others = _touching(fleet, event.host) - changed
    fleet = _derive(fleet, changed, event.unix_ms)
    is_same_host = before.state is HostState.LIVE and facts is before.facts
    fleet = _derive(fleet, others, event.unix_ms, look_for_drift=not is_same_host)
    if before.state is HostState.CONNECTING:
        return fleet, ()
    words = "live again" if before.reported_at else "live"
    return _show(fleet, event, (_local_record(event, "link.live", words, "info"),))


def _heard_again(silent_since: dict[HostId, float], host: HostId) -> dict[HostId, float]:
    if host not in silent_since:
        return silent_since
    return {name: since for name, since in silent_since.items() if name != host}


def _fold_down(fleet: Fleet, event: LinkDown | LinkRefused) -> Folded:
    host = fleet.state.hosts[event.host]
    state = HostState.REFUSED if isinstance(event, LinkRefused) else HostState.UNREACHABLE
    if host.state is HostState.LOST and state is HostState.UNREACHABLE:
        state = HostState.LOST
    changed = state is not host.state
    fleet = with_host(fleet, msgspec.structs.replace(host, state=state, words=event.words))
    if event.host not in fleet.silent_since:
        fleet = msgspec.structs.replace(fleet, silent_since={**fleet.silent_since, event.host: event.at})
    if not changed:
        return fleet, ()
    fleet = _derive(fleet, _touching(fleet, event.host), event.unix_ms)
    return _show(fleet, event, (_local_record(event, f"link.{state.value}", event.words, "warn"),))


def _fold_records(fleet: Fleet, event: RecordsHeard) -> Folded:
    """Records up to the report's seq are only shown; those after it are folded."""
    host = fleet.state.hosts[event.host]
    after = fleet.folded.get(event.host, 0)
    entities, revision = host.entities, host.revision
    for record in event.records:
        if record.seq > after:
            entities = fold(entities, record)
            revision += moves_revision(record.change)
            after = record.seq
    fields: dict[str, Any] = {"heard_at": event.at, "head_seq": max(host.head_seq, after), "revision": revision}
    if entities is not host.entities:
        kept = entities.shards
        fields["entities"] = entities
        fields["measurements"] = {node: seen for node, seen in host.measurements.items() if node in kept}
        fields["measured_at"] = {node: at for node, at in host.measured_at.items() if node in kept}
    fleet = with_host(fleet, msgspec.structs.replace(host, **fields))
    fleet = msgspec.structs.replace(fleet, folded={**fleet.folded, event.host: after})
    if entities.highest_generation != host.entities.highest_generation:
        fleet = compare_hosts(fleet, event.host, None, event.unix_ms)
    if entities is not host.entities:
        fleet, changed = _reindex(fleet, event.host)
        fleet = _derive(fleet, changed, event.unix_ms)
    return _show(fleet, event, event.records)


def _fold_measured(fleet: Fleet, event: MeasuredHeard) -> Fleet:
    host, measured = fleet.state.hosts[event.host], event.measured
    fields: dict[str, Any] = {"heard_at": event.at}
    if measured.measurements:
        new = {measurement.node_id: measurement for measurement in measured.measurements}
        fields["measurements"] = {**host.measurements, **new}
        fields["measured_at"] = {**host.measured_at, **dict.fromkeys(new, event.at)}
    facts = measured.facts
    if measured.vitals is not None and host.facts is not None:
        facts = with_vitals(host.facts, measured.vitals)
    if facts is not None:
        fields["facts"] = facts
    if measured.present is not None:
        fields["present"] = measured.present
    fleet = with_host(fleet, msgspec.structs.replace(host, **fields))
    here = fleet.index[event.host].keys()
    touched = {ReplicaId(measurement.node_id.partition("/")[0]) for measurement in measured.measurements}
    if facts is not None and facts != host.facts:
        return _derive(fleet, set(here), event.unix_ms)  # a release, a device or an address may be another one now
    return _derive(fleet, touched & here, event.unix_ms, look_for_drift=False)


# --- everything else ----------------------------------------------------------------------------------------------


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
    return _derive(fleet, changed, event.unix_ms)


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
        fleet = _derive(fleet, _touching(fleet, name), event.unix_ms)
        record = JournalRecord(kind="link.lost", words=words, at_unix_ms=event.unix_ms, level="alarm")
        fleet, more = _show_of(fleet, name, (record,))
        lines += more
    draining = {name for name, view in fleet.state.replicas.items() if view.drain_left_ms}
    fleet = _derive(fleet, draining, event.unix_ms, look_for_drift=False)
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
    return _derive(fleet, moved, event.unix_ms, look_for_drift=False)


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


# --- the pieces ---------------------------------------------------------------------------------------------------


def _reindex(fleet: Fleet, name: HostId) -> tuple[Fleet, set[ReplicaId]]:
    """The fleet with the host's holdings indexed, and the replicas whose holdings there changed."""
    old, new = fleet.index[name], index_host(fleet.state.hosts[name].entities)
    changed = {replica for replica in old.keys() | new.keys() if old.get(replica) != new.get(replica)}
    if not changed:
        return fleet, changed
    where = dict(fleet.where)
    for replica in changed:
        hosts = where.get(replica, frozenset())
        where[replica] = hosts | {name} if replica in new else hosts - {name}
        if not where[replica]:
            del where[replica]
    return msgspec.structs.replace(fleet, index={**fleet.index, name: new}, where=where), changed


def _touching(fleet: Fleet, host: HostId) -> set[ReplicaId]:
    """The replicas that a host has a part in, or should have by their plan."""
    return {*fleet.planned_at.get(host, ()), *fleet.index[host]}


def _derive(fleet: Fleet, touched: set[ReplicaId], unix_ms: UnixMs, *, look_for_drift: bool = True) -> Fleet:
    """Work the touched replicas out again. Those that come out equal stay the same objects."""
    if not touched:
        return fleet
    state = fleet.state
    views: dict[ReplicaId, ReplicaView | None] = {}
    drifts: dict[ReplicaId, tuple[Drift, ...]] = {}
    for replica in sorted(touched):
        operations = open_operations(replica, state.operations.values())
        parts = _parts(fleet, replica, operations)
        given_up = fleet.given_up.get(replica)
        view = derive_replica(replica, parts, operations, state.models, unix_ms, given_up)
        before = fleet.drifts.get(replica, ())
        if view is not None and look_for_drift:
            lens = Lens(
                replica=view,
                parts=tuple(parts),
                models=state.models,
                headers=fleet.headers,
                is_changing=bool(operations),
            )
            found = since_when(derive_drifts(lens), before, unix_ms)
        else:
            found = before if view is not None else ()
        if view != state.replicas.get(replica):
            views[replica] = view
        if found != before:
            drifts[replica] = found
    return with_drifts(with_replicas(fleet, views), drifts, unix_ms)


def _parts(fleet: Fleet, replica: ReplicaId, operations: list[OperationView]) -> list[Part]:
    """Every host that has something of the replica, and every host of its plans with nothing of it."""
    hosts = fleet.state.hosts
    parts = {name: Part(hosts[name], fleet.index[name][replica]) for name in fleet.where.get(replica, ())}
    plans = [plan for part in parts.values() for plan in part.holdings.plans]
    plans += [operation.plan for operation in operations if operation.plan is not None]
    for name in sorted({shard.host for plan in plans for shard in plan.shards}):
        if name in hosts and name not in parts:
            parts[name] = Part(hosts[name], Holdings())
    return [parts[name] for name in sorted(parts)]


def _local_record(event: LinkEvent, kind: str, words: str, level: str) -> JournalRecord:
    return JournalRecord(kind=kind, words=words, at_unix_ms=event.unix_ms, level=level)


def _show(fleet: Fleet, event: LinkEvent, records: tuple[JournalRecord, ...]) -> Folded:
    return _show_of(fleet, event.host, records)


def _show_of(fleet: Fleet, host: HostId, records: tuple[JournalRecord, ...]) -> Folded:
    if fleet.opening is not None:
        return msgspec.structs.replace(fleet, opening=holding_back(fleet.opening, host, records)), ()
    return _show_each(fleet, tuple((host, record) for record in records))


def _show_each(fleet: Fleet, entries: tuple[tuple[HostId, JournalRecord], ...]) -> Folded:
    head = fleet.state.journal_head
    lines = tuple(JournalLine(head + n, host, record) for n, (host, record) in enumerate(entries, start=1))
    return (with_state(fleet, journal_head=head + len(lines)) if lines else fleet), lines
