"""Finding again and stopping an engine that a person adopted: that process, what it started, and nobody beside them.

No shim started it, so it may share its group and session with anything: a shell, a pipe, another job.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence

from backend.agent.core.state import Adopted, Ended
from backend.agent.process_identity import (
    is_alive,
    open_identity,
    process_tree,
    see_process,
    signal_one,
)
from backend.agent.supervisor import KILL_SECONDS, StopOutcome
from backend.contract.entities import ProcessIdentity, Shard
from backend.engines.driver import StopStep

LOOK_SECONDS = 0.05


def found_again(shard: Shard, identity: ProcessIdentity) -> Adopted | Ended:
    """After a restart of the agent: the very process still runs, or it ended and nobody could learn how."""
    if is_alive(identity):
        return Adopted(shard.node_id, shard.load_generation, identity)
    words = "exit unknown while its agent was down; no agent started it"
    return Ended(shard.node_id, shard.load_generation, None, None, words, ())


async def stop(identity: ProcessIdentity, steps: Sequence[StopStep]) -> StopOutcome:
    """Signal the process by its steps, then KILL it and what it left behind, until all of that is proven gone.

    The steps go to the process alone: it knows how to end what it started. Takes at most their seconds and
    ``KILL_SECONDS``.
    """
    known: dict[int, int] = {}
    for step in steps:
        _note(known, identity)
        _signal(identity.pid, identity.start_ticks, step.signal)
        if await _gone_within(known, identity, step.seconds):
            return StopOutcome(stopped=True)
        if not is_alive(identity):
            break  # it went, and left some behind
    deadline = asyncio.get_running_loop().time() + KILL_SECONDS
    while left := _left(known):
        if asyncio.get_running_loop().time() >= deadline:
            return StopOutcome(stopped=False, stuck_pids=left)
        for pid in left:
            _signal(pid, known[pid], signal.SIGKILL)
        await asyncio.sleep(LOOK_SECONDS)
        _note(known, identity)
    return StopOutcome(stopped=True)


def _note(known: dict[int, int], identity: ProcessIdentity) -> None:
    """Remember the process and what descends from it now: orphans have another parent."""
    known.update({each.pid: each.start_ticks for each in process_tree(identity)})


def _left(known: dict[int, int]) -> tuple[int, ...]:
    return tuple(pid for pid, ticks in sorted(known.items()) if _lives(pid, ticks))


def _lives(pid: int, start_ticks: int) -> bool:
    seen = see_process(pid)
    return seen is not None and seen.start_ticks == start_ticks and not seen.is_gone


def _signal(pid: int, start_ticks: int, number: int) -> None:
    seen = see_process(pid)
    if seen is not None and seen.start_ticks == start_ticks:
        signal_one(seen, number)


async def _gone_within(known: dict[int, int], identity: ProcessIdentity, seconds: float) -> bool:
    """Whether all of it is gone within so long; once the process itself is, the rest gets a moment to follow."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while _left(known):
        now = loop.time()
        if now >= deadline:
            return False
        pidfd = open_identity(identity)
        if pidfd is not None:
            os.close(pidfd)
            _note(known, identity)
        await asyncio.sleep(min(LOOK_SECONDS, deadline - now))
    return True
