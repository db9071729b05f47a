"""Drains as objects at the agents: they end without any console.

Rank 0's agent reads the engine's counts; zero must hold over three readings in a row, the last just before the stop.
Unknown never reads as zero. The other agents keep the drain so that its end, owner and reason are known there too.
"""

from __future__ import annotations

import msgspec

from backend.agent.core.stopping import begin_stop
from backend.agent.core.turn import Turn
from backend.contract.commands import ChangeDrain, StartDrain
from backend.contract.durations import duration
from backend.contract.entities import Drain, Shard
from backend.contract.reports import Measurement
from backend.contract.states import ShardState
from backend.contract.words import ReplicaId

ZERO_READINGS = 3
"""Readings in a row that must show no work before a drained leader is stopped."""


def start(turn: Turn, command: StartDrain) -> str:
    """Begin a drain; returns the refusal in words, or an empty text."""
    shards = _shards(turn, command.replica)
    if not shards:
        return f"E_UNKNOWN_REPLICA: {command.replica} has no shard on {turn.state.host}."
    generation = shards[0].load_generation
    if generation != command.load_generation:
        return (
            f"E_FENCED: {command.replica} is at generation {generation} on {turn.state.host}, the drain names "
            f"{command.load_generation}. Look again before draining it."
        )
    running = turn.state.entities.drains.get(command.replica)
    if running is not None and not running.outcome:
        return (
            f"E_CONFLICT: {command.replica} is draining already, by {running.by}"
            f"{f' ({running.why})' if running.why else ''}. Extend, force or cancel that one."
        )
    if not any(shard.state == ShardState.READY.value for shard in shards):
        states = ", ".join(f"rank {shard.rank} {shard.state}" for shard in shards)
        return f"E_STATE: {command.replica} is not ready on {turn.state.host} ({states}). Unload it instead."
    drain = Drain(
        replica=command.replica,
        load_generation=command.load_generation,
        op_id=command.op_id,
        by=command.by,
        why=command.why,
        left_ms=int(command.deadline_seconds * 1000),
        at_unix_ms=turn.now.unix_ms,
        at_deadline=command.at_deadline,
        admission_closed_by=command.admission_closed_by,
    )
    _set_deadline(turn, command.replica, command.deadline_seconds)
    turn.set(zeros={**turn.state.zeros, command.replica: 0})
    then = "stop" if command.at_deadline == "stop" else "give up"
    words = f"draining for at most {duration(command.deadline_seconds)}, then {then}"
    for shard in shards:
        if shard.state == ShardState.READY.value:
            moved = turn.move(shard, ShardState.DRAINING, words)
            turn.record("draining", words, by=command.by, shard=moved, drain=drain)
    return ""


def change(turn: Turn, command: ChangeDrain) -> str:
    """Extend, force or cancel a drain; returns the refusal in words, or an empty text."""
    drain = turn.state.entities.drains.get(command.replica)
    if drain is None or drain.outcome:
        ended = f"; its last one ended: {drain.outcome}" if drain else ""
        return f"E_STATE: {command.replica} is not draining on {turn.state.host}{ended}."
    if command.action == "cancel":
        _end(turn, drain, "cancelled", f"drain cancelled by {command.by}", by=command.by)
    elif command.action == "force":
        _stop_leader(turn, drain, f"drain forced by {command.by}", by=command.by)
    else:
        left = _left_seconds(turn, drain) + command.extend_seconds
        _set_deadline(turn, command.replica, left)
        extended = msgspec.structs.replace(drain, left_ms=int(left * 1000), at_unix_ms=turn.now.unix_ms)
        words = f"drain extended by {duration(command.extend_seconds)}, {duration(left)} left"
        turn.record("drain.extended", words, by=command.by, replica=drain.replica, drain=extended)
    return ""


def on_measurement(turn: Turn, shard: Shard, measurement: Measurement) -> None:
    """Count an empty reading of a draining leader, and stop it at the third in a row."""
    drain = turn.state.entities.drains.get(shard.replica)
    if drain is None or drain.outcome or shard.rank != 0 or shard.state != ShardState.DRAINING.value:
        return
    if measurement.in_flight is None or measurement.queued is None:
        return
    empty = measurement.in_flight == 0 and measurement.queued == 0
    count = turn.state.zeros.get(shard.replica, 0) + 1 if empty else 0
    if count != turn.state.zeros.get(shard.replica, 0):
        turn.set(zeros={**turn.state.zeros, shard.replica: count})
    if count >= ZERO_READINGS:
        _stop_leader(turn, drain, "nothing in flight over three readings", by="drain")


def on_tick(turn: Turn) -> None:
    """End the drains whose deadline is over, as each of them says."""
    for replica, deadline in list(turn.state.drain_deadlines.items()):
        if turn.now.mono < deadline:
            continue
        drain = turn.state.entities.drains.get(replica)
        if drain is None or drain.outcome:
            _clear_deadline(turn, replica)
        elif drain.at_deadline == "stop":
            _stop_leader(turn, drain, f"drain deadline over: {_cut_words(turn, drain)}", by="drain")
        else:
            _end(turn, drain, "given up", "drain deadline over: given up, it serves on", by="drain")


def _cut_words(turn: Turn, drain: Drain) -> str:
    """What the stop at a deadline does to what is in flight; nothing of an engine's own agent can be cut."""
    if any(shard.resident is not None for shard in _shards(turn, drain.replica)):
        return "unloaded as soon as its engine is not busy, as nothing there can be cut"
    return "cut what was in flight"


def on_stopped(turn: Turn, shard: Shard) -> None:
    """Close the drain at this agent once none of the replica's shards here lives."""
    drain = turn.state.entities.drains.get(shard.replica)
    if drain is None or drain.outcome:
        return
    live = [s for s in _shards(turn, shard.replica) if s.state not in ("stopped", "failed")]
    if not live:
        _clear_deadline(turn, shard.replica)
        done = msgspec.structs.replace(drain, outcome="done", left_ms=0)
        turn.record("drained", f"{shard.replica} is drained here", by=drain.by, replica=shard.replica, drain=done)


def restored_deadlines(turn: Turn) -> None:
    """After a restart: what was left, less the wall time that passed since, never more than was left."""
    for drain in turn.state.entities.drains.values():
        if not drain.outcome:
            passed = max(0, turn.now.unix_ms - drain.at_unix_ms) / 1000
            _set_deadline(turn, drain.replica, max(0.0, drain.left_ms / 1000 - passed))


def _stop_leader(turn: Turn, drain: Drain, words: str, *, by: str) -> None:
    """End the serving: the leader first; this agent's own workers follow when it is gone."""
    _clear_deadline(turn, drain.replica)
    shards = _shards(turn, drain.replica)
    leader = next((s for s in shards if s.rank == 0), None)
    if leader is not None:
        if leader.state not in ("stopped", "failed", "stopping"):
            begin_stop(turn, leader, words, ends_as="stopped", by=by)
        return
    for shard in shards:
        if shard.state not in ("stopped", "failed", "stopping"):
            begin_stop(turn, shard, words, ends_as="stopped", by=by)


def _end(turn: Turn, drain: Drain, outcome: str, words: str, *, by: str) -> None:
    _clear_deadline(turn, drain.replica)
    ended = msgspec.structs.replace(drain, outcome=outcome, left_ms=0)
    turn.record(f"drain.{outcome.replace(' ', '_')}", words, level="warn", by=by, replica=drain.replica, drain=ended)
    for shard in _shards(turn, drain.replica):
        if shard.state == ShardState.DRAINING.value:
            turn.record("ready", words, by=by, shard=turn.move(shard, ShardState.READY, words))


def _shards(turn: Turn, replica: ReplicaId) -> list[Shard]:
    shards = [shard for shard in turn.state.entities.shards.values() if shard.replica == replica]
    return sorted(shards, key=lambda shard: shard.rank)


def _left_seconds(turn: Turn, drain: Drain) -> float:
    deadline = turn.state.drain_deadlines.get(drain.replica)
    return max(0.0, deadline - turn.now.mono) if deadline is not None else drain.left_ms / 1000


def _set_deadline(turn: Turn, replica: ReplicaId, seconds: float) -> None:
    turn.set(drain_deadlines={**turn.state.drain_deadlines, replica: turn.now.mono + seconds})


def _clear_deadline(turn: Turn, replica: ReplicaId) -> None:
    turn.set(drain_deadlines={k: v for k, v in turn.state.drain_deadlines.items() if k != replica})
