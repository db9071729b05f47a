"""What a plan says of itself, looked at once more by the agent that would act on it: a sealed plan can still be wrong.

A console refuses what it sees in its own plans; a plan that was made by another program, or sealed again after an
edit, is refused here, before anything is started. Pure.
"""

from __future__ import annotations

from backend.contract.findings import Finding, refuse
from backend.contract.models import ModelFacts
from backend.contract.plans import Plan
from backend.planning.engines import rules
from backend.planning.guards.shape import layers_of, ranks_of

_AGAIN = "Plan again instead of editing, with one release of ringtop on every side."


def unsound(plan: Plan) -> list[Finding]:
    """Options off the allowlist, ranks or layers that form no ring, roles that are another rank's, phases unbounded."""
    engine = rules(plan.engine)
    found = [*engine.check_options(plan.profile), *ranks_of(plan), *layers_of(plan)]
    found += engine.check_shape(plan.profile, plan.model_facts)
    roles = {seat.rank: seat.role for seat in engine.seats(plan.profile, plan.model_facts)}
    found += [
        refuse(
            "plan.role",
            f"{shard.node_id} on {shard.host}",
            expected=f"the role {roles[shard.rank]}, which rank {shard.rank} of {plan.engine} has",
            found=f"the role {shard.role} in the plan",
            remedy=_AGAIN,
        )
        for shard in plan.shards
        if roles.get(shard.rank, shard.role) != shard.role
    ]
    bounded = {phase.phase for phase in plan.phases}
    wanted = [phase.phase for phase in engine.phases(plan.profile, tuple(shard.bound for shard in plan.shards))]
    if missing := [phase for phase in wanted if phase not in bounded]:
        found.append(
            refuse(
                "phase.unbounded",
                plan.replica,
                expected=f"a bound for each of {', '.join(wanted)}",
                found=f"none for {', '.join(missing)} in the plan",
                remedy=f"A start without a bound could hang for ever. {_AGAIN}",
            )
        )
    return found


def guessed(plan: Plan, model: ModelFacts) -> list[Finding]:
    """Bounds of the plan that are not what the geometry of the model gives."""
    engine = rules(plan.engine)
    counts = tuple(shard.layers[1] - shard.layers[0] for shard in plan.shards if shard.layers is not None)
    if not counts or engine.check_shape(plan.profile, model) or any(f.is_refusal for f in unsound(plan)):
        return []
    derived = dict(enumerate(engine.bounds(model, plan.profile, counts)))
    return [
        refuse(
            "bound.guessed",
            f"{shard.node_id} on {shard.host}",
            expected=f"{bound.weights} bytes of weights and {bound.kv} of KV, by the geometry of {model.path}",
            found=f"{shard.bound.weights} and {shard.bound.kv} in the plan",
            remedy=f"What is reserved would not be what is taken. {_AGAIN}",
        )
        for shard in plan.shards
        if (bound := derived.get(shard.rank)) is not None
        and bound.derived
        and (shard.bound.weights, shard.bound.kv) != (bound.weights, bound.kv)
    ]
