"""One registered node: its phase, its queue, and the stage that works through it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.p4.simulator.wire import Event

if TYPE_CHECKING:
    from tests.p4.simulator.launch import StageProcess
    from tests.p4.simulator.stage import Stage

ADAPTER = "llamacpp"


@dataclass
class Node:
    """A node as the agent keeps it. ``phase`` is the agent's word, ``state`` the adapter's own text."""

    node_id: str
    generation: int
    store_bytes: int
    limits: dict[str, int]
    phase: str = "loading"
    result: dict[str, Any] | None = None
    stage: Stage | None = None
    process: StageProcess | None = None
    stopped: bool = False
    queue: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    task: asyncio.Task[None] | None = None

    @property
    def state(self) -> str:
        """The adapter's text, never to be interpreted."""
        return self.stage.state if self.stage is not None else "empty" if self.phase == "legacy" else "loading"
