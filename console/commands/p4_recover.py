"""``ringtop p4 recover``: how a host's p4 agent is recovered, as a plan; and doing exactly that, step by step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from console.commands.door import ask, follow, host_of, opened, settle
from console.commands.exits import DONE, PENDING, CommandFailed, refused
from console.commands.output import look_for, print_json, print_lines, say, screen_width, show_step
from console.commands.settings import Duration, Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import RecoveryPlan


@click.command(short_help="Recover the p4 agent of a host: plan it, or do what a plan says.")
@click.argument("host")
@click.option("--plan", "is_plan", is_flag=True, help="Measure the baselines, show every step, and touch nothing.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="With --plan: also save it here.")
@click.option("--cut", is_flag=True, help="With --plan: what is in flight is cut instead of drained.")
@click.option(
    "--deadline", type=Duration(), default="2m", show_default=True, help="With --plan: how long the drain may take."
)
@click.option("--apply", "file", type=click.Path(path_type=Path, dir_okay=False), help="Do what this plan says.")
@click.option(
    "--move-journal", is_flag=True, help="With --apply: approve that its journal is moved aside, never deleted."
)
@click.option("--why", default="", metavar="TEXT", help="With --apply: the reason, kept with every step.")
@click.option(
    "--wait",
    type=Duration(),
    default="5m",
    show_default=True,
    help="With --apply: how long a person's step is waited for.",
)
@click.option(
    "--patience",
    type=Duration(),
    default="90s",
    show_default=True,
    help="With --apply: how long a condition may take to hold.",
)
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal to ask at.")
@fleet_command
def recover(
    settings: Settings,
    host: str,
    output: Path | None,
    deadline: float,
    file: Path | None,
    why: str,
    wait: float,
    patience: float,
    *,
    is_plan: bool,
    cut: bool,
    move_journal: bool,
    yes: bool,
) -> int:
    """End the p4 agent of HOST by TERM, see that nothing of it is left, start it clean, load its rings again.

    --plan exits with 1 when it can be applied, with 2 when something stands against it. --apply stops at the first
    condition that does not hold, says both values and what to do, and goes on with: ringtop op resume.
    """
    if is_plan == (file is not None):
        raise refused("say either --plan, or --apply FILE with a plan that --plan -o FILE saved")
    if file is None:
        if move_journal or why:
            raise refused("--move-journal and --why belong to --apply: a plan approves nothing")
        return _plan(settings, host, output, deadline, cut=cut)
    if output is not None or cut:
        raise refused("-o and --cut belong to --plan: --apply does what its plan says")
    return _apply(settings, host, file, why, wait, patience, move_journal=move_journal, yes=yes)


def _plan(settings: Settings, host: str, output: Path | None, deadline: float, *, cut: bool) -> int:
    from backend.api import PlanRecovery, write_recovery

    with opened(settings) as backend:
        host_of(backend, host)
        answer = ask(backend, PlanRecovery(host=host, leave="cut" if cut else "drain", deadline_seconds=deadline))
    plan: RecoveryPlan | None = answer.value.get("recovery")
    if plan is None:
        settle(answer)
        raise CommandFailed(PENDING, "the backend gave no plan")
    if output is not None and not plan.is_refused:
        try:
            write_recovery(plan, output)
        except OSError as error:
            raise refused(f"the plan cannot be saved as {output}: {error.strerror}") from error
    if settings.as_json:
        print_json(plan)
    else:
        _show(settings, plan)
        if output is not None and not plan.is_refused:
            say(f"Saved as {output}; do it with: ringtop p4 recover {host} --apply {output}")
    if plan.is_refused:
        raise refused(answer.words)
    return PENDING


def _show(settings: Settings, plan: RecoveryPlan) -> None:
    from console.render.recovery import recovery_lines

    print_lines(recovery_lines(plan, look_for(settings), screen_width()))


def _apply(
    settings: Settings, host: str, file: Path, why: str, wait: float, patience: float, *, move_journal: bool, yes: bool
) -> int:
    from backend.api import RecoveryUnreadable, StartRecovery, read_recovery

    try:
        plan = read_recovery(file)
    except RecoveryUnreadable as error:
        raise refused(f"{error} Make one with: ringtop p4 recover {host} --plan -o {file}") from error
    if plan.host != host:
        raise refused(f"{file} is the plan of {plan.host}, and {host} was named")
    with opened(settings) as backend:
        host_of(backend, host)
        _confirm(settings, plan, yes=yes)
        request = StartRecovery(
            plan=plan,
            confirmed=plan.digest,
            move_journal=move_journal,
            why=why,
            person_seconds=wait,
            patience_seconds=patience,
        )
        outcome = follow(backend, request, show=show_step(settings), look=lambda state: None)
    if settings.as_json:
        print_json({"operation": outcome.op_id, "host": host, "words": outcome.words})
    else:
        say(outcome.words)
    return DONE


def _confirm(settings: Settings, plan: RecoveryPlan, *, yes: bool) -> None:
    if yes:
        return
    if settings.as_json or not sys.stdin.isatty():
        raise refused(
            f"ending the p4 agent of {plan.host} must be confirmed, and there is no terminal to ask at; add --yes"
        )
    _show(settings, plan)
    typed = click.prompt(f"This ends every stage on {plan.host}. Type its name to go on", default="", err=True)
    if typed != plan.host:
        raise refused(f"{plan.host} stays as it is: {typed!r} is not its name")
