"""An engine's own agent on a host: its address, journal, connection slots, and the nodes that nobody here loaded."""

from __future__ import annotations

from backend.api import ResidentFacts, ResidentNode
from console.render.cells import Line, cell, line
from console.render.values import number, plural, size

SLOTS = 256
HIGH = 128


def resident_lines(resident: ResidentFacts) -> list[Line]:
    """What is known of it. Unknown is ``?``; a node's own text is shown as text."""
    growth = "?" if resident.journal_bytes is None else size(resident.journal_bytes)
    lost = resident.hidden or 0
    is_high = (resident.sockets or 0) >= HIGH or lost
    lines = [
        line(f"  its agent advertises {resident.address}"),
        line(
            "  its journal ",
            cell(resident.journal or "?", "plain" if resident.journal == "ok" else "alarm"),
            f"   {number(resident.journal_files)} files   {growth}   restart ",
            cell("refused" if resident.restart else "possible", "state.warn" if resident.restart else "plain"),
        ),
        line(
            "  its sockets ",
            cell(f"{number(resident.sockets)} of {SLOTS}", "state.warn" if is_high else "plain"),
            f"   unique {number(resident.unique)}   hidden ",
            cell(number(resident.hidden), "state.warn" if lost else "plain"),
        ),
    ]
    if resident.words:
        lines.append(line(cell(f"  {resident.words}", "state.warn")))
    lines += [_foreign(node) for node in resident.nodes if not node.is_ours]
    ours = sum(node.is_ours for node in resident.nodes)
    if ours:
        lines.append(line(f"  {plural(ours, 'node')} of its are shards of this agent"))
    return lines


def _foreign(node: ResidentNode) -> Line:
    """A node that somebody else had loaded: what its record says of it, and nothing that could be stopped from here."""
    place = (
        f"rank {node.rank} of {node.world_size} of {node.replica or '?'}, by its record"
        if node.replica
        else ("of a ring that no record names")
    )
    said = f", its text is {node.state!r}" if node.state and node.state != node.phase else ""
    return line(
        cell("  foreign node ", "state.warn"),
        cell(node.name, "name"),
        f"  generation {node.generation}  {node.phase}{said}  {place}",
    )
