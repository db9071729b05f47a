"""What a keeper may decide, by which measures, and what it remembers from one look to the next."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.entities import ProcessIdentity
from backend.contract.words import HostId, LoadGeneration, NodeId, OpId, ReplicaId


class KeeperRules(msgspec.Struct, frozen=True, kw_only=True):
    """The keeper's measures, in seconds. ``budget`` loads of one replica within ``budget_seconds``, then quarantine.

    ``retry_seconds`` pass after a plan that was refused, ``settle_seconds`` after each decision about a model;
    a stray must have been one for ``grace_seconds``; ``drain_seconds`` is what an idle replica gets to prove it.
    A host that never reported keeps everything from being loaded for ``unheard_seconds``: it may run what is missed.
    """

    lease_seconds: float = 30.0
    every_seconds: float = 5.0
    budget: int = 3
    budget_seconds: float = 600.0
    retry_seconds: float = 60.0
    settle_seconds: float = 5.0
    grace_seconds: float = 120.0
    drain_seconds: float = 120.0
    unheard_seconds: float = 90.0


class Use(msgspec.Struct, frozen=True):
    """The last use of one generation of a replica: since when its counters stand still, and at which total."""

    generation: LoadGeneration
    since: float
    total: int | None


class Memory(msgspec.Struct, frozen=True):
    """What a keeper remembers: last uses, load attempts, since when strays are strays, which models have to wait.

    ``began`` is since when it keeps without a break; None while it does not. ``quarantined`` are the replicas that were
    seen in quarantine: whoever clears it clears their attempts.
    """

    uses: dict[ReplicaId, Use] = {}
    attempts: dict[ReplicaId, tuple[float, ...]] = {}
    strays: dict[str, float] = {}
    not_before: dict[str, float] = {}
    began: float | None = None
    quarantined: frozenset[ReplicaId] = frozenset()


class Decision(msgspec.Struct, frozen=True, kw_only=True, tag_field="decision"):
    """One thing to do, and why in words."""

    why: str


class LoadModel(Decision, frozen=True, kw_only=True, tag="load"):
    """Load a replica of a model, which will be called ``replica``, from nothing."""

    model: str
    target: str
    replica: ReplicaId


class DismissReplica(Decision, frozen=True, kw_only=True, tag="dismiss"):
    """Take away what is left of a replica that does not serve any more, so that it can be loaded again."""

    model: str
    replica: ReplicaId
    generation: LoadGeneration


class DrainIdle(Decision, frozen=True, kw_only=True, tag="drain"):
    """Empty and stop a replica that nobody has used for its whole idle timeout; it gives up when somebody does."""

    model: str
    replica: ReplicaId
    generation: LoadGeneration
    seconds: float


class Quarantine(Decision, frozen=True, kw_only=True, tag="quarantine"):
    """Load a replica no more until a person clears it."""

    model: str
    replica: ReplicaId


class StopStray(Decision, frozen=True, kw_only=True, tag="stop"):
    """Stop one shard that nobody wants: exactly this process of this generation."""

    host: HostId
    node_id: NodeId
    generation: LoadGeneration
    identity: ProcessIdentity | None


class ResumeOwn(Decision, frozen=True, kw_only=True, tag="resume"):
    """Go on with an operation that a keeper of this home began and whose process is gone."""

    operation: OpId


AnyDecision = ResumeOwn | LoadModel | DismissReplica | DrainIdle | Quarantine | StopStray


def as_value(decision: AnyDecision) -> dict[str, Any]:
    """A decision for programs: what, about what, and why."""
    tree: dict[str, Any] = msgspec.to_builtins(decision)
    return tree
