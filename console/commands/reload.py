"""``ringtop reload``: load a replica again, its replacement first where there is room."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from console.commands.door import Outcome, ask, follow, opened, replica_of, require_a_host, settle, state_of
from console.commands.exits import DONE, REFUSED, CommandFailed, refused
from console.commands.load import loaded_replica
from console.commands.output import look_for, print_json, print_lines, say, screen_width, show_step
from console.commands.settings import Duration, Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import Answer, Backend, ReplicaView


@click.command(short_help="Load a replica again under a new generation.")
@click.argument("replica")
@click.option(
    "--plan-of",
    type=click.Choice(["last", "now"]),
    default="last",
    show_default=True,
    help="By the profile of its load record, or by the catalog's present one.",
)
@click.option("--deadline", type=Duration(), default="2m", show_default=True, help="How long its drain may take.")
@click.option(
    "--at-deadline",
    type=click.Choice(["stop", "give-up"]),
    default="give-up",
    show_default=True,
    help="What to do when that time is over and requests are still in flight.",
)
@click.option("--admission-closed-by", default="", metavar="WHO", help="Who or what sends no new requests any more.")
@click.option("--why", default="", metavar="TEXT", help="The reason, for the journal.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask at.")
@fleet_command
def reload(
    settings: Settings,
    replica: str,
    plan_of: Literal["last", "now"],
    deadline: float,
    at_deadline: Literal["stop", "give-up"],
    admission_closed_by: str,
    why: str,
    *,
    yes: bool,
) -> int:
    """Load REPLICA again under a new generation. The plan is shown first, and REPLICA is typed to confirm.

    Where there is room the replacement is loaded first and the old one drained when that is ready; else the old one is
    drained first. Ctrl-C leaves a reload that has begun running, and says so.
    """
    with opened(settings) as backend:
        view = replica_of(backend, replica)
        answer = _planned(backend, settings, view, plan_of, deadline=deadline, at_deadline=at_deadline)
        if not yes:
            _confirm(settings, view.id)
        drain = {
            "deadline_seconds": deadline,
            "at_deadline": at_deadline,
            "admission_closed_by": admission_closed_by,
            "why": why,
        }
        outcome = _started(backend, settings, answer, drain)
        assert answer.plan is not None
        loaded = loaded_replica(backend, answer.plan)
    if settings.as_json:
        from console.commands.facts import operation_facts, replica_facts

        operation = None if outcome.operation is None else operation_facts(outcome.operation)
        print_json({"operation": operation, "mode": answer.value["mode"], "replica": replica_facts(loaded)})
    else:
        say(f"{loaded.id} is ready at {loaded.endpoint}")
    return DONE


def _planned(
    backend: Backend,
    settings: Settings,
    view: ReplicaView,
    plan_of: Literal["last", "now"],
    *,
    deadline: float,
    at_deadline: str,
) -> Answer:
    """The plan, shown; raises when a guard refuses it."""
    from backend.api import PlanReload

    require_a_host(state_of(backend))
    answer = ask(backend, PlanReload(replica=view.id, plan_of=plan_of))
    if answer.plan is None:
        settle(answer)
        raise CommandFailed(REFUSED, answer.words or f"no plan could be made for {view.id}")
    if not settings.as_json:
        from console.render.reload import reload_lines

        look, width = look_for(settings), screen_width()
        print_lines(reload_lines(answer, state_of(backend), look, width, deadline=deadline, at_deadline=at_deadline))
    if answer.plan.is_refused:
        findings = [finding for finding in answer.plan.findings if finding.is_refusal]
        words = " ".join(finding.words for finding in findings)
        raise CommandFailed(REFUSED, f"{view.id} is not reloaded, and is left as it is. {words}", findings=findings)
    return answer


def _started(backend: Backend, settings: Settings, answer: Answer, drain: dict[str, Any]) -> Outcome:
    from backend.api import StartReload

    assert answer.plan is not None
    request = StartReload(
        replica=answer.value["replica"],
        load_generation=answer.value["load_generation"],
        plan=answer.plan,
        confirmed=answer.plan.digest,
        **drain,
    )
    return follow(backend, request, show=show_step(settings), look=lambda state: None)


def _confirm(settings: Settings, replica: str) -> None:
    if settings.as_json or not sys.stdin.isatty():
        raise refused(f"reloading {replica} must be confirmed, and there is no terminal to ask at; add --yes")
    typed = click.prompt(f"Type {replica} to reload it", default="", show_default=False, err=True)
    if typed.strip() != replica:
        raise refused(f"{replica} is not reloaded: {typed.strip()!r} was typed")
