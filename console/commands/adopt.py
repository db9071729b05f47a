"""``ringtop adopt``: what is taken over and what is unwanted, as a document; and acting on exactly that document."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from console.commands.adopt_foreign import adopt_foreign
from console.commands.door import follow, note_silent, opened, require_a_host, silent_hosts, state_of
from console.commands.exits import DONE, PENDING, UNREACHABLE, refused
from console.commands.output import look_for, print_json, print_lines, say, screen_width, show_step
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import AdoptionDocument


@click.command(short_help="Show what is adopted or unwanted, and act on that.")
@click.option("--plan", "is_plan", is_flag=True, help="Make the document and stop nothing.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="With --plan: also save it here.")
@click.option("--apply", "file", type=click.Path(path_type=Path, dir_okay=False), help="Stop what this document names.")
@click.option("--foreign", "named", metavar="HOST:PID", help="Adopt this engine, which no agent started.")
@click.option("--as", "target", metavar="MODEL:PROFILE", help="With --foreign: what it is.")
@click.option("--why", default="", metavar="TEXT", help="With --apply or --foreign: the reason, for the journal.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask at.")
@click.option("--despite-silence", is_flag=True, help="With --apply: stop them although a host is silent.")
@fleet_command
def adopt(
    settings: Settings,
    output: Path | None,
    file: Path | None,
    named: str | None,
    target: str | None,
    why: str,
    *,
    is_plan: bool,
    yes: bool,
    despite_silence: bool,
) -> int:
    """Say who reports what, what is missing, unwanted, held or foreign, and why; or stop what such a document names.

    Or take over an engine that nobody here started, from then on shown, drained and stopped like any other.

    --plan exits with 1 when something could be stopped or a drift is open, else with 4 when a host was not reached.
    --apply is refused when anything that the document stands on has moved, and says what.
    """
    if sum((is_plan, file is not None, named is not None)) != 1:
        raise refused(
            "say one of: --plan; --apply FILE with a document that --plan -o FILE saved; "
            "--foreign HOST:PID --as MODEL:PROFILE"
        )
    if (named is None) != (target is None):
        raise refused("--foreign HOST:PID and --as MODEL:PROFILE go together: which process, and what it is")
    if named is not None and target is not None:
        return adopt_foreign(settings, named, target, why, yes=yes)
    if file is not None:
        if output is not None:
            raise refused("-o belongs to --plan: --apply reads its document and writes none")
        return _apply(settings, file, why, yes=yes, despite_silence=despite_silence)
    return _plan(settings, output)


def _plan(settings: Settings, output: Path | None) -> int:
    from backend.api import classify, write_adoption

    with opened(settings) as backend:
        require_a_host(state_of(backend))
        state = state_of(backend)
    look = look_for(settings)
    document = classify(state, look.now_ms)
    if output is not None:
        try:
            write_adoption(document, output)
        except OSError as error:
            raise refused(f"the document cannot be saved as {output}: {error.strerror}") from error
    if settings.as_json:
        print_json(document)
    else:
        _show(settings, document)
        if output is not None:
            say(f"Saved as {output}; stop what it names with: ringtop adopt --apply {output}")
    note_silent(silent_hosts(state), "what runs there is not known")
    if document.is_pending:
        return PENDING
    return UNREACHABLE if document.silent else DONE


def _show(settings: Settings, document: AdoptionDocument) -> None:
    from console.render.adoption import adoption_lines

    print_lines(adoption_lines(document, look_for(settings), screen_width()))


def _apply(settings: Settings, file: Path, why: str, *, yes: bool, despite_silence: bool) -> int:
    from backend.api import AdoptionUnreadable, StartAdopt, read_adoption

    try:
        document = read_adoption(file)
    except AdoptionUnreadable as error:
        raise refused(f"{error} Make one with: ringtop adopt --plan -o {file}") from error
    with opened(settings) as backend:
        _confirm(settings, document, yes=yes)
        request = StartAdopt(document=document, confirmed=document.digest, why=why, despite_silence=despite_silence)
        outcome = follow(backend, request, show=show_step(settings), look=lambda state: None)
    if settings.as_json:
        stopped = [each.id for each in document.stoppable] if outcome.operation is not None else []
        print_json({"operation": outcome.op_id, "stopped": stopped, "words": outcome.words})
    else:
        say(outcome.words)
    return DONE


def _confirm(settings: Settings, document: AdoptionDocument, *, yes: bool) -> None:
    if yes or not document.stoppable:
        return
    from console.render.values import plural

    count = plural(len(document.stoppable), "shard")
    if settings.as_json or not sys.stdin.isatty():
        raise refused(f"stopping {count} must be confirmed, and there is no terminal to ask at; add --yes")
    from console.render.adoption import stoppable_lines

    for each in document.stoppable:
        print_lines(stoppable_lines(each, look_for(settings), screen_width()))
    if not click.confirm(f"Stop {count}?", default=False, err=True):
        raise refused(f"{count} not stopped: it was not confirmed")
