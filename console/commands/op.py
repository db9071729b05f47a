"""``ringtop op``: the operations of this home, from their ledger files."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from console.commands.door import ask, chosen_context, opened, settle, state_of
from console.commands.exits import DONE, REFUSED, CommandFailed, no_such
from console.commands.output import look_for, print_json, print_lines, say, screen_width
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import FleetState, OperationView


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
    view = _find(state, operation)
    if settings.as_json:
        from console.commands.facts import operation_facts

        print_json(operation_facts(view))
    else:
        from console.render.operations import operation_lines

        print_lines(operation_lines(state, view.id, look_for(settings), screen_width()))
    return DONE


@op.command()
@click.argument("operation")
@fleet_command
def resume(settings: Settings, operation: str) -> int:
    """Give OPERATION, whose process is gone, a new one; it goes on or rolls back from where its ledger ends."""
    from backend.api import ResumeOperation

    with opened(settings) as backend:
        view = _find(state_of(backend), operation)
        answer = settle(ask(backend, ResumeOperation(operation=view.id)))
    if settings.as_json:
        print_json({"operation": view.id, "words": answer.words})
    else:
        say(f"{view.id} runs again; see it with: ringtop op show {view.id}")
    return DONE


@op.command("run", hidden=True)
@click.argument("operation")
@fleet_command
def run_here(settings: Settings, operation: str) -> int:
    """Run OPERATION in this process, as its owner."""
    from backend.api import LedgerError, OpId, run_operation

    try:
        return run_operation(chosen_context(settings), OpId(operation))
    except LedgerError as error:
        raise CommandFailed(REFUSED, str(error)) from error


def _find(state: FleetState, operation: str) -> OperationView:
    """The one operation whose id this is, or begins with this."""
    found = [view for op_id, view in state.operations.items() if op_id.startswith(operation)]
    exact = [view for view in found if view.id == operation] or found
    if len(exact) != 1:
        raise no_such("operation", operation, (view.id for view in found or state.operations.values()))
    return exact[0]
