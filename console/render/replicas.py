"""The replicas of the fleet as rows."""

from __future__ import annotations

from backend.api import FleetState, ReplicaView, holds_in
from console.render.cells import Cell, Column, Line, Look, Row, Table, cell, right
from console.render.values import age_note, agreement, countdown, counted, generation, is_overdue, number, rate
from console.render.words import ENDED, state_cell


def replica_columns(look: Look) -> tuple[Column, ...]:
    """The columns; a short generation has a short heading."""
    return (
        Column("REPLICA", least=9),
        Column("STATE"),
        Column("GENERATION" if look.wide else "GEN", drop=4),
        Column("RANKS", "right", drop=1),
        Column("TOK/S", "right", drop=3),
        Column("IN FLIGHT", "right"),
        Column("QUEUE", "right", drop=2),
        Column("BOUND"),
        Column("", flex=True, least=8),
    )


def held_replicas(state: FleetState) -> dict[str, str]:
    """What people hold of what runs, in a word and a name, by replica; a hold of a model is one of its replicas."""
    held = holds_in(state)
    if not held:
        return {}
    by_replica = {}
    for view in state.replicas.values():
        found = held.get(f"replica:{view.id}") or held.get(f"model:{view.model}")
        if found is not None:
            by_replica[str(view.id)] = f"{found.kind} by {found.by}"
    return by_replica


def replica_cells(view: ReplicaView, look: Look, held: str = "") -> Line:
    """One replica: who, what state, which generation, how many ranks, and what it serves."""
    state = view.state.value
    suffix = f" ({view.unknown_targets} unknown)" if view.unknown_targets else ""
    return (
        cell(view.id, "name"),
        state_cell(state, suffix),
        replica_generation(view, look),
        right(
            f"{view.ranks_ready}/{view.world_size}", "plain" if view.ranks_ready == view.world_size else "state.warn"
        ),
        *_serving(view, look),
        cell("-", "quiet") if state in ENDED and view.bound == "unknown" else agreement(view.bound, "", look),
        cell("  ".join(part for part in (held, note_of(view, look)) if part), _note_style(view, held)),
    )


def replica_generation(view: ReplicaView, look: Look) -> Cell:
    """Its load generation; an adopted engine was never told one, and the number of its adoption is none."""
    if any(each.shard.taken_over is not None for each in view.shards):
        return cell("?", "unknown")
    return cell(generation(view.load_generation or None, look))


def _serving(view: ReplicaView, look: Look) -> tuple[Cell, Cell, Cell]:
    if view.state.value in ENDED:
        return (right("-", "quiet"), right("-", "quiet"), right("-", "quiet"))
    is_old = is_overdue(view.measured_at, look)
    return (
        counted(rate(view.tokens_per_second), is_old=is_old),
        counted(number(view.in_flight), is_old=is_old),
        counted(number(view.queued), is_old=is_old),
    )


def hosts_of(view: ReplicaView) -> int:
    """On how many hosts its ranks are."""
    return len({each.shard.host for each in view.shards})


def reason_of(view: ReplicaView) -> str:
    """Why it is as it is; of one that serves, what its leader measures of requests that do not get on."""
    if view.words or view.state.value in ENDED:
        return view.words
    leader = next((each.measurement for each in view.shards if each.shard.rank == 0), None)
    return "" if leader is None else leader.words


def note_of(view: ReplicaView, look: Look) -> str:
    """What else must be known: the time a drain has left, the age of overdue counts, the reason for the state."""
    notes = []
    if view.drain is not None and not view.drain.outcome:
        notes.append(countdown(view.drain_left_ms))
    if view.state.value not in ENDED and (age := age_note(view.measured_at, look)):
        notes.append(age)
    if words := reason_of(view):
        notes.append(words)
    return "  ".join(notes)


def _words_style(view: ReplicaView) -> str:
    return "state.alarm" if view.state.value == "failed" else "state.warn"


def _note_style(view: ReplicaView, held: str) -> str:
    if reason_of(view):
        return _words_style(view)
    return "state.warn" if held else "note"


def panel_note(view: ReplicaView) -> tuple[str, str]:
    """What stands beside the name of the selected replica, with its style: why it is as it is, else where it serves."""
    if words := reason_of(view):
        return words, _words_style(view)
    return view.endpoint, "note"


def replica_table(state: FleetState, look: Look) -> Table:
    """All replicas, in the order of their names."""
    held = held_replicas(state)
    rows = tuple(Row(view.id, replica_cells(view, look, held.get(view.id, ""))) for view in state.replicas.values())
    return Table(replica_columns(look), rows, empty_words(state))


def empty_words(state: FleetState) -> str:
    """What to do about a fleet in which nothing is loaded."""
    if not state.hosts:
        return "This context names no host. Add one to contexts.toml, or start a local fleet: ringtop up"
    if not any(host.state.value == "live" for host in state.hosts.values()):
        return "No host answers. The hosts panel below says why."
    if not state.models:
        return f"Nothing is loaded, and the catalog names no model. {state.catalog_words}".rstrip()
    return "Nothing is loaded. L loads a model."
