"""``ringtop op``: the operations of this home, from their ledger files."""

from __future__ import annotations

import click

from console.commands.door import opened, state_of
from console.commands.exits import DONE, no_such
from console.commands.output import look_for, print_json, print_lines, screen_width
from console.commands.settings import Settings, fleet_command


@click.group()
def op() -> None:
    """Look at operations: loads, drains and unloads."""


@op.command()
@click.argument("operation")
@fleet_command
def show(settings: Settings, operation: str) -> int:
    """Show OPERATION with every step; the id may be cut short while it names one only."""
    with opened(settings) as backend:
        state = state_of(backend)
    found = [view for op_id, view in state.operations.items() if op_id.startswith(operation)]
    exact = [view for view in found if view.id == operation] or found
    if len(exact) != 1:
        raise no_such("operation", operation, (view.id for view in found or state.operations.values()))
    view = exact[0]
    if settings.as_json:
        from console.commands.facts import operation_facts

        print_json(operation_facts(view))
    else:
        from console.render.operations import operation_lines

        print_lines(operation_lines(state, view.id, look_for(settings), screen_width()))
    return DONE
