"""Which shards a keeper may stop because nobody wants them, and since when. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from backend.contract.states import ShardState, shard_state
from backend.control.keeper_decisions import Memory, StopStray
from backend.control.keeper_look import Look
from backend.control.views import ReplicaView

_SERVING = ("ready", "draining")


def stray_shards(seen: Look) -> list[StopStray]:
    """Live shards that nobody wants, of replicas that nobody is busy with. What serves is never among them."""
    stops: list[StopStray] = []
    for view in seen.state.replicas.values():
        if view.id in seen.busy or seen.is_held(view.id) or not seen.all_heard(view) or seen.is_model_held(view.model):
            continue
        stops += _strays_of(seen, view)
    return sorted(stops, key=lambda stop: (stop.host, stop.node_id))


def since_when(strays: Iterable[StopStray], memory: Memory, now: float) -> dict[str, float]:
    """Since when each stray or unclaimed shard is one; known only while every host is heard."""
    return {_key(stop): memory.strays.get(_key(stop), now) for stop in strays}


def overdue(strays: Iterable[StopStray], memory: Memory, due: float) -> list[StopStray]:
    """Those that are what they are since ``due`` or longer."""
    return [stop for stop in strays if memory.strays[_key(stop)] <= due]


def _key(stop: StopStray) -> str:
    return f"{stop.host} {stop.node_id}@{stop.generation}"


def _strays_of(seen: Look, view: ReplicaView) -> list[StopStray]:
    shards = seen.shards(view.id)
    serving = {shard.load_generation for _, shard in shards if shard.rank == 0 and shard.state in _SERVING}
    unclaimed = _is_unclaimed(seen, view)
    stops = []
    for host, shard in shards:
        if not _can_be_stopped(shard.state) or shard.load_generation in serving:
            continue
        if shard.identity is None:
            continue  # it has no process yet that could be read again
        if shard.load_generation != view.load_generation:
            words = f"generation {shard.load_generation} is a stray, {view.load_generation} stands"
        elif unclaimed:
            words = f"{view.model} is in no catalog and in no load record"
        else:
            continue
        stops.append(
            StopStray(
                host=host.host,
                node_id=shard.node_id,
                generation=shard.load_generation,
                identity=shard.identity,
                why=f"{shard.node_id} on {host.host}: {words}",
            )
        )
    return stops


def _can_be_stopped(word: str) -> bool:
    state = shard_state(word)
    return state is not None and state.is_live and state is not ShardState.STOPPING


def _is_unclaimed(seen: Look, view: ReplicaView) -> bool:
    """In neither a load record nor the catalog; a catalog that is missing or unreadable makes nothing unclaimed."""
    readable = bool(seen.state.models) and not seen.state.catalog_words
    return readable and view.plan is None and not seen.is_in_catalog(view.model)
