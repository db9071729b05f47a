"""``ringtop plan``: what a load would do, and whether anything speaks against it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from console.commands.door import ask, chosen_context, opened, require_a_host, settle, state_of
from console.commands.exits import PENDING, REFUSED, CommandFailed, refused
from console.commands.output import look_for, print_json, print_lines, say, screen_width
from console.commands.settings import Settings, fleet_command, split_target

if TYPE_CHECKING:
    from backend.api import Backend, Plan


@click.command(short_help="Plan a load and change nothing.")
@click.argument("target", metavar="MODEL[:PROFILE]")
@click.option("--host", "hosts", multiple=True, metavar="HOST", help="Only this host may be used; may be repeated.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Also save the plan here.")
@click.option("--derivation", is_flag=True, help="Show how every bound was derived.")
@click.option("--fleet", type=click.Path(path_type=Path, dir_okay=False), help="Plan on this snapshot; ask nobody.")
@click.option("--catalog", type=click.Path(path_type=Path, dir_okay=False), help="With --fleet: this catalog.")
@fleet_command
def plan(
    settings: Settings,
    target: str,
    hosts: tuple[str, ...],
    output: Path | None,
    fleet: Path | None,
    catalog: Path | None,
    *,
    derivation: bool,
) -> int:
    """Plan a load of MODEL[:PROFILE] and change nothing.

    Exits with 1 when the plan can be loaded (changes are pending) and with 2 when a guard refuses it.
    """
    if fleet is not None:
        return _plan_offline(settings, target, hosts, output, fleet, catalog, derivation=derivation)
    if catalog is not None:
        raise refused(
            "--catalog goes with --fleet only: with a fleet, the context's own catalog is what is loaded from"
        )
    with opened(settings) as backend:
        made = make_plan(backend, target, hosts)
        if output is not None:
            save_plan(made, output)
        if settings.as_json:
            print_json(made)
        else:
            show_plan(backend, settings, made, derivation=derivation)
    if output is not None and not settings.as_json:
        say(f"Saved as {output}; load it with: ringtop load --plan {output}")
    return REFUSED if made.is_refused else PENDING


def _plan_offline(
    settings: Settings,
    target: str,
    hosts: tuple[str, ...],
    output: Path | None,
    fleet: Path,
    catalog: Path | None,
    *,
    derivation: bool,
) -> int:
    """The same on a snapshot: nobody is asked, and the plan is of the moment when the snapshot was taken."""
    from backend.api import PaperRefused, plan_on_paper
    from console.render.plan import plan_lines

    try:
        made = plan_on_paper(fleet, catalog or chosen_context(settings).catalog_path, split_target(target), hosts)
    except PaperRefused as error:
        raise refused(str(error)) from error
    if output is not None:
        save_plan(made, output)
    if settings.as_json:
        print_json(made)
    else:
        print_lines(plan_lines(made, None, look_for(settings), screen_width(), derivation=derivation))
    return REFUSED if made.is_refused else PENDING


def make_plan(backend: Backend, target: str, hosts: tuple[str, ...] = ()) -> Plan:
    """The plan for a target, refused or not. Raises when none could be made at all."""
    from backend.api import MakePlan

    require_a_host(state_of(backend))
    answer = ask(backend, MakePlan(target=split_target(target), hosts=hosts))
    if answer.plan is None:
        settle(answer)
        raise CommandFailed(REFUSED, answer.words or f"no plan could be made for {target}")
    return answer.plan


def show_plan(backend: Backend, settings: Settings, made: Plan, *, derivation: bool = False) -> None:
    """The plan as a person should read it before confirming it."""
    from console.render.plan import plan_lines

    look = look_for(settings)
    print_lines(plan_lines(made, state_of(backend), look, screen_width(), derivation=derivation))


def save_plan(made: Plan, path: Path) -> None:
    """Write the plan as JSON."""
    from backend.api import write_plan

    try:
        write_plan(made, path)
    except OSError as error:
        raise refused(f"the plan cannot be saved as {path}: {error.strerror}") from error


def saved_plan(path: Path) -> Plan:
    """A plan that was saved. Raises when it is none, or was edited since."""
    from backend.api import PlanUnreadable, read_plan

    try:
        return read_plan(path)
    except PlanUnreadable as error:
        raise refused(f"{error} Make one with: ringtop plan MODEL:PROFILE -o {path}") from error
