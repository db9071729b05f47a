"""``ringtop drift``: every pair of values that should be equal and is not, and what is known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from console.commands.door import ask, note_silent, opened, require_a_host, settle, silent_hosts, state_of
from console.commands.exits import DONE, PENDING, UNREACHABLE, the_one
from console.commands.output import look_for, note, print_json, print_lines, say, screen_width
from console.commands.settings import Duration, Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import Backend, FleetState

_FILE_SECONDS = 40.0


@click.group(invoke_without_command=True, short_help="Show what differs and should be equal.")
@click.option("--no-files", is_flag=True, help="Do not read model files again to compare them.")
@fleet_command
def drift(settings: Settings, *, no_files: bool) -> int:
    """Show what differs and should be equal: both values, since when, what comes of it, what to do.

    Exits with 1 when something drifts that nobody has acknowledged, and with 4 when nothing does as far as is known
    but a host was not reached.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        context.obj = settings
        return DONE
    with opened(settings) as backend:
        require_a_host(state_of(backend))
        if not no_files:
            _read_files(backend)
        state = state_of(backend)
    if settings.as_json:
        print_json(list(state.drifts))
    else:
        from console.render.drift import drift_lines, title_lines

        look = look_for(settings)
        lines = drift_lines(state, look, screen_width()) if state.drifts else title_lines(state, look, screen_width())
        print_lines(lines)
    silent = silent_hosts(state)
    note_silent(silent, "whether anything drifts there is not known")
    if any(each.is_open for each in state.drifts):
        return PENDING
    return UNREACHABLE if silent else DONE


def _read_files(backend: Backend) -> None:
    """Have the model files of what runs read again; what cannot be read is said and not compared."""
    from backend.api import CheckModels

    if not state_of(backend).replicas:
        return
    answer = ask(backend, CheckModels(), _FILE_SECONDS)
    if answer.exit_code != DONE:
        note(f"ringtop: {answer.words}; not compared with their load records")


@drift.command(short_help="Say that a drift is known, and for how long.")
@click.argument("drift_id", metavar="DRIFT")
@click.option("--note", "words", required=True, metavar="TEXT", help="Why it may stay as it is.")
@click.option("--for", "seconds", type=Duration(), required=True, help="For how long: 90s, 2m, 1h or 3d.")
@fleet_command
def ack(settings: Settings, drift_id: str, words: str, seconds: float) -> int:
    """Say that DRIFT is known, why and for how long; it is told apart from the open ones until then.

    The id may be cut short while it names one only. Another value opens it again.
    """
    from backend.api import AcknowledgeDrift

    with opened(settings) as backend:
        found = the_one("drift", drift_id, (each.id for each in _state_with(backend, drift_id).drifts))
        answer = settle(ask(backend, AcknowledgeDrift(drift=found, note=words, seconds=seconds)))
    return _told(settings, found, answer.words)


@drift.command(short_help="Take an acknowledgement back.")
@click.argument("drift_id", metavar="DRIFT")
@fleet_command
def reopen(settings: Settings, drift_id: str) -> int:
    """Take the acknowledgement of DRIFT back."""
    from backend.api import ReopenDrift

    with opened(settings) as backend:
        found = the_one("drift", drift_id, (each.id for each in _state_with(backend, drift_id).drifts))
        answer = settle(ask(backend, ReopenDrift(drift=found)))
    return _told(settings, found, answer.words)


def _state_with(backend: Backend, asked: str) -> FleetState:
    """The state, model files read again when this drift is none of those that show without it."""
    if not any(each.id.startswith(asked) for each in state_of(backend).drifts):
        _read_files(backend)
    return state_of(backend)


def _told(settings: Settings, drift_id: str, words: str) -> int:
    if settings.as_json:
        print_json({"drift": drift_id, "words": words})
    else:
        say(words)
    return DONE
