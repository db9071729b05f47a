"""``ringtop op``: the operations of this home, from their ledger files."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from console.commands.door import ask, chosen_context, opened, settle, state_of
from console.commands.exits import DONE, REFUSED, CommandFailed, refused, the_one
from console.commands.output import look_for, print_json, print_lines, say, screen_width
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import FleetState, OperationView


@click.group(short_help="Look at one operation; take up one without an owner.")
def op() -> None:
    """Look at operations: loads, drains and unloads. One whose process is gone is resumed, rolled back or settled."""


@op.command(short_help="One operation with every step.")
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


@op.command(short_help="Go on with an operation whose process is gone.")
@click.argument("operation")
@click.option("--move-journal", is_flag=True, help="Approve that a recovery moves a p4 agent's journal aside.")
@click.option("--why", default="", metavar="TEXT", help="With --move-journal: the reason, which is kept.")
@fleet_command
def resume(settings: Settings, operation: str, why: str, *, move_journal: bool) -> int:
    """Give OPERATION, whose process is gone, a new one; it goes on or rolls back from where its ledger ends."""
    from backend.api import ResumeOperation

    with opened(settings) as backend:
        view = _find(state_of(backend), operation)
        answer = settle(ask(backend, ResumeOperation(operation=view.id, move_journal=move_journal, why=why)))
    if settings.as_json:
        print_json({"operation": view.id, "words": answer.words})
    else:
        say(f"{view.id} runs again; see it with: ringtop op show {view.id}")
    return DONE


@op.command(short_help="Take back an operation whose process is gone.")
@click.argument("operation")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask at.")
@fleet_command
def rollback(settings: Settings, operation: str, *, yes: bool) -> int:
    """Take OPERATION, whose process is gone, back: stop every rank that a load started, cancel a drain."""
    from backend.api import RollBackOperation

    with opened(settings) as backend:
        state = state_of(backend)
        view = _find(state, operation)
        if not yes:
            from console.render.operations import roll_back_words

            _confirm(settings, view, roll_back_words(view, state))
        answer = settle(ask(backend, RollBackOperation(operation=view.id)))
    if settings.as_json:
        print_json({"operation": view.id, "words": answer.words})
    else:
        say(f"{view.id} is being taken back; see it with: ringtop op show {view.id}")
    return DONE


@op.command("settle", short_help="Close an operation whose process is gone.")
@click.argument("operation")
@click.option("--despite-silence", is_flag=True, help="Close it as unknown although a host of it does not answer.")
@fleet_command
def settle_here(settings: Settings, operation: str, *, despite_silence: bool) -> int:
    """Close OPERATION, whose process is gone, by what the fleet says, and print that. Nothing is sent or stopped.

    Refused while one of its ranks moves, and while one of its hosts does not answer.
    """
    from backend.api import SettleOperation

    with opened(settings) as backend:
        view = _find(state_of(backend), operation)
        answer = settle(ask(backend, SettleOperation(operation=view.id, despite_silence=despite_silence)))
    if settings.as_json:
        print_json({"operation": view.id, "words": answer.words, **answer.value})
    else:
        for words in answer.value.get("lines", []):
            say(words)
        say(f"{view.id} is settled: {answer.words}")
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


def _confirm(settings: Settings, view: OperationView, words: str) -> None:
    if settings.as_json or not sys.stdin.isatty():
        raise refused(f"rolling {view.id} back must be confirmed, and there is no terminal to ask at; add --yes")
    if not click.confirm(f"{words} Go on?", default=False, err=True):
        raise refused(f"{view.id} stays as it is")


def _find(state: FleetState, operation: str) -> OperationView:
    """The one operation whose id this is, or begins with this."""
    from backend.api import OpId

    return state.operations[OpId(the_one("operation", operation, state.operations))]
