"""An engine's own agent on a host: its address, journal, connection slots, and the nodes that nobody here loaded."""

from __future__ import annotations

from backend.api import JournalGrowth, ResidentFacts, ResidentNode, ResidentProcess
from console.render.cells import Line, cell, line
from console.render.values import duration, number, plural, size

SLOTS = 256
HIGH = 128
SPINS = 0.5
"""Cores that an idle stage does not take unless its threads spin."""


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
    if resident.growth is not None:
        lines += _growth(resident.growth)
    lines += [_process(process) for process in resident.processes]
    if resident.stderr:
        style = "plain" if resident.stderr_file else "state.warn"
        lines.append(line("  its stages' standard error is ", cell(resident.stderr, style)))
    if resident.words:
        lines.append(line(cell(f"  {resident.words}", "state.warn")))
    lines += [_foreign(node) for node in resident.nodes if not node.is_ours]
    ours = sum(node.is_ours for node in resident.nodes)
    if ours:
        lines.append(line(f"  {plural(ours, 'node')} of its are shards of this agent"))
    return lines


def _growth(growth: JournalGrowth) -> list[Line]:
    """How its journal grew, which never shrinks: in all, per hour, and per 1000 tokens where any are known."""
    hourly = "after a minute"
    if growth.files_per_hour is not None:
        hourly = f"{number(growth.files_per_hour)} files {size(growth.bytes_per_hour)}"
    grew = f"{number(growth.files)} files {size(growth.bytes)} in {duration(growth.seconds)}"
    lines = [line(f"  its journal grew {grew}   per hour {hourly}")]
    if growth.tokens:
        per = f"{number(growth.files_per_1000_tokens)} files {size(growth.bytes_per_1000_tokens)}"
        lines.append(line(f"  per 1000 tokens {per}   by {plural(growth.tokens, 'token')} of our own prompts"))
    return lines


def _process(process: ResidentProcess) -> Line:
    """One stage's process, and what it takes while nothing crosses it."""
    threads = plural(process.threads, "thread")
    if process.idle_cores is None:
        idle = cell(f"idle cores ?, {threads}", "unknown")
    elif process.spinning or process.idle_cores >= SPINS:
        idle = cell(
            f"spins: {process.idle_cores:.1f} cores idle, {number(process.spinning)} of {threads}", "state.warn"
        )
    else:
        idle = cell(f"idle cores {process.idle_cores:.1f}, {threads}")
    policy = "?" if process.wait_policy is None else process.wait_policy or "not set"
    return line(
        "  stage ",
        cell(process.node_id or f"at port {process.port}", "name"),
        f"  pid {process.pid}  ",
        idle,
        f"  wait policy {policy}",
    )


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
