"""What a cordon or a drain of a host means, in numbers: the replicas there, their ranks there and elsewhere."""

from __future__ import annotations

from backend.api import FleetState, HostView, ReplicaView, ShardView
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.hosts import cordon_words, host_state
from console.render.values import plural
from console.render.words import ENDED, state_cell


def replicas_on(state: FleetState, host: str) -> list[ReplicaView]:
    """The replicas with a rank on this host that has not ended."""
    return [view for view in state.replicas.values() if any(_is_there(each, host) for each in view.shards)]


def replica_words(view: ReplicaView, host: str) -> str:
    """One replica with a rank on a host: how many there, how many elsewhere go with them, and what is in flight."""
    here = sum(_is_there(each, host) for each in view.shards)
    elsewhere = sum(each.state not in ENDED for each in view.shards) - here
    flight = "an unknown number of requests" if view.in_flight is None else plural(view.in_flight, "request")
    return f"{view.id}: {plural(here, 'rank')} on {host}, {elsewhere} elsewhere, {flight} in flight"


def to_type(host: str, count: int) -> str:
    """What confirms the drain of a host: its name, and how many replicas that empties where it is more than one."""
    return host if count <= 1 else f"{host} {count}"


def cordon_lines(state: FleetState, view: HostView, look: Look, width: int) -> list[Line]:
    """A host before it is cordoned or uncordoned: how it stands, what runs there, what is on its way there."""
    out = [line(cell(f" {view.host}", "name"), "   ", state_cell(host_state(view)))]
    if view.entities.cordon is not None:
        out += wrapped(cordon_words(view.entities.cordon, look), width, 2, "state.warn")
    there = replicas_on(state, view.host)
    out += wrapped(f"{plural(len(there), 'replica')} with a rank there", width, 2)
    for each in there:
        out += wrapped(replica_words(each, view.host), width, 4, "note")
    for _, kept in sorted(view.entities.reservations.items()):
        words = f"{kept.by} has reserved {plural(len(kept.node_ids), 'rank')} of {kept.replica} there, not loaded yet"
        out += wrapped(words, width, 2, "state.warn")
    return out


def effect_words(view: HostView, seconds: float | None) -> str:
    """What taking the choice would do."""
    if view.entities.cordon is not None:
        return f"Uncordon: {view.host} takes new shards again at once. Nothing is loaded by that."
    kept = sum(len(each.node_ids) for each in view.entities.reservations.values())
    waiting = f" The load that has reserved {plural(kept, 'rank')} there is refused, and rolls back." if kept else ""
    lasts = "until it is uncordoned" if seconds is None else "for that time"
    return f"No new shards on {view.host} {lasts}, whoever plans or loads. What runs there runs on.{waiting}"


def _is_there(shard: ShardView, host: str) -> bool:
    return shard.shard.host == host and shard.state not in ENDED
