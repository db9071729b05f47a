"""Whether the head of a ring, at another host's p4 agent, is gone: what the stages of a drained ring wait for here.

p4 tells no stage that its head was unloaded, and its own agent answers only for its own nodes. So the head's agent is
asked itself, at the address that this host's p4 agent reaches it at as well: by INSPECT, on one connection in hop mode,
which costs no slot when we are killed, held as long as somebody asks and left with FINISH. Nobody is asked before a
drain has lasted a while: where an operation follows it, it has ended by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from backend.engines.p4.record import RecordedStage
from backend.engines.p4.snapshot import Snapshot


class Peer(Protocol):
    """Another host's p4 agent, which is looked at and told nothing."""

    async def inspect(self) -> Snapshot:
        """One INSPECT. Raises OSError."""

    async def leave(self) -> None:
        """Leave it with FINISH."""


class Peers:
    """The p4 agents of other hosts, each dialled once however many stages here ask for the same."""

    def __init__(self, reach: Callable[[str], Awaitable[Peer]]) -> None:
        """``reach`` gives the agent of an advertised address, and dials nothing yet. Raises OSError."""
        self._reach = reach
        self._open: dict[str, tuple[Peer, int]] = {}
        self._changing = asyncio.Lock()

    @asynccontextmanager
    async def asking(self, address: str) -> AsyncIterator[Peer]:
        """The agent of this address; the last one to stop asking leaves it. Raises OSError."""
        async with self._changing:
            peer, users = self._open.get(address) or (await self._reach(address), 0)
            self._open[address] = peer, users + 1
        try:
            yield peer
        finally:
            async with self._changing:
                peer, users = self._open.pop(address)
                if users > 1:
                    self._open[address] = peer, users - 1
                else:
                    await peer.leave()


async def until_head_is_gone(
    peers: Peers,
    head: RecordedStage,
    is_draining: Callable[[], bool],
    *,
    every: float,
    notice: float,
    say: Callable[[str], None],
) -> str:
    """Wait until the head's agent shows, twice in a row, no node of its name and generation; returns that in words.

    It is asked every ``every`` seconds from so long after the begin of a drain on, until it shows the head after the
    drain's end, as it does of one that was given up or cancelled. Silence proves nothing, and is told to ``say``.
    """
    while True:
        while not is_draining():  # noqa: ASYNC110  it is asked of the agent's state, which wakes nobody
            await asyncio.sleep(notice)
        await asyncio.sleep(every)
        try:
            async with peers.asking(head.agent) as peer:
                words = await _asked(peer, head, is_draining, every, say)
        except OSError as error:
            say(_silent(head, error))
            continue
        say("")
        if words:
            return words


async def _asked(
    peer: Peer, head: RecordedStage, is_draining: Callable[[], bool], every: float, say: Callable[[str], None]
) -> str:
    missing = 0
    while True:
        is_over = not is_draining()
        try:
            node = (await peer.inspect()).node(head.node)
        except OSError as error:
            missing = 0
            say(_silent(head, error))
        else:
            say("")
            is_there = node is not None and node.generation == head.generation
            missing = 0 if is_there else missing + 1
            if is_there and is_over:
                return ""
            if missing > 1:
                return f"its head is gone: {head.agent} has no node {head.node} of generation {head.generation}"
        await asyncio.sleep(every)


def _silent(head: RecordedStage, error: OSError) -> str:
    return f"whether its head is gone is unknown, {head.agent} does not say: {str(error) or type(error).__name__}"
