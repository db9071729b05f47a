"""Load a replica again: its replacement first where there is room beside it, else in its place.

Replacement first: the new replica is loaded and ready before the old one begins to drain, and a load that fails leaves
the old one alone. In place: the old one is drained, unloaded and dismissed, then loaded under the same name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from backend.contract.plans import Plan
from backend.contract.states import TERMINAL, HostState
from backend.control.exit_codes import DONE, FAILED, REFUSED, UNKNOWN
from backend.control.ledger import ROLLING_BACK, Operation
from backend.control.operations.conduct import Conduct
from backend.control.operations.drain import drain
from backend.control.operations.load import load, targets_of
from backend.control.operations.stage import Stage
from backend.control.operations.unload import unload
from backend.control.views import FleetState

LEAVE_PREFIX = "old-"
_HOLD_SECONDS = 30.0
_DONE_WORDS = {"unload": "unloaded", "drain": "drained"}


async def reload(conduct: Conduct) -> int:
    """Run a reload operation to its end; returns its exit code."""
    plan = conduct.operation.plan
    if plan is None:
        return conduct.end(REFUSED, "the operation holds no plan, so there is nothing to load again")
    return await (_in_place if plan.replica == conduct.operation.subject else _replace)(conduct, plan)


async def _replace(conduct: Conduct, plan: Plan) -> int:
    old, new = conduct.operation.subject, plan.replica
    code, words = await _run(_load_stage(conduct, plan), load, f"load {new} beside {old}")
    if code != DONE:
        return conduct.end(code, f"{old} is left as it was; {new} did not come up: {words}")
    stage, work = _leave_stage(conduct)
    code, left = await _run(stage, work, f"{new} is ready, so {stage.name} {old}")
    if code != DONE:
        remedy = f"Both hold memory; end {old} with ringtop drain {old} or ringtop unload {old}."
        return conduct.end(code, f"{words}, but {old} did not go: {left}. {remedy}")
    return conduct.end(DONE, f"{old} is replaced: {words}; {left}")


async def _in_place(conduct: Conduct, plan: Plan) -> int:
    old = conduct.operation.subject
    stage, work = _leave_stage(conduct)
    done = _DONE_WORDS[stage.name]
    code, left = await _run(stage, work, f"{stage.name} {old} before it is loaded again")
    if code != DONE and _leader_has_ended(conduct.reach.state, conduct.operation):
        again = f"Try again with: ringtop reload {old}"
        return conduct.end(code, f"{old} is DOWN, and nothing was loaded: {left}. {again}")
    if code != DONE:
        return conduct.end(code, f"nothing was loaded; {left}")
    await conduct.reach.until(lambda state: _holds_nothing(state, conduct.operation), _HOLD_SECONDS)
    code, words = await _run(_load_stage(conduct, plan), load, f"{old} is {done}, so load it again")
    if code != DONE:
        down = "may be down" if code == UNKNOWN else "is DOWN"
        again = f"Load it with: ringtop load {plan.model}:{plan.profile_name}"
        return conduct.end(code, f"{old} {down}: it was {done}, and it did not come up again: {words}. {again}")
    return conduct.end(DONE, f"{old} is loaded again: {words}")


async def _run(stage: Stage, work: Callable[[Conduct], Awaitable[int]], words: str) -> tuple[int, str]:
    """One stage to its end, from where an earlier owner left it; one that has ended is not run again."""
    if not stage.has_begun:
        if Conduct.has_step(stage, ROLLING_BACK):
            return FAILED, f"taken back before its {stage.name} began"
        stage.begin(words)
    if stage.ended is None:
        await work(stage)
    ended = stage.ended
    assert ended is not None, "every operation writes its end down"
    return ended


def _load_stage(conduct: Conduct, plan: Plan) -> Stage:
    whole = conduct.operation
    seen = msgspec.structs.replace(
        whole, kind="load", subject=plan.replica, load_generation=plan.load_generation, targets=targets_of(plan)
    )
    return Stage(conduct, "load", seen, expects_revision=plan.replica != whole.subject)


def _leave_stage(conduct: Conduct) -> tuple[Stage, Callable[[Conduct], Awaitable[int]]]:
    """Drain; or unload, where the leader has ended and nothing is left to empty. Once begun it stays what it was."""
    whole = conduct.operation
    by_unload = Stage(conduct, "unload", whole, prefix=LEAVE_PREFIX)
    by_drain = Stage(conduct, "drain", whole, prefix=LEAVE_PREFIX)
    if by_unload.has_begun:
        return by_unload, unload
    is_over = whole.options.get("leave") == "unload" or _leader_has_ended(conduct.reach.state, whole)
    if is_over and not by_drain.has_begun:
        return by_unload, unload
    return by_drain, drain


def _leader_has_ended(state: FleetState, operation: Operation) -> bool:
    leader = next((target for target in operation.targets if target.rank == 0), None)
    if leader is None:
        return True
    host = state.hosts[leader.host]
    shard = host.entities.shards.get(leader.node_id)
    is_same = shard is not None and shard.node_generation == leader.node_generation
    return host.state is HostState.LIVE and is_same and shard is not None and shard.state in TERMINAL


def _holds_nothing(state: FleetState, operation: Operation) -> bool:
    """No live host keeps anything back for the generation that went."""
    return not any(
        hold.node_id == target.node_id and hold.load_generation == operation.load_generation
        for target in operation.targets
        for hold in state.hosts[target.host].entities.holds.values()
    )
