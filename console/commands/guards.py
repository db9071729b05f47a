"""``ringtop guards``: everything that is looked at before and while a load, and what each prevents."""

from __future__ import annotations

import click

from console.commands.exits import DONE
from console.commands.output import print_json, print_lines, screen_width
from console.commands.settings import Settings, fleet_command


@click.command(short_help="List what is checked around a load.")
@fleet_command
def guards(settings: Settings) -> int:
    """List every guard: what it prevents, the earliest step at which it can know, and what to do.

    Needs no fleet.
    """
    from backend.api import guards_on_paper

    found = guards_on_paper()
    if settings.as_json:
        print_json(found)
    else:
        from console.render.plan import guard_lines

        print_lines(guard_lines(found, screen_width()))
    return DONE
