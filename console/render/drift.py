"""Two sides that hold different values for one thing that must be equal."""

from __future__ import annotations

from collections.abc import Sequence

from backend.api import Drift, FleetState, few_of
from console.render.cells import Line, Look, cell, line, line_text, wrapped
from console.render.values import OVERDUE_SECONDS, ago, clock, coarse, duration
from console.safe_text import safe_text, width_of

_SUBJECT_WIDTH, _WHAT_WIDTH = 12, 13


def drift_lines(state: FleetState, look: Look, width: int) -> list[Line]:
    """How many there are and how fresh that is, then every drift: both values, what comes of it, what to do."""
    return [
        *title_lines(state, look, width),
        *(each for drift in state.drifts for each in one_drift(drift, look, width)),
    ]


def open_drifts(state: FleetState) -> int:
    """How many drifts nobody has acknowledged."""
    return sum(1 for drift in state.drifts if drift.is_open)


def title_lines(state: FleetState, look: Look, width: int) -> list[Line]:
    """The counts, when the host that spoke longest ago did so, and what is not known."""
    known = len(state.drifts) - open_drifts(state)
    if state.drifts:
        left = line(
            cell(" DRIFT   ", "head"),
            cell(f"{open_drifts(state)} open", "alarm" if open_drifts(state) else "state.ready"),
            cell(f"   {known} acknowledged"),
        )
    else:
        left = line(cell(" Nothing differs that should be equal.", "state.ready"))
    checked = _checked(state, look)
    room = min(width, 100) - width_of(line_text(left)) - width_of(checked) - 1
    out: list[Line] = [(*left, cell(" " * max(3, room)), cell(checked, "note"))] if checked else [left]
    silent = [name for name, host in state.hosts.items() if host.state.value != "live"]
    if silent:
        verb = "does" if len(silent) == 1 else "do"
        out += wrapped(f"Not known of {few_of(silent)}, which {verb} not answer.", width, 1, "state.warn")
    if state.acknowledgement_words:
        out += wrapped(state.acknowledgement_words, width, 1, "state.warn")
    return [*out, line("")] if state.drifts else out


def _checked(state: FleetState, look: Look) -> str:
    """How old the oldest word of a live host is: everything is compared again whenever one speaks."""
    heard = [host.heard_at for host in state.hosts.values() if host.state.value == "live" and host.heard_at]
    if not heard:
        return ""
    age = max(0.0, look.now - min(heard))
    return f"checked {duration(int(age)) if age < OVERDUE_SECONDS else coarse(age)} ago"


def one_drift(
    drift: Drift, look: Look, width: int, *, is_chosen: bool = False, keys: Sequence[tuple[str, str]] = ()
) -> list[Line]:
    """One drift over as many lines as its words take. An acknowledged one says by whom, until when and why.

    ``keys`` are those that do something about it now, each with its word.
    """
    style = "quiet" if not drift.is_open else "alarm" if drift.severity == "alarm" else "state.warn"
    head = line(
        cell(f"{look.glyphs.cursor if is_chosen else ' '}{look.glyphs.differs} ", style),
        cell(_padded(drift.subject, _SUBJECT_WIDTH), "name"),
        cell(_padded(drift.what, _WHAT_WIDTH), style),
    )
    one, other = _side(drift.one_source, drift.one), _side(drift.other_source, drift.other)
    together = f"{one}      {other}"
    if width_of(line_text(head)) + width_of(safe_text(together)) < width:
        out: list[Line] = [(*head, cell(together, "value"))]
    elif 5 + width_of(safe_text(together)) < width:
        out = [head, line(cell(f"     {together}", "value"))]
    else:
        out = [head, *wrapped(one, width, 5, "value"), *wrapped(other, width, 5, "value")]
    out += wrapped(drift.consequence, width, 5)
    since = f"since {clock(drift.since_unix_ms, look)}" + ("" if drift.is_open else ", acknowledged")
    out += wrapped(f"{since}     {drift.remedy}", width, 5, "note")
    out = _with_keys(out, keys, width)
    if drift.acknowledged is not None:
        known = drift.acknowledged
        words = f"{known.by}, {ago(known.at_unix_ms, look)}, until {clock(known.until_unix_ms, look)}: {known.note}"
        out += wrapped(words, width, 5, "state.quiet")
    return [*out, line(cell(f"     {drift.id}", "note")), line("")]


def _with_keys(lines: list[Line], keys: Sequence[tuple[str, str]], width: int) -> list[Line]:
    """The keys behind the last line where they fit, else on a line of their own."""
    if not keys:
        return lines
    pieces = [piece for key, word in keys for piece in (cell("     "), cell(key, "key"), cell(f" {word}"))]
    if width_of(line_text((*lines[-1], *pieces))) < width:
        return [*lines[:-1], (*lines[-1], *pieces)]
    return [*lines, tuple(pieces)]


def _padded(text: str, width: int) -> str:
    shown = safe_text(text)
    return shown + " " * max(2, width + 2 - width_of(shown))


def _side(source: str, value: str) -> str:
    return f"{source} {value}".strip()


def chosen_of(drifts: Sequence[Drift], chosen: str | None) -> Drift | None:
    """The drift that the cursor stands on; the first one when that is gone."""
    found = next((drift for drift in drifts if drift.id == chosen), None)
    return found if found is not None else (drifts[0] if drifts else None)
