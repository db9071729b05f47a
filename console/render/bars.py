"""The lines that frame the screen: header, banner, rules between panels, and the keys at the bottom."""

from __future__ import annotations

from backend.api import FleetState, keeper_of
from console.actions import ACTIONS, Selection, key_name, refusal
from console.render.cells import Cell, Line, Look, broken, cell, line, line_text
from console.render.drift import open_drifts
from console.render.values import clock, plural
from console.safe_text import cut, safe_text, width_of

_ALWAYS = ("help", "quit")
_NAME = cell(" ringtop  ", "title")
_KEPT_BY, _LEAST_NAME = "   kept by ", 6
MESSAGE_LINES = 3
"""What is said at the bottom takes no more of the screen."""
STALLED_SECONDS = 2.0
"""A backend whose loop was silent for longer than this is said to be stalled."""


def header_line(state: FleetState | None, look: Look, width: int) -> Line:
    """Which fleet this is, how much of it answers, what disagrees, and the minute.

    Seconds are left to the journal: a clock that ticks would be the only thing that an idle screen sends.
    """
    if state is None:
        return line(cell(" ringtop", "title"), cell("   connecting", "state.busy"))
    live = sum(1 for host in state.hosts.values() if host.state.value == "live")
    tail = [
        cell(f"{'live' if live else _silence(state)}   ", "header" if live else "header.warn"),
        cell(f"{clock(look.now_ms, look, seconds=False)} ", "header"),
    ]
    said = _said(state, live)
    room = width - sum(width_of(each.text) for each in (_NAME, *said, *tail)) - 3
    label = cut(safe_text(state.label or state.context), max(_LEAST_NAME, room), look.glyphs.ellipsis)
    pieces = [_NAME, cell(f" {label} ", "context"), *said]
    while tail and width_of(line_text((*pieces, *tail))) >= width:
        tail.pop()  # what is wrong stands before the time
    room = width - width_of(line_text((*pieces, *tail)))
    if (keeper := keeper_of(state)) and room > len(_KEPT_BY) + _LEAST_NAME:
        kept = f"{_KEPT_BY}{cut(safe_text(keeper.who), room - len(_KEPT_BY) - 1, look.glyphs.ellipsis)}"
        pieces.append(cell(kept, "header"))
        room -= width_of(kept)
    return (*pieces, cell(" " * max(0, room), "header"), *tail)


def _said(state: FleetState, live: int) -> list[Cell]:
    """How much of the fleet answers, what runs and what is wrong; behind the label, and never given up."""
    style = "header" if live == len(state.hosts) else "header.warn"
    pieces = [cell("   ", "header"), cell(f"{live}/{len(state.hosts)} hosts", style)]
    if state.read_only:
        pieces.append(cell("   READ-ONLY", "header.warn"))
    if running := sum(1 for each in state.operations.values() if each.state == "running"):
        pieces.append(cell(f"   {running} running", "header"))
    if drifts := open_drifts(state):
        pieces.append(cell(f"   {plural(drifts, 'drift')}", "header.alarm"))
    if state.catalog_words:
        pieces.append(cell("   catalog fault", "header.warn"))  # L has all of its words
    return pieces


def _silence(state: FleetState) -> str:
    """Why nothing is live: how many hosts are known not to answer, and whether the others are still being asked."""
    if not state.hosts:
        return "no hosts"
    waiting = sum(1 for host in state.hosts.values() if host.state.value == "connecting")
    silent = len(state.hosts) - waiting
    words = ["connecting"] if waiting else []
    return ", ".join([*words, f"unreachable {silent}/{len(state.hosts)}"] if silent else words)


def banner_words(state: FleetState | None, stamp: float, look: Look) -> str:
    """What is wrong with the console itself, or nothing. What is shown below is then no longer what is."""
    if state is not None and state.fault:
        fault = state.fault.strip().splitlines()
        cause = fault[-1] if fault else "it said nothing"
        return f"The backend ended: {cause}. What you see is old. Quit and start again; operations go on."
    if stamp and look.now - stamp > STALLED_SECONDS:
        return "The backend does not move. What you see may be old, and nothing can be sent."
    return ""


def rule_line(
    title: str, look: Look, width: int, *, note: str = "", focused: bool = False, note_style: str = "note"
) -> Line:
    """A rule that names the panel below it; the panel with the keys is marked by a sign and a colour."""
    style = "rule.focus" if focused else "rule"
    sign = look.glyphs.cursor if focused else look.glyphs.rule
    left = f"{look.glyphs.rule}{sign} "
    note = cut(note, max(8, width - width_of(left) - width_of(title) - 6), look.glyphs.ellipsis)
    right_part = f" {note} {look.glyphs.rule * 2}" if note else ""
    name = cut(title, max(1, width - width_of(left) - width_of(right_part) - 2), look.glyphs.ellipsis)
    fill = width - width_of(left) - width_of(name) - 1 - width_of(right_part)
    pieces = [cell(left, style), cell(name, "rule.title.focus" if focused else "rule.title")]
    pieces.append(cell(" " + look.glyphs.rule * max(0, fill), style))
    if note:
        pieces += [cell(f" {note} ", note_style), cell(look.glyphs.rule * 2, style)]
    return tuple(pieces)


def footer_line(state: FleetState | None, selection: Selection, width: int) -> Line:
    """The keys that work now, in their order, as many as fit. ``? help`` names the others."""
    possible = [each for each in ACTIONS if each.footer and refusal(each, state, selection) is None]
    room, kept = width - 1, []
    for action in sorted(possible, key=lambda each: (each.id not in _ALWAYS, each.footer)):
        cost = len(key_name(action.keys[0])) + len(action.title) + 3
        if cost <= room + 2:  # the last one needs no blanks behind it
            room -= cost
            kept.append(action)
    out = [cell(" ")]
    for action in sorted(kept, key=lambda each: each.footer):
        out += [cell(key_name(action.keys[0]), "key"), cell(f" {action.title}  ", "footer")]
    return tuple(out)


def message_lines(words: str, style: str, look: Look, width: int) -> list[Line]:
    """What was said last, in the place of the keys: whole, over the lines that it takes up to a few."""
    rows = broken(words, width - 2, most=MESSAGE_LINES, ellipsis=look.glyphs.ellipsis)
    return [line(cell(" "), cell(row, style)) for row in rows]
