"""``ringtop drain --host``: no new shards on a host, and a drain of every replica with a rank on it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from console.commands.door import Interrupted, ask, host_of, opened, settle, state_of, submit, watch
from console.commands.exits import DONE, INTERRUPTED, UNKNOWN, UNREACHABLE, CommandFailed, refused
from console.commands.output import print_json, say, show_step
from console.commands.settings import Settings

if TYPE_CHECKING:
    from backend.api import Backend, OpId, ReplicaView


@dataclass(frozen=True)
class DrainOrder:
    """How each replica is drained."""

    deadline: float
    at_deadline: Literal["stop", "give-up"]
    admission_closed_by: str
    why: str


def drain_host(settings: Settings, host: str, order: DrainOrder, *, yes: bool) -> int:
    """Cordon the host, start all drains, follow each to its end. Raises with the code of the first that failed."""
    from console.render.cordon import replicas_on

    with opened(settings) as backend:
        view = host_of(backend, host)
        if view.state.value != "live":
            raise CommandFailed(UNREACHABLE, f"{host} is {view.state.value}: {view.words}; nothing was sent")
        replicas = replicas_on(state_of(backend), host)
        if not yes:
            _confirm(settings, host, replicas)
        words = _cordon(backend, settings, host, order.why)
        started = [(each.id, _start(backend, each, order, host)) for each in replicas]
        ended = [_follow(backend, settings, replica, op_id) for replica, op_id in started]
    failed = [line for line in ended if line["exit_code"] != DONE]
    if failed:
        lines = "; ".join(f"{line['replica']}: {line['words']}" for line in failed)
        raise CommandFailed(int(failed[0]["exit_code"]), f"{host} is not empty. {lines}", host=host, drained=ended)
    if settings.as_json:
        print_json({"host": host, "words": words, "drained": ended})
    else:
        from console.render.values import plural

        count = plural(len(ended), "replica")
        say(f"{host} is empty, {count} drained. It stays cordoned: ringtop uncordon {host}")
    return DONE


def _confirm(settings: Settings, host: str, replicas: list[ReplicaView]) -> None:
    from console.render.cordon import replica_words, to_type
    from console.render.values import plural

    count = plural(len(replicas), "replica")
    lines = [replica_words(view, host) for view in replicas]
    if settings.as_json or not sys.stdin.isatty():
        raise refused(
            f"draining {host} cordons it and empties {count} ({'; '.join(lines) or 'none'}), which "
            "must be confirmed, and there is no terminal to ask at; add --yes"
        )
    say(f"{host} takes no new shards any more, and {count} {'is' if len(replicas) == 1 else 'are'} drained:")
    for line in lines:
        say(f"  {line}")
    wanted = to_type(host, len(replicas))
    typed = click.prompt(f"Type {wanted} to drain it", default="", show_default=False, err=True)
    if typed.strip() != wanted:
        raise refused(f"{host} is not drained: {typed.strip()!r} was typed")


def _cordon(backend: Backend, settings: Settings, host: str, why: str) -> str:
    """Cordon first, so that nothing comes in behind the drains; a cordon that stands is left as it is."""
    from backend.api import CordonRequest

    if (stands := host_of(backend, host).entities.cordon) is not None:
        return f"{host} is {stands.words} already"
    words = settle(ask(backend, CordonRequest(host=host, why=why or "it is drained"))).words
    if not settings.as_json:
        say(words)
    return words


def _start(backend: Backend, view: ReplicaView, order: DrainOrder, host: str) -> OpId | None:
    """The operation of a drain that was begun; None where one runs already."""
    from backend.api import StartDrainRequest

    if view.drain is not None and not view.drain.outcome:
        return None
    return submit(
        backend,
        StartDrainRequest(
            replica=view.id,
            deadline_seconds=order.deadline,
            at_deadline=order.at_deadline,
            admission_closed_by=order.admission_closed_by,
            why=order.why or f"{host} is drained",
        ),
    )


def _follow(backend: Backend, settings: Settings, replica: str, op_id: OpId | None) -> dict[str, Any]:
    """How one drain ended; a refusal stops no other one."""
    if op_id is None:
        words = "it was draining already, and that drain goes on; look again when it has ended"
        return {"replica": replica, "operation": None, "words": words, "exit_code": UNKNOWN}
    try:
        outcome = watch(backend, op_id, show=show_step(settings), look=lambda state: None)
    except Interrupted:
        words = "the drains go on at their agents; end one with: ringtop drain REPLICA --cancel"
        raise CommandFailed(INTERRUPTED, words, operation=op_id) from None
    except CommandFailed as error:
        return {"replica": replica, "operation": op_id, "words": error.words, "exit_code": error.exit_code}
    return {"replica": replica, "operation": op_id, "words": outcome.words, "exit_code": DONE}
