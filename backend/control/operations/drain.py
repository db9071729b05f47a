"""Empty a replica: a drain at every rank's agent, followed to its end. The agents end it without us."""

from __future__ import annotations

from backend.contract.commands import ChangeDrain, StartDrain
from backend.contract.durations import duration
from backend.contract.entities import Drain
from backend.contract.naming import said_by
from backend.contract.states import TERMINAL, HostState
from backend.contract.words import HostId, LoadGeneration, ReplicaId
from backend.control.exit_codes import DONE, FAILED, REFUSED, UNKNOWN, UNREACHABLE
from backend.control.ledger import ROLLING_BACK
from backend.control.operations.conduct import Conduct
from backend.control.operations.unload import dismiss, is_seen_gone, prove_all_absent
from backend.control.views import FleetState, HostView, Target

ANSWER_SECONDS = 15.0
FORGOTTEN = "forgotten by its agent"
_FOREVER = 3600.0


async def drain(conduct: Conduct) -> int:
    """Run a drain operation to its end; returns its exit code."""
    operation = conduct.operation
    hosts = _leader_first(operation.targets)
    silent = await conduct.connect(set(hosts))
    if conduct.has_step(ROLLING_BACK):
        return await _take_back(conduct, hosts, silent)
    if silent and not conduct.has_step("draining"):
        words = said_by(silent)
        return conduct.end(UNREACHABLE, f"not drained, as a drain is kept at every rank's agent; {words}")
    since = 0.0
    if not conduct.has_step("draining"):
        refused = await _start(conduct, hosts)
        if refused is not None:
            return refused
        conduct.step(operation.subject, "draining", _start_words(conduct), phase="draining")
        since = conduct.reach.state.hosts[hosts[0]].reported_at
    return await _finish(conduct, hosts, await _follow(conduct, hosts[0], since))


def _leader_first(targets: tuple[Target, ...]) -> list[HostId]:
    """The hosts of a replica, rank 0's first."""
    return list(dict.fromkeys(target.host for target in sorted(targets, key=lambda target: target.rank)))


def _start_words(conduct: Conduct) -> str:
    options = conduct.operation.options
    return f"draining for at most {duration(float(options['deadline_seconds']))}, then {options['at_deadline']}"


async def _start(conduct: Conduct, hosts: list[HostId]) -> int | None:
    """Begin at every agent, the leader's first. A refusal cancels those that began; None goes on."""
    operation, options = conduct.operation, conduct.operation.options
    begun: list[HostId] = []
    for host in hosts:
        command = StartDrain(
            op_id=conduct.op_id(f"drain-{host}"),
            replica=ReplicaId(operation.subject),
            load_generation=LoadGeneration(operation.load_generation or 0),
            by=conduct.by,
            why=str(options.get("why", "")),
            deadline_seconds=float(options["deadline_seconds"]),
            at_deadline="stop" if options["at_deadline"] == "stop" else "give-up",
            admission_closed_by=str(options.get("admission_closed_by", "")),
        )
        conduct.step(host, "drain", "sent")
        outcome = await conduct.ask(host, command, ANSWER_SECONDS)
        if outcome.succeeded:
            begun.append(host)
            continue
        words = f"{host} did not begin to drain: {outcome.words}"
        conduct.step(host, "refused", words)
        left = await _cancel(conduct, [*begun, host] if outcome.result is None else begun)
        if left:
            listed = "; ".join(f"{each}: {why}" for each, why in left.items())
            again = f"ringtop drain {operation.subject} --cancel"
            return conduct.end(
                UNKNOWN, f"{words}. A drain may be open, and end as was asked, at {listed}. End it: {again}"
            )
        return conduct.end(UNKNOWN if outcome.result is None else REFUSED, words)
    return None


async def _take_back(conduct: Conduct, hosts: list[HostId], silent: dict[HostId, str]) -> int:
    """Cancel the drain wherever it is still open. A leader that is gone already cannot be brought back."""
    subject = conduct.operation.subject
    leader = min(conduct.operation.targets, key=lambda target: target.rank)
    if leader.host not in silent and _is_gone(conduct.reach.state, leader):
        return await _finish(conduct, hosts, "done")
    generation = conduct.operation.load_generation
    is_open = [
        host
        for host in hosts
        if (kept := _drain_at(conduct.reach.state, host, subject, generation)) is not None and not kept.outcome
    ]
    await _cancel(conduct, [host for host in is_open if host not in silent])
    if silent:
        words = said_by(silent)
        return conduct.end(UNREACHABLE, f"the drain of {subject} may still be open where nobody answers; {words}")
    return conduct.end(FAILED, f"{subject} serves on: the drain was taken back")


async def _cancel(conduct: Conduct, hosts: list[HostId]) -> dict[HostId, str]:
    """Cancel the drain at these hosts; returns those of which nobody knows that it is cancelled, with the reason."""
    left: dict[HostId, str] = {}
    for host in hosts:
        command = ChangeDrain(
            op_id=conduct.op_id(f"cancel-{host}"),
            replica=ReplicaId(conduct.operation.subject),
            by=conduct.by,
            action="cancel",
        )
        outcome = await conduct.ask(host, command, ANSWER_SECONDS)
        conduct.step(host, "cancel", "cancelled here" if outcome.succeeded else outcome.words)
        if outcome.result is None:
            left[host] = outcome.words
    return left


async def _follow(conduct: Conduct, leader: HostId, since: float) -> str:
    """Wait for the drain's end at rank 0's agent, for as long as it takes; returns its outcome.

    A report that is newer than ``since`` and has neither the drain nor an end of the leader shows that it was lost.
    """
    operation = conduct.operation
    target = min(operation.targets, key=lambda target: target.rank)

    def outcome(state: FleetState) -> str:
        host = state.hosts[leader]
        kept = _drain_at(state, leader, operation.subject, operation.load_generation)
        if kept is not None:
            return kept.outcome
        is_told = host.state is HostState.LIVE and host.reported_at > since
        return FORGOTTEN if is_told and not _is_over(host, target) else ""

    while not await conduct.reach.until(lambda state: bool(outcome(state)) or _is_gone(state, target), _FOREVER):
        continue  # extended again and again, or its host is away: the drain is still open there
    state = conduct.reach.state
    shard = state.hosts[leader].entities.shards.get(target.node_id)
    if shard is not None and shard.node_generation == target.node_generation and shard.state == "failed":
        return f"rank {target.rank} failed while it drained: {shard.words}"
    return outcome(state) or "done"


def _is_over(host: HostView, target: Target) -> bool:
    """A shard of this generation is on its way out, or is not there any more."""
    shard = host.entities.shards.get(target.node_id)
    return shard is None or shard.node_generation != target.node_generation or shard.state in (*TERMINAL, "stopping")


def _drain_at(state: FleetState, host: HostId, replica: str, generation: LoadGeneration | None) -> Drain | None:
    kept = state.hosts[host].entities.drains.get(ReplicaId(replica))
    return kept if kept is not None and kept.load_generation == generation else None


def _is_gone(state: FleetState, target: Target) -> bool:
    """The leader ended, was dismissed, or its slot has another generation by now."""
    host = state.hosts[target.host]
    if host.state is not HostState.LIVE:
        return False
    shard = host.entities.shards.get(target.node_id)
    other = shard is None or shard.node_generation != target.node_generation
    return other or is_seen_gone(state, target)


async def _finish(conduct: Conduct, hosts: list[HostId], outcome: str) -> int:
    subject = conduct.operation.subject
    if outcome in ("given up", "cancelled", FORGOTTEN):
        open_here = [
            host
            for host in hosts[1:]
            if (kept := _drain_at(conduct.reach.state, host, subject, conduct.operation.load_generation)) is not None
            and not kept.outcome
        ]
        await _cancel(conduct, open_here)
        code = UNKNOWN if outcome == "given up" else FAILED
        return conduct.end(code, f"{subject} serves on: the drain was {outcome}")
    workers = tuple(target for target in conduct.operation.targets if target.rank != 0)
    unproven = tuple(target for target in workers if not is_seen_gone(conduct.reach.state, target))
    conduct.step(subject, "unload", f"the leader is gone, {len(unproven)} workers follow", unknown=len(unproven))
    await prove_all_absent(conduct, unproven, "its leader is drained")
    if outcome.startswith("rank "):
        return conduct.end(FAILED, outcome)
    await dismiss(conduct, conduct.operation.targets)
    return conduct.end(DONE, f"{subject} is drained and gone" + (f" ({outcome})" if outcome != "done" else ""))
