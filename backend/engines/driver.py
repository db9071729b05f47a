"""What an agent asks of an engine module, whichever engine it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from backend.contract.entities import Buffers, Canary, Resident, Shard
from backend.contract.findings import Finding
from backend.contract.models import ModelFacts
from backend.contract.plans import Plan, PlannedShard
from backend.contract.reports import EngineFacts, HostFacts, Measurement
from backend.contract.residents import ResidentLook
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


class Confirmed(msgspec.Struct, frozen=True):
    """The engine said what it loaded: its release, and the largest result in bytes that it may return."""

    release: str
    result: int
    words: str


class Published(msgspec.Struct, frozen=True):
    """Whoever submits to a ring was told of it, or could not be: then requests to it are refused."""

    ok: bool
    words: str


class Unloaded(msgspec.Struct, frozen=True):
    """The engine's own agent unloaded a shard that drains: it was not busy any more."""

    words: str


Seen = PhaseSeen | Proven | CanarySeen | Unfit | PeerLost | LeaderGone | Confirmed | Published | Unloaded | Measurement
"""What a drive tells its agent."""


def _always() -> bool:
    return True


def _never() -> bool:
    return False


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One shard that runs, as a driver needs it. ``free_memory`` gives the bytes free on the shard's device, and raises
    LookupError while nobody knows: a GPU's driver that hangs takes its devices out of sight.

    ``pid`` is 0 for a resident, which has no process of this agent; ``model`` is the file that it is to read, where
    this agent does not pass it on a command line. ``adopted`` says that it ran, or was asked for, before this agent
    did: then nothing is assumed of its phase; ``was_drained`` that a drain of it was begun. ``may_canary`` is False
    while the replica drains: a canary would count as work; ``is_draining`` is True then. ``is_watched`` is False while
    nobody asks for measurements: what is idle then may be measured less often.
    """

    shard: Shard
    plan: Plan
    pid: int
    log: Path
    free_memory: Callable[[], int]
    adopted: bool = False
    was_drained: bool = False
    may_canary: Callable[[], bool] = _always
    is_draining: Callable[[], bool] = _never
    model: Path = Path()
    is_watched: Callable[[], bool] = _always

    def free_now(self) -> int | None:
        """Bytes free on the shard's device; None while nobody knows."""
        try:
            return self.free_memory()
        except LookupError:
            return None


class Completion(msgspec.Struct, frozen=True):
    """An answer of the model: text, seconds, tokens generated."""

    text: str
    seconds: float
    tokens: int


class StopStep(msgspec.Struct, frozen=True):
    """One step of stopping: a signal, and how many seconds it may take before the next."""

    signal: int
    seconds: float


class EngineDriver(Protocol):
    """One engine on one host, however its shards come up."""

    engine: str

    async def facts(self) -> EngineFacts:
        """What is installed: folder, release, device names. Raises EngineMissing."""

    async def inspect(self, path: Path) -> ModelFacts:
        """Geometry of a model file from its header. Raises ModelUnreadable."""

    async def check(self, shard: PlannedShard, plan: Plan, facts: HostFacts) -> tuple[Finding, ...]:
        """What this host alone can know about one planned shard. Starts nothing."""

    async def check_workers(self, plan: Plan) -> tuple[Finding, ...]:
        """Just before the leader starts: what speaks against its workers as they answer now."""

    async def drive(self, run: Run, see: Callable[[Seen], None]) -> None:
        """Follow one shard from its start, through its load, while it serves; returns only when cancelled."""

    async def complete(self, endpoint: str, prompt: str, max_tokens: int, seconds: float) -> Completion:
        """One greedy completion. Raises TimeoutError, ConnectionError."""


class ListedDevice(msgspec.Struct, frozen=True):
    """A device as an engine's own list has it: memory in bytes, None where the list gives none."""

    name: str
    words: str = ""
    total: int | None = None
    free: int | None = None


@runtime_checkable
class ListingDriver(Protocol):
    """An engine that can be asked at any time for its devices and their memory. CPU is never among them."""

    async def list_devices(self) -> tuple[ListedDevice, ...]:
        """The devices now. Starts a program of the engine's; raises EngineMissing."""


@runtime_checkable
class SpawningDriver(EngineDriver, Protocol):
    """An engine whose every shard is a process that this agent starts, follows by its pidfd and stops by signals."""

    def launch(self, shard: PlannedShard, plan: Plan, model: Path) -> Launch:
        """The command line and environment of one shard."""

    def stop_steps(self, role: str) -> tuple[StopStep, ...]:
        """How a shard of this role is stopped."""


@runtime_checkable
class AskingDriver(EngineDriver, Protocol):
    """An engine whose shards belong to its own agent on this host: it is asked to load and unload them.

    ``drive`` asks for the load itself unless the run is adopted. Silence of the engine's agent is unknown, never an
    end: what it has not said is asked again.
    """

    def residence(self, shard: PlannedShard, plan: Plan) -> Resident:
        """Whom its agent will be asked to load. Raises EngineMissing, and ValueError for a shard without a place."""

    async def until_gone(self, run: Run) -> str:
        """Wait until its agent says that it has no such shard; returns that in words."""

    async def unload(self, run: Run, refused: Callable[[str], None]) -> None:
        """Have it unloaded, asked again for as long as it takes; ``refused`` hears each new reason why it was not."""

    async def log_file(self) -> Path:
        """The file on this host that its shards print to. Raises ValueError: why there is none, and what to set."""

    async def leave(self) -> None:
        """This agent ends: let go of its agent without taking anything of it along."""


class TendingRefused(ValueError):
    """Nothing was touched: what stands against it, both values, and what to do."""


class TendingFailed(Exception):
    """It was tried, and did not end well; the message has the command's own words."""


class Tender(Protocol):
    """An engine's own agent as a process: looked at, ended and begun by the means that agent.toml gives.

    Each deed returns what was done in words. Raises TendingRefused, TendingFailed and OSError.
    """

    async def look(self, processes: tuple[str, ...], aside: str) -> ResidentLook:
        """Measure it now, all but devices and memory."""

    async def end(self, life: str) -> str:
        """End this life of it, never by KILL."""

    async def begin(self) -> str:
        """Start it."""

    async def move_journal(self, folder: str, aside: str, files: int, size: int) -> str:
        """Move its journal folder aside and leave an empty one in its place."""

    async def restart_bridge(self) -> str:
        """Restart the bridge that submits to its rings."""


@runtime_checkable
class TendedDriver(AskingDriver, Protocol):
    """An engine whose own agent can be tended."""

    tender: Tender


Driver = SpawningDriver | AskingDriver
