"""What the core decides about commands: idempotence first, then claims, then the step itself."""

from __future__ import annotations

import re

import msgspec

from backend.agent.core import drains, keeping, tending
from backend.agent.core.capacity import (
    committed_memory,
    holders_of,
    stuck_on,
    taken_ports,
    untaken_memory,
)
from backend.agent.core.health import clear_failures, why_quarantined
from backend.agent.core.state import Capacity, CommandArrived, Send, Spawn, Tend
from backend.agent.core.stopping import begin_stop, dismiss, is_held
from backend.agent.core.turn import Turn
from backend.contract.commands import (
    ChangeDrain,
    ClaimKeeper,
    EndOperatorHold,
    Load,
    Release,
    Reserve,
    ResignKeeper,
    SetOperatorHold,
    StartDrain,
    TendResident,
    Unload,
)
from backend.contract.entities import Entities, LoadRecord, OpenOperation, Reservation, Result, Shard
from backend.contract.envelopes import command_type
from backend.contract.events import Accepted, Answered, Refused
from backend.contract.plans import Plan, PlannedShard, plan_digest
from backend.contract.states import ShardState, shard_state
from backend.contract.words import NodeId, ReplicaId, UnixMs, node_id

_REPLICA = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""Replica ids become folder names and are shown everywhere."""
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
        generation=int(event.command.plan.load_generation) if isinstance(event.command, Load) else 0,
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
        replica=subject.partition("/")[0],
        operation=turn.ended_operation(operation, result),
    )


# Reservations


def _reserve(turn: Turn, event: CommandArrived, command: Reserve) -> None:
    plan = command.plan
    refusal = _why_not_reserve(turn, command, event.capacity)
    if refusal:
        _end(turn, event, plan.replica, command.by, refusal)
        return
    shards = plan.on_host(turn.state.host)
    memory: dict[str, int] = {}
    for shard in shards:
        memory[shard.device] = memory.get(shard.device, 0) + shard.bound.memory
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
    )
    deadlines = {**turn.state.reservation_deadlines, command.op_id: turn.now.mono + command.seconds}
    turn.set(reservation_deadlines=deadlines)
    operation = _operation(turn, event, plan.replica, command.by)
    result = Result(status="succeeded", resource_state="present")
    ranks = ", ".join(str(shard.rank) for shard in shards)
    turn.record(
        "reserved",
        f"reserved rank {ranks} of generation {plan.load_generation} for {command.seconds:.0f} s",
        by=command.by,
        replica=plan.replica,
        reservation=reservation,
        operation=turn.ended_operation(operation, result),
    )


def _why_not_reserve(turn: Turn, command: Reserve, capacity: Capacity) -> str:
    plan, entities, host = command.plan, turn.state.entities, turn.state.host
    if refusal := _why_not_plan(plan):
        return refusal
    if capacity.refuses_loads:
        return f"E_REFUSED: {host} refuses loads: {capacity.refuses_loads}"
    expect = command.expect
    if expect.agent_epoch not in (None, turn.state.agent_epoch):
        return (
            f"E_FENCED: the plan was made against agent_epoch {expect.agent_epoch} of {host}, which is now "
            f"{turn.state.agent_epoch}: the agent restarted. Plan again."
        )
    if expect.revision not in (None, turn.state.revision):
        return (
            f"E_FENCED: the plan saw revision {expect.revision} of {host}, which is now {turn.state.revision}. "
            f"Device memory is with {_all_holders(turn)}. Plan again."
        )
    shards = plan.on_host(host)
    if not shards:
        return f"E_INVALID: the plan {plan.digest[:8]} has no shard on {host}"
    for shard in shards:
        refusal = (
            _why_not_slot(turn, shard.node_id, plan)
            or why_quarantined(turn, shard.node_id)
            or _why_not_ports(turn, shard, capacity)
            or _why_not_device(turn, shard)
        )
        if refusal:
            return refusal
    if plan.load_generation <= _highest_seen(entities, plan.replica):
        return (
            f"E_FENCED: generation {plan.load_generation} of {plan.replica} is not above the one that {host} has "
            "seen for it. Plan again."
        )
    return _why_not_memory(turn, shards, capacity)


def _highest_seen(entities: Entities, replica: ReplicaId) -> int:
    """The newest generation of a replica that was ever begun here, for as long as its commands are remembered."""
    shards = (int(shard.load_generation) for shard in entities.shards.values() if shard.replica == replica)
    begun = (
        operation.generation
        for operation in entities.operations.values()
        if operation.subject.rpartition("/")[0] == replica
        and not (operation.result is not None and operation.result.status == "rejected")
    )
    return max((*shards, *begun), default=0)


def _why_not_plan(plan: Plan) -> str:
    if plan_digest(plan) != plan.digest:
        return (
            f"E_INVALID: the plan was edited: its digest is {plan.digest[:8]}, its content gives "
            f"{plan_digest(plan)[:8]}. Make a new plan."
        )
    if not _REPLICA.fullmatch(plan.replica):
        return f"E_INVALID: {plan.replica!r} is no replica id: at most 80 letters, digits and any of '._-'. Plan again."
    for shard in plan.shards:
        if shard.node_id != node_id(plan.replica, shard.rank):
            return (
                f"E_INVALID: rank {shard.rank} of {plan.replica} has the node id {shard.node_id!r}; it must be "
                f"{node_id(plan.replica, shard.rank)}. Plan again instead of editing."
            )
        if int(shard.node_generation) != int(plan.load_generation):
            return (
                f"E_GENERATION: node generation {shard.node_generation} of {shard.node_id} differs from load "
                f"generation {plan.load_generation}. The leader would stop at its first release. Load with one number."
            )
    return ""


def _why_not_slot(turn: Turn, node_id: NodeId, plan: Plan) -> str:
    for reservation in turn.state.entities.reservations.values():
        if node_id in reservation.node_ids:
            return (
                f"E_CONFLICT: {node_id} is reserved by {reservation.by} for generation {reservation.load_generation} "
                f"(operation {reservation.op_id}). Wait for it, or plan again."
            )
    shard = turn.state.entities.shards.get(node_id)
    if shard is None:
        return ""
    state = shard_state(shard.state)
    if state is None or not state.is_terminal:
        return (
            f"E_CONFLICT: {node_id} is {shard.state} at generation {shard.load_generation} (operation {shard.op_id}); "
            f"generation {plan.load_generation} may start once it is proven gone. Unload {shard.replica} first."
        )
    for hold in turn.state.entities.holds.values():
        if hold.node_id == node_id:
            return (
                f"E_CONFLICT: {node_id} is held after generation {hold.load_generation} until {hold.until}. "
                "Wait for the proof, or look at the process on the host."
            )
    return ""


def _why_not_ports(turn: Turn, shard: PlannedShard, capacity: Capacity) -> str:
    taken = taken_ports(turn.state.entities)
    for port in shard.ports:
        if port in taken:
            return f"E_CONFLICT: port {port} for {shard.node_id} on {turn.state.host} is {taken[port]}. Plan again."
        low, high = capacity.ports
        if not low <= port <= high:
            return (
                f"E_INVALID: port {port} for {shard.node_id} is outside the range {low}-{high} of {turn.state.host}. "
                "Choose one inside, or widen ports in its agent.toml."
            )
    return ""


def _why_not_device(turn: Turn, shard: PlannedShard) -> str:
    stuck = stuck_on(turn.state.entities, shard.device)
    return f"E_REFUSED: {shard.node_id} on {turn.state.host}: {stuck}, or choose another device." if stuck else ""


def _why_not_memory(turn: Turn, shards: tuple[PlannedShard, ...], capacity: Capacity) -> str:
    needed: dict[str, int] = {}
    for shard in shards:
        needed[shard.device] = needed.get(shard.device, 0) + shard.bound.memory
    devices = {device.name: device for device in capacity.devices}
    for name, bytes_needed in needed.items():
        device = devices.get(name)
        if device is None:
            known = ", ".join(sorted(devices)) or "none"
            return f"E_INVALID: {turn.state.host} has no device {name}; it has {known}. Correct the profile's device."
        entities = turn.state.entities
        promised = device.total - committed_memory(entities, name)
        really = device.free - untaken_memory(entities, name)
        left = min(promised, really)
        if bytes_needed > left:
            return (
                f"E_CONFLICT: {name} of {turn.state.host} has {max(left, 0)} bytes left and the plan needs "
                f"{bytes_needed}. It is with {holders_of(entities, name)}. Unload something, or choose another host."
            )
    return ""


def _all_holders(turn: Turn) -> str:
    names = {shard.device for shard in turn.state.entities.shards.values()}
    names |= {name for r in turn.state.entities.reservations.values() for name in r.memory}
    return "; ".join(f"{name}: {holders_of(turn.state.entities, name)}" for name in sorted(names)) or "nobody"


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
    refusal = _why_not_load(turn, command, event.capacity)
    if refusal:
        _end(turn, event, command.node_id, command.by, refusal)
        return
    plan = command.plan
    planned = next(shard for shard in plan.shards if shard.node_id == command.node_id)
    reservation = turn.state.entities.reservations[command.reservation]
    shard = _new_shard(turn, command, planned)
    left = _without(reservation, planned)
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
    turn.then(Send(event.conn, Accepted(op_id=command.op_id, seq=0)))
    turn.then(
        Spawn(command.node_id, plan.load_generation, f"{plan.load_generation}-{planned.rank}-{event.digest[:16]}")
    )


def _why_not_load(turn: Turn, command: Load, capacity: Capacity) -> str:
    plan = command.plan
    if refusal := _why_not_plan(plan):
        return refusal
    if capacity.refuses_loads:
        return f"E_REFUSED: {turn.state.host} refuses loads: {capacity.refuses_loads}"
    planned = next((s for s in plan.shards if s.node_id == command.node_id and s.host == turn.state.host), None)
    if planned is None:
        return f"E_UNKNOWN_NODE: {command.node_id} is not planned on {turn.state.host} by plan {plan.digest[:8]}."
    if int(command.node_generation) != int(plan.load_generation):
        return (
            f"E_GENERATION: node generation {command.node_generation} differs from load generation "
            f"{plan.load_generation} for {command.node_id}. The leader would stop at its first release. "
            "Load again with one number."
        )
    old = turn.state.entities.shards.get(command.node_id)
    if old is not None and command.fence <= old.load_generation:
        return (
            f"E_FENCED: the claim {command.fence} on {command.node_id} does not exceed the stored "
            f"{old.load_generation} (operation {old.op_id}). Plan again for a newer generation."
        )
    reservation = turn.state.entities.reservations.get(command.reservation)
    if reservation is None or command.node_id not in reservation.node_ids:
        return (
            f"E_NOT_RESERVED: {command.node_id} is not held by reservation {command.reservation} on "
            f"{turn.state.host}: it expired or was released. Load again."
        )
    if reservation.load_generation != plan.load_generation:
        return (
            f"E_FENCED: reservation {command.reservation} is for generation {reservation.load_generation}, the load "
            f"for {plan.load_generation}. Load again with one number."
        )
    return _why_not_device(turn, planned)


def _without(reservation: Reservation, planned: PlannedShard) -> Reservation:
    memory = dict(reservation.memory)
    memory[planned.device] = max(0, memory.get(planned.device, 0) - planned.bound.memory)
    return msgspec.structs.replace(
        reservation,
        node_ids=tuple(node for node in reservation.node_ids if node != planned.node_id),
        ports=tuple(port for port in reservation.ports if port not in planned.ports),
        memory={name: size for name, size in memory.items() if size},
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


# Unload


def _unload(turn: Turn, event: CommandArrived, command: Unload) -> None:
    shard = turn.state.entities.shards.get(command.node_id)
    operation = _operation(turn, event, command.node_id, command.by)
    if shard is None:
        clear_failures(turn, command.node_id, command.by)
        ended = turn.ended_operation(operation, SUCCEEDED_ABSENT)
        turn.record("unload.succeeded", f"{command.node_id} was gone already", by=command.by, operation=ended)
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
