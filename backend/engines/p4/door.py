"""What our agent says to a p4 agent, and how the answers read: bytes behind, the drive's words in front."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from backend.contract.plans import Plan, PlannedShard
from backend.engines.driver import Completion
from backend.engines.p4.heads import Peer
from backend.engines.p4.record import RecordedLoad
from backend.engines.p4.snapshot import Snapshot


class Answer(msgspec.Struct, frozen=True):
    """How a LOAD or UNLOAD ended. ``body`` is the adapter's own answer, empty when there is none."""

    status: str
    resource_state: str
    error: str = ""
    body: dict[str, Any] = {}

    @property
    def is_loaded(self) -> bool:
        """A LOAD succeeded, and something is there."""
        return self.status == "succeeded" and self.resource_state == "present"

    @property
    def is_absent(self) -> bool:
        """Nothing of the node is there any more, whatever the agent calls that."""
        return self.resource_state == "absent" and (self.status == "succeeded" or "does not exist" in self.error)

    @property
    def words(self) -> str:
        """For a person: what p4 said, and what it leaves behind."""
        return f"{self.status}, resource {self.resource_state}" + (f": {self.error}" if self.error else "")


class NothingSent(ConnectionError):
    """Nothing of a request left this host; the message says what was in the way."""


class Door(Protocol):
    """One p4 agent, as a stage's drive needs it. Silence is a TimeoutError, what did not leave is NothingSent."""

    async def inspect(self) -> Snapshot:
        """One INSPECT. Raises OSError."""

    async def load(self, shard: PlannedShard, plan: Plan, body: dict[str, Any], seconds: float) -> Answer:
        """LOAD one stage and hear it out. Raises OSError: then what became of it is unknown."""

    async def unload(self, name: str, generation: int, seconds: float) -> Answer:
        """UNLOAD one stage. Raises OSError: then what became of it is unknown."""

    async def open_session(self, ring: RecordedLoad, session: str, seconds: float) -> dict[int, str]:
        """Tell every stage of a ring about a session; returns the ranks that did not say ready in time, and why."""

    async def reach(self, address: str) -> Peer:
        """The p4 agent of another host, to look at; nothing is dialled yet. Raises OSError."""

    async def leave(self) -> None:
        """Leave the p4 agent with FINISH."""

    async def complete(
        self, ring: RecordedLoad, session: str, prompt: str, max_tokens: int, seconds: float
    ) -> Completion:
        """One prompt through the head of an open session, up to its release. Raises TimeoutError, ConnectionError."""
