"""Finding again and stopping an engine that a person adopted: that process, what it started, and nobody beside them.

No shim started it, so it may share its group and session with anything: a shell, a pipe, another job.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from backend.agent.core.state import Adopted, Ended
from backend.agent.descriptors import OUT_OF_DESCRIPTORS
from backend.agent.process_identity import SeenProcess, is_alive, process_tree, see_process, signal_one
from backend.agent.supervisor import KILL_SECONDS, StopOutcome
from backend.contract.entities import ProcessIdentity, Shard
from backend.engines.driver import StopStep

LOOK_SECONDS = 0.05
FOLLOW_SECONDS = 3.0
"""How often what an adopted engine has started is looked at."""
LEFT_SECONDS = 2.0
"""How long what an engine started may take to follow it."""


def found_again(shard: Shard, identity: ProcessIdentity) -> Adopted | Ended:
    """After a restart of the agent: the very process still runs, or it ended and nobody could learn how."""
    if is_alive(identity):
        return Adopted(shard.node_id, shard.load_generation, identity)
    words = "exit unknown while its agent was down; no agent started it"
    return Ended(shard.node_id, shard.load_generation, None, None, words, ())


class Tree:
    """An adopted process and everything that it was ever seen to have started, each known by pid and start ticks.

    Who outlives the process that started it has another parent then, and is found no more but by being remembered.
    """

    def __init__(self, identity: ProcessIdentity) -> None:
        self.identity = identity
        self._known: dict[int, int] = {}

    def look(self) -> tuple[SeenProcess, ...]:
        """Remember who belongs to it now, and return those that live."""
        self._known |= {each.pid: each.start_ticks for each in process_tree(self.identity)}
        seen = (see_process(pid) for pid in sorted(self._known))
        return tuple(s for s in seen if s is not None and s.start_ticks == self._known[s.pid] and not s.is_gone)

    async def follow(self) -> None:
        """Keep looking until cancelled; a look that cannot be made is made again."""
        while True:
            try:
                self.look()
            except OSError as error:
                if error.errno not in OUT_OF_DESCRIPTORS:
                    raise
            await asyncio.sleep(FOLLOW_SECONDS)


async def stop(tree: Tree, steps: Sequence[StopStep]) -> StopOutcome:
    """Signal the process by its steps, then KILL it and what it left behind, until all of that is proven gone.

    The steps go to the process alone: it knows how to end what it started. What is left once it is gone has
    ``LEFT_SECONDS``. Takes at most the steps' seconds, those, and ``KILL_SECONDS``.
    """
    identity, loop = tree.identity, asyncio.get_running_loop()
    for step in steps:
        first = next((each for each in tree.look() if each.pid == identity.pid), None)
        if first is None:
            break
        signal_one(first, step.signal)
        await _until(lambda: not is_alive(identity) and not tree.look(), lambda: is_alive(identity), step.seconds)
    await _until(lambda: not tree.look(), lambda: True, LEFT_SECONDS)
    deadline = loop.time() + KILL_SECONDS
    while left := tree.look():
        if loop.time() >= deadline:
            return StopOutcome(stopped=False, stuck_pids=tuple(each.pid for each in left))
        for each in left:
            signal_one(each, signal.SIGKILL)
        await asyncio.sleep(LOOK_SECONDS)
    return StopOutcome(stopped=True)


async def _until(is_done: Callable[[], bool], goes_on: Callable[[], bool], seconds: float) -> None:
    """Look again and again until it is done, there is no reason to go on, or the time is over."""
    deadline = asyncio.get_running_loop().time() + seconds
    while goes_on() and not is_done():
        if asyncio.get_running_loop().time() >= deadline:
            return
        await asyncio.sleep(LOOK_SECONDS)
