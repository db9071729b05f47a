"""``ringtop test``: one short prompt through every rank of a replica."""

from __future__ import annotations

import click

from console.commands.door import ask, opened, replica_of, settle
from console.commands.exits import DONE
from console.commands.output import print_json, say
from console.commands.settings import Settings, fleet_command


@click.command("test", short_help="Send one short prompt through every rank.")
@click.argument("replica")
@click.option("--prompt", default="one two three", show_default=True, metavar="TEXT", help="What to complete.")
@click.option(
    "--max-tokens", type=click.IntRange(1, 4096), default=12, show_default=True, help="At most so many tokens."
)
@fleet_command
def trial(settings: Settings, replica: str, prompt: str, max_tokens: int) -> int:
    """Send one short prompt through every rank of REPLICA and print what came back."""
    from backend.api import TestRequest, duration

    with opened(settings) as backend:
        view = replica_of(backend, replica)
        answer = settle(ask(backend, TestRequest(replica=view.id, prompt=prompt, max_tokens=max_tokens)))
    if settings.as_json:
        print_json({"replica": replica, **answer.value})
        return DONE
    seconds = answer.value.get("seconds")
    say(f"{prompt}{answer.value.get('text', '')}")
    if seconds is not None:
        say(f"answered in {duration(float(seconds))}")
    return DONE
