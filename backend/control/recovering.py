"""How long a replica that was adopted short may recover before it counts as failed. Pure; the memory is the fleet's."""

from __future__ import annotations

from backend.contract.states import ReplicaState
from backend.contract.words import LoadGeneration, ReplicaId
from backend.control.views import ReplicaView

GRACE_SECONDS = 300.0
"""More than a lease and a reboot: a host that is coming back is waited for, a rank that never comes is named."""
Recovering = dict[tuple[ReplicaId, LoadGeneration], float]
"""Since when each generation is recovering, in monotonic seconds of this process."""
_SILENT = ("unreachable", "lost")


def is_short(view: ReplicaView) -> bool:
    """Whether ranks of it are missing, or on hosts that say nothing."""
    return bool(view.missing) or any(shard.state in _SILENT for shard in view.shards)


def still_recovering(
    replicas: dict[ReplicaId, ReplicaView], before: Recovering, given_up: dict[ReplicaId, LoadGeneration], at: float
) -> Recovering:
    """Since when each replica is recovering that is so now, or was given up and is as short as it was."""
    return {
        (name, view.load_generation): before.get((name, view.load_generation), at)
        for name, view in replicas.items()
        if view.state is ReplicaState.RECOVERING or (given_up.get(name) == view.load_generation and is_short(view))
    }


def hosts_of(view: ReplicaView) -> set[str]:
    """Every host that has a rank of it, or should."""
    return {shard.shard.host for shard in view.shards} | set(view.plan.hosts if view.plan is not None else ())
