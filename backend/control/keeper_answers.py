"""What becomes of the requests around the keeper: its lease, what people hold, and the stop of one stray."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from backend.contract.commands import ClaimKeeper, Command, EndOperatorHold, ResignKeeper, SetOperatorHold
from backend.contract.entities import KeeperLease
from backend.contract.naming import no_such, said_by
from backend.contract.states import TERMINAL, HostState
from backend.contract.words import HostId, NodeGeneration, OpId
from backend.control.cannot_answer import CannotAnswer
from backend.control.derive import find_model
from backend.control.exit_codes import DONE, REFUSED, UNREACHABLE
from backend.control.operations.adopt import IDENTITIES, target_key
from backend.control.requests import ClaimKeeping, HoldSubject, ResignKeeping, ResumeSubject, StopShard
from backend.control.views import Answer, FleetState, Target

Ask = Callable[[HostId, Command], Awaitable[str]]
"""Ask one host; why it did not do it, or an empty text."""
Scope = Literal["replica", "model"]


def keeper_of(state: FleetState) -> KeeperLease | None:
    """Who keeps the fleet: the lease that lasts at a majority of all agents, as each last said."""
    counts: dict[tuple[str, int], int] = {}
    for view in state.hosts.values():
        lease = view.entities.keeper
        if lease is None or lease.ended:
            continue
        key = (lease.console, lease.keeper_epoch)
        counts[key] = counts.get(key, 0) + 1
        if 2 * counts[key] > len(state.hosts):
            return lease
    return None


def highest_keeper_epoch(state: FleetState) -> int:
    """The highest keeper_epoch that any agent has seen; 0 when none has."""
    return max((view.entities.keeper.keeper_epoch for view in state.hosts.values() if view.entities.keeper), default=0)


def subject_of(state: FleetState, name: str) -> tuple[Scope, str]:
    """What a name means: a replica, there or to come, or a model by its name or alias. Raises CannotAnswer."""
    if name in state.replicas:
        return "replica", name
    if model := find_model(state.models, name):
        return "model", model.name
    for scope, subject in _held(state):
        if subject == name:
            return scope, subject
    prefix, _, number = name.rpartition("-")
    if number.isdigit() and (model := find_model(state.models, prefix)):
        return "replica", f"{model.name}-{number}"
    raise CannotAnswer(REFUSED, no_such("replica and no model", name, (*state.replicas, *state.models)))


def _held(state: FleetState) -> list[tuple[Scope, str]]:
    found: list[tuple[Scope, str]] = []
    for view in state.hosts.values():
        for hold in view.entities.operator_holds.values():
            found.append(("replica" if hold.scope == "replica" else "model", hold.subject))
    return found


async def hold_subject(ask: Ask, state: FleetState, who: str, op_id: OpId, request: HoldSubject) -> str:
    """Write what a person decided down at every live agent; a majority must have it, or a keeper could miss it."""
    scope, subject = (request.scope, request.subject) if request.scope else subject_of(state, request.subject)
    refused = await _each(
        ask,
        state,
        lambda host: SetOperatorHold(
            op_id=OpId(f"{op_id}-{host}"),
            subject=subject,
            scope=scope,
            kind=request.kind,
            by=who,
            why=request.why,
            seconds=request.seconds,
        ),
    )
    taken = len(state.hosts) - len(refused)
    missing = f"; not at {said_by(refused)}" if refused else ""
    words = f"{scope} {subject} is {request.kind} at {taken} of {len(state.hosts)} hosts{missing}"
    if 2 * taken <= len(state.hosts):
        raise CannotAnswer(UNREACHABLE, f"{words}. That is no majority, and a keeper may miss it: try again.")
    return words


async def resume_subject(ask: Ask, state: FleetState, who: str, op_id: OpId, request: ResumeSubject) -> str:
    """Release what holds a subject, at every agent: one that is silent keeps its hold, and is named."""
    known = {(scope, subject) for scope, subject in _held(state) if subject == request.subject}
    scopes = sorted(known or {subject_of(state, request.subject)})
    trouble: dict[HostId, str] = {}
    for scope, subject in scopes:

        def release(host: HostId, scope: Scope = scope, subject: str = subject) -> EndOperatorHold:
            return EndOperatorHold(op_id=OpId(f"{op_id}-{scope}-{host}"), subject=subject, scope=scope, by=who)

        trouble |= await _each(ask, state, release)
    if trouble:
        raise CannotAnswer(
            UNREACHABLE,
            f"{request.subject} is released but for {said_by(trouble)}. What it holds there is obeyed until it is "
            "released: resume it again when it is back.",
        )
    return f"nothing holds {request.subject} any more"


async def claim_keeping(ask: Ask, state: FleetState, op_id: OpId, request: ClaimKeeping) -> Answer:
    """Claim or renew the lease at every live agent. Without a majority the code says why: refused, or unreachable."""
    refused = await _each(
        ask,
        state,
        lambda host: ClaimKeeper(
            op_id=OpId(f"{op_id}-{host}"),
            keeper_epoch=request.keeper_epoch,
            who=request.who,
            console=request.console,
            seconds=request.seconds,
        ),
    )
    held = [host for host in state.hosts if host not in refused]
    code, words = DONE, f"the lease holds at {len(held)} of {len(state.hosts)} agents"
    if 2 * len(held) <= len(state.hosts):
        said = [words for words in refused.values() if "E_KEEPER" in words]
        code = REFUSED if said else UNREACHABLE
        words = f"{words}, which is no majority. {'; '.join(dict.fromkeys(said or refused.values()))}"
    value = {"held": held, "refused": refused}
    return Answer(op_id=op_id, request="ClaimKeeping", done=True, exit_code=code, words=words, value=value)


async def resign_keeping(ask: Ask, state: FleetState, who: str, op_id: OpId, request: ResignKeeping) -> str:
    """Give the lease back where it can be; elsewhere it ends by itself."""
    refused = await _each(
        ask,
        state,
        lambda host: ResignKeeper(
            op_id=OpId(f"{op_id}-{host}"), keeper_epoch=request.keeper_epoch, console=request.console, by=who
        ),
    )
    return f"the lease was given back at {len(state.hosts) - len(refused)} of {len(state.hosts)} agents"


def shard_to_stop(state: FleetState, request: StopShard) -> Target:
    """The shard as a target, when it still is the process that was judged. Raises CannotAnswer when it is another."""
    view = state.hosts.get(request.host)
    shard = view.entities.shards.get(request.node_id) if view is not None else None
    if view is None or view.state is not HostState.LIVE:
        raise CannotAnswer(UNREACHABLE, f"{request.host} is not live, so {request.node_id} is not stopped")
    if shard is None or shard.state in TERMINAL:
        raise CannotAnswer(DONE, f"nothing to do: {request.node_id} is gone from {request.host}")
    if (shard.load_generation, shard.identity) != (request.generation, request.identity):
        raise CannotAnswer(
            REFUSED,
            f"{request.node_id} on {request.host} is generation {shard.load_generation}, process {shard.identity}; "
            f"judged was generation {request.generation}, process {request.identity}. Look again.",
        )
    return Target(
        host=request.host,
        node_id=shard.node_id,
        rank=shard.rank,
        node_generation=NodeGeneration(shard.node_generation),
        adapter_kind=shard.engine,
    )


def keeper_stop_options(target: Target, request: StopShard) -> dict[str, Any]:
    """What the operation keeps of the decision: who the shard was, so that no other process is stopped in its place."""
    identity = request.identity
    if identity is None:
        raise CannotAnswer(REFUSED, f"{request.node_id} on {request.host} has no process yet; nothing is stopped")
    known = {
        "node_generation": int(target.node_generation),
        "pid": identity.pid,
        "start_ticks": identity.start_ticks,
        "nonce": identity.nonce,
    }
    return {IDENTITIES: {target_key(target): known}, "why": request.why}


async def _each(ask: Ask, state: FleetState, command: Callable[[HostId], Command]) -> dict[HostId, str]:
    """Ask every host at once; those that did not do it, with the reason."""
    live = [host for host, view in state.hosts.items() if view.state is HostState.LIVE]
    answers = await asyncio.gather(*(ask(host, command(host)) for host in live))
    silent = {host: view.words or view.state.value for host, view in state.hosts.items() if host not in live}
    return {**{host: words for host, words in zip(live, answers, strict=True) if words}, **silent}
