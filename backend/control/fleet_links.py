"""What the links tell, folded into the fleet: reports, records, measurements, and that a host has fallen silent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from backend.contract.entities import JournalRecord, fold, moves_revision
from backend.contract.reports import with_vitals
from backend.contract.states import HostState
from backend.contract.words import ReplicaId
from backend.control.drift_hosts import JournalBreak, journal_break
from backend.control.fleet_derive import rederive, reindex, touching
from backend.control.fleet_state import Fleet, Folded, compare_hosts, show, with_host, with_hosts
from backend.control.holdings import kept_entities
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
from backend.control.opening import expecting
from backend.control.views import HostView, JournalLine


def fold_link(fleet: Fleet, event: AnyLinkEvent) -> Folded:
    """The fleet after one event of a link, and the journal lines to show. Raises KeyError for an unknown host."""
    match event:
        case LinkUp():
            return reported(fleet, (event,))
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
            return _noted(fleet, event, event.kind, event.words, event.level)


def reported(fleet: Fleet, events: Sequence[LinkUp]) -> Folded:
    """The fleet after reports of different hosts. Raises ValueError when one is there twice, or there is none."""
    before = {event.host: fleet.state.hosts[event.host] for event in events}
    if len(before) != len(events) or not events:
        raise ValueError(f"{len(events)} reports of {len(before)} hosts: one report of each is folded at once")
    broken = {event.host: found for event in events if (found := _journal_break(before[event.host], event))}
    unix_ms = events[-1].unix_ms
    now = {event.host: _as_reported(before[event.host], event) for event in events}
    silent_since = fleet.silent_since
    if silent_since.keys() & now.keys():
        silent_since = {name: since for name, since in silent_since.items() if name not in now}
    opening = fleet.opening
    if opening is not None:
        opening = expecting(opening, {event.host: event.report.seq for event in events})
    fleet = msgspec.structs.replace(with_hosts(fleet, now), silent_since=silent_since, opening=opening)
    fleet = compare_hosts(fleet, now.keys(), broken, unix_ms)
    fleet, touched = reindex(fleet, now.keys())
    same = {name for name, was in before.items() if was.state is HostState.LIVE and now[name].facts is was.facts}
    touched.update(*(touching(fleet, name) for name in now.keys() - same))
    fleet = rederive(fleet, touched, unix_ms)
    others = set().union(*(touching(fleet, name) for name in same)) - touched
    fleet = rederive(fleet, others, unix_ms, look_for_drift=False)
    lines: tuple[JournalLine, ...] = ()
    for event in events:
        was = before[event.host]
        if was.state is not HostState.CONNECTING:
            words = "live again" if was.reported_at else "live"
            fleet, more = _noted(fleet, event, "link.live", words, "info")
            lines += more
    return fleet, lines


def _journal_break(before: HostView, event: LinkUp) -> JournalBreak | None:
    return journal_break(before, event.report.journal_id, _head_seq(event), event.unix_ms)


def _head_seq(event: LinkUp) -> int:
    return max(event.report.seq, event.welcome.head_seq)


def _as_reported(before: HostView, event: LinkUp) -> HostView:
    """A host as its report has it."""
    report = event.report
    return msgspec.structs.replace(
        before,
        state=HostState.LIVE,
        words="",
        agent_epoch=report.agent_epoch,
        agent_version=event.welcome.agent_version,
        journal_id=report.journal_id,
        head_seq=_head_seq(event),
        entities_seq=report.seq,
        revision=report.revision,
        clock_offset_ms=event.clock_offset_ms,
        round_trip_ms=event.round_trip_ms,
        heard_at=event.at,
        reported_at=event.at,
        facts=before.facts if before.facts == report.facts else report.facts,
        entities=kept_entities(before.entities, report.entities),
        measurements={measurement.node_id: measurement for measurement in report.measurements},
        measured_at={measurement.node_id: event.at for measurement in report.measurements},
        present=report.present,
    )


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
    fleet = rederive(fleet, touching(fleet, event.host), event.unix_ms)
    return _noted(fleet, event, f"link.{state.value}", event.words, "warn")


def _fold_records(fleet: Fleet, event: RecordsHeard) -> Folded:
    """Records up to the report's seq are only shown; those after it are folded."""
    host = fleet.state.hosts[event.host]
    entities, after, revision = host.entities, host.entities_seq, host.revision
    for record in event.records:
        if record.seq > after:
            entities = fold(entities, record)
            revision += moves_revision(record.change)
            after = record.seq
    fields: dict[str, Any] = {"heard_at": event.at, "head_seq": max(host.head_seq, after), "entities_seq": after}
    fields["revision"] = revision
    if entities is not host.entities:
        kept = entities.shards
        fields["entities"] = entities
        fields["measurements"] = {node: seen for node, seen in host.measurements.items() if node in kept}
        fields["measured_at"] = {node: at for node, at in host.measured_at.items() if node in kept}
    fleet = with_host(fleet, msgspec.structs.replace(host, **fields))
    if entities.highest_generation != host.entities.highest_generation:
        fleet = compare_hosts(fleet, (event.host,), {}, event.unix_ms)
    if entities is not host.entities:
        fleet, changed = reindex(fleet, (event.host,))
        fleet = rederive(fleet, changed, event.unix_ms)
    return show(fleet, event.host, event.records)


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
        return rederive(fleet, set(here), event.unix_ms)  # a release, a device or an address may be another one now
    return rederive(fleet, touched & here, event.unix_ms, look_for_drift=False)


def _noted(fleet: Fleet, event: LinkEvent, kind: str, words: str, level: str) -> Folded:
    """A line in the journal that is no record of the agent."""
    return show(fleet, event.host, (JournalRecord(kind=kind, words=words, at_unix_ms=event.unix_ms, level=level),))
