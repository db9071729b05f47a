"""The worst that is wrong with a host, in full words, for a screen that has no room for a panel of hosts."""

from __future__ import annotations

from backend.api import FleetState, HostView, Illness
from console.render.cells import Line, broken, cell, line
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
    room = width - 4  # behind the indent of the second line
    taken = width_of(safe_text(host))
    rows = broken(words, room, first=taken, most=most, ellipsis=ellipsis)
    left = room - width_of(more) - (taken if len(rows) == 1 else 0)
    if len(rows) < most and width_of(rows[-1]) > left:
        rows, left = [*rows, ""], room - width_of(more)
    rows[-1] = cut(rows[-1], left, ellipsis)
    out = [line(cell(" "), cell(host, "name"), cell(f"  {rows[0]}", style))]
    out += [line(cell(f"   {row}", style)) for row in rows[1:]]
    return [*out[:-1], (*out[-1], cell(more, "note"))]
