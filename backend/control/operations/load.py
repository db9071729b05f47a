"""Load what a plan says: reserve everywhere, check everywhere, dial, then LOAD; or take everything back."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable

import msgspec

from backend.contract.commands import Capacities, Check, Expect, Load, ReadLog, Reserve
from backend.contract.durations import duration
from backend.contract.entities import Shard
from backend.contract.findings import Finding, has_refusal, refuse
from backend.contract.frames import FrameError, convert
from backend.contract.naming import said_by
from backend.contract.plans import Plan, PlannedShard
from backend.contract.states import ShardState
from backend.contract.words import HostId, LoadGeneration, NodeGeneration
from backend.control.exit_codes import DONE, FAILED, REFUSED, UNKNOWN, UNREACHABLE
from backend.control.ledger import ROLLING_BACK
from backend.control.operations.conduct import Conduct, Outcome
from backend.control.operations.dialling import dial, dials_of
from backend.control.operations.unload import is_seen_gone, prove_all_absent, release
from backend.control.views import FleetState, Target
from backend.failpoints import failpoint

RESERVE_SECONDS = 15.0
CHECK_SECONDS = 60.0
SLACK_SECONDS = 30.0
"""Added to the sum of the plan's phases: the time that commands and answers take on their way."""
RESERVED_SLACK_SECONDS = 120.0
"""The same for a reservation, which must outlast the checks of every host before the first LOAD."""
READY_SECONDS = 30.0
"""From the leader's canary until every rank says that it is ready: one look of a worker's drive, as a rule."""
LOG_TAIL_BYTES = 4096
_LOG_TAIL_LINES = 20
_STARTING = {
    each.value
    for each in (
        ShardState.RESERVED,
        ShardState.SPAWNING,
        ShardState.CONNECTING,
        ShardState.LOADING,
        ShardState.WARMING,
    )
}
_LEAVING = {each.value for each in (ShardState.STOPPING, ShardState.STOPPED, ShardState.FAILED)}


async def load(conduct: Conduct) -> int:
    """Run a load operation to its end; returns its exit code."""
    plan = conduct.operation.plan
    if plan is None:
        return conduct.end(REFUSED, "the operation holds no plan, so there is nothing to load")
    silent = await conduct.connect(set(plan.hosts))
    if conduct.has_step(ROLLING_BACK):
        return await _roll_back(conduct, plan, {}, conduct.words_of(ROLLING_BACK), FAILED)
    if silent:
        return await _give_up(conduct, plan, silent)
    if not conduct.has_step("load"):
        failpoint("operation.before_reserve")
        reserved = await _reserve(conduct, plan)
        if reserved is not None:
            return reserved
        failpoint("operation.before_check")
        refused = await _check(conduct, plan)
        if refused is not None:
            return refused
    return await _load(conduct, plan)


def targets_of(plan: Plan) -> tuple[Target, ...]:
    """Every shard of a plan as a target."""
    return tuple(
        Target(
            host=shard.host,
            node_id=shard.node_id,
            rank=shard.rank,
            node_generation=shard.node_generation,
            adapter_kind=plan.engine,
        )
        for shard in plan.shards
    )


async def _give_up(conduct: Conduct, plan: Plan, silent: dict[HostId, str]) -> int:
    words = said_by(silent)
    if conduct.has_step("load"):
        return await _roll_back(conduct, plan, {}, f"unreachable when resumed: {words}", UNREACHABLE)
    await _release_all(conduct, (host for host in plan.hosts if conduct.has_step("reserve", host)))
    return conduct.end(UNREACHABLE, f"nothing was started; {words}")


# --- reserve and check --------------------------------------------------------------------------------------------


async def _reserve(conduct: Conduct, plan: Plan) -> int | None:
    """Hold everything at every agent, in host-id order. The first refusal releases the rest; None goes on."""
    seconds = sum(phase.seconds for phase in plan.phases) + RESERVED_SLACK_SECONDS
    facts = {fact.host: fact for fact in plan.facts}
    conduct.step(plan.replica, "reserve", f"reserving at {', '.join(plan.hosts)}", phase="reserving")
    held: list[HostId] = []
    for host in plan.hosts:
        fact = facts.get(host)
        expect = conduct.expect(fact) if fact else Expect()
        command = Reserve(
            op_id=conduct.op_id(f"reserve-{host}"), plan=plan, by=conduct.by, seconds=seconds, expect=expect
        )
        held.append(host)
        conduct.step(host, "reserve", "sent")
        outcome = await conduct.ask(host, command, RESERVE_SECONDS)
        if outcome.succeeded:
            continue
        words = f"{host} did not reserve: {outcome.words}"
        conduct.step(host, "refused", words)
        await _release_all(conduct, held)
        return conduct.end(UNKNOWN if outcome.result is None else REFUSED, f"nothing was started; {words}")
    return None


async def _check(conduct: Conduct, plan: Plan) -> int | None:
    """Every guard that needs a host, all heard out under one deadline and told together. None goes on."""
    conduct.step(plan.replica, "check", f"checking at {', '.join(plan.hosts)}", phase="checking")
    deadline = asyncio.get_running_loop().time() + CHECK_SECONDS
    found = await asyncio.gather(*(_check_host(conduct, plan, host) for host in plan.hosts))
    refusing = {host for host, some in zip(plan.hosts, found, strict=True) if has_refusal(some)}
    findings = list(dict.fromkeys(finding for some in found for finding in some))
    if dials := dials_of(plan, refusing):
        conduct.step(plan.replica, "dial", "dialling the advertised addresses", phase="dialling")
        dialled = await asyncio.gather(*(dial(conduct, *each, deadline) for each in dials))
        findings += [finding for finding in dialled if finding is not None]
    for finding in findings:
        conduct.step(finding.subject, finding.severity, finding.words)
    if not has_refusal(findings):
        return None
    await _release_all(conduct, plan.hosts)
    refusals = tuple(finding.words for finding in findings if finding.is_refusal)
    return conduct.end(REFUSED, f"nothing was started; {' '.join(refusals)}", lines=refusals)


async def _check_host(conduct: Conduct, plan: Plan, host: HostId) -> list[Finding]:
    outcome = await conduct.ask(host, Check(op_id=conduct.op_id(f"check-{host}"), plan=plan), CHECK_SECONDS)
    findings: list[Finding] = []
    try:
        findings = convert(outcome.value.get("findings", []), list[Finding], "its answer")
    except FrameError as error:
        findings = [refuse("check.unreadable", host, expected="findings", found=error, remedy="Update the older side.")]
    if not outcome.succeeded and not has_refusal(findings):
        remedy = f"Look at the agent of {host}, then load again."
        findings.append(refuse("check.failed", host, expected="an answer", found=outcome.words, remedy=remedy))
    return findings


async def _release_all(conduct: Conduct, hosts: Iterable[HostId]) -> None:
    live = [host for host in hosts if conduct.is_live(host)]
    await asyncio.gather(*(release(conduct, host, conduct.op_id(f"reserve-{host}")) for host in live))


# --- load ---------------------------------------------------------------------------------------------------------


async def _load(conduct: Conduct, plan: Plan) -> int:
    """Workers first, hosts in parallel, then the leader; every rank is heard out."""
    workers = [shard for shard in plan.shards if shard.rank != 0]
    leader = [shard for shard in plan.shards if shard.rank == 0]
    outcomes: dict[PlannedShard, Outcome] = {}
    for group in (workers, leader):
        if not group:
            continue
        failpoint("operation.before_leader" if group is leader else "operation.before_load")
        ranks = ", ".join(str(shard.rank) for shard in group)
        conduct.step(plan.replica, "loading", f"loading rank {ranks}", phase="loading")
        answers = await asyncio.gather(*(_load_shard(conduct, plan, shard) for shard in group))
        outcomes.update(zip(group, answers, strict=True))
        bad = {shard: outcome for shard, outcome in outcomes.items() if not outcome.succeeded}
        if bad:
            told = {shard: outcome.words for shard, outcome in bad.items()}
            return await _take_back(conduct, plan, outcomes, told, _code_of(bad.values()))
        if differs := _releases_differ(outcomes):
            return await _roll_back(conduct, plan, outcomes, differs, FAILED)
    return await _see_up(conduct, plan, outcomes)


async def _see_up(conduct: Conduct, plan: Plan, outcomes: dict[PlannedShard, Outcome]) -> int:
    """The canary was answered: wait until every rank says that it is up, and take all back where one ended instead."""

    def is_decided(state: FleetState) -> bool:
        return not _not_up(state, plan) or bool(_has_fallen(state, plan))

    await conduct.reach.until(is_decided, READY_SECONDS)
    if fallen := _has_fallen(conduct.reach.state, plan):
        bad = {shard: f"{said}, after the canary was answered" for shard, said in fallen.items()}
        return await _take_back(conduct, plan, outcomes, bad, FAILED)
    if late := _not_up(conduct.reach.state, plan):
        listed = "; ".join(f"rank {shard.rank} on {shard.host}: {said}" for shard, said in late.items())
        words = f"its canary was answered, and not every rank says within {duration(READY_SECONDS)} that it is ready"
        return conduct.end(UNKNOWN, f"{words}: {listed}. It is left running; look with: ringtop ls shards")
    endpoint = next((outcomes[shard].value.get("endpoint", "") for shard in plan.shards if shard.rank == 0), "")
    return conduct.end(DONE, f"{plan.replica} is ready at generation {plan.load_generation}, {endpoint}".rstrip(", "))


def _not_up(state: FleetState, plan: Plan) -> dict[PlannedShard, str]:
    """The ranks of a plan that their host did not say to be up yet, with what it last said.

    The leader answers its canary a moment before its workers say that they hold what was planned.
    """
    return {
        shard: phase_seen(state, shard)
        for shard in plan.shards
        if (seen := _seen(state, shard)) is None or seen.state in _STARTING
    }


def _has_fallen(state: FleetState, plan: Plan) -> dict[PlannedShard, str]:
    """The ranks of a plan that ended, or are on their way out, with their host's words."""
    return {
        shard: phase_seen(state, shard)
        for shard in plan.shards
        if (seen := _seen(state, shard)) is not None and seen.state in _LEAVING
    }


def _seen(state: FleetState, planned: PlannedShard) -> Shard | None:
    """A rank as its host last reported it; None for one of another generation, or of which nothing was heard."""
    host = state.hosts.get(planned.host)
    shard = host.entities.shards.get(planned.node_id) if host is not None else None
    return shard if shard is not None and shard.node_generation == planned.node_generation else None


def _releases_differ(outcomes: dict[PlannedShard, Outcome]) -> str:
    """Why the ranks form no ring, or nothing: some engines say only when they have loaded what release they are."""
    said = {shard: str(outcome.value["release"]) for shard, outcome in outcomes.items() if "release" in outcome.value}
    if len(set(said.values())) < 2:
        return ""
    listed = "; ".join(f"rank {shard.rank} on {shard.host} is {release}" for shard, release in said.items())
    return f"release.differs: {listed}. Install one release of the engine on every host of the ring"


async def _load_shard(conduct: Conduct, plan: Plan, shard: PlannedShard) -> Outcome:
    seconds, formula = load_limit(plan)
    command = Load(
        op_id=conduct.op_id(f"load-{shard.rank}"),
        node_id=shard.node_id,
        node_generation=NodeGeneration(shard.node_generation),
        adapter_kind=plan.engine,
        adapter_content_type=f"application/vnd.ringtop.{plan.engine}.load-v1+json",
        capacities=Capacities(),
        reservation=conduct.op_id(f"reserve-{shard.host}"),
        plan=plan,
        fence=LoadGeneration(plan.load_generation),
        by=conduct.by,
    )
    conduct.step(shard.node_id, "load", f"rank {shard.rank} sent to {shard.host}")
    outcome = await conduct.ask(shard.host, command, seconds)
    if outcome.result is None and outcome.sent:
        seen = phase_seen(conduct.reach.state, shard)
        outcome = msgspec.structs.replace(
            outcome, words=f"{outcome.words}, which is {formula}; its agent last said: {seen}"
        )
    words = "up" if outcome.succeeded else outcome.words
    tail = tuple(str(line) for line in outcome.value.get("log_tail", ()))
    conduct.step(shard.node_id, "loaded" if outcome.succeeded else "failed", f"rank {shard.rank}: {words}", lines=tail)
    return outcome


def load_limit(plan: Plan) -> tuple[float, str]:
    """The longest that one rank's LOAD may stay unanswered, in seconds, and the formula of that in words."""
    seconds = sum(phase.seconds for phase in plan.phases) + SLACK_SECONDS
    terms = [f"{phase.phase} {duration(phase.seconds)} ({phase.formula})" for phase in plan.phases]
    return seconds, " + ".join([*terms, f"{duration(SLACK_SECONDS)} on the way"])


def phase_seen(state: FleetState, planned: PlannedShard) -> str:
    """The phase that a rank was in when its host last spoke."""
    shard = _seen(state, planned)
    if shard is None:
        return "nothing of this rank"
    return f"{shard.state}, {shard.words}" if shard.words else shard.state


def _code_of(bad: Collection[Outcome]) -> int:
    if all(outcome.was_rejected for outcome in bad):
        return REFUSED
    return UNKNOWN if any(outcome.result is None for outcome in bad) else FAILED


async def _take_back(
    conduct: Conduct, plan: Plan, outcomes: dict[PlannedShard, Outcome], bad: dict[PlannedShard, str], code: int
) -> int:
    """End a load of which these ranks are bad: with the survivors kept, or with all of it taken back."""
    why = "; ".join(f"rank {shard.rank} on {shard.host}: {words}" for shard, words in bad.items())
    if conduct.operation.options.get("keep_on_failure"):
        kept = ", ".join(str(shard.rank) for shard in plan.shards if shard in outcomes and shard not in bad)
        await _release_all(conduct, plan.hosts)
        return conduct.end(code, f"{why}; kept as asked: rank {kept or 'none'}")
    return await _roll_back(conduct, plan, outcomes, why, code)


async def _roll_back(conduct: Conduct, plan: Plan, outcomes: dict[PlannedShard, Outcome], why: str, code: int) -> int:
    """Stop what may run of this generation, and end only when each target is proven absent."""
    by_node = {shard.node_id: outcome for shard, outcome in outcomes.items()}
    unproven = tuple(
        target
        for target in targets_of(plan)
        if conduct.has_step("load", target.node_id)
        and not (target.node_id in by_node and by_node[target.node_id].is_absent)
        and not is_seen_gone(conduct.reach.state, target)
    )
    conduct.step(plan.replica, ROLLING_BACK, why, phase=ROLLING_BACK, unknown=len(unproven))
    await asyncio.gather(*(_keep_log(conduct, target) for target in unproven if conduct.is_live(target.host)))
    await prove_all_absent(conduct, unproven, f"rolled back: {why}")
    await _release_all(conduct, plan.hosts)
    return conduct.end(code, f"{why}; rolled back, every rank is proven absent")


async def _keep_log(conduct: Conduct, target: Target) -> None:
    """Keep the end of a rank's log in the ledger before its process is stopped."""
    command = ReadLog(
        op_id=conduct.op_id(f"log-{target.rank}"),
        node_id=target.node_id,
        generation=LoadGeneration(target.node_generation),
        offset=-LOG_TAIL_BYTES,
        limit=LOG_TAIL_BYTES,
    )
    outcome = await conduct.ask(target.host, command, RESERVE_SECONDS)
    text = str(outcome.value.get("text", "")) if outcome.succeeded else ""
    words = f"end of the log of rank {target.rank}" if text else f"no log of rank {target.rank}: {outcome.words}"
    conduct.step(target.node_id, "log", words, lines=tuple(text.splitlines()[-_LOG_TAIL_LINES:]))
