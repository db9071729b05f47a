"""``ringtop load``: show the plan, have it confirmed, load it, and follow that to its end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from console.commands.door import follow, opened, state_of
from console.commands.exits import DONE, FAILED, REFUSED, CommandFailed, refused
from console.commands.output import print_json, show_step
from console.commands.plan import make_plan, read_plan, show_plan
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import Answer, Backend, Plan

GOES_ON = "the load goes on in its own process; see it with: ringtop op show {op}"


@click.command()
@click.argument("target", metavar="MODEL[:PROFILE]", required=False)
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
    saved = read_plan(plan_file) if plan_file else None
    with opened(settings) as backend:
        plan = saved or make_plan(backend, target or "", hosts)
        if not settings.as_json:
            show_plan(backend, settings, plan)
        confirm_plan(settings, plan, yes=yes)
        answer = start_load(backend, settings, plan, keep_on_failure=keep_on_failure)
        report_load(backend, settings, plan, answer)
    return DONE


def confirm_plan(settings: Settings, plan: Plan, *, yes: bool) -> None:
    """Return when the plan may be loaded. Raises when a guard or the person says no, or nobody can be asked."""
    if plan.is_refused:
        findings = [finding for finding in plan.findings if finding.severity == "refuse"]
        words = " ".join(finding.words for finding in findings)
        raise CommandFailed(REFUSED, f"{plan.replica} is not loaded. {words}", findings=findings)
    if yes:
        return
    if settings.as_json or not sys.stdin.isatty():
        raise refused(f"loading {plan.replica} must be confirmed, and there is no terminal to ask at; add --yes")
    if not click.confirm(f"Load {plan.replica}?", default=False, err=True):
        raise refused(f"{plan.replica} is not loaded: it was not confirmed")


def start_load(backend: Backend, settings: Settings, plan: Plan, *, keep_on_failure: bool = False) -> Answer:
    """Load the plan under the digest that was shown, and follow the operation to its end."""
    from backend.api import StartLoad

    request = StartLoad(plan=plan, confirmed=plan.digest, keep_on_failure=keep_on_failure)
    return follow(backend, request, show_step(settings), GOES_ON)


def report_load(backend: Backend, settings: Settings, plan: Plan, answer: Answer) -> None:
    """Print what was loaded. Raises with the words and the last lines of every failed rank when it was not."""
    from console.commands.facts import operation_facts, replica_facts

    state = state_of(backend)
    replica = state.replicas.get(plan.replica)
    operation = state.operations.get(answer.op_id)
    facts = {
        "operation": None if operation is None else operation_facts(operation),
        "replica": None if replica is None else replica_facts(replica),
    }
    if answer.exit_code != DONE:
        raise CommandFailed(answer.exit_code or FAILED, answer.words, **facts)
    if settings.as_json:
        print_json(facts)
