"""``ringtop record``: what the hosts say, written down for ``ringtop rehearse``."""

from __future__ import annotations

from pathlib import Path

import click

from console.commands.door import chosen_context, note_silent
from console.commands.exits import DONE, UNREACHABLE, refused
from console.commands.output import print_json, say
from console.commands.settings import Duration, Settings, fleet_command


@click.command(short_help="Write down what all hosts say, to be rehearsed.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Write it here.")
@click.option("--for", "seconds", type=Duration(), metavar="DURATION", help="Stop by itself after 30s, 5m or 1h.")
@fleet_command
def record(settings: Settings, output: Path, seconds: float | None) -> int:
    """Write down what all hosts say and when they fall silent, until Ctrl-C or for a time. Nothing is changed.

    The file appears whole when it is closed; until then it is beside it, as OUTPUT.part. See what the console would
    have shown of it with: ringtop rehearse OUTPUT --catalog FILE. Exits with 4 when a host was never heard.
    """
    from backend.api import RecordRefused, by_number, duration, few_of, record_fleet, who_asks

    context = chosen_context(settings)
    if not settings.as_json:
        until = "Ctrl-C ends it" if seconds is None else f"it ends after {duration(seconds)}, or by Ctrl-C"
        say(f"Recording {few_of(sorted(context.hosts, key=by_number))} to {output}; {until}.")
    try:
        recorded = record_fleet(context, output, seconds=seconds, who=who_asks())
    except RecordRefused as error:
        raise refused(str(error)) from error
    if settings.as_json:
        print_json(recorded)
    else:
        heard = few_of([f"{count} frames of {host}" for host, count in recorded.frames.items()])
        say(f"Saved {recorded.lines} lines as {output}: {heard}. {recorded.end[0].upper()}{recorded.end[1:]}.")
        say(f"Rehearse it with: ringtop rehearse {output} --catalog {context.catalog_path}")
    note_silent(recorded.never_heard, "nothing was ever heard")
    return UNREACHABLE if recorded.never_heard else DONE
