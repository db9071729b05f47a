"""Which p4 agents could be recovered, for a replica or a host; and in words why one cannot. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from backend.api import FleetState, HostView, ReplicaView, ResidentFacts, in_the_way
from console.render.cells import Column, Line, Row, Table, cell, wrapped
from console.render.operations import is_open
from console.render.residents import SLOTS
from console.render.values import number, plural

ENGINE, KIND = "p4", "recovery"
COLUMNS = (Column("HOST"), Column("RINGS THERE", least=5, drop=1), Column("P4 AGENT", flex=True, least=12))


@dataclass(frozen=True, slots=True)
class Place:
    """The p4 agent of one host. ``why_not`` is empty where it can be recovered; ``under_way`` is an open recovery.

    ``rings`` are the replicas with a rank there, which its end ends; ``seen`` is what is known of it.
    """

    host: str
    rings: tuple[str, ...] = ()
    seen: str = ""
    why_not: str = ""
    under_way: str = ""

    @property
    def can_be_opened(self) -> bool:
        """There is a plan to be made, or a recovery to be followed."""
        return not self.why_not or bool(self.under_way)


def recoverable(state: FleetState, name: str) -> tuple[Place, ...] | str:
    """The p4 agent of this host, or those under this replica; else why there is none, in words."""
    if not name:
        return "no replica or host is selected"
    host = next((each for each in state.hosts.values() if each.host == name), None)
    if host is not None:
        return (_place(state, host, _rings(state)),)
    view = next((each for each in state.replicas.values() if each.id == name), None)
    if view is None:
        return f"there is no host and no replica {name} here"
    names = _hosts_of(view)
    if not names:
        engines = sorted({each.shard.engine for each in view.shards} | ({view.plan.engine} if view.plan else set()))
        return f"{view.id} runs on {', '.join(engines) or 'nothing'}; only the agent of a p4 ring is recovered"
    there, rings = {str(each.host): each for each in state.hosts.values()}, _rings(state)
    return tuple(
        _place(state, there[each], rings) if each in there else Place(each, why_not=f"{each} is not in this context")
        for each in names
    )


def why_not_recovered(state: FleetState, name: str) -> str | None:
    """Why no p4 agent of this host or replica can be recovered, or None when one can, or is being."""
    found = recoverable(state, name)
    if isinstance(found, str):
        return found
    return None if any(each.can_be_opened for each in found) else "; ".join(each.why_not for each in found)


def _hosts_of(view: ReplicaView) -> list[str]:
    """Every host with a p4 stage of it, or that should have one."""
    names = {str(each.shard.host) for each in view.shards if each.shard.engine == ENGINE}
    if view.plan is not None and view.plan.engine == ENGINE:
        names |= {str(each) for each in view.plan.hosts}
    return sorted(names)


def _rings(state: FleetState) -> dict[str, list[str]]:
    """The hosts of every p4 replica."""
    return {str(view.id): hosts for view in state.replicas.values() if (hosts := _hosts_of(view))}


def _place(state: FleetState, view: HostView, hosts_of: dict[str, list[str]]) -> Place:
    rings = tuple(sorted(ring for ring, hosts in hosts_of.items() if view.host in hosts))
    recoveries = [each for each in state.operations.values() if each.kind == KIND and is_open(each)]
    mine = next((each for each in recoveries if each.subject == view.host), None)
    return Place(
        host=view.host,
        rings=rings,
        seen=_seen(_resident(view)),
        why_not=_why_not(state, view, rings),
        under_way=mine.id if mine is not None else "",
    )


def _resident(view: HostView) -> ResidentFacts | None:
    engines = view.facts.engines if view.facts is not None else ()
    return next((each.resident for each in engines if each.engine == ENGINE), None)


def _why_not(state: FleetState, view: HostView, rings: tuple[str, ...]) -> str:
    if view.state.value != "live":
        said = f": {view.words}" if view.words else ""
        return f"{view.host} is {view.state.value}{said}; it must be live, as its ringtop agent does every step"
    if view.facts is not None and all(each.engine != ENGINE for each in view.facts.engines):
        return f"{view.host} has no p4 agent; expected [engines.p4] in its agent.toml"
    busy = in_the_way(state.operations.values(), view.host, rings)
    return "" if busy is None else f"{busy.kind} {busy.id} of {busy.subject} by {busy.by} is {busy.state}; o shows it"


def _seen(resident: ResidentFacts | None) -> str:
    if resident is None:
        return "nothing is known of it"
    slots = f"{number(resident.sockets)} of {SLOTS} sockets, {number(resident.hidden)} hidden"
    return f"{slots}, {plural(len(resident.nodes), 'stage')}, restart {'refused' if resident.restart else 'possible'}"


def place_table(places: tuple[Place, ...]) -> Table:
    """One p4 agent a row, under the name of its host."""
    rows = tuple(
        Row(
            each.host,
            (
                cell(each.host, "name"),
                cell(", ".join(each.rings) or "none"),
                cell(each.why_not or each.seen, "state.warn" if each.why_not else "plain"),
            ),
        )
        for each in places
    )
    return Table(COLUMNS, rows, "No host has a p4 agent of it.")


def place_lines(place: Place | None, width: int) -> list[Line]:
    """What comes of choosing this one."""
    if place is None:
        return []
    if place.under_way:
        return wrapped(f"Enter shows the recovery that is under way there: {place.under_way}.", width, 1)
    if place.why_not:
        return wrapped(f"Not possible: {place.why_not}.", width, 1, "state.warn")
    rings = f" Its end would end every stage there, and so {', '.join(place.rings)}." if place.rings else ""
    return wrapped(f"Enter measures {place.host} and shows every step; nothing is touched.{rings}", width, 1)
