"""What a replica is, worked out from what every host last said. Pure, and the same in whatever order they spoke."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import msgspec

from backend.contract.entities import Buffers, Drain, Shard, TakenOver
from backend.contract.naming import ranks_together
from backend.contract.plans import MAX_RANKS, Plan
from backend.contract.states import HostState, ReplicaState, ShardState, shard_state
from backend.contract.words import HostId, LoadGeneration, ReplicaId
from backend.control.holdings import Part
from backend.control.recovering import GRACE_SECONDS
from backend.control.views import HostView, ModelView, OperationView, ReplicaView, ShardView

MEBIBYTE = 1_048_576
OPEN_STATES = ("running", "ownerless")
_SERVING = ("ready", "draining")
_ENDED = ("stopped", "failed")


class _Claim(msgspec.Struct, frozen=True):
    """One shard and what its host's silence makes of its word."""

    shard: Shard
    state: str
    part: Part

    @property
    def has_failed(self) -> bool:
        """It ended without being asked to, or is on its way out because it had to be ended."""
        return self.state == "failed" or (self.state == "stopping" and self.shard.ends_as == "failed")


@dataclass(frozen=True)
class _Ring:
    """The standing generation of a replica, rank by rank, and what is wrong with it in words."""

    generation: LoadGeneration
    world_size: int
    plan: Plan | None
    by_rank: dict[int, _Claim]
    missing: dict[int, str]
    not_running: dict[int, str]
    oddities: tuple[str, ...]

    @cached_property
    def claims(self) -> list[_Claim]:
        """Its shards in rank order."""
        return [self.by_rank[rank] for rank in sorted(self.by_rank)]

    @cached_property
    def leader(self) -> _Claim | None:
        """Rank 0, when a host has it."""
        return self.by_rank.get(0)

    @cached_property
    def views(self) -> tuple[ShardView, ...]:
        """Its shards in rank order, each with what others say of it."""
        return tuple(_shard_view(claim, self) for claim in self.claims)


def derive_replica(
    replica: ReplicaId,
    parts: Iterable[Part],
    operations: Iterable[OperationView],
    models: dict[str, ModelView],
    unix_ms: int,
    given_up: LoadGeneration | None = None,
) -> ReplicaView | None:
    """The replica as the first line of this table that holds says; None when nobody has anything of it.

    ======================================================================  ============
    of the standing generation (another one's live shards are strays)        state
    ======================================================================  ============
    its load is open and rolls back                                          rolling back
    its unload is open                                                       stopping
    no shard yet: reserved at agents, or only planned by an open load        placed
    a rank failed, had to be ended, or its live host says it is not running  failed
    every known rank was stopped                                             stopped
    a rank is stopping or was stopped                                        stopping
    a drain is open                                                          draining
    a rank is missing, unreachable or lost; no load of it is open            recovering
    the same of the generation ``given_up``: its grace is over               failed
    every rank of one that somebody else loaded; no prompt of ours crossed   recovering
    every rank ready and a canary has crossed them all                       ready
    its one rank, which no agent started and a person adopted, is ready      ready
    otherwise                                                                loading
    ======================================================================  ============

    A silent host makes no rank failed: its shards are ``unreachable`` or ``lost``, and those that ended stay ended.
    The world size is the load record's, never a count of what was reported.
    """
    known = sorted(parts, key=lambda part: part.host.host)
    open_operations = [op for op in operations if op.state in OPEN_STATES and op.subject == replica]
    claims = [_Claim(shard, shard_word(shard, part.host), part) for part in known for shard in part.holdings.shards]
    if not claims:
        return _placed(replica, known, open_operations, models)
    generation = standing_generation(claims)
    ring = _ring(generation, claims, known, open_operations, models)
    drain = _drain(ring, known)
    state, words = _state(ring, drain, open_operations)
    if state is ReplicaState.RECOVERING and generation == given_up:
        state, words = ReplicaState.FAILED, [*words, f"not whole again within its grace of {GRACE_SECONDS:.0f} s"]
    words = [*words, *_stray_words(claims, generation), *ring.oddities, *_ownerless_words(open_operations)]
    words = ranks_together(words) if len(words) > 1 else words
    return _view(replica, ring, state, words, drain, open_operations, models, unix_ms)


def shard_word(shard: Shard, host: HostView) -> str:
    """The shard's own state, or what its host's silence makes of it. What ended stays ended."""
    if shard.state in _ENDED or host.state is HostState.LIVE:
        return shard.state
    return "lost" if host.state is HostState.LOST else "unreachable"


def standing_generation(claims: list[_Claim]) -> LoadGeneration:
    """The generation that serves; else the newest complete one; else the newest. Ended ones stand only when alone."""
    live = [claim for claim in claims if claim.state not in _ENDED] or claims
    by_generation: dict[LoadGeneration, list[_Claim]] = {}
    for claim in live:
        by_generation.setdefault(claim.shard.load_generation, []).append(claim)

    def standing(generation: LoadGeneration) -> tuple[bool, bool, int]:
        heard = [claim for claim in by_generation[generation] if claim.state != "lost"]
        serves = any(claim.shard.rank == 0 and claim.shard.state in _SERVING for claim in heard)
        size = max(claim.shard.world_size for claim in by_generation[generation])
        there = {claim.shard.rank for claim in heard if 0 <= claim.shard.rank < size}
        return serves, len(there) == size, generation

    return max(by_generation, key=standing)


# --- the ring -----------------------------------------------------------------------------------------------------


def _ring(
    generation: LoadGeneration,
    claims: list[_Claim],
    parts: list[Part],
    operations: list[OperationView],
    models: dict[str, ModelView],
) -> _Ring:
    ours = [claim for claim in claims if claim.shard.load_generation == generation]
    plan = _plan_of(generation, parts, operations)
    world_size = _world_size(plan, ours, models)
    by_rank: dict[int, _Claim] = {}
    oddities: list[str] = []
    for claim in sorted(ours, key=lambda claim: (claim.state in _ENDED, claim.shard.host)):
        rank = claim.shard.rank
        if not 0 <= rank < world_size:
            oddities.append(f"rank {rank} on {claim.shard.host} is outside the {world_size} of its load")
        elif rank in by_rank:
            oddities.append(f"rank {rank} is on {by_rank[rank].shard.host} and again on {claim.shard.host}")
        else:
            by_rank[rank] = claim
    missing: dict[int, str] = {}
    not_running: dict[int, str] = {}
    for rank in range(world_size):
        if rank not in by_rank:
            denied, words = _absence(rank, plan, parts)
            (not_running if denied else missing)[rank] = words
    return _Ring(generation, world_size, plan, by_rank, missing, not_running, tuple(oddities))


def _plan_of(generation: LoadGeneration, parts: list[Part], operations: list[OperationView]) -> Plan | None:
    recorded = [plan for part in parts for plan in part.holdings.plans]
    recorded += [operation.plan for operation in operations if operation.plan is not None]
    return next((plan for plan in recorded if plan.load_generation == generation), None)


def _world_size(plan: Plan | None, claims: list[_Claim], models: dict[str, ModelView]) -> int:
    if plan is not None:
        return plan.profile.ranks
    for claim in claims:
        model = find_model(models, claim.shard.model)
        profile = model.profiles.get(claim.shard.profile_name) if model else None
        if profile is not None:
            return profile.ranks
    return min(MAX_RANKS, max(1, *(claim.shard.world_size for claim in claims)))


def _absence(rank: int, plan: Plan | None, parts: list[Part]) -> tuple[bool, str]:
    """Whether a live host denies that it runs this rank, and the absence in words."""
    planned = next((shard for shard in plan.shards if shard.rank == rank), None) if plan else None
    if planned is None:
        return False, f"rank {rank}: no host has reported it"
    part = next((part for part in parts if part.host.host == planned.host), None)
    if part is None or part.host.state is not HostState.LIVE:
        state = part.host.state.value if part else "not heard"
        return False, f"rank {rank} on {planned.host}: {state}"
    reserved = any(planned.node_id in reservation.node_ids for reservation in part.holdings.reservations)
    if reserved or planned.node_id in part.holdings.intents:
        return False, f"rank {rank} on {planned.host}: reserved"
    return True, f"rank {rank} on {planned.host}: the agent reports it is not running"


# --- the state ----------------------------------------------------------------------------------------------------


def _state(ring: _Ring, drain: Drain | None, operations: list[OperationView]) -> tuple[ReplicaState, list[str]]:
    states = [claim.state for claim in ring.claims]
    any_live = any(state not in _ENDED for state in states)
    failed = _failed_words(ring, any_live)
    absent = [ring.missing[rank] for rank in sorted(ring.missing)]
    silent = [
        f"rank {c.shard.rank} on {c.shard.host}: {c.state}" for c in ring.claims if c.state in ("unreachable", "lost")
    ]
    opened = {operation.kind: operation for operation in operations}
    load = opened.get("load")
    if load is not None and load.phase == "rolling back":
        return ReplicaState.ROLLING_BACK, [f"{load.unknown_targets} unknown", *failed, *silent]
    if "unload" in opened:
        return ReplicaState.STOPPING, [*failed, *silent]
    if failed:
        return ReplicaState.FAILED, [*failed, *silent]
    if not any_live:
        return ReplicaState.STOPPED, _reasons(ring)
    if any(state in ("stopping", "stopped") for state in states):
        return ReplicaState.STOPPING, [*_reasons(ring), *silent]
    if drain is not None and not drain.outcome:
        return ReplicaState.DRAINING, [*absent, *silent]
    if silent or (absent and load is None):
        return ReplicaState.RECOVERING, [*absent, *silent]
    return _ready_or_loading(ring, absent)


def _ready_or_loading(ring: _Ring, absent: list[str]) -> tuple[ReplicaState, list[str]]:
    leader = ring.leader
    waiting = [claim for claim in ring.claims if claim.state not in _SERVING]
    if absent or waiting or leader is None:
        words = [_phase_words(claim) for claim in waiting]
        return ReplicaState.LOADING, [*words, *absent]
    if leader.shard.canary is None and ring.plan is not None and not ring.plan.shards:
        untried = f"no prompt of ours has crossed it yet: ringtop test {leader.shard.replica}"
        return ReplicaState.RECOVERING, [leader.shard.words, untried]
    if leader.shard.taken_over is not None:
        return ReplicaState.READY, [_adopted_words(leader.shard.taken_over)]
    if leader.shard.canary is None:
        return ReplicaState.LOADING, ["rank 0 says ready, and no canary has crossed every rank yet"]
    words = [] if leader.shard.canary.ok else [f"unresponsive: {leader.shard.canary.words}"]
    words += [
        f"rank {view.shard.rank} on {view.shard.host}: its bound differs from what was derived"
        for view in ring.views
        if view.bound == "differs"
    ]
    return ReplicaState.READY, words


def _adopted_words(taken: TakenOver) -> str:
    """What is weaker about a replica that nobody here loaded."""
    why = f" ({taken.why})" if taken.why else ""
    return f"adopted by {taken.by}{why}: no agent started it, no canary proves it, bound and generation are unknown"


def _failed_words(ring: _Ring, any_live: bool) -> list[str]:
    """Which rank failed where and of what; the causes before those that fell with them."""
    failed = sorted(
        (claim for claim in ring.claims if claim.has_failed),
        key=lambda claim: (claim.shard.ends_as == "failed", claim.shard.rank),
    )
    words = [f"rank {claim.shard.rank} on {claim.shard.host}: {_end_words(claim)}" for claim in failed]
    if any_live:
        words += [ring.not_running[rank] for rank in sorted(ring.not_running)]
    return words


def _end_words(claim: _Claim) -> str:
    shard = claim.shard
    if shard.exit is None:
        return shard.words or claim.state
    if shard.ends_as == "failed" and shard.words and shard.words != shard.exit.words:
        return f"{shard.words} ({shard.exit.words})"
    return shard.exit.words or shard.words or claim.state


def _phase_words(claim: _Claim) -> str:
    known = shard_state(claim.state)
    word = claim.state if known is not None else f"unknown({claim.state})"
    return f"rank {claim.shard.rank} on {claim.shard.host}: {word}" + (
        f", {claim.shard.words}" if claim.shard.words and known is not ShardState.READY else ""
    )


def _reasons(ring: _Ring) -> list[str]:
    reasons = [claim.shard.words for claim in ring.claims if claim.shard.words]
    return list(dict.fromkeys(reasons))


def _stray_words(claims: list[_Claim], generation: LoadGeneration) -> list[str]:
    return [
        f"stray: rank {claim.shard.rank} on {claim.shard.host} of generation {claim.shard.load_generation} "
        f"({claim.state})"
        for claim in claims
        if claim.shard.load_generation != generation and claim.state not in _ENDED
    ]


def _ownerless_words(operations: list[OperationView]) -> list[str]:
    return [f"{op.kind} {op.id} by {op.by} has no owner" for op in operations if op.state == "ownerless"]


# --- the view -----------------------------------------------------------------------------------------------------


def bound_word(shard: Shard, reported: Buffers | None) -> str:
    """equal, differs or unknown: weights and KV at the resolution that the engine prints (0.01 MiB), the largest result
    to the byte. What was not derived, or is not reported, is not compared."""
    bound = shard.bound
    agree = []
    if bound.derived and reported is not None:
        pairs = ((bound.weights, reported.weights), (bound.kv, reported.kv))
        agree += [_print_alike(*pair, reported.parts) for pair in pairs]
    if bound.result_derived and shard.reported_result is not None:
        agree.append(bound.result == shard.reported_result)
    if not agree:
        return "unknown"
    return "equal" if all(agree) else "differs"


def _print_alike(one: int, other: int, parts: int) -> bool:
    """Whether they are printed alike; a sum of several printed sizes may be off by half a step for each."""
    return one == other or printed(one) == printed(other) or (parts > 1 and abs(one - other) <= parts * MEBIBYTE / 200)


def printed(size: int) -> str:
    """A size in bytes as the engine prints it: MiB with two decimals."""
    return f"{size / MEBIBYTE:.2f}"


def find_model(models: dict[str, ModelView], name: str) -> ModelView | None:
    """The catalog's model of this name or alias."""
    if name in models:
        return models[name]
    return next((model for model in models.values() if name in model.aliases), None)


def _reported(ring: _Ring, rank: int) -> Buffers | None:
    """What rank 0 said it allocated for a rank; a rank left out of its list took nothing."""
    leader = ring.leader
    if leader is None or not leader.shard.buffers:
        return None
    told = leader.shard.buffers
    if rank < len(told) and told[rank].rank == rank:
        return told[rank]
    found = next((buffers for buffers in told if buffers.rank == rank), None)
    return found or Buffers(rank=rank, weights=0, kv=0, compute=0)


def _shard_view(claim: _Claim, ring: _Ring) -> ShardView:
    shard, host = claim.shard, claim.part.host
    reported = _reported(ring, shard.rank)
    same = int(shard.node_generation) == int(shard.load_generation)
    has_generation = shard.taken_over is None  # an adopted engine was never told one
    return ShardView(
        shard=shard,
        state=claim.state,
        measurement=None if claim.state in _ENDED else host.measurements.get(shard.node_id),
        measured_at=host.measured_at.get(shard.node_id, 0.0),
        reported=reported,
        bound=bound_word(shard, reported),
        generation="differs" if not same else "equal" if has_generation else "unknown",
    )


def _view(
    replica: ReplicaId,
    ring: _Ring,
    state: ReplicaState,
    words: list[str],
    drain: Drain | None,
    operations: list[OperationView],
    models: dict[str, ModelView],
    unix_ms: int,
) -> ReplicaView:
    shards = ring.views
    any_shard = ring.claims[0].shard if ring.claims else None
    leader = shards[0] if ring.leader is not None else None
    measured = leader.measurement if leader else None
    model = any_shard.model if any_shard else ""
    known = find_model(models, model)
    return ReplicaView(
        id=replica,
        model=known.name if known else model,
        profile_name=any_shard.profile_name if any_shard else "",
        state=state,
        words="; ".join(words),
        load_generation=ring.generation,
        world_size=ring.world_size,
        ranks_ready=sum(1 for shard in shards if shard.state in _SERVING),
        shards=shards,
        endpoint=leader.shard.endpoint if leader else "",
        bound=_worst([shard.bound for shard in shards], complete=len(shards) == ring.world_size),
        tokens_per_second=measured.tokens_per_second if measured else None,
        in_flight=measured.in_flight if measured else None,
        queued=measured.queued if measured else None,
        oldest_seconds=measured.oldest_seconds if measured else None,
        source=measured.source if measured else "",
        measured_at=leader.measured_at if leader else 0.0,
        canary=leader.shard.canary if leader else None,
        drain=drain,
        drain_left_ms=_drain_left(drain, ring, unix_ms),
        unknown_targets=sum(operation.unknown_targets for operation in operations),
        plan=ring.plan,
        missing=ring.missing,
        not_running=ring.not_running,
        oddities=ring.oddities,
        arrived=measured.arrived if measured else None,
        clients=measured.clients if measured else None,
        clients_beyond=measured.clients_beyond if measured else 0,
        links=measured.links if measured else (),
    )


def _worst(bounds: list[str], *, complete: bool) -> str:
    if "differs" in bounds:
        return "differs"
    return "equal" if complete and all(bound == "equal" for bound in bounds) else "unknown"


def _drain(ring: _Ring, parts: list[Part]) -> Drain | None:
    """The drain as rank 0's agent has it, else as the first other one has it; only of the standing generation."""
    leader = ring.leader
    home: HostId | None = leader.part.host.host if leader else None
    drains = [
        (part.host.host != home, part.host.host, part.holdings.drain)
        for part in parts
        if part.holdings.drain is not None and part.holdings.drain.load_generation == ring.generation
    ]
    return min(drains, key=lambda entry: entry[:2])[2] if drains else None


def _drain_left(drain: Drain | None, ring: _Ring, unix_ms: int) -> int | None:
    if drain is None or drain.outcome:
        return None
    offset = ring.leader.part.host.clock_offset_ms if ring.leader else 0
    passed = unix_ms + (offset or 0) - drain.at_unix_ms
    return max(0, drain.left_ms - max(0, passed))


def _placed(
    replica: ReplicaId, parts: list[Part], operations: list[OperationView], models: dict[str, ModelView]
) -> ReplicaView | None:
    """A replica without a shard: reserved at agents, or only the plan of an open load."""
    reservations = [reservation for part in parts for reservation in part.holdings.reservations]
    load = next((op for op in operations if op.kind == "load" and op.load_generation is not None), None)
    if load is not None and load.load_generation is not None:
        generation = load.load_generation
    elif reservations:
        generation = max(reservation.load_generation for reservation in reservations)
    else:
        return None
    plan = _plan_of(generation, parts, operations)
    ring = _Ring(generation, plan.profile.ranks if plan else 0, plan, {}, {}, {}, ())
    rolling = load is not None and load.phase == "rolling back"
    by = reservations[0].by if reservations else load.by if load else ""
    words = [f"{load.unknown_targets} unknown"] if load is not None and rolling else [f"reserved by {by}"]
    state = ReplicaState.ROLLING_BACK if rolling else ReplicaState.PLACED
    view = _view(replica, ring, state, [*words, *_ownerless_words(operations)], None, operations, models, 0)
    if plan is None:
        return view
    return msgspec.structs.replace(view, model=plan.model, profile_name=plan.profile_name)
