"""``ringtop unload``: stop a replica now."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from console.commands.door import follow, opened, replica_of
from console.commands.exits import DONE, refused
from console.commands.output import print_json, say, show_step
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import ReplicaView


@click.command(short_help="Stop a replica now.")
@click.argument("replica")
@click.option("--why", default="", metavar="TEXT", help="The reason, for the journal.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask at.")
@fleet_command
def unload(settings: Settings, replica: str, why: str, *, yes: bool) -> int:
    """Stop REPLICA now, whatever it serves; one that has ended is dismissed. Its name is typed to confirm."""
    from backend.api import StartUnload

    with opened(settings) as backend:
        view = replica_of(backend, replica)
        if not yes:
            _confirm(settings, view)
        request = StartUnload(replica=view.id, why=why)
        outcome = follow(backend, request, show=show_step(settings), look=lambda state: None)
    if settings.as_json:
        print_json({"replica": replica, "operation": outcome.op_id, "words": outcome.words})
    else:
        say(outcome.words or f"{replica} is unloaded.")
    return DONE


def _confirm(settings: Settings, view: ReplicaView) -> None:
    from console.render.drain import cuts_words

    if settings.as_json or not sys.stdin.isatty():
        raise refused(f"unloading {view.id} must be confirmed, and there is no terminal to ask at; add --yes")
    asked = f"This cuts {cuts_words(view)}. Type {view.id} to unload it"
    typed = click.prompt(asked, default="", show_default=False, err=True)
    if typed.strip() != view.id:
        raise refused(f"{view.id} is not unloaded: {typed.strip()!r} was typed")
