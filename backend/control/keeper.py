"""What a keeper does, worked out from the fleet: desired counts, idle timeouts, load budgets, strays. Pure.

A person's hold is obeyed before anything else; in a minority, and about what cannot be known now, nothing is decided.
"""

from __future__ import annotations

import msgspec

from backend.contract.durations import duration
from backend.contract.entities import operator_hold_key
from backend.contract.states import TERMINAL, HostState, ReplicaState
from backend.contract.words import HostId, ReplicaId
from backend.control.keeper_decisions import (
    AnyDecision,
    DismissReplica,
    DrainIdle,
    KeeperRules,
    LoadModel,
    Memory,
    Quarantine,
    ResumeOwn,
    Use,
)
from backend.control.keeper_look import Look, model_part
from backend.control.keeper_strays import overdue, since_when, stray_shards
from backend.control.views import FleetState, ModelView, ReplicaView

_BY_KEEPER = "keeper "
_ENDED = (ReplicaState.FAILED, ReplicaState.STOPPED)


def keeper_name(who: str) -> str:
    """The name under which a keeper's operations and holds stand: whose keeper it is, and that it is one."""
    return f"{_BY_KEEPER}{who}"


def has_majority(state: FleetState, lease_ends: dict[HostId, float], now: float) -> bool:
    """Whether leases that still last make a majority of all known agents."""
    held = sum(1 for host, ends in lease_ends.items() if host in state.hosts and ends > now)
    return 2 * held > len(state.hosts)


def decide(
    state: FleetState, lease_ends: dict[HostId, float], memory: Memory, now: float, rules: KeeperRules
) -> tuple[Memory, tuple[AnyDecision, ...]]:
    """What to do now, and what to remember. ``now`` and ``lease_ends`` are monotonic seconds of this process.

    In a minority nothing is decided, and what was seen of uses and strays is forgotten: whoever keeps again begins
    every idle timeout anew.
    """
    if not has_majority(state, lease_ends, now):
        return msgspec.structs.replace(memory, uses={}, strays={}, began=None), ()
    seen = Look(state, now, rules)
    strays = stray_shards(seen)
    memory = msgspec.structs.replace(
        memory,
        uses=_uses(seen, memory),
        strays=since_when(strays, memory, now),
        attempts=_recent(seen, memory),
        began=now if memory.began is None else memory.began,
        quarantined=frozenset(ReplicaId(held.subject) for held in seen.holds.values() if held.kind == "quarantined"),
    )
    memory, decisions = _resumed(seen, memory)
    for model in seen.models:
        made = _about_model(seen, memory, model)
        if made is None:
            continue
        decisions.append(made)
        waits = {**memory.not_before, model.name: now + rules.settle_seconds}
        memory = msgspec.structs.replace(memory, not_before=waits)
        if isinstance(made, LoadModel):
            tried = (*memory.attempts.get(made.replica, ()), now)
            memory = msgspec.structs.replace(memory, attempts={**memory.attempts, made.replica: tried})
    return memory, (*decisions, *overdue(strays, memory, now - rules.grace_seconds))


def after_refusal(memory: Memory, decision: LoadModel, now: float, rules: KeeperRules) -> Memory:
    """What to remember when the plan of a load was refused: nothing was tried, and it is tried again later."""
    tried = memory.attempts.get(decision.replica, ())[:-1]
    return msgspec.structs.replace(
        memory,
        attempts={**memory.attempts, decision.replica: tried},
        not_before={**memory.not_before, decision.model: now + rules.retry_seconds},
    )


def _resumed(seen: Look, memory: Memory) -> tuple[Memory, list[AnyDecision]]:
    """The operations of keepers whose process is gone: nobody else would ever end them. A person's own stay theirs."""
    decisions: list[AnyDecision] = []
    for operation in seen.state.operations.values():
        is_ours = operation.state == "ownerless" and operation.by.startswith(_BY_KEEPER)
        replica = ReplicaId(operation.subject.partition("/")[0])
        is_held = seen.is_held(replica) or operator_hold_key("model", model_part(replica)) in seen.holds
        if not is_ours or is_held or memory.not_before.get(operation.id, 0.0) > seen.now:
            continue
        words = f"the process of {operation.id} is gone, and {operation.kind} of {operation.subject} is open"
        decisions.append(ResumeOwn(operation=operation.id, why=words))
        waits = {**memory.not_before, operation.id: seen.now + seen.rules.retry_seconds}
        memory = msgspec.structs.replace(memory, not_before=waits)
    return memory, decisions


# --- desired counts and idle timeouts -----------------------------------------------------------------------------


def _about_model(seen: Look, memory: Memory, model: ModelView) -> AnyDecision | None:
    """The one next thing to do for a model, or nothing."""
    replicas = seen.of_model(model)
    is_busy = model.name in seen.busy_models or any(view.id in seen.busy for view in replicas)
    if is_busy or memory.not_before.get(model.name, 0.0) > seen.now:
        return None
    places = {view.id for view in replicas if _has_place(seen, view)} | {*seen.held_of_model(model)}
    if len(places) < model.desired:
        if not _may_load(seen, memory):
            return None
        return _toward_desired(seen, memory, model, replicas, len(places))
    return _away_from_idle(seen, memory, model, replicas)


def _may_load(seen: Look, memory: Memory) -> bool:
    """Every host has said what it runs, or has had the time of a lease to say it."""
    watched = seen.now - (seen.now if memory.began is None else memory.began)
    return seen.all_have_reported or watched >= seen.rules.unheard_seconds


def _has_place(seen: Look, view: ReplicaView) -> bool:
    """Whether a replica counts among the desired ones: it serves, may serve again, or is in the way until it is gone.

    A replica with a lost shard does not: it is replaced elsewhere, and is surplus if it comes back.
    """
    if any(shard.state == "lost" for shard in view.shards):
        return False
    return view.state not in _ENDED or not _can_dismiss(seen, view)


def _can_dismiss(seen: Look, view: ReplicaView) -> bool:
    """What has ended may be dismissed where its own hosts are heard; what still lives only where everybody is."""
    if all(shard.state in TERMINAL for shard in view.shards):
        hosts = {shard.shard.host for shard in view.shards} & seen.state.hosts.keys()
        return all(seen.state.hosts[host].state is HostState.LIVE for host in hosts)
    return seen.all_heard(view)


def _toward_desired(
    seen: Look, memory: Memory, model: ModelView, replicas: list[ReplicaView], places: int
) -> AnyDecision:
    wanted = f"{places} of {model.desired} wanted replicas of {model.name} run"
    ended = [
        view
        for view in replicas
        if view.state in _ENDED
        and not seen.is_held(view.id)
        and _can_dismiss(seen, view)
        and not any(shard.state == "lost" for shard in view.shards)
    ]
    replica = ended[0].id if ended else _next_id(seen, model)
    tried = memory.attempts.get(replica, ())
    if len(tried) >= seen.rules.budget:
        words = (
            f"{replica} was loaded {len(tried)} times within {duration(seen.rules.budget_seconds)} and does not stay"
        )
        return Quarantine(model=model.name, replica=replica, why=words)
    if ended:
        words = f"{wanted}; {replica} is {ended[0].state.value}: {ended[0].words}".rstrip(": ")
        return DismissReplica(model=model.name, replica=replica, generation=ended[0].load_generation, why=words)
    target = f"{model.name}:{model.scaling_profile}" if model.scaling_profile else model.name
    return LoadModel(model=model.name, target=target, replica=replica, why=wanted)


def _next_id(seen: Look, model: ModelView) -> ReplicaId:
    """The name that planning gives next: the smallest number that no host knows."""
    number = 1
    while f"{model.name}-{number}" in seen.state.replicas:
        number += 1
    return ReplicaId(f"{model.name}-{number}")


def _away_from_idle(seen: Look, memory: Memory, model: ModelView, replicas: list[ReplicaView]) -> AnyDecision | None:
    """Empty the replica that has been idle for longest, when there are more than are desired."""
    ready = [view for view in replicas if view.state is ReplicaState.READY]
    if len(ready) <= model.desired:
        return None
    idle = [
        (memory.uses[view.id].since, view)
        for view in ready
        if not seen.is_held(view.id) and view.id in memory.uses and seen.all_heard(view)
    ]
    over = [(since, view) for since, view in idle if seen.now - since >= model.idle_seconds]
    if not over:
        return None
    since, view = min(over, key=lambda each: (each[0], each[1].id))
    words = (
        f"{view.id} was not used for {duration(seen.now - since)}, its idle timeout is {duration(model.idle_seconds)}"
    )
    return DrainIdle(
        model=model.name,
        replica=view.id,
        generation=view.load_generation,
        seconds=seen.rules.drain_seconds,
        why=words,
    )


def _uses(seen: Look, memory: Memory) -> dict[ReplicaId, Use]:
    """The last use of every ready replica, by its engine's own counters. What cannot be read is not idleness."""
    uses: dict[ReplicaId, Use] = {}
    for view in seen.state.replicas.values():
        if view.state is not ReplicaState.READY:
            continue
        total = _total_if_idle(seen.state, view)
        known = memory.uses.get(view.id)
        stands_still = (
            known is not None
            and known.generation == view.load_generation
            and total is not None
            and known.total == total
        )
        uses[view.id] = known if known and stands_still else Use(view.load_generation, seen.now, total)
    return uses


def _total_if_idle(state: FleetState, view: ReplicaView) -> int | None:
    """The total of tokens of a leader with nothing in flight; None when it works or that cannot be known."""
    leader = next((shard for shard in view.shards if shard.shard.rank == 0), None)
    if leader is None or leader.measurement is None:
        return None
    host = state.hosts.get(leader.shard.host)
    if host is None or host.state is not HostState.LIVE:
        return None
    measured = leader.measurement
    if measured.in_flight != 0 or measured.queued not in (0, None):
        return None
    return measured.tokens_total


def _recent(seen: Look, memory: Memory) -> dict[ReplicaId, tuple[float, ...]]:
    """The load attempts that still count: not the old ones, and none from before a quarantine that was cleared."""
    oldest = seen.now - seen.rules.budget_seconds
    cleared = {name for name in memory.quarantined if not seen.is_held(name)}
    recent = {
        name: tuple(at for at in tried if at > oldest) for name, tried in memory.attempts.items() if name not in cleared
    }
    return {name: tried for name, tried in recent.items() if tried}
