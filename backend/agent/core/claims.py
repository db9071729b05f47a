"""What speaks against a claim on this host: the plan itself, its slots, ports, devices, memory and budgets."""

from __future__ import annotations

import re

from backend.agent.core.budgets import why_not_budgets
from backend.agent.core.capacity import committed_memory, holders_of, stuck_on, taken_ports, untaken_memory
from backend.agent.core.cordons import why_cordoned
from backend.agent.core.health import why_quarantined
from backend.agent.core.state import Capacity
from backend.agent.core.turn import Turn
from backend.contract.commands import Load, Reserve
from backend.contract.entities import Entities
from backend.contract.plans import Plan, PlannedShard, plan_digest
from backend.contract.reports import same_device
from backend.contract.states import shard_state
from backend.contract.words import NodeId, ReplicaId, node_id
from backend.planning.fleet import how_to_measure

_REPLICA = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
"""Replica ids become folder names and are shown everywhere."""


def why_not_reserve(turn: Turn, command: Reserve, capacity: Capacity) -> str:
    """Why nothing is held for this plan, or an empty text."""
    plan, entities, host = command.plan, turn.state.entities, turn.state.host
    if refusal := why_not_plan(plan):
        return refusal
    if capacity.refuses_loads:
        return f"E_REFUSED: {host} refuses loads: {capacity.refuses_loads}"
    if refusal := why_cordoned(turn):
        return refusal
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
            or _why_not_device(turn, shard, capacity)
        )
        if refusal:
            return refusal
    if plan.load_generation <= highest_seen(entities, plan.replica):
        return (
            f"E_FENCED: generation {plan.load_generation} of {plan.replica} is not above the one that {host} has "
            "seen for it. Plan again."
        )
    return _why_not_memory(turn, shards, capacity) or why_not_budgets(turn, plan, shards, capacity)


def why_not_load(turn: Turn, command: Load, capacity: Capacity) -> str:
    """Why this shard is not started, or an empty text."""
    plan = command.plan
    if refusal := why_not_plan(plan):
        return refusal
    if capacity.refuses_loads:
        return f"E_REFUSED: {turn.state.host} refuses loads: {capacity.refuses_loads}"
    if refusal := why_cordoned(turn):
        return refusal
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
    return _why_not_device(turn, planned, capacity)


def highest_seen(entities: Entities, replica: ReplicaId) -> int:
    """The newest generation of a replica that was ever begun here, for as long as its commands are remembered."""
    shards = (int(shard.load_generation) for shard in entities.shards.values() if shard.replica == replica)
    begun = (
        operation.generation
        for operation in entities.operations.values()
        if operation.subject.rpartition("/")[0] == replica
        and not (operation.result is not None and operation.result.status == "rejected")
    )
    return max((*shards, *begun), default=0)


def why_not_plan(plan: Plan) -> str:
    """What is wrong with a plan in itself, or an empty text."""
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


def _why_not_device(turn: Turn, shard: PlannedShard, capacity: Capacity) -> str:
    names = same_device(capacity.devices, shard.device)
    stuck = next(filter(None, (stuck_on(turn.state.entities, name) for name in names)), "")
    return f"E_REFUSED: {shard.node_id} on {turn.state.host}: {stuck}, or choose another device." if stuck else ""


def _why_not_memory(turn: Turn, shards: tuple[PlannedShard, ...], capacity: Capacity) -> str:
    needed: dict[str, int] = {}
    for shard in shards:
        needed[shard.device] = needed.get(shard.device, 0) + shard.bound.memory
    devices = {device.name: device for device in capacity.devices}
    for name in needed:
        device = devices.get(name)
        if device is None:
            known = ", ".join(sorted(devices)) or "none"
            return (
                f"E_INVALID: {turn.state.host} has no device {name} whose memory is known; it has {known}. Correct the "
                f"profile's device, or {how_to_measure(name)}."
            )
        entities, names = turn.state.entities, same_device(capacity.devices, name)
        bytes_needed = sum(needed.get(each, 0) for each in names)
        promised = device.total - sum(committed_memory(entities, each) for each in names)
        really = device.free - sum(untaken_memory(entities, each) for each in names)
        left = min(promised, really)
        if bytes_needed > left:
            return (
                f"E_CONFLICT: {name} of {turn.state.host} has {max(left, 0)} bytes left and the plan needs "
                f"{bytes_needed}. It is with {holders_of(entities, names)}. Unload something, or choose another host."
            )
    return ""


def _all_holders(turn: Turn) -> str:
    names = {shard.device for shard in turn.state.entities.shards.values()}
    names |= {name for r in turn.state.entities.reservations.values() for name in r.memory}
    return "; ".join(f"{name}: {holders_of(turn.state.entities, (name,))}" for name in sorted(names)) or "nobody"
