"""``ringtop load``: show the plan, have it confirmed, load it, and follow that to its end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from console.commands.door import Outcome, follow, opened, silent_hosts, state_of, wait_for
from console.commands.exits import DONE, REFUSED, UNKNOWN, CommandFailed, refused
from console.commands.output import print_json, say, show_step
from console.commands.plan import make_plan, saved_plan, show_plan
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import Backend, FleetState, Plan, ReplicaView

_HEAR_SECONDS = 10.0


@click.command(short_help="Load a model, after showing the plan.")
@click.argument("target", metavar="[MODEL[:PROFILE]]", required=False)
@click.option("--plan", "plan_file", type=click.Path(path_type=Path, dir_okay=False), help="Load this saved plan.")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="Only this host may be used; may be repeated.")
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask at.")
@click.option("--keep-on-failure", is_flag=True, help="Leave the ranks that came up when another fails.")
@fleet_command
def load(
    settings: Settings,
    target: str | None,
    plan_file: Path | None,
    hosts: tuple[str, ...],
    *,
    yes: bool,
    keep_on_failure: bool,
) -> int:
    """Load MODEL[:PROFILE], or a plan that was saved.

    The plan is shown and asked about first. Ctrl-C leaves a load that has begun running, and says so.
    """
    if (target is None) == (plan_file is None):
        raise refused("name either a MODEL[:PROFILE] or a saved plan with --plan FILE")
    if plan_file is not None and hosts:
        raise refused("--host belongs to planning, and --plan FILE is planned already; leave one of them out")
    saved = saved_plan(plan_file) if plan_file else None
    with opened(settings) as backend:
        plan = saved or make_plan(backend, target or "", hosts)
        if not settings.as_json:
            show_plan(backend, settings, plan)
        confirm_plan(settings, plan, yes=yes)
        outcome = start_load(backend, settings, plan, keep_on_failure=keep_on_failure)
        view = loaded_replica(backend, plan)
    if settings.as_json:
        from console.commands.facts import operation_facts, replica_facts

        operation = None if outcome.operation is None else operation_facts(outcome.operation)
        print_json({"operation": operation, "replica": replica_facts(view)})
    else:
        say(f"{view.id} is ready at {view.endpoint}")
    return DONE


def confirm_plan(settings: Settings, plan: Plan, *, yes: bool) -> None:
    """Return when the plan may be loaded. Raises when a guard or the person says no, or nobody can be asked."""
    if plan.is_refused:
        findings = [finding for finding in plan.findings if finding.is_refusal]
        words = " ".join(finding.words for finding in findings)
        raise CommandFailed(REFUSED, f"{plan.replica} is not loaded. {words}", findings=findings)
    if yes:
        return
    if settings.as_json or not sys.stdin.isatty():
        raise refused(f"loading {plan.replica} must be confirmed, and there is no terminal to ask at; add --yes")
    if not click.confirm(f"Load {plan.replica}?", default=False, err=True):
        raise refused(f"{plan.replica} is not loaded: it was not confirmed")


def start_load(backend: Backend, settings: Settings, plan: Plan, *, keep_on_failure: bool = False) -> Outcome:
    """Load the plan under the digest that was shown, and follow the operation to its end."""
    from backend.api import StartLoad

    request = StartLoad(plan=plan, confirmed=plan.digest, keep_on_failure=keep_on_failure)
    return follow(backend, request, show=show_step(settings), look=lambda state: None)


def loaded_replica(backend: Backend, plan: Plan) -> ReplicaView:
    """The replica of a load that succeeded, as soon as this console has heard of it what the operation has."""
    view = wait_for(backend, lambda state: _ready(state, plan), _HEAR_SECONDS)
    if view is None:
        from backend.api import few_of

        silent = few_of(silent_hosts(state_of(backend)))
        words = f"the load succeeded, and {plan.replica} is not ready as seen from here; silent hosts: {silent}"
        raise CommandFailed(UNKNOWN, words)
    return view


def _ready(state: FleetState, plan: Plan) -> ReplicaView | None:
    view = state.replicas.get(plan.replica)
    is_ready = view is not None and view.load_generation == plan.load_generation and view.state.value == "ready"
    return view if is_ready else None
