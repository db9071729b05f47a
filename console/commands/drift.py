"""``ringtop drift``: every pair of values that should be equal and is not."""

from __future__ import annotations

import click

from console.commands.door import opened, require_a_host, silent_hosts, state_of
from console.commands.exits import DONE, PENDING, UNREACHABLE
from console.commands.output import look_for, note, print_json, print_lines, screen_width
from console.commands.settings import Settings, fleet_command


@click.command(short_help="Show what differs and should be equal.")
@fleet_command
def drift(settings: Settings) -> int:
    """Show what differs and should be equal: both values, what comes of it, what to do.

    Exits with 1 when something drifts, and with 4 when nothing does as far as is known but a host was not reached.
    """
    with opened(settings) as backend:
        state = state_of(backend)
    require_a_host(state)
    if settings.as_json:
        print_json(list(state.drifts))
    else:
        from console.render.drift import drift_lines

        print_lines(drift_lines(state, look_for(settings), screen_width()))
    silent = silent_hosts(state)
    for host, words in silent.items():
        note(f"ringtop: {host} is {words}; whether anything drifts there is not known")
    if state.drifts:
        return PENDING
    return UNREACHABLE if silent else DONE
