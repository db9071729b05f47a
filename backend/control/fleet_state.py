"""The fleet as it is folded: what the console sees, and the memory that it takes to fold the next event."""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from backend.contract.entities import JournalRecord
from backend.contract.naming import by_number
from backend.contract.plans import Plan
from backend.contract.states import HostState
from backend.contract.words import AgentAddress, HostId, LoadGeneration, ReplicaId, UnixMs
from backend.control.drift_hosts import JournalBreak, derive_host_drifts, is_suspect
from backend.control.drift_lens import Header
from backend.control.drifts import in_order, since_when, with_acknowledgements
from backend.control.holdings import Holdings
from backend.control.opening import Opening, holding_back
from backend.control.recovering import Recovering
from backend.control.views import Acknowledgement, Drift, FleetState, HostView, JournalLine, ReplicaView


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The state that the console sees, and the memory that it takes to fold the next event.

    ``index`` says what each host has of each replica, ``where`` which hosts have something of a replica, ``planned_at``
    which replicas should have a part at a host by their plan, ``suspects`` which hosts may drift by their own clock or
    generation, ``given_up`` which generations did not recover within their grace. ``opening`` holds the first journal
    lines back, None once they are shown.
    """

    state: FleetState
    index: dict[HostId, dict[ReplicaId, Holdings]]
    where: dict[ReplicaId, frozenset[HostId]] = {}
    planned_at: dict[HostId, frozenset[ReplicaId]] = {}
    suspects: frozenset[HostId] = frozenset()
    silent_since: dict[HostId, float] = {}
    recovering: Recovering = {}
    given_up: dict[ReplicaId, LoadGeneration] = {}
    drifts: dict[ReplicaId, tuple[Drift, ...]] = {}
    host_drifts: tuple[Drift, ...] = ()
    breaks: dict[HostId, JournalBreak] = {}
    acknowledged: dict[str, Acknowledgement] = {}
    headers: dict[str, Header] = {}
    opening: Opening | None = None


Folded = tuple[Fleet, tuple[JournalLine, ...]]


def empty_fleet(context: str, label: str, hosts: dict[HostId, AgentAddress], *, read_only: bool) -> Fleet:
    """A fleet of which nothing has been heard."""
    views = {
        host: HostView(host=host, address=hosts[host], state=HostState.CONNECTING, words="connecting")
        for host in sorted(hosts, key=by_number)
    }
    state = FleetState(
        context=context,
        label=label,
        hosts=views,
        replicas={},
        operations={},
        models={},
        catalog_words="",
        answers={},
        drifts=(),
        journal_head=0,
        fault=None,
        read_only=read_only,
    )
    return Fleet(state=state, index={host: {} for host in views}, opening=Opening())


def with_state(fleet: Fleet, **fields: Any) -> Fleet:
    """The fleet with these fields of its state changed."""
    return msgspec.structs.replace(fleet, state=msgspec.structs.replace(fleet.state, **fields))


def with_host(fleet: Fleet, host: HostView) -> Fleet:
    """The fleet with this view of a host; the same object when it is no other."""
    if host == fleet.state.hosts[host.host]:
        return fleet
    return with_hosts(fleet, {host.host: host})


def with_hosts(fleet: Fleet, hosts: Mapping[HostId, HostView]) -> Fleet:
    """The fleet with these views of its hosts."""
    return with_state(fleet, hosts={**fleet.state.hosts, **hosts})


def with_replicas(fleet: Fleet, views: dict[ReplicaId, ReplicaView | None]) -> Fleet:
    """The fleet with these replicas as they are now, None for one that is gone, still in their order."""
    if not views:
        return fleet
    before = fleet.state.replicas
    there = {name: view for name, view in views.items() if view is not None}
    replicas = {**before, **there}
    for name in views.keys() - there.keys():
        replicas.pop(name, None)
    if new := [name for name in there if name not in before]:
        names = [name for name in before if name in replicas]
        for name in new:
            insort(names, name, key=by_number)
        replicas = {name: replicas[name] for name in names}
    planned_at = _planned(fleet.planned_at, before, views)
    return msgspec.structs.replace(with_state(fleet, replicas=replicas), planned_at=planned_at)


def _planned(
    planned_at: dict[HostId, frozenset[ReplicaId]],
    before: Mapping[ReplicaId, ReplicaView],
    now: Mapping[ReplicaId, ReplicaView | None],
) -> dict[HostId, frozenset[ReplicaId]]:
    """At which hosts a replica should have a part, by its plan, when these have become what they are now."""
    moved: dict[HostId, frozenset[ReplicaId]] = {}
    for name, view in now.items():
        old, new = _plan_of(before.get(name)), _plan_of(view)
        if old is new:
            continue
        gone, here = set(old.hosts if old else ()), set(new.hosts if new else ())
        for host in gone ^ here:
            names = moved.get(host, planned_at.get(host, frozenset()))
            moved[host] = names | {name} if host in here else names - {name}
    after = {**planned_at, **moved} if moved else planned_at
    for host, names in moved.items():
        if not names:
            del after[host]
    return after


def _plan_of(view: ReplicaView | None) -> Plan | None:
    return view.plan if view is not None else None


def with_drifts(fleet: Fleet, found: dict[ReplicaId, tuple[Drift, ...]], unix_ms: UnixMs) -> Fleet:
    """The fleet with these drifts of these replicas."""
    if not found:
        return fleet
    drifts = {name: each for name, each in {**fleet.drifts, **found}.items() if each}
    return gather_drifts(msgspec.structs.replace(fleet, drifts=drifts), unix_ms)


def compare_hosts(
    fleet: Fleet, reported: Collection[HostId], broken: dict[HostId, JournalBreak], unix_ms: UnixMs
) -> Fleet:
    """Hosts have reported: keep the breaks of their journals, and compare them with the others again.

    Where fewer than half of the live hosts are suspect the others agree with this clock, and need not be looked at.
    """
    if broken:
        fleet = msgspec.structs.replace(fleet, breaks={**fleet.breaks, **broken})
    hosts = fleet.state.hosts
    suspects = fleet.suspects.difference(reported).union(name for name in reported if is_suspect(hosts[name], unix_ms))
    if suspects != fleet.suspects:
        fleet = msgspec.structs.replace(fleet, suspects=suspects)
    if not suspects and not fleet.breaks and not fleet.host_drifts:
        return fleet
    live = sum(view.state is HostState.LIVE for view in hosts.values())
    looked_at = {name: hosts[name] for name in sorted(suspects)} if 2 * len(suspects) < live else hosts
    found = derive_host_drifts(looked_at, fleet.breaks, unix_ms, majority_agrees=looked_at is not hosts)
    found = since_when(found, fleet.host_drifts, unix_ms)
    if found == fleet.host_drifts:
        return fleet
    return gather_drifts(msgspec.structs.replace(fleet, host_drifts=found), unix_ms)


def gather_drifts(fleet: Fleet, unix_ms: UnixMs) -> Fleet:
    """All drifts in the state: open ones first, alarms before warnings; the same object when nothing changed."""
    every = (
        *fleet.host_drifts,
        *(drift for name in sorted(fleet.drifts, key=by_number) for drift in fleet.drifts[name]),
    )
    told = in_order(with_acknowledgements(every, fleet.acknowledged, unix_ms))
    together = tuple(sorted(told, key=lambda drift: not drift.is_open))
    return fleet if together == fleet.state.drifts else with_state(fleet, drifts=together)


# --- the journal lines to show -------------------------------------------------------------------------------------


def show(fleet: Fleet, host: HostId, records: tuple[JournalRecord, ...]) -> Folded:
    """These records of a host as lines of the journal, now or when the opening is over."""
    if fleet.opening is not None:
        return msgspec.structs.replace(fleet, opening=holding_back(fleet.opening, host, records)), ()
    return show_each(fleet, tuple((host, record) for record in records))


def show_each(fleet: Fleet, entries: tuple[tuple[HostId, JournalRecord], ...]) -> Folded:
    """Each of these as the next line of the journal."""
    head = fleet.state.journal_head
    lines = tuple(JournalLine(head + n, host, record) for n, (host, record) in enumerate(entries, start=1))
    return (with_state(fleet, journal_head=head + len(lines)) if lines else fleet), lines
