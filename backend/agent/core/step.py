"""The agent core: ``(state, event, now) -> (state, effects)``. Pure; every promise of the agent is decided here."""

from __future__ import annotations

from backend.agent.core import commands, cordons, drains, fencing, health, keeping, processes, tending
from backend.agent.core.state import (
    Adopted,
    CommandArrived,
    CoreEvent,
    CoreState,
    Disconnected,
    Discovered,
    DriveBroke,
    Effect,
    Ended,
    EngineSaw,
    GlassBroken,
    Gone,
    HealthSeen,
    JournalFailed,
    JournalNoticed,
    JournalResumed,
    Now,
    Send,
    Spawned,
    SpawnFailed,
    Started,
    Stuck,
    Synced,
    Tended,
    Ticked,
)
from backend.agent.core.turn import Turn
from backend.contract.entities import Entities
from backend.contract.events import Refused
from backend.contract.words import HostId

OPERATION_KEPT_MS = 24 * 3600 * 1000
"""How long an ended command is remembered, so that asking again finds its result."""
FORGOTTEN_AT_ONCE = 500
"""One record names what is forgotten, and has to stay one; the next tick forgets more."""


def initial(host: HostId, agent_epoch: str, entities: Entities, now: Now) -> CoreState:
    """The state of a new life on top of what the journal says. Deadlines go on from what was left of them."""
    deadlines = {
        op_id: now.mono + max(0, reservation.expires_unix_ms - now.unix_ms) / 1000
        for op_id, reservation in entities.reservations.items()
    }
    turn = Turn(CoreState(host=host, agent_epoch=agent_epoch, entities=entities, reservation_deadlines=deadlines), now)
    drains.restored_deadlines(turn)
    keeping.restored_deadlines(turn)
    cordons.restored_deadline(turn)
    return turn.state


def step(state: CoreState, event: CoreEvent, now: Now) -> tuple[CoreState, tuple[Effect, ...]]:
    """One step. Effects come in order; those that need durable records come with ``Synced``."""
    if isinstance(event, Synced):
        released = state.awaiting.get(event.token, ())
        turn = Turn(state, now)
        turn.set(awaiting={k: v for k, v in state.awaiting.items() if k != event.token})
        return turn.state, released
    turn = Turn(state, now)
    _dispatch(turn, event)
    return turn.finish()


def _dispatch(turn: Turn, event: CoreEvent) -> None:
    if isinstance(event, CommandArrived):
        commands.on_command(turn, event)
    elif isinstance(event, EngineSaw):
        processes.on_engine(turn, event)
    elif isinstance(event, DriveBroke):
        processes.on_drive_broke(turn, event)
    elif isinstance(event, Spawned):
        processes.on_spawned(turn, event)
    elif isinstance(event, SpawnFailed):
        processes.on_spawn_failed(turn, event)
    elif isinstance(event, Adopted):
        processes.on_adopted(turn, event)
    elif isinstance(event, Discovered):
        processes.on_discovered(turn, event)
    elif isinstance(event, Ended):
        processes.on_ended(turn, event)
    elif isinstance(event, Gone):
        processes.on_gone(turn, event)
    elif isinstance(event, Stuck):
        processes.on_stuck(turn, event)
    elif isinstance(event, Tended):
        tending.on_tended(turn, event)
    elif isinstance(event, HealthSeen):
        health.on_health(turn, event)
    elif isinstance(event, GlassBroken):
        health.on_glass_broken(turn, event)
    elif isinstance(event, JournalFailed):
        fencing.on_journal_failed(turn, event)
    elif isinstance(event, JournalResumed):
        _resumed(turn, event)
    elif isinstance(event, JournalNoticed):
        turn.record(event.kind, event.words, level=event.level)
    elif isinstance(event, Disconnected):
        asked = {op: tuple(c for c in conns if c != event.conn) for op, conns in turn.state.asked.items()}
        turn.set(asked={op: conns for op, conns in asked.items() if conns})
    elif isinstance(event, Ticked):
        _tick(turn)
    elif isinstance(event, Started):
        _started(turn, event)
    else:
        raise TypeError(f"{type(event).__name__} is no event of the core")


def _started(turn: Turn, event: Started) -> None:
    live = [shard.node_id for shard in turn.state.entities.shards.values() if shard.state not in ("stopped", "failed")]
    found = f"; the journal has {', '.join(sorted(live))}" if live else ""
    turn.record("agent.started", f"agent {event.version} of {turn.state.host} started{found}")
    tending.on_started(turn)


def _resumed(turn: Turn, event: JournalResumed) -> None:
    """Go back to what is durable: what was decided on top of it never happened, and its askers hear that."""
    words = f"E_JOURNAL: the journal of {turn.state.host} did not take it: {turn.state.journal_failed}"
    for op_id, conn in fencing.waiting(turn.state):
        if op_id not in event.entities.operations:
            turn.at_once(Send(conn, Refused(op_id=op_id, code="E_JOURNAL", words=words)))
    asked = {op_id: conns for op_id, conns in turn.state.asked.items() if op_id in event.entities.operations}
    fresh = initial(turn.state.host, turn.state.agent_epoch, event.entities, turn.now)
    known = turn.state.reservation_deadlines
    drains_known = turn.state.drain_deadlines
    holds_known = turn.state.hold_deadlines
    turn.set(
        entities=event.entities,
        revision=event.revision,
        awaiting={},
        asked=asked,
        journal_failed="",
        illnesses=(),
        reservation_deadlines={op: known.get(op, at) for op, at in fresh.reservation_deadlines.items()},
        drain_deadlines={replica: drains_known.get(replica, at) for replica, at in fresh.drain_deadlines.items()},
        hold_deadlines={key: holds_known.get(key, at) for key, at in fresh.hold_deadlines.items()},
        lease_deadline=fresh.lease_deadline,
        cordon_deadline=fresh.cordon_deadline,
    )


def _tick(turn: Turn) -> None:
    if turn.state.journal_failed:
        return
    for op_id, deadline in list(turn.state.reservation_deadlines.items()):
        reservation = turn.state.entities.reservations.get(op_id)
        if reservation is not None and turn.now.mono < deadline:
            continue
        turn.set(reservation_deadlines={k: v for k, v in turn.state.reservation_deadlines.items() if k != op_id})
        if reservation is not None:
            words = f"reservation of {reservation.replica} by {reservation.by} expired unused"
            turn.record("released", words, level="warn", replica=reservation.replica, drop_reservations=(op_id,))
    drains.on_tick(turn)
    keeping.on_tick(turn)
    cordons.on_tick(turn)
    old = tuple(
        operation.op_id
        for operation in turn.state.entities.operations.values()
        if operation.result is not None and turn.now.unix_ms - operation.at_unix_ms > OPERATION_KEPT_MS
    )[:FORGOTTEN_AT_ONCE]
    if old:
        turn.record("forgotten", f"{len(old)} commands older than a day", drop_operations=old)
