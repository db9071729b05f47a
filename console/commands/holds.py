"""``ringtop pause``, ``ringtop resume`` and ``ringtop down NAME``: what a person decided, which the keeper obeys."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from console.commands.door import Interrupted, ask, follow, opened, settle, state_of
from console.commands.exits import DONE, CommandFailed, refused
from console.commands.output import print_json, say, show_step
from console.commands.settings import Duration, Settings, fleet_command
from console.spans import LONGEST_SECONDS

if TYPE_CHECKING:
    from backend.api import Backend, ReplicaView

F = TypeVar("F", bound=Callable[..., Any])


class Moment(click.ParamType[float]):
    """A moment to come: ``18:00`` (today, or else tomorrow) or ``2031-05-01T18:00``, in this machine's time."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds from now; at most 30 days."""
        if isinstance(value, float):
            return value
        now = datetime.now().astimezone()
        try:
            moment = _moment(str(value).strip(), now)
        except ValueError:
            self.fail(f"{value!r} is no time; write 18:00 or 2031-05-01T18:00", param, ctx)
        left = (moment - now).total_seconds()
        if left <= 0:
            self.fail(f"{value!r} is over already; name a time to come", param, ctx)
        if left > LONGEST_SECONDS:
            words = "without one it lasts until somebody takes it back"
            self.fail(f"{value!r} is more than 30 days away; name a time within them: {words}", param, ctx)
        return left


def _moment(text: str, now: datetime) -> datetime:
    if "T" in text:
        named = datetime.fromisoformat(text)
        return named if named.tzinfo else named.replace(tzinfo=now.tzinfo)
    clock = datetime.strptime(text, "%H:%M")  # only hour and minute are taken from it
    today = now.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return today if today > now else today + timedelta(days=1)


def hold_options(command: F) -> F:
    """Give a command ``--for``, ``--until`` and ``--why``."""
    for option in (
        click.option("--why", default="", metavar="TEXT", help="The reason, for everybody who looks."),
        click.option("--until", type=Moment(), metavar="TIME", help="Until then: 18:00, or 2031-05-01T18:00."),
        click.option("--for", "lasts", type=Duration(), metavar="DURATION", help="For so long: 90s, 2m, 1h, 3d."),
    ):
        command = option(command)
    return command


def seconds_of(lasts: float | None, until: float | None) -> float | None:
    """How long a hold lasts; None until it is released. Raises when both ways were used to say it."""
    if lasts is not None and until is not None:
        raise refused("--for and --until exclude each other; give one of them")
    return lasts if lasts is not None else until


@click.command(short_help="Let the keeper leave a replica or model alone.")
@click.argument("name")
@hold_options
@fleet_command
def pause(settings: Settings, name: str, lasts: float | None, until: float | None, why: str) -> int:
    """Let the keeper do nothing about the replica or model NAME: it is neither loaded nor stopped.

    Kept at the agents, with who and until when. `ringtop resume NAME` ends it.
    """
    seconds = seconds_of(lasts, until)
    with opened(settings) as backend:
        words = set_hold(backend, name, "paused", seconds, why)
    return _done(settings, name, words)


@click.command(short_help="Release what holds a replica or model.")
@click.argument("name")
@fleet_command
def resume(settings: Settings, name: str) -> int:
    """Release what holds the replica or model NAME: down, paused, or a keeper's quarantine."""
    from backend.api import ResumeSubject

    with opened(settings) as backend:
        words = settle(ask(backend, ResumeSubject(subject=name))).words
    return _done(settings, name, words)


def take_down(settings: Settings, name: str, seconds: float | None, why: str, *, yes: bool) -> int:
    """Hold NAME down, then unload what is there of it, once a person has typed its name.

    A replica that cannot be unloaded keeps no other one from it; the first such one gives the exit code.
    """
    from console.render.holds import replicas_of

    with opened(settings) as backend:
        views = replicas_of(state_of(backend), name)
        if views and not yes:
            _confirm(settings, name, views)
        words = set_hold(backend, name, "down", seconds, why)
        unloaded = [_unload(backend, settings, view, why or f"{name} is held down") for view in views]
    failed = [line for line in unloaded if line["exit_code"] != DONE]
    if failed:
        lines = "; ".join(f"{line['replica']}: {line['words']}" for line in failed)
        raise CommandFailed(
            failed[0]["exit_code"], f"{words}, and not everything is unloaded. {lines}", unloaded=unloaded
        )
    if settings.as_json:
        print_json({"subject": name, "words": words, "unloaded": unloaded})
    else:
        say(words)
        for line in unloaded:
            say(f"{line['replica']}: {line['words']}")
    return DONE


def set_hold(backend: Backend, name: str, kind: Literal["down", "paused"], seconds: float | None, why: str) -> str:
    """Write the hold down at the agents; what stands now in words."""
    from backend.api import HoldSubject

    return settle(ask(backend, HoldSubject(subject=name, kind=kind, seconds=seconds, why=why))).words


def _unload(backend: Backend, settings: Settings, view: ReplicaView, why: str) -> dict[str, Any]:
    """How one unload ended; a failure is told with the others'."""
    from backend.api import StartUnload

    request = StartUnload(replica=view.id, why=why)
    try:
        outcome = follow(backend, request, show=show_step(settings), look=lambda state: None)
    except Interrupted:
        raise
    except CommandFailed as error:
        return {"replica": view.id, "operation": None, "words": error.words, "exit_code": error.exit_code}
    return {"replica": view.id, "operation": outcome.op_id, "words": outcome.words, "exit_code": DONE}


def _confirm(settings: Settings, name: str, views: Sequence[ReplicaView]) -> None:
    from backend.api import few_of
    from console.render.holds import stop_words

    if settings.as_json or not sys.stdin.isatty():
        names = few_of([view.id for view in views])
        raise refused(
            f"holding {name} down unloads {names}, which must be confirmed, and there is no terminal to ask at; "
            "add --yes"
        )
    typed = click.prompt(f"{stop_words(views)} Type {name} to hold it down", default="", show_default=False, err=True)
    if typed.strip() != name:
        raise refused(f"{name} is not held down: {typed.strip()!r} was typed")


def _done(settings: Settings, name: str, words: str) -> int:
    if settings.as_json:
        print_json({"subject": name, "words": words, "at_unix_ms": time.time_ns() // 1_000_000})
    else:
        say(words)
    return DONE
