"""One style per state word, everywhere. A word of a newer agent is shown as ``unknown(word)``."""

from __future__ import annotations

from console.render.cells import Cell, cell

_STYLES = {
    "ready": "state.ready",
    "live": "state.ready",
    "succeeded": "state.ready",
    "placed": "state.quiet",
    "stopped": "state.quiet",
    "reserved": "state.busy",
    "spawning": "state.busy",
    "connecting": "state.busy",
    "loading": "state.busy",
    "warming": "state.busy",
    "running": "state.busy",
    "draining": "state.busy",
    "stopping": "state.busy",
    "drift": "state.warn",
    "unreachable": "state.warn",
    "recovering": "state.warn",
    "unresponsive": "state.warn",
    "rolling back": "state.warn",
    "ownerless": "state.warn",
    "cordoned": "state.warn",
    "unknown": "state.warn",
    "failed": "state.alarm",
    "lost": "state.alarm",
    "refused": "state.alarm",
    "damaged journal": "state.alarm",
    "damaged": "state.alarm",
    "quarantined": "state.alarm",
}
ENDED = frozenset({"stopped", "failed"})
"""Words after which no process is left, so that nothing is measured any more: ``-`` and not ``?``."""


def style_of(word: str) -> str:
    """The style of a state word; a word that is not known here is a warning."""
    return _STYLES.get(word, "state.warn")


def state_cell(word: str, suffix: str = "") -> Cell:
    """The state as a word in its colour."""
    shown = word if word in _STYLES else f"unknown({word})"
    return cell(f"{shown}{suffix}", style_of(word))
