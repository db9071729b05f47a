"""The steps of a recovery at its rings: emptied or cut first, narrowed, loaded again, and proven by a prompt."""

from __future__ import annotations

from backend.contract.commands import RestartBridge, TestReplica
from backend.contract.durations import duration
from backend.contract.plans import Plan
from backend.contract.states import TERMINAL, HostState
from backend.contract.words import HostId, ReplicaId, counted, node_id
from backend.control import recovery_document as document
from backend.control.exit_codes import DONE, FAILED, REFUSED, UNREACHABLE
from backend.control.fleet_facts import fleet_facts, target_of
from backend.control.operations.child import follow_child, last_child, run_child
from backend.control.operations.load import targets_of
from backend.control.operations.plan_again import plan_again
from backend.control.operations.recovery import LOOK_SECONDS, Halted, Recovery
from backend.control.recovery_document import AtStake
from backend.control.recovery_plan import ENOUGH_TOKENS
from backend.control.views import FleetState, Target
from backend.planning.fleet import highest_generation

ENGINE = "p4"
PROMPT_SECONDS = 120.0
PROMPT, PROMPT_TOKENS = "Count slowly from one to twenty:", 16


async def leave(recovery: Recovery) -> str:
    """Every replica with a rank there is drained, or it was said that it is cut."""
    words = []
    for stake in recovery.plan.replicas:
        targets = _shards(recovery, stake.replica, live=True)
        if not recovery.plan.look.is_running:
            words.append(f"the stages of {stake.replica} here ended with the p4 agent")
        elif not any(target.rank == 0 for target in targets):
            words.append(f"{stake.replica} serves nothing: it is {stake.state}")
        elif recovery.plan.leave == "cut":
            view = recovery.conduct.reach.state.replicas.get(stake.replica)
            flying = view.in_flight if view is not None else None
            words.append(f"{stake.replica} is cut, {'unknown' if flying is None else flying} in flight")
        else:
            await _drain(recovery, stake, targets)
            words.append(f"{stake.replica} is drained")
    return "; ".join(words) or "no replica has a rank there"


async def _drain(recovery: Recovery, stake: AtStake, targets: tuple[Target, ...]) -> None:
    options: dict[str, object] = {
        "deadline_seconds": recovery.plan.deadline_seconds,
        "at_deadline": "give-up",
        "admission_closed_by": "",
        "why": recovery.why or f"recovery of {recovery.host}",
    }
    name = f"drain-{stake.replica}"
    code, words = await _child(recovery, name, "drain", stake, targets, options)
    if code != DONE:
        raise Halted(
            code,
            f"{stake.replica} is not drained: {words}; expected: its leader gone. Close its admission, or make a plan "
            "that cuts it: ringtop p4 recover HOST --plan --cut.",
        )


async def narrow(recovery: Recovery) -> str:
    """Only what is left is unloaded, each rank by itself: what died with the p4 agent is dismissed."""
    words = []
    for stake in recovery.plan.replicas:
        targets = _shards(recovery, stake.replica)
        silent = [host for host in stake.hosts if not recovery.conduct.is_live(host)]
        if silent:
            raise Halted(
                UNREACHABLE,
                f"{', '.join(silent)} has a rank of {stake.replica} and is not heard; expected: every rank proven "
                "absent. Bring it back.",
            )
        if not targets:
            words.append(f"nothing is left of {stake.replica}")
            continue
        options: dict[str, object] = {"why": f"recovery of {recovery.host}", "reservations": []}
        code, said = await _child(recovery, f"narrow-{stake.replica}", "unload", stake, targets, options)
        if code != DONE:
            raise Halted(code, f"{stake.replica} is not gone: {said}; expected: every rank proven absent.")
        words.append(f"{counted(len(targets), 'rank')} of {stake.replica} gone")
    return "; ".join(words) or "nothing is left anywhere"


async def room(recovery: Recovery) -> str:
    """The host's memory without page cache has room for its stages."""
    need = recovery.plan.memory_need
    last, held = await recovery.until(lambda look: (look.memory_available or 0) >= need, recovery.patience)
    if not held:
        raise Halted(
            FAILED,
            f"{recovery.host} has {last.memory_available} bytes of memory available without page cache; expected "
            f"{need} or more, which its stages take. See what holds it.",
        )
    return f"{last.memory_available} bytes available, {need} needed"


async def load_again(recovery: Recovery) -> str:
    """Each replica by the plan of its load, under a generation greater than every one that was seen."""
    words = []
    for stake in recovery.plan.replicas:
        if stake.plan is None:
            words.append(f"{stake.replica} was loaded by somebody else, who has to load it again")
            continue
        name = f"load-{stake.replica}"
        before = last_child(recovery.conduct, name)
        if before is not None and before.exit_code in (None, DONE):
            code, said = await follow_child(recovery.conduct, before.id)
        else:
            await _settled(recovery, stake)
            plan = await _new_plan(recovery, stake, stake.plan)
            code, said = await _load(recovery, name, stake, plan)
        if code != DONE:
            raise Halted(code, f"{stake.replica} did not come up: {said}; expected: ready.")
        words.append(said)
    return "; ".join(words) or "nothing was loaded there"


async def _settled(recovery: Recovery, stake: AtStake) -> None:
    """What the hosts say of themselves is a few seconds old: a plan is made once none shows a stage that has gone."""
    reach = recovery.conduct.reach
    if not await reach.until(lambda state: not _unsettled(state, stake), recovery.patience):
        raise Halted(
            FAILED,
            f"{'; '.join(_unsettled(reach.state, stake))}, {duration(recovery.patience)} after {stake.replica} was "
            "unloaded; expected: its p4 agent heard, and no stage of it.",
        )


def _unsettled(state: FleetState, stake: AtStake) -> list[str]:
    """Of each host of the replica why it cannot be planned with yet."""
    found = []
    for host in stake.hosts:
        facts = state.hosts[host].facts
        residents = [engine.resident for engine in facts.engines if engine.engine == ENGINE] if facts else []
        if not residents or residents[0] is None:
            found.append(f"{host} does not hear its p4 agent")
            continue
        left = [node.name for node in residents[0].nodes if node.generation == int(stake.load_generation)]
        found += [f"{host} shows {', '.join(left)} at generation {stake.load_generation}"] if left else []
    return found


async def _new_plan(recovery: Recovery, stake: AtStake, last: Plan) -> Plan:
    made = await plan_again(recovery.conduct, last, ReplicaId(stake.replica))
    seen = await _highest_seen(recovery, stake)
    if int(made.load_generation) <= seen:
        raise Halted(
            REFUSED,
            f"the new generation of {stake.replica} is {made.load_generation} and {seen} has been seen; expected a "
            "greater one. A p4 agent refuses it. Find who minted that number (the clocks of the hosts, the record), "
            "and wait until it has passed, or load by hand.",
        )
    refusals = [finding.words for finding in made.findings if finding.is_refusal]
    if refusals:
        raise Halted(REFUSED, f"{stake.replica} cannot be planned again: {' '.join(refusals)}")
    return made


async def _highest_seen(recovery: Recovery, stake: AtStake) -> int:
    """Every generation of the fleet, of the baseline and of the record of whoever loads past ringtop."""
    look = await recovery.look()
    baseline = recovery.plan.look
    nodes = [node.generation for node in (*look.nodes, *baseline.nodes)]
    known = [highest_generation(report) for report in fleet_facts(recovery.conduct.reach.state).reports]
    return max(*nodes, *known, look.recorded, baseline.recorded, int(stake.load_generation), 0)


async def _load(recovery: Recovery, name: str, stake: AtStake, plan: Plan) -> tuple[int, str]:
    return await run_child(
        recovery.conduct,
        name,
        "load",
        plan.replica,
        targets=targets_of(plan),
        generation=plan.load_generation,
        options={"keep_on_failure": False},
        plan=plan,
    )


async def bridge(recovery: Recovery) -> str:
    """The bridges at the heads of the rings are restarted, where agent.toml says how."""
    hosts = dict.fromkeys(host for host, _ in _leaders(recovery))
    words = []
    for host in hosts or {recovery.host: None}:
        seen = await recovery.look_at(host)
        if not seen.commands.bridge_is_ours:
            rest = "restart it by hand, or wait out its dial back-off" if seen.commands.is_told else "none is told here"
            words.append(f"{host}: no command restarts a bridge; {rest}")
            continue
        tries = sum(step.what == f"bridge {host}" for step in recovery.conduct.steps)
        op_id = recovery.conduct.op_id(f"bridge-{host}-{tries + 1}")
        command = RestartBridge(op_id=op_id, engine=recovery.plan.engine, by=recovery.conduct.by, why=recovery.why)
        outcome = await recovery.conduct.ask(host, command, 2 * LOOK_SECONDS + 60.0)
        recovery.conduct.step(document.BRIDGE, f"bridge {host}", str(outcome.value.get("words", outcome.words)))
        if not outcome.succeeded:
            raise Halted(FAILED, f"the bridge at {host} was not restarted: {outcome.words}; expected: exit 0.")
        words.append(f"{host}: {outcome.value.get('words', 'restarted')}")
    return "; ".join(words)


async def prompt(recovery: Recovery) -> str:
    """One prompt through every rank of every ring; it must bring enough tokens to mean something."""
    words = []
    for host, replica in _leaders(recovery):
        tries = sum(step.what == f"prompt {replica}" for step in recovery.conduct.steps)
        command = TestReplica(
            op_id=recovery.conduct.op_id(f"prompt-{replica}-{tries + 1}"),
            node_id=node_id(replica, 0),
            prompt=PROMPT,
            max_tokens=PROMPT_TOKENS,
            seconds=PROMPT_SECONDS,
        )
        outcome = await recovery.conduct.ask(host, command, PROMPT_SECONDS + LOOK_SECONDS)
        tokens = outcome.value.get("tokens")
        recovery.conduct.step(document.PROMPT, f"prompt {replica}", f"{tokens} tokens: {outcome.words}")
        if not outcome.succeeded or not isinstance(tokens, int) or tokens < ENOUGH_TOKENS:
            raise Halted(
                FAILED,
                f"a prompt through {replica} brought {tokens if tokens is not None else 'no'} tokens "
                f"({outcome.words}); expected {ENOUGH_TOKENS} or more.",
            )
        words.append(f"{replica} answered with {tokens} tokens in {duration(outcome.value.get('seconds', 0))}")
    return "; ".join(words) or "no ring was loaded, so there is none to ask"


def _leaders(recovery: Recovery) -> list[tuple[HostId, ReplicaId]]:
    """The head's host of every replica that this recovery loaded."""
    found = []
    for stake in recovery.plan.replicas:
        child = last_child(recovery.conduct, f"load-{stake.replica}")
        head = next((target for target in child.targets if target.rank == 0), None) if child is not None else None
        if child is not None and head is not None:
            found.append((head.host, ReplicaId(child.subject)))
    return found


def _shards(recovery: Recovery, replica: ReplicaId, *, live: bool = False) -> tuple[Target, ...]:
    """Every shard that any live host has of a replica."""
    return tuple(
        target_of(host.host, shard.node_id, shard.rank, shard.node_generation, shard.engine)
        for host in recovery.conduct.reach.state.hosts.values()
        if host.state is HostState.LIVE
        for shard in host.entities.shards.values()
        if shard.replica == replica and not (live and shard.state in TERMINAL)
    )


async def _child(
    recovery: Recovery, name: str, kind: str, stake: AtStake, targets: tuple[Target, ...], options: dict[str, object]
) -> tuple[int, str]:
    """A drain or an unload of a replica: the one that is under way, or a new one."""
    before = last_child(recovery.conduct, name)
    if before is not None and before.exit_code is None:
        return await follow_child(recovery.conduct, before.id)
    return await run_child(
        recovery.conduct,
        name,
        kind,
        stake.replica,
        targets=targets,
        generation=stake.load_generation,
        options=options,
    )
