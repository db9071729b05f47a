"""``ringtop journal``: what happened on every host, and what happens now."""

from __future__ import annotations

import functools
import sys
import time
from typing import TYPE_CHECKING, Any, Literal

import click

from console.commands.door import (
    ANSWER_SECONDS,
    ask,
    host_of,
    note_silent,
    opened,
    require_a_host,
    settle,
    silent_hosts,
    state_of,
)
from console.commands.exits import DONE, FAILED, INTERRUPTED, UNREACHABLE, refused
from console.commands.output import look_for, note, print_json, print_json_line, print_lines, say
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backend.api import Backend, JournalLine
    from console.render.journal import Widths

_BATCH = 1000
_PAST_SECONDS = 5.0
_VERIFY_SECONDS = 900.0
_PAUSE = 0.05


@click.group(invoke_without_command=True, short_help="Print what happened on every host; verify, export, fork.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens; with --json one object per line.")
@click.option(
    "--tail", "-n", type=click.IntRange(0), default=100, show_default=True, help="How many records to begin with."
)
@fleet_command
def journal(settings: Settings, tail: int, *, follow: bool) -> int:
    """Print the newest journal records of all hosts in the order of their time, or look after the journals."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        ctx.obj = settings
        return DONE
    with opened(settings) as backend:
        require_a_host(state_of(backend))
        lines = _up_to_now(backend)
        state = state_of(backend)
        newest = sorted(lines, key=lambda line: (line.record.at_unix_ms, line.index))[-tail:] if tail else []
        silent = silent_hosts(state)
        note_silent(silent, "the journal is missing here")
        if follow:
            columns = _print_each(settings, newest)
            return _follow(backend, settings, lines[-1].index if lines else 0, columns)
    if settings.as_json:
        print_json([_facts(line) for line in newest])
    else:
        _print_each(settings, newest)
    return UNREACHABLE if silent else DONE


@journal.command(short_help="Read every byte of the journals and check it.")
@click.argument("hosts", nargs=-1)
@fleet_command
def verify(settings: Settings, hosts: tuple[str, ...]) -> int:
    """Read every byte of the journal of each HOST (all without one) and check it. Exit code 5: one is damaged."""
    from console.render.values import duration, plural, size

    found, code = _ask_each(settings, hosts, "verify", _VERIFY_SECONDS)
    if any(not facts.get("is_sound", True) for facts in found.values()):
        code = FAILED
    if settings.as_json:
        print_json(found)
        return code
    for host, facts in found.items():
        if "error" in facts:
            say(f"{host}: {facts['error']}")
        elif facts["is_sound"]:
            say(
                f"{host}: sound; {facts['records']} records {facts['oldest_seq']} to {facts['head_seq']} in "
                f"{plural(facts['segments'], 'segment')} ({facts['sealed']} sealed), {size(facts['bytes'])}, "
                f"{duration(facts['seconds'])}"
            )
        else:
            say(f"{host}: {facts['words']}")
    return code


@journal.command(short_help="Sizes, records and health of the journals.")
@click.argument("hosts", nargs=-1)
@fleet_command
def stats(settings: Settings, hosts: tuple[str, ...]) -> int:
    """Say what there is of the journal of each HOST (all without one)."""
    from console.render.values import duration, plural, size

    found, code = _ask_each(settings, hosts, "stats", ANSWER_SECONDS)
    if settings.as_json:
        print_json(found)
        return code
    for host, facts in found.items():
        if "error" in facts:
            say(f"{host}: {facts['error']}")
            continue
        sealed = sum(segment["sealed"] for segment in facts["segments"])
        say(
            f"{host}: records {facts['oldest_seq']} to {facts['head_seq']}, journal_epoch {facts['journal_epoch']}, "
            f"{plural(len(facts['segments']), 'segment')} ({sealed} sealed), {size(facts['bytes'])}; last sync "
            f"{duration(facts['last_sync_seconds'])}; health: {facts['health']}"
        )
    return code


@journal.command(short_help="Every record of one host, one JSON object a line.")
@click.argument("host")
@click.option("--after", type=click.IntRange(0, 2**64 - 1), default=0, metavar="SEQ", help="Begin behind this record.")
@fleet_command
def export(settings: Settings, host: str, after: int) -> int:
    """Print every record that HOST keeps, whole, as one JSON object per line."""
    from backend.api import AskJournal

    with opened(settings) as backend:
        host_of(backend, host)
        while True:
            request = AskJournal(host=host, question="export", after=after)
            value = settle(ask(backend, request)).value
            for record in value["records"]:
                print_json_line({"host": host, **record})
            if not value["records"] or value["next"] >= value["head_seq"]:
                return DONE
            after = int(value["next"])


@journal.command(short_help="Begin a damaged journal anew.")
@click.argument("host")
@click.option("--accept-loss", is_flag=True, help="Give up what cannot be read of the journal. Needed.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask at.")
@fleet_command
def fork(settings: Settings, host: str, *, accept_loss: bool, yes: bool) -> int:
    """Begin a new journal_epoch at HOST, whose journal is damaged. The old files are kept there; engines run on."""
    from backend.api import ForkJournalRequest

    if not accept_loss:
        raise refused(
            f"a fork gives up what cannot be read of the journal of {host}. See what that is with ringtop journal "
            f"verify {host}; when it is meant, say --accept-loss."
        )
    with opened(settings) as backend:
        host_of(backend, host)
        if not yes:
            _confirm(settings, host)
        answer = settle(ask(backend, ForkJournalRequest(host=host, accept_loss=True)))
    if settings.as_json:
        print_json({"host": host, "words": answer.words})
    else:
        say(f"{host}: {answer.words}")
    return DONE


def _confirm(settings: Settings, host: str) -> None:
    if settings.as_json or not sys.stdin.isatty():
        raise refused("a fork is confirmed at a terminal; here, say --yes")
    say(f"What cannot be read of the journal of {host} is given up for good. Engines run on.", err=True)
    if click.prompt(f"Type {host} to go on", err=True, default="", show_default=False).strip() != host:
        raise refused("not confirmed; nothing was changed")


def _ask_each(
    settings: Settings, hosts: tuple[str, ...], question: Literal["verify", "stats"], seconds: float
) -> tuple[dict[str, dict[str, Any]], int]:
    """What each host says of its journal, and the exit code of the worst that was not said."""
    from backend.api import AskJournal

    found: dict[str, dict[str, Any]] = {}
    code = DONE
    with opened(settings) as backend:
        for host in hosts:
            host_of(backend, host)
        for host in hosts or state_of(backend).hosts:
            answer = ask(backend, AskJournal(host=host, question=question), seconds)
            if answer.exit_code == DONE:
                found[host] = answer.value
            else:
                found[host] = {"error": answer.words, "exit_code": answer.exit_code}
                code = max(code, answer.exit_code)
    return found, code


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


def _follow(backend: Backend, settings: Settings, after: int, columns: Widths) -> int:
    try:
        while True:
            state_of(backend)
            batch = backend.journal(after, _BATCH)
            columns = _print_each(settings, batch, columns)
            if batch:
                after = batch[-1].index
            else:
                time.sleep(_PAUSE)
    except KeyboardInterrupt:
        return INTERRUPTED


def _print_each(settings: Settings, lines: Sequence[JournalLine], columns: Widths | None = None) -> Widths:
    """Print records one a line; returns the widths of their columns, which only grow, for those that follow."""
    from console.render.journal import NARROWEST, journal_cells, widen

    columns = functools.reduce(widen, lines, columns or NARROWEST)
    if settings.as_json:
        for line in lines:
            print_json_line(_facts(line))
    else:
        look = look_for(settings)
        print_lines(journal_cells(line, look, columns) for line in lines)
    return columns


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
