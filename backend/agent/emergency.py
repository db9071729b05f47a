"""The conversation around an emergency stop: what lives, a typed confirmation, and what became of it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from backend.agent.break_glass import LiveRun, live_runs, stop_runs

DONE, REFUSED, FAILED = 0, 2, 5


def emergency_stop(state: Path, node: str | None, *, asks: bool) -> int:
    """Stop the runs of a slot, or all of them (``node`` None). Returns the exit code."""
    runs, wrong = live_runs(state)
    for words in wrong:
        click.echo(f"ringtop-agent: left alone: {words}", err=True)
    chosen = tuple(run for run in runs if node is None or run.is_of(node))
    if not chosen:
        known = ", ".join(run.name for run in runs) or "none"
        what = "no engine" if node is None else f"no engine of {node}"
        click.echo(f"{what} of the agent under {state} runs; running: {known}")
        return DONE if node is None or not runs else REFUSED
    for run in chosen:
        click.echo(_line(run))
    if asks and not _is_confirmed(chosen, node):
        return REFUSED
    note, troubles = stop_runs(state, chosen)
    for name, outcome in note.outcomes.items():
        click.echo(f"{name}: {outcome}")
    for trouble in troubles:
        click.echo(f"ringtop-agent: {trouble}", err=True)
    return DONE if all(outcome.startswith("stopped") for outcome in note.outcomes.values()) else FAILED


def _line(run: LiveRun) -> str:
    return f"{run.name}: {run.program}, process {', '.join(str(pid) for pid in run.pids)}"


def _is_confirmed(chosen: tuple[LiveRun, ...], node: str | None) -> bool:
    wanted = f"all {len(chosen)}" if node is None else node
    click.echo("They are stopped at once; what they are answering is cut off, and no console is asked.")
    if not sys.stdin.isatty():
        click.echo("ringtop-agent: there is nobody to ask at this terminal; say --yes.", err=True)
        return False
    typed = click.prompt(f"Type {wanted} to stop", default="", show_default=False)
    if typed.strip() != wanted:
        click.echo(f"ringtop-agent: {typed!r} is not {wanted!r}: nothing was touched.", err=True)
        return False
    return True
