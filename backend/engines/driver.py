"""What an agent asks of an engine module, whichever engine it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from backend.contract.entities import Buffers, Canary, Shard
from backend.contract.findings import Finding
from backend.contract.models import ModelFacts
from backend.contract.plans import Plan, PlannedShard
from backend.contract.reports import EngineFacts, HostFacts, Measurement
from backend.contract.states import ShardState


class ModelUnreadable(ValueError):
    """A model file that cannot be used: missing, truncated, of another kind. The message names path and reason."""


class EngineMissing(ValueError):
    """The engine is not installed where the agent's configuration says. The message names folder and remedy."""


class Launch(msgspec.Struct, frozen=True):
    """What to execute: an argument list and an environment built from empty."""

    argv: tuple[str, ...]
    env: dict[str, str]


class PhaseSeen(msgspec.Struct, frozen=True):
    """The shard reached a state."""

    state: ShardState
    words: str


class Proven(msgspec.Struct, frozen=True):
    """Rank 0 answered a canary, and this is what it said it allocated for every rank."""

    canary: Canary
    endpoint: str
    buffers: tuple[Buffers, ...]


class CanarySeen(msgspec.Struct, frozen=True):
    """A later canary, good or bad. Bad means unresponsive, not dead."""

    canary: Canary


class Unfit(msgspec.Struct, frozen=True):
    """The start must end now: it does not fit, overran a phase, or does something that looks right and is not."""

    finding: Finding


class PeerLost(msgspec.Struct, frozen=True):
    """The leader lost a rank: it can only abort at its next request and must be stopped."""

    rank: int
    words: str


class LeaderGone(msgspec.Struct, frozen=True):
    """A worker that had a leader has had none for its grace."""

    words: str


Seen = PhaseSeen | Proven | CanarySeen | Unfit | PeerLost | LeaderGone | Measurement
"""What a drive tells its agent."""


def _always() -> bool:
    return True


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One running engine process, as a driver needs it. ``free_memory`` gives the bytes free on the shard's device.

    ``adopted`` says that the process ran before this agent did: then nothing is assumed of its phase.
    ``may_canary`` is False while the replica drains: a canary would count as work. ``is_watched`` is False while nobody
    asks for measurements: what is idle then may be measured less often.
    """

    shard: Shard
    plan: Plan
    pid: int
    log: Path
    free_memory: Callable[[], int]
    adopted: bool = False
    may_canary: Callable[[], bool] = _always
    is_watched: Callable[[], bool] = _always


class Completion(msgspec.Struct, frozen=True):
    """An answer of the model: text, seconds, tokens generated."""

    text: str
    seconds: float
    tokens: int


class StopStep(msgspec.Struct, frozen=True):
    """One step of stopping: a signal, and how many seconds it may take before the next."""

    signal: int
    seconds: float


class Driver(Protocol):
    """One engine on one host."""

    engine: str

    async def facts(self) -> EngineFacts:
        """What is installed: folder, release, device names. Raises EngineMissing."""

    async def inspect(self, path: Path) -> ModelFacts:
        """Geometry of a model file from its header. Raises ModelUnreadable."""

    async def check(self, shard: PlannedShard, plan: Plan, facts: HostFacts) -> tuple[Finding, ...]:
        """What this host alone can know about one planned shard. Starts nothing."""

    async def check_workers(self, plan: Plan) -> tuple[Finding, ...]:
        """Just before the leader starts: what speaks against its workers as they answer now."""

    def launch(self, shard: PlannedShard, plan: Plan, model: Path) -> Launch:
        """The command line and environment of one shard."""

    async def drive(self, run: Run, see: Callable[[Seen], None]) -> None:
        """Follow one process from its spawn, through its load, while it serves; returns only when cancelled."""

    async def complete(self, endpoint: str, prompt: str, max_tokens: int, seconds: float) -> Completion:
        """One greedy completion. Raises TimeoutError, ConnectionError."""

    def stop_steps(self, role: str) -> tuple[StopStep, ...]:
        """How a shard of this role is stopped."""
