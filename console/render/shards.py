"""The shards of one replica as rows: intended, observed and proven side by side."""

from __future__ import annotations

from backend.api import ReplicaView, ShardView
from console.render.cells import Cell, Column, Line, Look, Row, Table, cell, right
from console.render.values import age_note, agreement, is_overdue, number, size
from console.render.words import ENDED, state_cell

COLUMNS = (
    Column("RANK", "right"),
    Column("HOST", least=4),
    Column("DEVICE", drop=2),
    Column("STATE"),
    Column("NODE GEN"),
    Column("DERIVED", "right", drop=3),
    Column("REPORTED"),
    Column("MEMORY", "right", drop=1),
    Column("LAST WORDS", flex=True, least=10),
)


def last_words(view: ShardView, look: Look) -> str:
    """Why it is in its state; of an exited shard how it ended and the last line of its log."""
    shard = view.shard
    if shard.exit is not None:
        tail = next((text for text in reversed(shard.exit.log_tail) if text.strip()), "")
        return f"{shard.exit.words}; its log ends: {tail.strip()}" if tail else shard.exit.words
    measured = view.measurement
    if shard.state == "loading" and measured is not None and measured.to_load:
        return f"{size(measured.loaded)} of {size(measured.to_load)} read"
    # What is measured has words only where something does not get on: they stand before those of the state.
    notes = [age_note(view.measured_at, look), (measured.words if measured is not None else "") or shard.words]
    return "  ".join(note for note in notes if note)


def _memory(view: ShardView, look: Look) -> Cell:
    if view.state in ENDED:
        return right("-", "quiet")
    memory = None if view.measurement is None else view.measurement.memory
    if memory is None:
        return right("?", "unknown")
    return right(size(memory), "old" if is_overdue(view.measured_at, look) else "plain")


def _reported(view: ShardView, look: Look) -> Cell:
    if view.reported is None and view.state in ENDED:
        return cell("-", "quiet")
    reported = "" if view.reported is None else number(view.reported.weights + view.reported.kv)
    if view.reported is None and view.shard.reported_result is not None:
        reported = number(view.shard.reported_result)
    return agreement(view.bound, reported, look)


def shard_cells(view: ShardView, look: Look) -> Line:
    """One shard: place, state, its node generation beside the replica's, its bound beside the engine's report."""
    shard = view.shard
    derived = number(shard.bound.compared) if shard.bound.derived else "?"
    if shard.bound.result_derived and not shard.bound.derived:
        derived = number(shard.bound.result)
    return (
        right(shard.rank),
        cell(shard.host, "name"),
        cell(shard.device),
        state_cell(view.state),
        agreement(view.generation, str(shard.node_generation), look),
        right(derived, "unknown" if derived == "?" else "plain"),
        _reported(view, look),
        _memory(view, look),
        cell(last_words(view, look), _words_style(view)),
    )


def _words_style(view: ShardView) -> str:
    if view.shard.exit is not None and view.state == "failed":
        return "alarm"
    is_off = view.measurement is not None and view.measurement.words and view.state not in ENDED
    return "state.warn" if is_off else "note"


def shard_table(view: ReplicaView | None, look: Look) -> Table:
    """The shards of one replica in rank order."""
    if view is None:
        return Table(COLUMNS, (), "No replica is selected.")
    rows = tuple(Row(each.shard.node_id, shard_cells(each, look)) for each in view.shards)
    return Table(COLUMNS, rows, f"No agent reports a shard of {view.id}.")
