"""``ringtop drain``: empty a replica with a deadline, or change the drain that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from console.commands.door import Interrupted, Outcome, ask, follow, opened, replica_of, settle
from console.commands.drain_host import DrainOrder, drain_host
from console.commands.exits import DONE, INTERRUPTED, CommandFailed, refused
from console.commands.output import look_for, print_json, say, show_step
from console.commands.settings import Duration, Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import AnyRequest, Backend, FleetState


@click.command(short_help="Empty a replica with a deadline, then stop it.")
@click.argument("replica", required=False)
@click.option("--host", metavar="HOST", help="Cordon this host, then drain every replica with a rank on it.")
@click.option("--deadline", type=Duration(), default="2m", show_default=True, help="How long it may take: 90s, 2m, 1h.")
@click.option(
    "--at-deadline",
    type=click.Choice(["stop", "give-up"]),
    default="give-up",
    show_default=True,
    help="What to do when the time is over and requests are still in flight.",
)
@click.option("--admission-closed-by", default="", metavar="WHO", help="Who or what sends no new requests any more.")
@click.option("--why", default="", metavar="TEXT", help="The reason, for the journal.")
@click.option("--extend", type=Duration(), metavar="DURATION", help="Give the drain that runs this much more time.")
@click.option("--force", is_flag=True, help="Let the drain that runs stop the replica now.")
@click.option("--cancel", is_flag=True, help="End the drain that runs; the replica serves on.")
@click.option("--yes", is_flag=True, help="With --host: do not ask.")
@fleet_command
def drain(
    settings: Settings,
    replica: str | None,
    host: str | None,
    deadline: float,
    at_deadline: Literal["stop", "give-up"],
    admission_closed_by: str,
    why: str,
    extend: float | None,
    *,
    force: bool,
    cancel: bool,
    yes: bool,
) -> int:
    """Empty REPLICA, then stop it. Ctrl-C ends the watching and never the drain: --cancel does that.

    With --host instead, HOST takes no new shards any more, and every replica with a rank there is drained, its ranks on
    other hosts too. The host stays cordoned: `ringtop uncordon HOST`.
    """
    from backend.api import StartDrainRequest

    if (replica is None) == (host is None):
        raise refused("drain takes one REPLICA, or --host HOST")
    if host is not None:
        if extend is not None or force or cancel:
            raise refused("--extend, --force and --cancel change the drain of one replica; name it instead of --host")
        order = DrainOrder(deadline, at_deadline, admission_closed_by, why)
        return drain_host(settings, host, order, yes=yes)
    assert replica is not None
    if sum((extend is not None, force, cancel)) > 1:
        raise refused("--extend, --force and --cancel exclude each other; give one of them")
    with opened(settings) as backend:
        view = replica_of(backend, replica)
        if extend is not None or force or cancel:
            return _change(backend, settings, view.id, extend, force=force)
        request = StartDrainRequest(
            replica=view.id,
            deadline_seconds=deadline,
            at_deadline=at_deadline,
            admission_closed_by=admission_closed_by,
            why=why,
        )
        outcome = follow_drain(backend, settings, view.id, request)
    if settings.as_json:
        print_json({"replica": replica, "operation": outcome.op_id, "words": outcome.words})
    else:
        say(outcome.words or f"{replica} is drained and stopped.")
    return DONE


def _change(backend: Backend, settings: Settings, replica: str, extend: float | None, *, force: bool) -> int:
    from backend.api import ChangeDrainRequest, ReplicaId

    action: Literal["extend", "force", "cancel"] = "extend" if extend is not None else "force" if force else "cancel"
    request = ChangeDrainRequest(replica=ReplicaId(replica), action=action, extend_seconds=extend or 60.0)
    answer = settle(ask(backend, request))
    if settings.as_json:
        print_json({"replica": replica, "operation": answer.op_id, "words": answer.words})
    else:
        say(answer.words or f"{action}: done")
    return DONE


def follow_drain(backend: Backend, settings: Settings, replica: str, request: AnyRequest) -> Outcome:
    """Start a drain and print its three numbers whenever they change, until it has ended."""
    said = ""

    def look(state: FleetState) -> None:
        nonlocal said
        words = "" if settings.as_json else _numbers(state, settings, replica)
        if words and words != said:
            say(words)
            said = words

    try:
        return follow(backend, request, show=show_step(settings), look=look)
    except Interrupted as stopped:
        words = f"the drain of {replica} goes on at its agents; end it with: ringtop drain {replica} --cancel"
        raise CommandFailed(INTERRUPTED, words, operation=stopped.op_id) from None


def _numbers(state: FleetState, settings: Settings, replica: str) -> str:
    """The numbers of a drain in one line; empty unless it drains now. Time moves in steps of 5 seconds."""
    from backend.api import ReplicaId
    from console.render.cells import line_text
    from console.render.drain import arrived_words, clients_words, counts_line, source_words
    from console.render.values import countdown

    view = state.replicas.get(ReplicaId(replica))
    if view is None or view.drain is None or view.state.value != "draining":
        return ""
    look = look_for(settings)
    left = None if view.drain_left_ms is None else -(-view.drain_left_ms // 5000) * 5000
    numbers = f"{line_text(counts_line(view, look)).strip()}   left {countdown(left)}"
    return f"{numbers}   {arrived_words(view)}   {clients_words(view)}   {source_words(view, look)}"
