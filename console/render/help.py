"""The help, written from the registry of actions and from nothing else."""

from __future__ import annotations

from backend.api import FleetState
from console.actions import ACTIONS, Action, Selection, key_name, refusal
from console.render.cells import Line, cell, line, wrapped

_GROUPS = (
    ("Changes to the fleet. Each opens a dialog first, and nothing happens on the first key.", ("write", "danger")),
    ("Looking", ("read",)),
)


def keys_of(action: Action) -> str:
    """Its keys, as they are read on a keyboard."""
    return " ".join(key_name(key) for key in action.keys)


def help_lines(state: FleetState | None, selection: Selection, width: int) -> list[Line]:
    """Every action with its keys, what it does, its one-shot command, and why it is not possible now."""
    out: list[Line] = []
    for title, dangers in _GROUPS:
        out += wrapped(title, width, 1, "head")
        for action in (each for each in ACTIONS if each.danger in dangers):
            why = refusal(action, state, selection)
            style = "key" if why is None else "quiet"
            out.append(
                line(
                    cell(f"  {keys_of(action):<14}", style),
                    cell(f":{action.id:<15}", "name" if why is None else "quiet"),
                    cell(f"ringtop {action.twin}" if action.twin else "", "note"),
                )
            )
            out += wrapped(action.help, width, 17)
            if why is not None:
                out += wrapped(why, width, 17, "note")
        out.append(line(""))
    out += wrapped(
        "= agrees with its twin. ? nobody knows. A value with an age was observed that long ago. "
        "! and !! mark warnings and alarms in the journal.",
        width,
        1,
        "note",
    )
    out += wrapped(
        "The mouse is left to your terminal, so that text can be selected; --mouse takes it.", width, 1, "note"
    )
    return out
