"""What is spoken for on this host: ports and device memory of reservations, live shards and holds."""

from __future__ import annotations

from backend.contract.entities import Entities
from backend.contract.states import ShardState, shard_state
from backend.contract.words import Port


def taken_ports(entities: Entities) -> dict[Port, str]:
    """Every port that is reserved, used or held, with its holder in words."""
    taken: dict[Port, str] = {}
    for hold in entities.holds.values():
        for port in hold.ports:
            taken[port] = f"held after {hold.node_id} until {hold.until}"
    for reservation in entities.reservations.values():
        for port in reservation.ports:
            taken[port] = f"reserved for {reservation.replica} by {reservation.by}"
    for shard in entities.shards.values():
        state = shard_state(shard.state)
        if state is None or state.is_live:
            for port in shard.ports:
                taken[port] = f"used by {shard.node_id}"
    return taken


def committed_memory(entities: Entities, device: str) -> int:
    """Bytes of a device promised to reservations, live shards and holds."""
    reserved = sum(reservation.memory.get(device, 0) for reservation in entities.reservations.values())
    held = sum(hold.memory for hold in entities.holds.values() if hold.device == device)
    return reserved + held + _live_memory(entities, device, untaken_only=False)


def untaken_memory(entities: Entities, device: str) -> int:
    """The part of it that its holders have not allocated yet, so that free memory still contains it."""
    reserved = sum(reservation.memory.get(device, 0) for reservation in entities.reservations.values())
    return reserved + _live_memory(entities, device, untaken_only=True)


def stuck_on(entities: Entities, device: str) -> str:
    """Why a device takes no new load, or an empty text: a process that no signal ends may still use it."""
    for hold in entities.holds.values():
        if hold.kind == "stuck" and hold.device == device:
            return f"{device} takes no load until {hold.until}: it survives KILL. Look at the kernel's log of the host"
    return ""


def holders_of(entities: Entities, devices: tuple[str, ...]) -> str:
    """Who holds memory of a device, by any of its names, in words, the newest reservation first: the winner of a race
    is named first.
    """
    names = [
        f"{reservation.replica} (reserved by {reservation.by}, operation {reservation.op_id})"
        for reservation in sorted(entities.reservations.values(), key=lambda r: -r.made_unix_ms)
        if any(reservation.memory.get(device) for device in devices)
    ]
    names += [
        f"{shard.node_id} ({shard.state})"
        for shard in entities.shards.values()
        if shard.device in devices and (state := shard_state(shard.state)) is not None and state.is_live
    ]
    names += [f"a hold after {h.node_id}" for h in entities.holds.values() if h.device in devices and h.memory]
    return ", ".join(names) or "nobody here"


def _live_memory(entities: Entities, device: str, *, untaken_only: bool) -> int:
    total = 0
    for shard in entities.shards.values():
        state = shard_state(shard.state)
        if shard.device != device or (state is not None and not state.is_live):
            continue
        if untaken_only and state in (ShardState.READY, ShardState.DRAINING, ShardState.STOPPING):
            continue
        total += shard.bound.memory
    return total
