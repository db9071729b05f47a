"""``ringtop up`` and ``ringtop down``: a whole fleet on this machine, with a tiny model that really answers.

``ringtop down NAME`` is another thing: it holds a replica or model of the context down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from console.commands.exits import DONE, refused
from console.commands.holds import hold_options, seconds_of, take_down
from console.commands.output import print_json, say
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import LocalFleet


@click.command(short_help="Start a fleet on this machine and open the console.")
@click.option("--once", is_flag=True, help="Load, ask, show the ring, stop everything again; no console.")
@fleet_command
def up(settings: Settings, *, once: bool) -> int:
    """Start two agents on this machine, load the tiny model over both, and open the console.

    Without a terminal, or with --once: load, let it answer, show the ring, and stop all of it again. Quitting the
    console leaves the fleet running; `ringtop down` stops it.
    """
    from console.commands.local_fleet import load_tiny, local_settings, run_once, start_fleet
    from console.commands.screen import is_terminal, open_console, require_screen

    fleet = _fleet(settings)
    if once or settings.as_json or not is_terminal():
        return run_once(settings, fleet)
    require_screen()
    try:
        start_fleet(fleet)
        load_tiny(settings, fleet)
        return open_console(local_settings(settings, fleet))
    finally:
        if fleet.is_up:
            say("The local fleet goes on; stop it with: ringtop down")


@click.command(short_help="Stop the local fleet; hold a replica or model down.")
@click.argument("name", required=False)
@hold_options
@click.option("--yes", is_flag=True, help="With NAME: do not ask; needed where there is no terminal to ask at.")
@fleet_command
def down(settings: Settings, name: str | None, lasts: float | None, until: float | None, why: str, *, yes: bool) -> int:
    """Stop what `ringtop up` left running: unload its replicas, then end both agents and their caretaker.

    With NAME, a replica or a model of the context: unload it and hold it down, so that no keeper loads it until the
    time is over or `ringtop resume NAME`. What it serves is cut; its name is typed to confirm.
    """
    seconds = seconds_of(lasts, until)
    if name is not None:
        return take_down(settings, name, seconds, why, yes=yes)
    if seconds is not None or why or yes:
        raise refused("--for, --until, --why and --yes belong to a replica or model; name one, or leave them out")
    return _stop_local(settings)


def _stop_local(settings: Settings) -> int:
    from console.commands.local_fleet import stop_everything

    fleet = _fleet(settings)
    if not fleet.is_left:
        if settings.as_json:
            print_json({"stopped": []})
        else:
            say("nothing to stop")
        return DONE
    stopped = stop_everything(settings, fleet)
    if settings.as_json:
        print_json({"stopped": stopped})
    for line in stopped if not settings.as_json else ():
        say(f"stopped {line}")
    return DONE


def _fleet(settings: Settings) -> LocalFleet:
    from backend.api import LocalFleet, home_folder

    return LocalFleet(settings.home or home_folder())
