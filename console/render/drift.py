"""Two sides that hold different values for one thing that must be equal."""

from __future__ import annotations

from backend.api import Drift, FleetState
from console.render.cells import Line, Look, cell, line, wrapped


def drift_lines(state: FleetState, look: Look, width: int) -> list[Line]:
    """Every open drift: who, what, both values, what comes of it, what to do."""
    if not state.drifts:
        return [line(cell(" Nothing differs that should be equal.", "state.ready"))]
    return [each for drift in state.drifts for each in one_drift(drift, look, width)]


def one_drift(drift: Drift, look: Look, width: int) -> list[Line]:
    """One drift over as many lines as its words take."""
    out: list[Line] = [
        line(
            cell(f" {look.glyphs.differs} ", "alarm"),
            cell(f"{drift.subject}  ", "name"),
            cell(drift.what, "state.warn"),
        )
    ]
    out += wrapped(drift.one, width, 5)
    out += wrapped(drift.other, width, 5)
    out += wrapped(drift.consequence, width, 5)
    return [*out, *wrapped(drift.remedy, width, 5, "note"), line("")]
