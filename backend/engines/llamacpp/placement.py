"""Compares what the engine says of memory and placement with what the plan says. Pure: a finding, or None.

Before the weights the engine prints whole MiB, rounded down; after the load two decimals. Weights and KV must be equal
at that resolution when the bound is derived. Compute is an estimate in the plan and is held only to its order of size.
"""

from __future__ import annotations

from backend.contract.entities import Buffers
from backend.contract.findings import Finding, refuse
from backend.contract.plans import Plan, PlannedShard
from backend.engines.llamacpp.logs import MIB, DevicePlan, LoadPicture

_COMPUTE_SLACK = 256 * MIB
"""By how much the engine's own estimate may exceed the plan's before weights: both are estimates of compute."""


def endpoint_of(shard: PlannedShard) -> str:
    """The address of a worker as the leader is told it and prints it."""
    return f"{shard.advertise}:{shard.ports[0]}"


def workers_of(plan: Plan) -> tuple[PlannedShard, ...]:
    """The shards that the leader reaches over RPC, in rank order."""
    return tuple(shard for shard in plan.shards if shard.rank != 0)


def leader_of(plan: Plan) -> PlannedShard:
    """The shard of rank 0."""
    return next(shard for shard in plan.shards if shard.rank == 0)


def where(shard: PlannedShard) -> str:
    """A shard in the words of a finding."""
    return f"rank {shard.rank} on {shard.host} ({shard.device})"


def mib(size: float) -> str:
    """Bytes as the engine prints them."""
    return f"{size / MIB:.2f} MiB"


def _places(picture: LoadPicture, plan: Plan) -> list[tuple[PlannedShard, DevicePlan | None]]:
    """Every shard of the plan with its line in the engine's memory plan."""
    leader = leader_of(plan)
    local = picture.plans.get("Host") if leader.device == "CPU" else picture.plans.get(leader.device)
    return [(leader, local), *((shard, picture.plans.get(endpoint_of(shard))) for shard in workers_of(plan))]


def judge_engine_plan(picture: LoadPicture, plan: Plan, free_here: int | None) -> Finding | None:
    """Whether the start must end before the weights.

    ``free_here`` is what the leader's own device had free before the load, in bytes; None when nobody looked then.

    The engine's verdict on CPU devices counts all memory as free, so it refuses only what its own numbers refuse; the
    plan's promise at every device, and the memory of this host summed over its shards, are compared as well.
    """
    found = _judge_verdict(picture, plan)
    here = 0
    for shard, line in _places(picture, plan):
        if found is None and line is not None:
            found = _judge_line(shard, line)
        if line is not None and _is_here(shard, plan):
            here += line.taken * MIB
    if found is None and free_here is not None and here > free_here:
        leader = leader_of(plan)
        found = refuse(
            "memory.engine_plan",
            f"{leader.device} of {leader.host}",
            expected=f"at most {mib(free_here)}, which is free there now",
            found=f"{mib(here)} in the engine's own plan for the shards of this load there",
            remedy="Lower context or n_ubatch, move a shard to another host, or unload something there first.",
        )
    return found


def _is_here(shard: PlannedShard, plan: Plan) -> bool:
    """Whether a shard takes its memory from the leader's own device."""
    leader = leader_of(plan)
    return shard.host == leader.host and shard.device == leader.device


def _judge_verdict(picture: LoadPicture, plan: Plan) -> Finding | None:
    """The engine's own "does not fit", named by the place that its numbers name."""
    if picture.verdict is None or picture.verdict.fits:
        return None
    names = {endpoint_of(shard): where(shard) for shard in workers_of(plan)}
    short = {key: left for key, left in picture.left.items() if left < 0}
    if picture.left and not short:
        return None  # only its wish for a spare GiB is not met
    worst = min(short, key=lambda key: short[key], default="")
    return refuse(
        "memory.engine_plan",
        names.get(worst, worst or plan.replica),
        expected="an engine plan that fits the memory that the device has free",
        found=f"{-short[worst]} MiB too much by the engine's plan ({picture.verdict.words})"
        if worst
        else f"the engine says: {picture.verdict.words}",
        remedy="Lower context or n_ubatch, give this rank fewer layers, or free memory there.",
    )


def _judge_line(shard: PlannedShard, line: DevicePlan) -> Finding | None:
    """One place: weights and KV equal to the derived ones, and all of it within the plan's promise."""
    bound = shard.bound
    # A leader that holds layers on its own GPU has the embedding in another line; it is compared after the load.
    is_whole = shard.rank != 0 or shard.device == "CPU"
    if is_whole and bound.derived and (line.model, line.context) != (bound.weights // MIB, bound.kv // MIB):
        return refuse(
            "bound.differs",
            where(shard),
            expected=f"{bound.weights // MIB} MiB weights and {bound.kv // MIB} MiB KV, derived from the header",
            found=f"{line.model} MiB weights and {line.context} MiB KV in the engine's plan",
            remedy="The engine would not hold what was planned: compare its release and the model file with the plan.",
        )
    if bound.limit and line.taken * MIB > bound.limit:
        return refuse(
            "memory.engine_plan",
            where(shard),
            expected=f"at most {mib(bound.limit)}, which {shard.device} had left for it when it was planned",
            found=f"{line.taken} MiB in the engine's plan, of which {line.compute} MiB are compute",
            remedy="Lower n_ubatch or context, or give this rank fewer layers.",
        )
    promised = bound.memory + max(bound.compute, _COMPUTE_SLACK)
    if line.taken * MIB <= promised:
        return None
    return refuse(
        "memory.engine_plan",
        where(shard),
        expected=f"{mib(bound.memory)} (the plan's weights, KV and compute estimate)",
        found=f"{line.taken} MiB in the engine's plan, of which {line.compute} MiB are compute",
        remedy="Lower n_ubatch or context, or plan the load again so that this memory is reserved.",
    )


def judge_placement(picture: LoadPicture, plan: Plan) -> Finding | None:
    """Whether the load put the layers where the plan has them: all offloaded, one buffer per worker, no other place."""
    if picture.offloaded is None:
        return _placed_otherwise(plan, "a line that says how many layers were offloaded", "none in the leader's log")
    done, total = picture.offloaded.done, picture.offloaded.total
    is_alone_on_cpu = not workers_of(plan) and leader_of(plan).device == "CPU"
    if done != total and not is_alone_on_cpu:
        return _placed_otherwise(plan, f"{total} of {total} layers offloaded", f"{done} of {total}")
    expected = {endpoint_of(shard): shard for shard in workers_of(plan)}
    sizes = picture.sizes("model")
    for key, shard in expected.items():
        buffers = len(sizes.get(key, ()))
        if buffers != 1:
            return _placed_otherwise(plan, f"one model buffer at {key}, {where(shard)}", f"{buffers} there")
    strangers = [key for key in sizes if key not in expected and ":" in key]
    if strangers:
        return _placed_otherwise(plan, f"buffers at {', '.join(expected) or 'no other host'}", f"one at {strangers[0]}")
    failed = [words for words in picture.complaints if "Failed to connect" in words]
    if failed:
        return _placed_otherwise(plan, "every worker connected", failed[0])
    return None


def _placed_otherwise(plan: Plan, expected: str, found: str) -> Finding:
    return refuse(
        "placement.differs",
        plan.replica,
        expected=expected,
        found=found,
        remedy="The engine would serve from other places than planned. Read the leader's log, then load again.",
    )


def judge_bounds(picture: LoadPicture, plan: Plan) -> Finding | None:
    """Whether derived weights and KV equal the printed ones, at two decimals of a MiB, on every rank."""
    for shard in plan.shards:
        if not shard.bound.derived:
            continue
        for kind, name, derived in (("model", "weights", shard.bound.weights), ("KV", "KV", shard.bound.kv)):
            printed = _sizes_of(picture, plan, shard, kind)
            if not _equals(derived, printed):
                return refuse(
                    "bound.differs",
                    where(shard),
                    expected=f"{mib(derived)} {name}, derived from the header",
                    found=f"{sum(printed) / 100:.2f} MiB {name} in the engine's report",
                    remedy="The plan's formula does not hold for this engine or model: compare their releases.",
                )
    return None


def _equals(derived: int, printed: tuple[int, ...]) -> bool:
    """Whether bytes equal sizes in hundredths of a MiB, each of which was rounded once."""
    return abs(derived * 100 / MIB - sum(printed)) <= 0.5 * max(len(printed), 1) + 1e-6


def _sizes_of(picture: LoadPicture, plan: Plan, shard: PlannedShard, kind: str) -> tuple[int, ...]:
    """The printed sizes of one shard: by endpoint for a worker, every local place for the leader."""
    sizes = picture.sizes(kind)
    if shard.rank != 0:
        return sizes.get(endpoint_of(shard), ())
    remote = {endpoint_of(worker) for worker in workers_of(plan)}
    return tuple(size for key, found in sizes.items() if key not in remote for size in found)


def buffers_by_rank(picture: LoadPicture, plan: Plan) -> tuple[Buffers, ...]:
    """What the engine said it allocated for every rank, in bytes; rank 0 has its mapped part of the file as weights."""

    def total(shard: PlannedShard, kind: str) -> int:
        return round(sum(_sizes_of(picture, plan, shard, kind)) * MIB / 100)

    def parts(shard: PlannedShard) -> int:
        return max(1, *(len(_sizes_of(picture, plan, shard, kind)) for kind in ("model", "KV")))

    return tuple(
        Buffers(shard.rank, total(shard, "model"), total(shard, "KV"), total(shard, "compute"), parts(shard))
        for shard in plan.shards
    )
