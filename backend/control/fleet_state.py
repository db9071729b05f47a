"""The fleet as it is folded: what the console sees, and the memory that it takes to fold the next event."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.states import HostState
from backend.contract.words import AgentAddress, HostId, ReplicaId, UnixMs
from backend.control.drift_hosts import JournalBreak, derive_host_drifts
from backend.control.drift_lens import Header
from backend.control.drifts import in_order, since_when, with_acknowledgements
from backend.control.holdings import Holdings
from backend.control.opening import Opening
from backend.control.views import Acknowledgement, Drift, FleetState, HostView, JournalLine


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """The state that the console sees, and the memory that it takes to fold the next event.

    ``index`` says what each host has of each replica, ``where`` which hosts have something of a replica, ``folded`` up
    to which seq a host's records are in its entities. ``opening`` holds the first journal lines back, None once they
    are shown.
    """

    state: FleetState
    index: dict[HostId, dict[ReplicaId, Holdings]]
    where: dict[ReplicaId, frozenset[HostId]] = {}
    folded: dict[HostId, int] = {}
    silent_since: dict[HostId, float] = {}
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


def compare_hosts(fleet: Fleet, host: HostId, broken: JournalBreak | None, unix_ms: UnixMs) -> Fleet:
    """A host has reported: keep the break of its journal if there is one, and compare the hosts again."""
    if broken is not None:
        fleet = msgspec.structs.replace(fleet, breaks={**fleet.breaks, host: broken})
    found = derive_host_drifts(fleet.state.hosts, fleet.breaks, unix_ms)
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
