"""``ringtop ledger``: the operator's own record of operations, and its restoration from the agents' load records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from console.commands.door import ask, chosen_context, opened
from console.commands.exits import DONE, UNREACHABLE, CommandFailed, the_one
from console.commands.output import look_for, note, print_json, print_lines, print_table, screen_width
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import Answer, OperationView, OpId

REBUILD = "rebuild"


@click.command(short_help="Read the record of operations, or rebuild a lost one.")
@click.argument("what", metavar="[OPERATION|rebuild]", default="")
@fleet_command
def ledger(settings: Settings, what: str) -> int:
    """Read the record of all operations of this home, or all of OPERATION; no host is asked.

    The id may be cut short while it names one only. With the word rebuild, every load that an agent keeps a record of
    and this ledger lacks is written anew: ended where the fleet says how it ended, else without an owner.
    """
    if what == REBUILD:
        return _rebuild(settings)
    from backend.api import read_ledger

    operations = read_ledger(chosen_context(settings))
    if what:
        return _show(settings, operations, what)
    if settings.as_json:
        from console.commands.facts import operation_facts

        print_json([operation_facts(view) for view in operations.values()])
        return DONE
    from console.render.operations import ledger_table, needing_words

    look = look_for(settings)
    print_table(ledger_table(operations.values(), look), look)
    for words in needing_words(operations.values()):
        note(f"ringtop: {words}")
    return DONE


def _show(settings: Settings, operations: dict[OpId, OperationView], asked: str) -> int:
    from backend.api import OpId

    view = operations[OpId(the_one("operation", asked, operations))]
    if settings.as_json:
        from console.commands.facts import operation_facts

        print_json(operation_facts(view))
    else:
        from console.render.operations import ledger_lines

        print_lines(ledger_lines(view, look_for(settings), screen_width()))
    return DONE


def _rebuild(settings: Settings) -> int:
    from backend.api import RebuildLedger

    with opened(settings) as backend:
        answer = ask(backend, RebuildLedger())
    if answer.exit_code not in (DONE, UNREACHABLE):
        raise CommandFailed(answer.exit_code, answer.words)
    if settings.as_json:
        print_json(answer.value)
    else:
        _say_rebuilt(answer)
    return answer.exit_code


def _say_rebuilt(answer: Answer) -> None:
    from console.commands.output import say

    for entry in answer.value.get("rebuilt", []):
        say(f"{entry['op_id']}  {entry['subject']}  {entry['state']}  {entry['words']}")
    say(answer.words)
