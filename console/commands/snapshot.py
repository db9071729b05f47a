"""``ringtop snapshot``: the fleet on paper, for plans that ask nobody."""

from __future__ import annotations

from pathlib import Path

import click

from console.commands.door import ask, note_silent, opened, require_a_host, settle, silent_hosts, state_of
from console.commands.exits import DONE, UNREACHABLE
from console.commands.output import print_json, say
from console.commands.settings import Settings, fleet_command


@click.command(short_help="Write down what all hosts report.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it here.")
@fleet_command
def snapshot(settings: Settings, output: Path | None) -> int:
    """Write down what all hosts report, and the headers of the catalog's models, as JSON.

    Plan on it with: ringtop plan MODEL --fleet FILE. Exits with 4 when a host was not reached; it is in the snapshot
    as unreachable.
    """
    from backend.api import TakeSnapshot, few_of

    with opened(settings) as backend:
        require_a_host(state_of(backend))
        answer = settle(ask(backend, TakeSnapshot()))
        silent = silent_hosts(state_of(backend))
    taken = answer.value["snapshot"]
    hosts = [report["host"] for report in taken["fleet"]["reports"]]
    if output is None:
        print_json(taken)
    else:
        _write(taken, output)
        if settings.as_json:
            print_json({"file": str(output), "hosts": hosts})
        else:
            say(f"Saved {few_of(hosts)} as {output}; plan on it with: ringtop plan MODEL --fleet {output}")
    note_silent(silent, "the snapshot has them as unreachable")
    return UNREACHABLE if silent else DONE


def _write(taken: object, path: Path) -> None:
    import json

    from console.commands.exits import refused

    try:
        path.write_text(json.dumps(taken, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise refused(f"the snapshot cannot be saved as {path}: {error.strerror}") from error
