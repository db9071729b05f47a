"""``ringtop journal``: what happened on every host, and what happens now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from console.commands.door import opened, require_a_host, silent_hosts, state_of
from console.commands.exits import DONE, INTERRUPTED, UNREACHABLE
from console.commands.output import look_for, note, print_json, print_json_line, print_lines
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backend.api import Backend, JournalLine

_BATCH = 1000
_PAST_SECONDS = 5.0
_PAUSE = 0.05


@click.command(short_help="Print what happened on every host.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens; with --json one object per line.")
@click.option(
    "--tail", "-n", type=click.IntRange(0), default=100, show_default=True, help="How many records to begin with."
)
@fleet_command
def journal(settings: Settings, tail: int, *, follow: bool) -> int:
    """Print the newest journal records of all hosts in the order of their time."""
    with opened(settings) as backend:
        require_a_host(state_of(backend))
        lines = _up_to_now(backend)
        state = state_of(backend)
        newest = sorted(lines, key=lambda line: (line.record.at_unix_ms, line.index))[-tail:] if tail else []
        silent = silent_hosts(state)
        for host, words in silent.items():
            note(f"ringtop: {host} is {words}; its journal is missing here")
        if not follow:
            _print(settings, newest)
            return UNREACHABLE if silent else DONE
        _print_each(settings, newest)
        return _follow(backend, settings, lines[-1].index if lines else 0)


def _up_to_now(backend: Backend) -> list[JournalLine]:
    """What the hosts send of their past, once each live one has sent its newest record or takes too long."""
    deadline = time.monotonic() + _PAST_SECONDS
    lines: list[JournalLine] = []
    while True:
        while batch := backend.journal(lines[-1].index if lines else 0, _BATCH):
            lines += batch
        newest: dict[str, int] = {}
        for line in lines:
            newest[line.host] = max(newest.get(line.host, 0), line.record.seq)
        live = [view for view in state_of(backend).hosts.values() if view.state.value == "live"]
        late = [view.host for view in live if newest.get(view.host, 0) < view.head_seq]
        if not late or time.monotonic() > deadline:
            for host in late:
                note(f"ringtop: {host} has not sent its newest records within {_PAST_SECONDS:.0f} s")
            return lines
        time.sleep(_PAUSE)


def _follow(backend: Backend, settings: Settings, after: int) -> int:
    try:
        while True:
            state_of(backend)
            batch = backend.journal(after, _BATCH)
            _print_each(settings, batch)
            if batch:
                after = batch[-1].index
            else:
                time.sleep(_PAUSE)
    except KeyboardInterrupt:
        return INTERRUPTED


def _print(settings: Settings, lines: Sequence[JournalLine]) -> None:
    if settings.as_json:
        print_json([_facts(line) for line in lines])
    else:
        _print_each(settings, lines)


def _print_each(settings: Settings, lines: Sequence[JournalLine]) -> None:
    if settings.as_json:
        for line in lines:
            print_json_line(_facts(line))
        return
    from console.render.journal import journal_cells

    look = look_for(settings)
    print_lines(journal_cells(line, look) for line in lines)


def _facts(line: JournalLine) -> dict[str, Any]:
    """One record without its after-image, which is for programs that fold, not for those that read."""
    record = line.record
    return {
        "host": line.host,
        "seq": record.seq,
        "at_unix_ms": record.at_unix_ms,
        "level": record.level,
        "kind": record.kind,
        "words": record.words,
        "by": record.by or None,
        "replica": record.replica or None,
        "node_id": record.node_id or None,
    }
