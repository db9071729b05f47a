"""The two ways a shard leaves: stopped while it lives, dismissed once it has ended."""

from __future__ import annotations

from backend.agent.core.state import StopEngine
from backend.agent.core.turn import Turn
from backend.contract.entities import Hold, OpenOperation, Shard
from backend.contract.states import ShardState


def begin_stop(
    turn: Turn, shard: Shard, words: str, *, ends_as: str, by: str = "", operation: OpenOperation | None = None
) -> None:
    """Put a live shard on its way out; it is stopped once the intent is durable, and only where it was begun."""
    if shard.state == ShardState.STOPPING.value:
        if operation is not None:
            turn.record("stopping", words, by=by, shard=shard, operation=operation)
        return
    stopping = turn.move(shard, ShardState.STOPPING, words, ends_as=ends_as)
    level = "info" if ends_as == "stopped" else "alarm"
    turn.record("stopping", words, level=level, by=by, shard=stopping, operation=operation)
    if shard.is_begun:
        turn.then(StopEngine(shard.node_id, shard.load_generation))


def holds_of(turn: Turn, shard: Shard) -> tuple[Hold, ...]:
    """What the shard used and is not proven free yet."""
    return tuple(
        hold
        for hold in turn.state.entities.holds.values()
        if hold.node_id == shard.node_id and hold.load_generation == shard.load_generation
    )


def is_held(turn: Turn, shard: Shard) -> bool:
    """Something that the shard used is not proven free yet."""
    return bool(holds_of(turn, shard))


def dismiss(turn: Turn, shard: Shard, by: str, operation: OpenOperation | None) -> None:
    """Forget an ended shard, and with the last one of a load its record and its drain."""
    entities = turn.state.entities
    others = [s for s in entities.shards.values() if s.replica == shard.replica and s.node_id != shard.node_id]
    last = not others
    turn.record(
        "dismissed",
        f"{shard.node_id} of generation {shard.load_generation} dismissed ({shard.state})",
        by=by,
        replica=shard.replica,
        node_id=shard.node_id,
        drop_shards=(shard.node_id,),
        drop_loads=(shard.op_id,) if last and shard.op_id in entities.loads else (),
        drop_drains=(shard.replica,) if last and shard.replica in entities.drains else (),
        operation=operation,
    )
