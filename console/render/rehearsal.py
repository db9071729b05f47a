"""What a rehearsal shows as lines: when, what, from which state to which, and why."""

from __future__ import annotations

from backend.api import Shown
from console.render.cells import Line, Look, cell
from console.render.values import clock

_MARKS = {"info": "  ", "warn": "! ", "alarm": "!!"}
_WIDTH = 8


def shown_line(shown: Shown, look: Look) -> Line:
    """One line: offset, wall clock, what, whom, the states on both sides of a change, and the reason."""
    arrow = look.glyphs.arrow
    mark = _MARKS.get(shown.level, "? ") if shown.what == "journal" else "  "
    change = "" if shown.what == "journal" else f"{shown.before or 'none'} {arrow} {shown.after or 'gone'}  "
    kind = f"{shown.kind}  " if shown.kind else ""
    return (
        cell(f"{shown.at:>9.3f}s ", "note"),
        cell(f"{clock(shown.unix_ms, look)} ", "note"),
        cell(mark, "state.warn"),
        cell(f"{shown.what:<{_WIDTH}}", "head"),
        cell(f"{shown.subject}  ", "name"),
        cell(change, "value"),
        cell(kind, "note"),
        cell(shown.words),
    )
