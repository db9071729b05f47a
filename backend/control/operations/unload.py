"""Stop a replica: the leader first, then the workers; and prove that a target is gone."""

from __future__ import annotations

import asyncio

from backend.contract.commands import Release, Unload
from backend.contract.states import TERMINAL, HostState
from backend.contract.words import HostId, OpId, counted
from backend.control.exit_codes import DONE, FAILED, UNKNOWN, UNREACHABLE
from backend.control.operations.conduct import Conduct, Outcome
from backend.control.views import FleetState, Target

UNLOAD_SECONDS = 180.0
"""Longest wait for one proof: TERM, grace, KILL, and the looks at group, port and device after them."""
_LEADER_HEAD_START = 60.0
_HOLD_SECONDS = 30.0
_RETRY_SECONDS, _RETRY_CEILING = 5.0, 60.0


async def unload(conduct: Conduct) -> int:
    """Run an unload operation to its end; returns its exit code."""
    operation = conduct.operation
    targets = operation.targets
    reservations = [(HostId(host), OpId(op)) for host, op in operation.options.get("reservations", [])]
    hosts = {target.host for target in targets} | {host for host, _ in reservations}
    silent = await conduct.connect(hosts)
    for host, words in silent.items():
        conduct.step(host, "unreachable", words)
    conduct.step(
        operation.subject, "unload", f"stopping {len(targets)} shards", phase="unloading", unknown=len(targets)
    )
    outcomes: dict[Target, Outcome] = {}
    why = str(operation.options.get("why", ""))
    for group in leaders_first(targets):
        heard = [target for target in group if target.host not in silent]
        answers = await asyncio.gather(*(_unload_one(conduct, target, why) for target in heard))
        outcomes.update(zip(heard, answers, strict=True))
    unreleased: dict[HostId, str] = {host: silent[host] for host, _ in reservations if host in silent}
    for host, reservation in reservations:
        if host not in silent and not (outcome := await release(conduct, host, reservation)).succeeded:
            unreleased[host] = outcome.words
    return _end(conduct, outcomes, silent, unreleased)


def leaders_first(targets: tuple[Target, ...]) -> tuple[list[Target], list[Target]]:
    """The leaders, then all the others: a worker must not vanish under a leader that still serves."""
    return [t for t in targets if t.rank == 0], [t for t in targets if t.rank != 0]


async def release(conduct: Conduct, host: HostId, reservation: OpId) -> Outcome:
    """End one reservation; one that is gone already counts as ended."""
    command = Release(op_id=OpId(f"{reservation}-release"), reservation=reservation, by=conduct.by)
    outcome = await conduct.ask(host, command, 15.0)
    conduct.step(host, "release", "released" if outcome.succeeded else f"not released: {outcome.words}")
    return outcome


async def prove_absent(conduct: Conduct, target: Target, why: str) -> str:
    """Stop a target and return the proof in words; asks again for as long as it takes."""
    attempt = 1
    while True:
        if _has_ended(conduct.reach.state, target):  # stopping it would forget its words; its hold ends by itself
            await conduct.reach.until(lambda state: is_seen_gone(state, target), _HOLD_SECONDS)
        if is_seen_gone(conduct.reach.state, target):
            return "ended, and nothing is held for it"
        outcome = await conduct.ask(target.host, _command(conduct, target, why, attempt), UNLOAD_SECONDS)
        if outcome.result is not None and outcome.is_absent:
            return "proven absent" if outcome.succeeded else f"not there: {outcome.words}"
        conduct.step(target.node_id, "unload", f"not proven absent on {target.host}: {outcome.words}")
        if outcome.result is not None:
            attempt += 1
        await asyncio.sleep(min(_RETRY_CEILING, _RETRY_SECONDS * attempt))


def is_seen_gone(state: FleetState, target: Target) -> bool:
    """Its live host shows this generation's shard as ended, and no hold is left of it."""
    if not _has_ended(state, target):
        return False
    entities = state.hosts[target.host].entities
    generation = entities.shards[target.node_id].load_generation
    return not any(
        hold.node_id == target.node_id and hold.load_generation == generation for hold in entities.holds.values()
    )


def _has_ended(state: FleetState, target: Target) -> bool:
    host = state.hosts[target.host]
    shard = host.entities.shards.get(target.node_id)
    if host.state is not HostState.LIVE or shard is None or shard.node_generation != target.node_generation:
        return False
    return shard.state in TERMINAL


async def prove_all_absent(conduct: Conduct, targets: tuple[Target, ...], why: str) -> None:
    """Prove every target absent, the leader with a head start, counting down what is still unknown."""
    left = len(targets)
    leaders, others = leaders_first(targets)

    async def prove(target: Target, first: list[asyncio.Task[None]]) -> None:
        nonlocal left
        if first:
            await asyncio.wait(first, timeout=_LEADER_HEAD_START)
        words = await prove_absent(conduct, target, why)
        left -= 1
        conduct.step(target.node_id, "absent", f"rank {target.rank} on {target.host}: {words}", unknown=left)

    async with asyncio.TaskGroup() as group:
        first = [group.create_task(prove(target, [])) for target in leaders]
        for target in others:
            group.create_task(prove(target, first))


async def dismiss(conduct: Conduct, targets: tuple[Target, ...]) -> None:
    """Let the agents forget shards that ended as they were asked to; what is gone already needs no word."""
    for target in targets:
        shard = conduct.reach.state.hosts[target.host].entities.shards.get(target.node_id)
        if shard is None or shard.node_generation != target.node_generation:
            continue
        outcome = await conduct.ask(target.host, _command(conduct, target, "drained", 1), UNLOAD_SECONDS)
        if not outcome.succeeded:
            conduct.step(target.node_id, "dismiss", f"not dismissed on {target.host}: {outcome.words}")


def _command(conduct: Conduct, target: Target, why: str, attempt: int) -> Unload:
    tail = "" if attempt == 1 else f"-{attempt}"
    return Unload(
        op_id=conduct.op_id(f"unload-{target.rank}-{target.host}{tail}"),
        node_id=target.node_id,
        node_generation=target.node_generation,
        adapter_kind=target.adapter_kind,
        by=conduct.by,
        why=why,
    )


async def _unload_one(conduct: Conduct, target: Target, why: str) -> Outcome:
    outcome = await conduct.ask(target.host, _command(conduct, target, why, 1), UNLOAD_SECONDS)
    words = "gone" if outcome.succeeded else outcome.words
    conduct.step(target.node_id, "unload", f"rank {target.rank} on {target.host}: {words}")
    return outcome


def _end(
    conduct: Conduct, outcomes: dict[Target, Outcome], silent: dict[HostId, str], unreleased: dict[HostId, str]
) -> int:
    targets = conduct.operation.targets
    trouble = []
    codes = set()
    for target in targets:
        outcome = outcomes.get(target)
        if outcome is None:
            codes.add(UNREACHABLE)
            trouble.append(f"rank {target.rank} on {target.host} may still run: {silent[target.host]}")
        elif outcome.result is None:
            codes.add(UNKNOWN)
            trouble.append(f"rank {target.rank} on {target.host} is unknown: {outcome.words}")
        elif not outcome.succeeded:
            codes.add(FAILED)
            trouble.append(f"rank {target.rank} on {target.host} was not stopped: {outcome.words}")
    for host, words in unreleased.items():
        codes.add(UNREACHABLE if host in silent else UNKNOWN)
        trouble.append(f"its reservation at {host} may stand until it expires: {words}")
    if not trouble:
        hosts = {target.host for target in targets} or set(conduct.reach.state.hosts)
        return conduct.end(DONE, f"{conduct.operation.subject} is gone from {counted(len(hosts), 'host')}")
    code = next(code for code in (FAILED, UNKNOWN, UNREACHABLE) if code in codes)
    return conduct.end(code, "; ".join(trouble))
