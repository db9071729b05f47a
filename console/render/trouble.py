"""The worst that is wrong with a host, in full words, for a screen that has no room for a panel of hosts."""

from __future__ import annotations

import textwrap

from backend.api import FleetState, HostView, Illness
from console.render.cells import Line, cell, line
from console.safe_text import cut, safe_text, width_of

LOUD_LINES, MILD_LINES = 2, 1
"""Lines for what keeps a host from its work, and for what only should be known."""
_MILD = 2
LASTING = frozenset({"ports ephemeral", "clock jumped", "suspended"})
"""Illnesses that stand for long while everything works."""


def host_troubles(view: HostView) -> list[tuple[int, str]]:
    """What is wrong with one host, as (0 the worst, 1, 2 for what only warns) and words; quiet while it connects."""
    found = []
    if view.state.value in ("lost", "refused"):
        found.append((0, f"{view.state.value}: {view.words or 'nothing is known'}"))
    elif view.state.value == "unreachable":
        found.append((1, f"unreachable: {view.words or 'nothing is known'}"))
    if view.facts is not None and view.state.value == "live":
        ills = view.facts.illnesses
        found += [(_rank(ill), f"{ill.kind}: {ill.words}") for ill in ills]
        refuses = view.facts.refuses_loads
        if refuses and not any(ill.refuses_loads for ill in ills):
            found.append((0, f"refuses loads: {refuses}"))
    return found


def _rank(ill: Illness) -> int:
    if ill.refuses_loads:
        return 0
    return _MILD if ill.kind in LASTING else 1


def trouble_lines(state: FleetState, width: int, ellipsis: str) -> list[Line]:
    """The worst trouble of any host in full, as far as two lines hold it, and how many more there are."""
    troubles = sorted((rank, host, words) for host, view in state.hosts.items() for rank, words in host_troubles(view))
    if not troubles:
        return []
    rank, host, words = troubles[0]
    style = "alarm" if rank == 0 else "state.warn"
    more = f"   {f'and {len(troubles) - 1} more, ' if len(troubles) > 1 else ''}h hosts"
    most = MILD_LINES if rank == _MILD else LOUD_LINES
    said = safe_text(words)
    rows = textwrap.wrap(said, width - 2, initial_indent=" " * (width_of(host) + 2), subsequent_indent="  ")
    if len(rows) > most:
        rows = [*rows[: most - 1], rows[most - 1] + " " + rows[most].strip()]  # too long, so that it is cut visibly
    if len(rows) < most and width_of(rows[-1]) > width - 1 - width_of(more):
        rows.append("")
    rows[-1] = cut(rows[-1], width - 1 - width_of(more), ellipsis)
    out = [line(cell(" "), cell(host, "name"), cell(f"  {rows[0].lstrip()}", style))]
    out += [line(cell(f" {row}", style)) for row in rows[1:]]
    return [*out[:-1], (*out[-1], cell(more, "note"))]
