"""The adoption of an engine that no agent started: exactly the process that a person saw, or nothing.

The process is read again when the command arrives, so that a pid which was given out again since is refused.
"""

from __future__ import annotations

from backend.agent.core.capacity import taken_ports
from backend.agent.core.state import Follow
from backend.agent.core.turn import Turn
from backend.contract.commands import AdoptForeign
from backend.contract.entities import LoadRecord, OpenOperation, ProcessIdentity, Shard, TakenOver
from backend.contract.plans import PlannedShard
from backend.contract.reports import ForeignProcess
from backend.contract.states import ShardState, shard_state
from backend.planning.foreign import measured_bound

_STATES = {"ready": ShardState.READY, "closed": ShardState.READY, "loading": ShardState.LOADING}
"""One that wants a key is up; of one that does not answer nothing is known but that it runs."""


def why_not_adopt(turn: Turn, command: AdoptForeign, found: ForeignProcess | None) -> str:
    """The refusal in words, or an empty text. ``found`` is the foreign engine of that pid at this moment."""
    host, plan = turn.state.host, command.plan
    named = f"pid {command.pid}, which started at tick {command.start_ticks} of boot {command.boot_id[:8]}"
    for shard in turn.state.entities.shards.values():
        state = shard_state(shard.state)
        who = shard.identity
        is_it = who is not None and (who.pid, who.start_ticks, who.boot_id) == _who(command)
        if is_it and (state is None or not state.is_terminal):
            return f"E_CONFLICT: {named}, is {shard.node_id} of {host} already (operation {shard.op_id})."
    if found is None:
        return (
            f"E_FENCED: {host} has no foreign engine with {named}: it has ended, or is none. Look again: "
            "ringtop adopt --plan."
        )
    if (found.pid, found.start_ticks, found.boot_id) != _who(command):
        return (
            f"E_FENCED: the adoption names {named}; pid {found.pid} of {host} now started at tick {found.start_ticks} "
            f"of boot {found.boot_id[:8]}: its number was given out again. Nothing was adopted. Look again."
        )
    planned = _planned(turn, command)
    if planned is None:
        return f"E_INVALID: the plan {plan.digest[:8]} is not of one shard on {host}. Make it again."
    if found.engine != plan.engine or found.role != "leader":
        return (
            f"E_CONFLICT: pid {found.pid} of {host} is a {found.role or 'part'} of {found.engine}, the plan adopts a "
            f"leader of {plan.engine}. Look again."
        )
    if not set(planned.ports) <= set(found.ports) or not planned.ports:
        return (
            f"E_CONFLICT: pid {found.pid} of {host} listens on {_listed(found.ports)}, the plan says "
            f"{_listed(planned.ports)}. Look again."
        )
    return _why_not_here(turn, planned, command)


def adopt(turn: Turn, command: AdoptForeign, found: ForeignProcess, operation: OpenOperation) -> None:
    """Record it as a shard with its load record, and follow it once that is durable."""
    plan, planned = command.plan, _planned(turn, command)
    assert planned is not None
    identity = ProcessIdentity(found.pid, found.start_ticks, found.boot_id, str(command.op_id))
    state = _STATES.get(found.answers, ShardState.CONNECTING)
    why = f": {command.why}" if command.why else ""
    words = f"adopted by {command.by}{why}; no agent started pid {found.pid}, so its bound and generation are unknown"
    shard = Shard(
        host=turn.state.host,
        replica=plan.replica,
        node_id=planned.node_id,
        rank=0,
        world_size=plan.profile.ranks,
        load_generation=plan.load_generation,
        node_generation=planned.node_generation,
        engine=plan.engine,
        release=found.release,
        role=planned.role,
        device=planned.device,
        device_uuid=planned.device_uuid,
        layers=None,
        ports=planned.ports,
        advertise=planned.advertise,
        model=plan.model,
        profile_name=plan.profile_name,
        profile_fingerprint=plan.profile_fingerprint,
        op_id=command.op_id,
        bound=measured_bound(found),
        state=state.value,
        since_unix_ms=turn.now.unix_ms,
        words=words if state is ShardState.READY else found.words or words,
        endpoint=f"http://{_in_url(found.address)}:{planned.ports[0]}",
        identity=identity,
        taken_over=TakenOver(
            by=command.by,
            why=command.why,
            at_unix_ms=turn.now.unix_ms,
            program=found.program,
            address=found.address,
            memory=found.holds,
            started_by=found.user,
            started_unix_ms=found.started_unix_ms,
        ),
    )
    record = LoadRecord(op_id=command.op_id, by=command.by, plan=plan, at_unix_ms=turn.now.unix_ms)
    turn.record("foreign.adopted", words, level="warn", by=command.by, shard=shard, load=record, operation=operation)
    turn.then(Follow(planned.node_id, plan.load_generation, True))


def _why_not_here(turn: Turn, planned: PlannedShard, command: AdoptForeign) -> str:
    """What of this agent stands in the way: the slot, a port that is spoken for."""
    entities, host = turn.state.entities, turn.state.host
    known: dict[str, str] = {s.replica: f"{s.node_id} is {s.state}" for s in entities.shards.values()}
    known |= {each.replica: f"it is reserved by {each.by}" for each in entities.reservations.values()}
    known |= {h.node_id.rpartition("/")[0]: f"{h.node_id} is held until {h.until}" for h in entities.holds.values()}
    if command.plan.replica in known:
        return (
            f"E_CONFLICT: {host} knows a {command.plan.replica} already: {known[command.plan.replica]}. "
            "Plan the adoption again; it will get another name."
        )
    taken = taken_ports(entities)
    for port in planned.ports:
        if port in taken:
            return f"E_CONFLICT: port {port} of {host} is {taken[port]}; pid {command.pid} listens on it. Look again."
    return ""


def _planned(turn: Turn, command: AdoptForeign) -> PlannedShard | None:
    """The one shard of the plan, when it is on this host and leads."""
    shards = command.plan.shards
    is_one = len(shards) == 1 and command.plan.profile.ranks == 1
    return shards[0] if is_one and shards[0].host == turn.state.host and shards[0].rank == 0 else None


def _who(command: AdoptForeign) -> tuple[int, int, str]:
    return command.pid, command.start_ticks, command.boot_id


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _listed(ports: tuple[int, ...]) -> str:
    return "port " + ", ".join(str(port) for port in ports) if ports else "no port"
