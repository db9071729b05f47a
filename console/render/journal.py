"""Journal lines of every host as cells, and the filter that all panels share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.api import JournalLine
from console.render.cells import Cell, Line, Look, cell, line, wrapped
from console.render.values import clock
from console.safe_text import safe_text, width_of

_LEVELS = {"info": ("  ", "note"), "warn": ("! ", "state.warn"), "alarm": ("!!", "state.alarm")}
Widths = tuple[int, int, int]
"""The widths of host, subject and kind."""
NARROWEST: Widths = (5, 9, 10)
WIDEST: Widths = (14, 20, 14)


def subject_of(entry: JournalLine) -> str:
    """What the record is about: a shard, a replica, or nothing."""
    return entry.record.node_id or entry.record.replica


def kind_of(entry: JournalLine) -> str:
    """The last word of the record's kind, which is what people read."""
    return entry.record.kind.rpartition(".")[2]


def widen(widths: Widths, entry: JournalLine) -> Widths:
    """Widths that fit this line too, within bounds. They only grow, so that lines stay where they are."""
    host = max(widths[0], min(WIDEST[0], width_of(entry.host)))
    subject = max(widths[1], min(WIDEST[1], width_of(subject_of(entry))))
    kind = max(widths[2], min(WIDEST[2], width_of(kind_of(entry))))
    return (host, subject, kind)


def journal_cells(entry: JournalLine, look: Look, widths: Widths = WIDEST) -> Line:
    """One record: time, level mark, host, subject, kind, words. The mark keeps the level readable without colour."""
    mark, style = _LEVELS.get(entry.record.level, ("? ", "state.warn"))
    columns = zip((entry.host, subject_of(entry), kind_of(entry)), ("name", "plain", style), widths, strict=True)
    return (
        cell(f" {clock(entry.record.at_unix_ms, look)}", "note"),
        cell(mark, style),
        *(piece for text, name, width in columns for piece in _column(text, name, width)),
        cell(entry.record.words, "plain" if style == "note" else style),
    )


def _column(text: str, style: str, width: int) -> Line:
    shown = safe_text(text, cells=width)
    return (Cell(shown, style), cell(" " * (width - width_of(shown) + 1)))


def journal_page(entries: Sequence[JournalLine], look: Look, width: int) -> list[Line]:
    """Records in full: every word of each, and who caused it."""
    out: list[Line] = []
    for entry in entries:
        mark, style = _LEVELS.get(entry.record.level, ("? ", "state.warn"))
        by = f"  by {entry.record.by}" if entry.record.by else ""
        out.append(
            line(
                cell(f" {clock(entry.record.at_unix_ms, look)}{mark}", style),
                cell(f"{entry.host} {subject_of(entry)} ", "name"),
                cell(f"{entry.record.kind}  record {entry.record.seq}{by}", "note"),
            )
        )
        out += wrapped(entry.record.words, width, 12, "plain" if style == "note" else style)
    return out


def journal_text(entry: JournalLine) -> str:
    """The words of a line, for filters."""
    return f"{entry.host} {subject_of(entry)} {entry.record.kind} {entry.record.words} {entry.record.level}"


def matcher(text: str) -> Callable[[str], bool] | None:
    """A test for lines that hold every word and none of those after ``!``; None when there is nothing to test."""
    words = [word for word in text.casefold().split() if word != "!"]
    if not words:
        return None
    wanted = [word for word in words if not word.startswith("!")]
    unwanted = [word[1:] for word in words if word.startswith("!")]

    def test(text: str) -> bool:
        folded = text.casefold()
        return all(word in folded for word in wanted) and not any(word in folded for word in unwanted)

    return test
