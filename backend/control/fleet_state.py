"""The fleet as it is folded: what the console sees, and the memory that it takes to fold the next event."""

from __future__ import annotations

from bisect import bisect
from itertools import islice
from typing import Any

import msgspec

from backend.contract.states import HostState
from backend.contract.words import AgentAddress, HostId, LoadGeneration, ReplicaId, UnixMs
from backend.control.drift_hosts import JournalBreak, derive_host_drifts, is_suspect
from backend.control.drift_lens import Header
from backend.control.drifts import in_order, since_when, with_acknowledgements
from backend.control.holdings import Holdings
from backend.control.opening import Opening
from backend.control.recovering import Recovering
from backend.control.views import Acknowledgement, Drift, FleetState, HostView, JournalLine, ReplicaView


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The state that the console sees, and the memory that it takes to fold the next event.

    ``index`` says what each host has of each replica, ``where`` which hosts have something of a replica, ``planned_at``
    which replicas should have a part at a host by their plan, ``suspects`` which hosts may drift by their own clock or
    generation, ``given_up`` which generations did not recover within their grace, ``folded`` up to which seq a host's
    records are in its entities. ``opening`` holds the first journal lines back, None once they are shown.
    """

    state: FleetState
    index: dict[HostId, dict[ReplicaId, Holdings]]
    where: dict[ReplicaId, frozenset[HostId]] = {}
    planned_at: dict[HostId, frozenset[ReplicaId]] = {}
    suspects: frozenset[HostId] = frozenset()
    folded: dict[HostId, int] = {}
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
        for host in sorted(hosts)
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
    return with_state(fleet, hosts={**fleet.state.hosts, host.host: host})


def with_replicas(fleet: Fleet, views: dict[ReplicaId, ReplicaView | None]) -> Fleet:
    """The fleet with these replicas as they are now, None for one that is gone, still in the order of their names."""
    if not views:
        return fleet
    before = fleet.state.replicas
    replicas = dict(before)
    for name, view in views.items():
        if view is None:
            replicas.pop(name, None)
        elif name in before:
            replicas[name] = view
        else:
            replicas = _inserted(replicas, name, view)
    planned_at = fleet.planned_at
    for name, view in views.items():
        planned_at = _planned(planned_at, name, before.get(name), view)
    return msgspec.structs.replace(with_state(fleet, replicas=replicas), planned_at=planned_at)


def _inserted(
    replicas: dict[ReplicaId, ReplicaView], name: ReplicaId, view: ReplicaView
) -> dict[ReplicaId, ReplicaView]:
    """The replicas with one more, in the order of their names; a thousand may come one after the other."""
    rest = iter(replicas.items())
    more = dict(islice(rest, bisect(list(replicas), name)))
    more[name] = view
    more.update(rest)
    return more


def _planned(
    planned_at: dict[HostId, frozenset[ReplicaId]], name: ReplicaId, before: ReplicaView | None, now: ReplicaView | None
) -> dict[HostId, frozenset[ReplicaId]]:
    """At which hosts a replica should have a part, by its plan."""
    old = set(before.plan.hosts) if before is not None and before.plan is not None else set()
    new = set(now.plan.hosts) if now is not None and now.plan is not None else set()
    if old == new:
        return planned_at
    changed = {host: planned_at.get(host, frozenset()) for host in old | new}
    after = {**planned_at, **{host: here | {name} if host in new else here - {name} for host, here in changed.items()}}
    for host in old - new:
        if not after[host]:
            del after[host]
    return after


def with_drifts(fleet: Fleet, found: dict[ReplicaId, tuple[Drift, ...]], unix_ms: UnixMs) -> Fleet:
    """The fleet with these drifts of these replicas."""
    if not found:
        return fleet
    drifts = {name: each for name, each in {**fleet.drifts, **found}.items() if each}
    return gather_drifts(msgspec.structs.replace(fleet, drifts=drifts), unix_ms)


def compare_hosts(fleet: Fleet, host: HostId, broken: JournalBreak | None, unix_ms: UnixMs) -> Fleet:
    """A host has reported: keep the break of its journal if there is one, and compare it with the others again.

    Where fewer than half of the live hosts are suspect the others agree with this clock, and need not be looked at.
    """
    if broken is not None:
        fleet = msgspec.structs.replace(fleet, breaks={**fleet.breaks, host: broken})
    hosts = fleet.state.hosts
    suspects = fleet.suspects - {host} | ({host} if is_suspect(hosts[host], unix_ms) else set())
    if suspects != fleet.suspects:
        fleet = msgspec.structs.replace(fleet, suspects=suspects)
    if not suspects and not fleet.breaks and not fleet.host_drifts:
        return fleet
    live = len(fleet.folded) - len(fleet.silent_since.keys() & fleet.folded.keys())
    looked_at = {name: hosts[name] for name in sorted(suspects)} if 2 * len(suspects) < live else hosts
    found = derive_host_drifts(looked_at, fleet.breaks, unix_ms, majority_agrees=looked_at is not hosts)
    found = since_when(found, fleet.host_drifts, unix_ms)
    if found == fleet.host_drifts:
        return fleet
    return gather_drifts(msgspec.structs.replace(fleet, host_drifts=found), unix_ms)


def gather_drifts(fleet: Fleet, unix_ms: UnixMs) -> Fleet:
    """All drifts in the state: open ones first, alarms before warnings; the same object when nothing changed."""
    every = (*fleet.host_drifts, *(drift for name in sorted(fleet.drifts) for drift in fleet.drifts[name]))
    told = in_order(with_acknowledgements(every, fleet.acknowledged, unix_ms))
    together = tuple(sorted(told, key=lambda drift: not drift.is_open))
    return fleet if together == fleet.state.drifts else with_state(fleet, drifts=together)
