"""``ringtop cordon`` and ``ringtop uncordon``: whether a host takes new shards. What runs there runs on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from console.commands.door import ask, host_of, opened, settle
from console.commands.exits import DONE
from console.commands.holds import hold_options, seconds_of
from console.commands.output import print_json, say
from console.commands.settings import Settings, fleet_command

if TYPE_CHECKING:
    from backend.api import AnyRequest


@click.command(short_help="Take no new shards on a host.")
@click.argument("host")
@hold_options
@fleet_command
def cordon(settings: Settings, host: str, lasts: float | None, until: float | None, why: str) -> int:
    """Take no new shards on HOST: plans leave it out, and its agent refuses loads, whoever sends them.

    What runs there runs on; `ringtop drain --host HOST` empties it. Kept at the agent, with who and until when.
    """
    from backend.api import CordonRequest

    seconds = seconds_of(lasts, until)
    return _ask(settings, host, CordonRequest(host=host, seconds=seconds, why=why))


@click.command(short_help="Take new shards on a host again.")
@click.argument("host")
@fleet_command
def uncordon(settings: Settings, host: str) -> int:
    """Take new shards on HOST again, whoever cordoned it."""
    from backend.api import UncordonRequest

    return _ask(settings, host, UncordonRequest(host=host))


def _ask(settings: Settings, host: str, request: AnyRequest) -> int:
    with opened(settings) as backend:
        host_of(backend, host)
        words = settle(ask(backend, request)).words
    if settings.as_json:
        print_json({"host": host, "words": words, "at_unix_ms": time.time_ns() // 1_000_000})
    else:
        say(words)
    return DONE
