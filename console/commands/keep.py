"""``ringtop keep``: keep desired counts, idle timeouts and load budgets, as the one keeper of a fleet."""

from __future__ import annotations

import os
import platform
import signal
import time
from typing import Any

import click

from console.commands.door import chosen_context, opened
from console.commands.exits import DONE, CommandFailed, refused
from console.commands.output import look_for, print_json_line, say
from console.commands.settings import Duration, Settings, fleet_command

_LEAST_LEASE, _LONGEST_LEASE = 1.0, 3600.0


@click.command(short_help="Keep the models that are on demand, as the one keeper.")
@click.option("--once", is_flag=True, help="Look once, wait for what that begins, and give the lease back.")
@click.option("--standby", is_flag=True, help="Wait while somebody else keeps, and take over when that lease ends.")
@click.option(
    "--lease", type=Duration(), default="30s", show_default=True, help="How long agents take this keeper for alive."
)
@click.option("--every", type=Duration(), default="5s", show_default=True, help="The time between two looks.")
@fleet_command
def keep(settings: Settings, lease: float, every: float, *, once: bool, standby: bool) -> int:
    """Keep the fleet: load what the catalog desires, empty what is idle for its timeout, stop strays.

    One keeper per fleet: a second one is refused with the first one's name. With --json each line is one object.
    """
    from backend.api import KeeperRules, Keeping, NotKept, duration, keeper_name, who_asks

    context = chosen_context(settings)
    if context.read_only:
        raise refused(f"a keeper changes the fleet, and context {context.name} is read-only. Keep another context.")
    if lease < _LEAST_LEASE or lease > _LONGEST_LEASE:
        raise refused(f"--lease is {duration(lease)}; expected {duration(_LEAST_LEASE)} to {duration(_LONGEST_LEASE)}")
    rules = KeeperRules(lease_seconds=lease, every_seconds=every, settle_seconds=every)
    who = f"{who_asks()}@{platform.node() or 'unknown'}"
    console = f"keeper-{who}-{os.getpid()}-{time.time_ns() // 1_000_000}"
    with opened(settings, who=keeper_name(who)) as backend:
        keeper = Keeping(backend, who=who, console=console, rules=rules, tell=_teller(settings))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda _number, _frame: keeper.stop())
        try:
            keeper.keep(once=once, standby=standby)
        except NotKept as error:
            raise CommandFailed(error.code, str(error)) from error
    return DONE


def _teller(settings: Settings) -> Any:
    if settings.as_json:
        return print_json_line
    from console.render.values import clock

    look = look_for(settings)

    def tell(event: dict[str, Any]) -> None:
        what = event.get("decision", event["event"])
        tail = f" ({event['operation']})" if "operation" in event else ""
        word = what if event["event"] in ("decided", what) else f"{what} {event['event']}"
        say(f"{clock(time.time_ns() // 1_000_000, look)} {word}: {event['words']}{tail}")

    return tell
