"""What the core decides about commands: idempotence first, then claims, then the step itself."""

from __future__ import annotations

import msgspec

from backend.agent.core import cordons, drains, fencing, foreign, keeping, tending
from backend.agent.core.budgets import demand
from backend.agent.core.claims import highest_seen, why_not_load, why_not_plan, why_not_reserve
from backend.agent.core.health import clear_failures
from backend.agent.core.state import CommandArrived, Send, Spawn, Tend
from backend.agent.core.stopping import begin_stop, dismiss, is_held
from backend.agent.core.turn import Turn
from backend.contract.commands import (
    AdoptForeign,
    ChangeDrain,
    ClaimKeeper,
    Command,
    CordonHost,
    EndOperatorHold,
    Load,
    Release,
    Reserve,
    ResignKeeper,
    SetOperatorHold,
    StartDrain,
    TendResident,
    UncordonHost,
    Unload,
)
from backend.contract.durations import duration
from backend.contract.entities import LoadRecord, OpenOperation, Reservation, Result, Shard
from backend.contract.envelopes import command_type
from backend.contract.events import Accepted, Answered, Refused
from backend.contract.plans import Plan, PlannedShard
from backend.contract.states import ShardState, shard_state
from backend.contract.words import UnixMs, node_id

SUCCEEDED_ABSENT = Result(status="succeeded", resource_state="absent")


def rejected(words: str) -> Result:
    """A refusal before anything was touched."""
    return Result(status="rejected", resource_state="absent", first_error=words)


def on_command(turn: Turn, event: CommandArrived) -> None:
    """Take a durable command: the same id and payload has the same outcome, once."""
    command = event.command
    known = turn.state.entities.operations.get(command.op_id)
    if known is not None:
        _repeat(turn, event, known)
        return
    if turn.state.journal_failed:
        words = f"E_JOURNAL: the journal of {turn.state.host} cannot be written: {turn.state.journal_failed}"
        turn.at_once(Send(event.conn, Refused(op_id=command.op_id, code="E_JOURNAL", words=words)))
        return
    if isinstance(command, ClaimKeeper) and keeping.renew(turn, command):
        renewed = Result(status="succeeded", resource_state="present")
        turn.once_known(Send(event.conn, Answered(op_id=command.op_id, command=command_type(command), result=renewed)))
        return
    turn.set(asked={**turn.state.asked, command.op_id: (event.conn,)})
    if isinstance(command, Reserve):
        _reserve(turn, event, command)
    elif isinstance(command, Release):
        _release(turn, event, command)
    elif isinstance(command, Load):
        _load(turn, event, command)
    elif isinstance(command, Unload):
        _unload(turn, event, command)
    elif isinstance(command, AdoptForeign):
        _adopt_foreign(turn, event, command)
    elif isinstance(command, StartDrain):
        refusal = drains.start(turn, command)
        _end(turn, event, command.replica, command.by, refusal)
    elif isinstance(command, ChangeDrain):
        refusal = drains.change(turn, command)
        _end(turn, event, command.replica, command.by, refusal)
    elif isinstance(command, SetOperatorHold):
        keeping.hold(turn, command)
        _end(turn, event, command.subject, command.by, "")
    elif isinstance(command, EndOperatorHold):
        keeping.release(turn, command)
        _end(turn, event, command.subject, command.by, "", value="absent")
    elif isinstance(command, ClaimKeeper):
        _end(turn, event, command.console, command.who, keeping.claim(turn, command))
    elif isinstance(command, ResignKeeper):
        _end(turn, event, command.console, command.by, keeping.resign(turn, command), value="absent")
    elif isinstance(command, TendResident):
        _tend(turn, event, command)
    elif isinstance(command, CordonHost):
        _end(turn, event, turn.state.host, command.by, cordons.set_cordon(turn, command))
    elif isinstance(command, UncordonHost):
        _end(turn, event, turn.state.host, command.by, cordons.end_cordon(turn, command), value="absent")
    else:
        raise TypeError(f"{type(command).__name__} is no durable command")


def _tend(turn: Turn, event: CommandArrived, command: TendResident) -> None:
    """Written down with who wants it and why; then it is done."""
    if refusal := tending.why_not_tend(turn, command):
        _end(turn, event, command.engine, command.by, refusal)
        return
    operation = _operation(turn, event, command.engine, command.by)
    kind, words = f"{operation.command}.accepted", tending.tending_words(command)
    turn.record(kind, words, level="warn", by=command.by, operation=operation)
    turn.then(Send(event.conn, Accepted(op_id=command.op_id, seq=0)))
    turn.then(Tend(command))


def _repeat(turn: Turn, event: CommandArrived, known: OpenOperation) -> None:
    op_id = event.command.op_id
    if known.payload_digest != event.digest:
        words = (
            f"E_OP_REUSED: operation {op_id} was {known.command} of {known.subject} by {known.by}, with another "
            "payload. Use a new id for a new command."
        )
        turn.at_once(Send(event.conn, Refused(op_id=op_id, code="E_OP_REUSED", words=words)))
    elif fencing.never_ends(turn.state, known):
        turn.at_once(Send(event.conn, fencing.unknown_end(turn.state, op_id)))
    elif known.result is not None:
        turn.once_known(Send(event.conn, Answered(op_id=op_id, command=known.command, result=known.result)))
    else:
        turn.once_known(Send(event.conn, Accepted(op_id=op_id, seq=0)))
        asked = turn.state.asked.get(op_id, ())
        turn.set(asked={**turn.state.asked, op_id: (*asked, event.conn)})


def _operation(turn: Turn, event: CommandArrived, subject: str, by: str) -> OpenOperation:
    return OpenOperation(
        op_id=event.command.op_id,
        command=command_type(event.command),
        subject=subject,
        by=by,
        payload_digest=event.digest,
        at_unix_ms=turn.now.unix_ms,
        generation=int(event.command.plan.load_generation) if isinstance(event.command, Load | AdoptForeign) else 0,
    )


def _end(turn: Turn, event: CommandArrived, subject: str, by: str, refusal: str, *, value: str = "present") -> None:
    """Record the outcome of a command that is decided at once."""
    operation = _operation(turn, event, subject, by)
    result = rejected(refusal) if refusal else Result(status="succeeded", resource_state=value)
    kind = f"{operation.command}.{result.status}"
    words = refusal or f"{operation.command} of {subject}"
    turn.record(
        kind,
        words,
        level="warn" if refusal else "info",
        by=by,
        replica=subject.partition("/")[0] if _is_of_replica(event.command) else "",
        operation=turn.ended_operation(operation, result),
    )


def _is_of_replica(command: Command) -> bool:
    """Whether a command is about a replica or a shard of one, and not a model, an engine, a console or the host."""
    if isinstance(command, SetOperatorHold | EndOperatorHold):
        return command.scope == "replica"
    return isinstance(command, Reserve | Load | Unload | AdoptForeign | StartDrain | ChangeDrain)


# Reservations


def _reserve(turn: Turn, event: CommandArrived, command: Reserve) -> None:
    plan = command.plan
    refusal = why_not_reserve(turn, command, event.capacity)
    if refusal:
        _end(turn, event, plan.replica, command.by, refusal)
        return
    shards = plan.on_host(turn.state.host)
    memory: dict[str, int] = {}
    for shard in shards:
        memory[shard.device] = memory.get(shard.device, 0) + shard.bound.memory
    cores, power = demand(plan, shards)
    reservation = Reservation(
        op_id=command.op_id,
        by=command.by,
        replica=plan.replica,
        load_generation=plan.load_generation,
        node_ids=tuple(shard.node_id for shard in shards),
        ports=tuple(port for shard in shards for port in shard.ports),
        memory=memory,
        made_unix_ms=turn.now.unix_ms,
        expires_unix_ms=UnixMs(turn.now.unix_ms + int(command.seconds * 1000)),
        cores=cores,
        power=power,
    )
    deadlines = {**turn.state.reservation_deadlines, command.op_id: turn.now.mono + command.seconds}
    turn.set(reservation_deadlines=deadlines)
    operation = _operation(turn, event, plan.replica, command.by)
    result = Result(status="succeeded", resource_state="present")
    ranks = ", ".join(str(shard.rank) for shard in shards)
    turn.record(
        "reserved",
        f"reserved rank {ranks} of generation {plan.load_generation} for {duration(command.seconds)}",
        by=command.by,
        replica=plan.replica,
        reservation=reservation,
        operation=turn.ended_operation(operation, result),
    )


def _release(turn: Turn, event: CommandArrived, command: Release) -> None:
    reservation = turn.state.entities.reservations.get(command.reservation)
    operation = _operation(turn, event, command.reservation, command.by)
    ended = turn.ended_operation(operation, SUCCEEDED_ABSENT)
    if reservation is None:
        turn.record("release.succeeded", "the reservation was gone already", by=command.by, operation=ended)
        return
    turn.record(
        "released",
        f"reservation of generation {reservation.load_generation} released",
        by=command.by,
        replica=reservation.replica,
        drop_reservations=(command.reservation,),
        operation=ended,
    )


# Load


def _load(turn: Turn, event: CommandArrived, command: Load) -> None:
    refusal = why_not_load(turn, command, event.capacity)
    if refusal:
        _end(turn, event, command.node_id, command.by, refusal)
        return
    plan = command.plan
    planned = next(shard for shard in plan.shards if shard.node_id == command.node_id)
    reservation = turn.state.entities.reservations[command.reservation]
    shard = _new_shard(turn, command, planned)
    left = _without(reservation, planned, plan)
    turn.record(
        "spawning",
        f"rank {planned.rank} of generation {plan.load_generation} accepted on {planned.device}",
        by=command.by,
        shard=shard,
        load=LoadRecord(op_id=command.reservation, by=command.by, plan=plan, at_unix_ms=turn.now.unix_ms),
        reservation=left if left.node_ids else None,
        drop_reservations=() if left.node_ids else (command.reservation,),
        operation=_operation(turn, event, command.node_id, command.by),
    )
    # The answer after the start: its frames take as long to write as a process to spawn.
    turn.then(
        Spawn(command.node_id, plan.load_generation, f"{plan.load_generation}-{planned.rank}-{event.digest[:16]}")
    )
    turn.then(Send(event.conn, Accepted(op_id=command.op_id, seq=0)))


def _without(reservation: Reservation, planned: PlannedShard, plan: Plan) -> Reservation:
    memory = dict(reservation.memory)
    memory[planned.device] = max(0, memory.get(planned.device, 0) - planned.bound.memory)
    cores, power = demand(plan, (planned,))
    return msgspec.structs.replace(
        reservation,
        node_ids=tuple(node for node in reservation.node_ids if node != planned.node_id),
        ports=tuple(port for port in reservation.ports if port not in planned.ports),
        memory={name: size for name, size in memory.items() if size},
        cores=max(0, reservation.cores - cores),
        power=max(0, reservation.power - power),
    )


def _new_shard(turn: Turn, command: Load, planned: PlannedShard) -> Shard:
    plan = command.plan
    release = next((fact.release for fact in plan.facts if fact.host == planned.host), "")
    return Shard(
        host=turn.state.host,
        replica=plan.replica,
        node_id=command.node_id,
        rank=planned.rank,
        world_size=plan.profile.ranks,
        load_generation=plan.load_generation,
        node_generation=command.node_generation,
        engine=plan.engine,
        release=release,
        role=planned.role,
        device=planned.device,
        device_uuid=planned.device_uuid,
        layers=planned.layers,
        ports=planned.ports,
        advertise=planned.advertise,
        model=plan.model,
        profile_name=plan.profile_name,
        profile_fingerprint=plan.profile_fingerprint,
        op_id=command.reservation,
        bound=planned.bound,
        state=ShardState.SPAWNING.value,
        since_unix_ms=turn.now.unix_ms,
        words="accepted",
    )


def _adopt_foreign(turn: Turn, event: CommandArrived, command: AdoptForeign) -> None:
    refusal = why_not_plan(command.plan) or foreign.why_not_adopt(turn, command, event.foreign)
    if not refusal and command.plan.load_generation <= highest_seen(turn.state.entities, command.plan.replica):
        refusal = f"E_FENCED: the number {command.plan.load_generation} is not above those seen here. Plan again."
    if refusal or event.foreign is None:
        _end(turn, event, command.plan.replica, command.by, refusal)
        return
    operation = _operation(turn, event, node_id(command.plan.replica, 0), command.by)
    result = Result(status="succeeded", resource_state="present")
    foreign.adopt(turn, command, event.foreign, turn.ended_operation(operation, result))


# Unload


def _unload(turn: Turn, event: CommandArrived, command: Unload) -> None:
    shard = turn.state.entities.shards.get(command.node_id)
    operation = _operation(turn, event, command.node_id, command.by)
    if shard is None:
        clear_failures(turn, command.node_id, command.by)
        ended = turn.ended_operation(operation, SUCCEEDED_ABSENT)
        words = f"{command.node_id} was gone already"
        turn.record("unload.succeeded", words, by=command.by, node_id=command.node_id, operation=ended)
        return
    if int(command.node_generation) != int(shard.node_generation):
        refusal = (
            f"E_FENCED: {command.node_id} is at generation {shard.node_generation}, the unload names "
            f"{command.node_generation}. Look again before stopping it."
        )
        _end(turn, event, command.node_id, command.by, refusal)
        return
    state = shard_state(shard.state)
    if state is not None and state.is_terminal:
        clear_failures(turn, command.node_id, command.by)
    if state is not None and state.is_terminal and is_held(turn, shard):
        turn.record(
            "unload.accepted", f"{shard.node_id} has ended; waiting for its proof", shard=shard, operation=operation
        )
        turn.then(Send(event.conn, Accepted(op_id=command.op_id, seq=0)))
        return
    if state is not None and state.is_terminal:
        dismiss(turn, shard, command.by, turn.ended_operation(operation, SUCCEEDED_ABSENT))
        return
    turn.then(Send(event.conn, Accepted(op_id=command.op_id, seq=0)))
    words = f"unloaded by {command.by}" + (f": {command.why}" if command.why else "")
    begin_stop(turn, shard, words, ends_as="stopped", by=command.by, operation=operation)
