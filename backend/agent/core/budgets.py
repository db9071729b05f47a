"""CPU cores and watts of this host: what each plan takes of them, and who has the rest. 0 means no such budget."""

from __future__ import annotations

from backend.agent.core.state import Capacity
from backend.agent.core.turn import Turn
from backend.contract.entities import Entities
from backend.contract.plans import Plan, PlannedShard
from backend.contract.states import shard_state
from backend.planning.fleet import computes


def demand(plan: Plan, shards: tuple[PlannedShard, ...]) -> tuple[int, int]:
    """CPU cores and watts that these shards of a plan take."""
    count = sum(computes(shard.layers, shard.device) for shard in shards)
    return plan.profile.cpu_cores * count, plan.profile.power * count


def why_not_budgets(turn: Turn, plan: Plan, shards: tuple[PlannedShard, ...], capacity: Capacity) -> str:
    """The refusal of a plan that takes more than is left of a budget here, or an empty text."""
    promised = committed(turn.state.entities)
    for index, (budget, unit, key) in enumerate(
        ((capacity.cores, "CPU cores", "cores"), (capacity.power, "W", "power_w"))
    ):
        need = demand(plan, shards)[index]
        used = sum(each[index] for each in promised.values())
        if budget and need and need > budget - used:
            holders = ", ".join(f"{name} {each[index]} {unit}" for name, each in promised.items() if each[index])
            return (
                f"E_CONFLICT: {turn.state.host} has {max(0, budget - used)} of {budget} {unit} left and the plan needs "
                f"{need}. They are with {holders or 'nobody here'}. Unload something, choose another host, or raise "
                f"{key} in its agent.toml."
            )
    return ""


def committed(entities: Entities) -> dict[str, tuple[int, int]]:
    """CPU cores and watts by holder: reservations, and live shards by the profiles of their load records."""
    found: dict[str, tuple[int, int]] = {}
    for reservation in entities.reservations.values():
        found[f"{reservation.replica} (reserved by {reservation.by})"] = (reservation.cores, reservation.power)
    for shard in entities.shards.values():
        state = shard_state(shard.state)
        record = entities.loads.get(shard.op_id)
        if record is not None and (state is None or state.is_live) and computes(shard.layers, shard.device):
            profile = record.plan.profile
            found[f"{shard.node_id} ({shard.state})"] = (profile.cpu_cores, profile.power)
    return found
