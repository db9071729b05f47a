"""What the core decides about processes: spawned, seen, ended, proven gone."""

from __future__ import annotations

import re

import msgspec

from backend.agent.core import drains
from backend.agent.core.health import failing_after, say_quarantine
from backend.agent.core.state import (
    Adopted,
    Discovered,
    DriveBroke,
    Ended,
    EngineSaw,
    Follow,
    Gone,
    ProveGone,
    Spawned,
    SpawnFailed,
    StopEngine,
    Stuck,
)
from backend.agent.core.stopping import begin_stop, dismiss, holds_of
from backend.agent.core.turn import Turn
from backend.contract.durations import duration
from backend.contract.entities import (
    Exit,
    Hold,
    OpenOperation,
    ProcessIdentity,
    Resident,
    Result,
    Shard,
    hold_key,
)
from backend.contract.reports import Measurement
from backend.contract.states import IllegalTransition, ShardState, shard_state
from backend.contract.words import LoadGeneration, NodeId
from backend.engines.driver import (
    CanarySeen,
    Confirmed,
    LeaderGone,
    PeerLost,
    PhaseSeen,
    Proven,
    Published,
    Unfit,
    Unloaded,
)
from backend.planning.fleet import is_of_a_driver

_COMPLAINT = re.compile(r"\b(error|fail(ed|ure)?|cannot|couldn't|invalid|unknown)\b", re.IGNORECASE)


def on_spawned(turn: Turn, event: Spawned) -> None:
    """The process is recorded: from here on it is followed, or stopped when that was asked meanwhile."""
    shard = _current(turn, event.node_id, event.generation)
    if shard is None:
        return
    known, words = _named(shard, event.identity)
    if shard.state == ShardState.STOPPING.value:
        turn.record("spawned", words, shard=known)
        # Nothing was asked of a resident's agent yet, and nothing must be: it is followed as if it had been.
        turn.then(Follow(event.node_id, event.generation, known.resident is not None))
        turn.then(StopEngine(event.node_id, event.generation))
        return
    turn.record("spawned", words, shard=_with(known, words=words))
    turn.then(Follow(event.node_id, event.generation, False))


def _named(shard: Shard, who: ProcessIdentity | Resident) -> tuple[Shard, str]:
    """The shard with its process, or with whom its engine's agent is asked for; and that in words."""
    if isinstance(who, Resident):
        return _with(shard, resident=who), f"{who.words} is asked for"
    return _with(shard, identity=who), f"pid {who.pid} started"


def on_spawn_failed(turn: Turn, event: SpawnFailed) -> None:
    """Nothing runs: the shard has failed, and nothing is held."""
    shard = _current(turn, event.node_id, event.generation)
    if shard is None:
        return
    stopping = shard.state == ShardState.STOPPING.value
    end = ShardState.STOPPED if stopping and shard.ends_as == "stopped" else ShardState.FAILED
    failed = turn.move(shard, end, event.words)
    known = turn.state.entities.failing.get(shard.node_id)
    failing = failing_after(turn, shard.node_id, event.words) if end is ShardState.FAILED else None
    turn.record(end.value, event.words, level="alarm", shard=failed, failing=failing)
    say_quarantine(turn, known, failing)
    _end_operations(turn, shard.node_id, Result(status="failed", resource_state="absent", first_error=event.words))


def on_adopted(turn: Turn, event: Adopted) -> None:
    """After a restart the process still runs, or its engine's agent is asked: it is followed again as it was."""
    shard = _current(turn, event.node_id, event.generation)
    if shard is None:
        return
    if isinstance(event.identity, ProcessIdentity) and shard.identity != event.identity:
        turn.record("adopted", f"pid {event.identity.pid} found again", shard=_with(shard, identity=event.identity))
    turn.then(Follow(event.node_id, event.generation, True))
    if shard.state == ShardState.STOPPING.value:
        turn.then(StopEngine(event.node_id, event.generation))


def on_discovered(turn: Turn, event: Discovered) -> None:
    """Take over what somebody else loaded: it is kept and followed like ours, and nothing is asked of it."""
    if turn.state.journal_failed:
        return
    shard = event.shard
    known = turn.state.entities.shards.get(shard.node_id)
    reserved = any(shard.node_id in kept.node_ids for kept in turn.state.entities.reservations.values())
    if known is not None or reserved:
        return
    turn.record("adopted", shard.words, shard=shard, load=event.load)
    turn.then(Follow(shard.node_id, shard.load_generation, True))


def on_engine(turn: Turn, event: EngineSaw) -> None:
    """Take what the drive of a shard saw."""
    shard = _current(turn, event.node_id, event.generation)
    if shard is None or shard.state == ShardState.STOPPING.value:
        return
    seen = event.seen
    if isinstance(seen, Measurement):
        drains.on_measurement(turn, shard, seen)
    elif isinstance(seen, PhaseSeen):
        _phase(turn, shard, seen)
    elif isinstance(seen, Proven):
        _proven(turn, shard, seen)
    elif isinstance(seen, CanarySeen):
        _canary(turn, shard, seen)
    elif isinstance(seen, Unfit):
        _fail(turn, shard, seen.finding.words)
    elif isinstance(seen, PeerLost):
        _fail(turn, shard, f"rank {seen.rank} of its generation is gone: {seen.words}")
    elif isinstance(seen, LeaderGone):
        ends_as = "stopped" if _drain_open(turn, shard) else "failed"
        begin_stop(turn, shard, seen.words, ends_as=ends_as)
    elif isinstance(seen, Unloaded):
        begin_stop(turn, shard, seen.words, ends_as="stopped", by="drain")
    elif isinstance(seen, Published):
        kind, level = ("published", "info") if seen.ok else ("not published", "alarm")
        turn.record(kind, seen.words, level=level, shard=shard if seen.ok else _with(shard, words=seen.words))
    elif isinstance(seen, Confirmed):
        known = _with(shard, reported_release=seen.release, reported_result=seen.result)
        turn.record("confirmed", seen.words, shard=known)


def on_drive_broke(turn: Turn, event: DriveBroke) -> None:
    """Said aloud. A shard that was still starting is stopped: nobody would ever say that it is ready."""
    shard = _current(turn, event.node_id, event.generation)
    if shard is None or shard.state == ShardState.STOPPING.value:
        return
    words = f"not followed any more: {event.words}. Restart the agent of {shard.host}; the engine runs on."
    if shard.state in (ShardState.READY.value, ShardState.DRAINING.value):
        turn.record("not followed", words, level="alarm", shard=_with(shard, words=words))
    else:
        _fail(turn, shard, f"its start could not be followed: {event.words}")


def on_ended(turn: Turn, event: Ended) -> None:
    """The process is gone. What it used is held until it is proven free."""
    shard = _current(turn, event.node_id, event.generation)
    if shard is None:
        return
    asked = shard.state == ShardState.STOPPING.value
    stopped = asked and shard.ends_as == "stopped"
    words = shard.words if asked else event.words
    ended = Exit(
        code=event.code,
        signal=event.signal,
        words=event.words,
        at_unix_ms=turn.now.unix_ms,
        log_tail=event.log_tail,
    )
    end = ShardState.STOPPED if stopped else ShardState.FAILED
    moved = turn.move(shard, end, words, exit=ended)
    # What its own agent no longer has holds no device; that is what the end of a resident says.
    device = None if shard.resident is not None else _device_hold(turn, shard)
    ports = _ports_hold(turn, shard)
    if ports is not None:
        listed = ", ".join(str(port) for port in ports.ports)
        turn.record("held", f"port {listed} until {ports.until}", node_id=shard.node_id, hold=ports)
    lived = (turn.now.unix_ms - shard.since_unix_ms) / 1000
    text = event.words
    if not stopped:
        text += f" after {duration(lived)} {shard.state}" + (f": {words}" if words != event.words else "")
    known = turn.state.entities.failing.get(shard.node_id)
    failing = None if stopped else failing_after(turn, shard.node_id, words)
    turn.record("exited", text, level="info" if stopped else "alarm", shard=moved, hold=device, failing=failing)
    say_quarantine(turn, known, failing)
    held = [hold for hold in (device, ports) if hold is not None]
    for hold in held:
        turn.then(ProveGone(hold))
    if not held:
        _slot_is_free(turn, moved)


def on_gone(turn: Turn, event: Gone) -> None:
    """One proof came and ends its hold. With the last of them end the commands that waited for the slot."""
    slot = [hold for hold in turn.state.entities.holds.values() if _is_of(hold, event)]
    proven = next((hold for hold in slot if hold.kind == event.kind), None)
    if proven is None:
        return
    left = [hold for hold in slot if hold is not proven]
    words = f"proven: {proven.until}"
    if left:
        words += f"; still held: {', '.join(hold.kind for hold in left)}"
    turn.record("proven gone", words, node_id=event.node_id, drop_holds=(hold_key(proven),))
    shard = turn.state.entities.shards.get(event.node_id)
    if left or (shard is not None and _current(turn, event.node_id, event.generation) is not None):
        return
    if shard is None or shard.load_generation != event.generation:
        _end_operations(turn, event.node_id, Result(status="failed", resource_state="absent", first_error="dismissed"))
        return
    _slot_is_free(turn, shard)


def on_stuck(turn: Turn, event: Stuck) -> None:
    """Said aloud, and nothing is released. While a process survives KILL its device takes no new load."""
    shard = turn.state.entities.shards.get(event.node_id)
    if shard is None or shard.load_generation != event.generation:
        return
    state = shard_state(shard.state)
    if state is not None and state.is_terminal and not holds_of(turn, shard):
        return
    if not event.pids:
        turn.record("stuck", event.words, level="alarm", shard=_with(shard, words=event.words))
        return
    pids = ", ".join(str(pid) for pid in event.pids)
    hold = Hold(
        node_id=shard.node_id,
        load_generation=shard.load_generation,
        kind="stuck",
        device=shard.device,
        until=f"process {pids} of {shard.node_id} is gone",
        at_unix_ms=turn.now.unix_ms,
    )
    known = turn.state.entities.holds.get(hold_key(hold))
    if known is None or known.until != hold.until:
        turn.record("stuck", event.words, level="alarm", shard=_with(shard, words=event.words), hold=hold)
    turn.then(ProveGone(hold))


def _why_ended(shard: Shard) -> str:
    """Why it is gone: the reason it was ended for and how it went; of one that went by itself its own last complaints.

    Engines complain first and then print how they are used, so the last line alone says nothing.
    """
    if shard.exit is None:
        return shard.words
    if shard.words != shard.exit.words:
        return f"{shard.words} ({shard.exit.words})"
    said = [line.strip() for line in shard.exit.log_tail if _COMPLAINT.search(line)][-2:]
    return f"{shard.exit.words}; it said: {'; '.join(said)}" if said else shard.exit.words


def _slot_is_free(turn: Turn, shard: Shard) -> None:
    """Everything that the shard used is proven free."""
    reason = _why_ended(shard)
    tail = list(shard.exit.log_tail) if shard.exit else []
    failed = Result(status="failed", resource_state="absent", first_error=reason, value={"log_tail": tail})
    was_unloaded = bool(turn.open_operations("unload", shard.node_id))
    _end_operations(turn, shard.node_id, failed)
    _follow_leader(turn, shard)
    drains.on_stopped(turn, shard)
    if was_unloaded:
        dismiss(turn, shard, "unload", None)


def _device_hold(turn: Turn, shard: Shard) -> Hold:
    """Its memory, until no process of the run is left; of a GPU, until its driver says so too."""
    is_gpu = shard.device != "CPU"
    lister = shard.device if is_of_a_driver(shard.device) else "every driver"
    gone = "its process group is empty" if shard.taken_over is None else "its process and what it started are gone"
    return Hold(
        node_id=shard.node_id,
        load_generation=shard.load_generation,
        kind="device",
        device=shard.device,
        memory=shard.bound.memory,
        until=gone + (f" and {lister} lists no process of it" if is_gpu else ""),
        at_unix_ms=turn.now.unix_ms,
    )


def _ports_hold(turn: Turn, shard: Shard) -> Hold | None:
    if not shard.ports:
        return None
    return Hold(
        node_id=shard.node_id,
        load_generation=shard.load_generation,
        kind="ports",
        ports=shard.ports,
        until="nothing listens on its ports",
        at_unix_ms=turn.now.unix_ms,
    )


def _is_of(hold: Hold, event: Gone) -> bool:
    return hold.node_id == event.node_id and hold.load_generation == event.generation


def _phase(turn: Turn, shard: Shard, seen: PhaseSeen) -> None:
    state = shard_state(shard.state)
    if state is seen.state and shard.words == seen.words:
        return
    if state is ShardState.DRAINING or (state is ShardState.READY and seen.state is not ShardState.CONNECTING):
        return
    try:
        moved = turn.move(shard, seen.state, seen.words)
    except IllegalTransition:
        # A drive that looks back, as one of an adopted process may: its view is older than the journal's.
        turn.set(ignored=turn.state.ignored + 1)
        return
    turn.record(seen.state.value, seen.words, shard=moved, operation=_load_done(turn, moved))


def _proven(turn: Turn, shard: Shard, seen: Proven) -> None:
    state = shard_state(shard.state)
    words = f"canary {duration(seen.canary.seconds)} crossed every rank"
    target = state if state is ShardState.DRAINING else ShardState.READY
    if target is None:
        return
    is_known = shard.buffers == seen.buffers and shard.canary is not None
    if state in (ShardState.READY, ShardState.DRAINING) and is_known:
        return
    moved = turn.move(shard, target, words, canary=seen.canary, endpoint=seen.endpoint, buffers=seen.buffers)
    turn.record("ready", f"{words}; serves {seen.endpoint}", shard=moved, operation=_load_done(turn, moved))


def _canary(turn: Turn, shard: Shard, seen: CanarySeen) -> None:
    before = shard.canary
    if before is not None and before.ok == seen.canary.ok:
        return
    kind, level = ("canary.answered", "info") if seen.canary.ok else ("unresponsive", "alarm")
    words = seen.canary.words if not seen.canary.ok else f"canary answers again in {duration(seen.canary.seconds)}"
    turn.record(kind, words, level=level, shard=_with(shard, canary=seen.canary, words=words))


def _fail(turn: Turn, shard: Shard, words: str) -> None:
    begin_stop(turn, shard, words, ends_as="failed")


def _load_done(turn: Turn, shard: Shard) -> OpenOperation | None:
    """The load command of this shard with its result, once the shard is as far as LOAD promises.

    A leader is done when it is ready; a worker when it answers, as it can only load under a leader.
    """
    enough = {ShardState.READY, ShardState.DRAINING}
    if shard.role == "worker":
        enough |= {ShardState.CONNECTING, ShardState.LOADING}
    if shard_state(shard.state) not in enough:
        return None
    value = {"endpoint": shard.endpoint}
    if shard.reported_release:
        value["release"] = shard.reported_release
    result = Result(status="succeeded", resource_state="present", value=value)
    # A slot takes one load at a time: its reservation admits no second.
    for load in turn.open_operations("load", shard.node_id):
        return turn.ended_operation(load, result)
    return None


def _end_operations(turn: Turn, node_id: NodeId, load_result: Result) -> None:
    """Nothing of the slot is left: its load, if one is open, has failed, and every unload of it is done."""
    ends = [(load, load_result) for load in turn.open_operations("load", node_id)]
    absent = Result(status="succeeded", resource_state="absent")
    ends += [(unload, absent) for unload in turn.open_operations("unload", node_id)]
    for operation, result in ends:
        turn.record(
            f"{operation.command}.{result.status}",
            result.first_error or f"{node_id} is unloaded",
            level="warn" if result.first_error else "info",
            by=operation.by,
            replica=node_id.rpartition("/")[0],
            node_id=node_id,
            operation=turn.ended_operation(operation, result),
        )


def _follow_leader(turn: Turn, gone: Shard) -> None:
    """A drained leader is gone: this agent's own workers of its generation follow at once."""
    if gone.rank != 0 or not _drain_open(turn, gone):
        return
    for shard in list(turn.state.entities.shards.values()):
        state = shard_state(shard.state)
        same = shard.replica == gone.replica and shard.load_generation == gone.load_generation
        if same and shard.rank != 0 and state is not None and state.is_live:
            begin_stop(turn, shard, "its leader is drained", ends_as="stopped")


def _drain_open(turn: Turn, shard: Shard) -> bool:
    drain = turn.state.entities.drains.get(shard.replica)
    return drain is not None and not drain.outcome and drain.load_generation == shard.load_generation


def _current(turn: Turn, node_id: NodeId, generation: LoadGeneration) -> Shard | None:
    """The live shard of this slot and generation; events about any other are late and change nothing."""
    shard = turn.state.entities.shards.get(node_id)
    if shard is None or shard.load_generation != generation:
        return None
    state = shard_state(shard.state)
    return None if state is not None and state.is_terminal else shard


def _with(shard: Shard, **fields: object) -> Shard:
    return msgspec.structs.replace(shard, revision=shard.revision + 1, **fields)
