"""``ringtop rehearse``: what the console would have shown of events, touching nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from console.commands.exits import DONE, REFUSED, refused
from console.commands.output import look_for, note, print_json, print_lines, print_table, say
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import Rehearsed, Shown


@click.command(short_help="Show what the console would have shown of recorded events.")
@click.argument("events", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--catalog",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The catalog that the console would have had.",
)
@fleet_command
def rehearse(settings: Settings, events: Path, catalog: Path) -> int:
    """Show what the console would have shown of EVENTS, recorded or written by hand. No host is asked.

    Every change of a host or replica with its time and reason, every drift, every journal line, and the fleet at the
    end. A line that cannot be used is named and left out, and the exit code is 2.
    """
    from backend.api import RehearsalRefused, rehearse_file

    shown: list[Shown] = []
    try:
        rehearsed = rehearse_file(events, catalog, shown.append if settings.as_json else _printer(settings))
    except RehearsalRefused as error:
        raise refused(str(error)) from error
    if settings.as_json:
        print_json(_facts(events, rehearsed, shown))
    else:
        _print_end(settings, rehearsed)
    for bad in rehearsed.bad:
        note(f"ringtop: {events}:{bad.number}: {bad.words}")
    if not rehearsed.end:
        note(f"ringtop: {events} has no end: whoever wrote it was cut off, or it was written by hand")
    return REFUSED if rehearsed.bad else DONE


def _printer(settings: Settings) -> Any:
    from console.render.rehearsal import shown_line

    look = look_for(settings)
    return lambda shown: print_lines([shown_line(shown, look)])


def _print_end(settings: Settings, rehearsed: Rehearsed) -> None:
    from dataclasses import replace

    from console.render.hosts import host_table
    from console.render.replicas import replica_table

    look = replace(look_for(settings), now=rehearsed.at, now_ms=rehearsed.unix_ms)
    say()
    say(f"At the end, after {rehearsed.events} events:")
    print_table(replica_table(rehearsed.state, look), look)
    say()
    print_table(host_table(rehearsed.state, look), look)


def _facts(events: Path, rehearsed: Rehearsed, shown: list[Shown]) -> dict[str, Any]:
    from console.commands.facts import host_facts, replica_facts

    state = rehearsed.state
    return {
        "file": str(events),
        "events": rehearsed.events,
        "end": rehearsed.end or None,
        "bad": [{"line": bad.number, "words": bad.words} for bad in rehearsed.bad],
        "shown": shown,
        "hosts": [host_facts(view) for view in state.hosts.values()],
        "replicas": [replica_facts(view) for view in state.replicas.values()],
        "drifts": list(state.drifts),
    }
