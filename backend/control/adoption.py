"""What a control plane without memory takes over, and what it finds unwanted. Pure, and it stops nothing.

Ownership is a function of the latest report of every host, the open operations and the catalog: the same state gives
the same document, in whatever order the hosts spoke.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from backend.contract.entities import Shard
from backend.contract.naming import by_number
from backend.contract.states import TERMINAL, HostState, ReplicaState
from backend.contract.words import HostId, LoadGeneration, ReplicaId, UnixMs, counted
from backend.control.adoption_document import (
    AdoptionDocument,
    Decision,
    ForeignFound,
    HeldBack,
    Lost,
    ReplicaFound,
    Reporter,
    Stoppable,
    adoption_digest,
)
from backend.control.adoption_reasons import read_record, replica_decisions, unwanted_decisions
from backend.control.derive import OPEN_STATES, find_model
from backend.control.views import FleetState, HostView, ReplicaView

Generation = tuple[ReplicaId, LoadGeneration]


class _Ground(msgspec.Struct, frozen=True):
    """What every classification stands on. ``under_way`` are generations that somebody is loading now.

    ``recorded`` are the models and profiles of all load records, ``ours`` the generations of open operations here.
    """

    state: FleetState
    shards: tuple[tuple[HostView, Shard], ...]
    by_replica: dict[ReplicaId, list[tuple[HostView, Shard]]]
    recorded: frozenset[tuple[str, str]]
    under_way: frozenset[Generation]
    ours: frozenset[Generation]


def classify(state: FleetState, now_unix_ms: int = 0) -> AdoptionDocument:
    """The whole fleet as it is known now: what is adopted, what is unwanted and why, what is held until when."""
    ground = _stand(state)
    unclaimed = _unclaimed(ground)
    replicas = tuple(_found(view, ground, unclaimed) for view in state.replicas.values())
    stoppable: list[Stoppable] = []
    record = read_record(state)
    decisions = [decision for view in state.replicas.values() for decision in replica_decisions(view, state, record)]
    decisions = [
        each for each in decisions if each.what != "adopt" or not _is_unclaimed(each.subject, state, unclaimed)
    ]
    for host, shard in ground.shards:
        kind = _unwanted(shard, ground, unclaimed)
        if kind is None:
            continue
        made = _stoppable(kind, host, shard, state)
        decisions += unwanted_decisions(kind, host, shard, state)
        if made is not None:
            stoppable.append(made)
    held = tuple(_held(state))
    decisions += [_hold_decision(each) for each in held]
    silent = {
        host: f"{view.state.value}: {view.words}" if view.words else view.state.value
        for host, view in state.hosts.items()
        if view.state is not HostState.LIVE
    }
    document = AdoptionDocument(
        context=state.context,
        made_unix_ms=UnixMs(now_unix_ms),
        heard=len(state.hosts) - len(silent),
        hosts=len(state.hosts),
        silent=silent,
        replicas=replicas,
        decisions=tuple(
            sorted(decisions, key=lambda each: (each.rule, by_number(each.subject), each.host, each.reason))
        ),
        stoppable=tuple(sorted(stoppable, key=lambda each: (by_number(each.replica), each.rank, each.host))),
        held=held,
        orphans=tuple(_orphans(state)),
        ghosts=tuple(_ghosts(state)),
        foreign=tuple(_foreign(state)),
        drifts=tuple(drift.id for drift in state.drifts if drift.is_open),
        catalog_words=state.catalog_words,
    )
    return msgspec.structs.replace(document, digest=adoption_digest(document))


def _stand(state: FleetState) -> _Ground:
    plans = [load.plan for view in state.hosts.values() for load in view.entities.loads.values()]
    plans += [operation.plan for operation in state.operations.values() if operation.plan is not None]
    under_way: set[Generation] = set()
    for view in state.hosts.values():
        entities = view.entities
        under_way |= {(each.replica, each.load_generation) for each in entities.reservations.values()}
        for operation in entities.operations.values():
            if operation.result is None and operation.command == "load":
                replica = ReplicaId(operation.subject.partition("/")[0])
                under_way.add((replica, LoadGeneration(operation.generation)))
    ours = frozenset(
        (ReplicaId(opened.subject), opened.load_generation)
        for opened in state.operations.values()
        if opened.state in OPEN_STATES and opened.kind != "adopt" and opened.load_generation is not None
    )
    shards = tuple(
        (view, shard)
        for view in state.hosts.values()
        for _, shard in sorted(view.entities.shards.items())
        if shard.state not in TERMINAL
    )
    by_replica: dict[ReplicaId, list[tuple[HostView, Shard]]] = {}
    for view, shard in shards:
        by_replica.setdefault(shard.replica, []).append((view, shard))
    return _Ground(
        state=state,
        shards=shards,
        by_replica=by_replica,
        recorded=frozenset((plan.model, plan.profile_name) for plan in plans),
        under_way=ours | under_way,
        ours=ours,
    )


# --- who owns what ------------------------------------------------------------------------------------------------


def _unclaimed(ground: _Ground) -> frozenset[Generation]:
    """The live generations whose model and profile are neither in the catalog nor in a load record.

    A catalog that is missing, empty, or that cannot be read whole makes nothing unclaimed.
    """
    models = ground.state.models
    if not models or ground.state.catalog_words:
        return frozenset()
    claimed: set[Generation] = set(ground.under_way)
    live: set[Generation] = set()
    for _, shard in ground.shards:
        generation = (shard.replica, shard.load_generation)
        live.add(generation)
        model = find_model(models, shard.model)
        name = model.name if model is not None else shard.model
        is_listed = model is not None and shard.profile_name in model.profiles
        if is_listed or {(name, shard.profile_name), (shard.model, shard.profile_name)} & ground.recorded:
            claimed.add(generation)
    return frozenset(live - claimed)


def _is_unclaimed(replica: str, state: FleetState, unclaimed: frozenset[Generation]) -> bool:
    view = state.replicas.get(ReplicaId(replica))
    return view is not None and (view.id, view.load_generation) in unclaimed


def _unwanted(shard: Shard, ground: _Ground, unclaimed: frozenset[Generation]) -> str | None:
    """Whether a live shard is a stray or unclaimed. What somebody loads now is neither."""
    generation = (shard.replica, shard.load_generation)
    view = ground.state.replicas.get(shard.replica)
    if view is None or generation in ground.under_way:
        return None
    if shard.load_generation != view.load_generation:
        return "stray"
    return "unclaimed" if generation in unclaimed else None


def _found(view: ReplicaView, ground: _Ground, unclaimed: frozenset[Generation]) -> ReplicaFound:
    reporters = [
        Reporter(
            rank=shard.rank,
            host=host.host,
            node_id=shard.node_id,
            generation=shard.load_generation,
            state=shard.state if host.state is HostState.LIVE else f"{shard.state}, as last heard",
            pid=shard.identity.pid if shard.identity is not None else None,
            asked_at=shard.resident.address if shard.resident is not None else "",
        )
        for host, shard in ground.by_replica.get(view.id, ())
    ]
    if (view.id, view.load_generation) in unclaimed:
        claim = "unclaimed"
    elif view.state is ReplicaState.PLACED:
        claim = "placed"
    elif (view.id, view.load_generation) in ground.ours:
        claim = "ours"
    else:
        claim = "adopted" if reporters else "ended"
    return ReplicaFound(
        id=view.id,
        model=view.model,
        profile_name=view.profile_name,
        generation=view.load_generation,
        world_size=view.world_size,
        state=view.state.value,
        claim=claim,
        reporters=tuple(sorted(reporters, key=lambda each: (each.rank, each.generation, each.host))),
        missing={**view.missing, **view.not_running},
    )


def _stoppable(kind: str, host: HostView, shard: Shard, state: FleetState) -> Stoppable | None:
    """What a person could stop; None for what is not begun yet, is stopping already, or whose host is silent."""
    identity, asked = shard.identity, shard.resident
    if not shard.is_begun or shard.state == "stopping" or host.state is not HostState.LIVE:
        return None
    load = host.entities.loads.get(shard.op_id)
    measured = host.measurements.get(shard.node_id)
    return Stoppable(
        kind="stray" if kind == "stray" else "unclaimed",
        host=host.host,
        node_id=shard.node_id,
        replica=shard.replica,
        rank=shard.rank,
        load_generation=shard.load_generation,
        node_generation=shard.node_generation,
        engine=shard.engine,
        state=shard.state,
        pid=identity.pid if identity is not None else 0,
        start_ticks=identity.start_ticks if identity is not None else 0,
        boot_id=identity.boot_id if identity is not None else "",
        nonce=identity.nonce if identity is not None else "",
        device=shard.device,
        memory=shard.bound.memory,
        ports=shard.ports,
        why=next(each.reason for each in unwanted_decisions(kind, host, shard, state) if each.what == kind),
        resident=measured.memory if measured is not None else None,
        started_unix_ms=load.at_unix_ms if load is not None else None,
        address=asked.address if identity is None and asked is not None else "",
        node=asked.name if identity is None and asked is not None else "",
    )


# --- what is held, and what is left over --------------------------------------------------------------------------


def _held(state: FleetState) -> Iterator[HeldBack]:
    for name, view in state.hosts.items():
        for _, hold in sorted(view.entities.holds.items()):
            yield HeldBack(
                host=name,
                node_id=hold.node_id,
                generation=hold.load_generation,
                kind=hold.kind,
                ports=hold.ports,
                device=hold.device,
                memory=hold.memory,
                until=hold.until or "its agent's proof",
            )


def _hold_decision(held: HeldBack) -> Decision:
    if held.kind == "ports":
        what = f"{counted(len(held.ports), 'port')} {', '.join(map(str, held.ports))}"
        return Decision("hold_port", str(held.node_id), f"{what} until {held.until}", 12, held.host)
    what = f"{held.memory} bytes of {held.device}" if held.memory else f"{held.device}"
    return Decision("hold_device", str(held.node_id), f"{what} until {held.until}", 14, held.host)


def _orphans(state: FleetState) -> Iterator[Lost]:
    """Workers that live on without their leader; their own agents stop them after a grace."""
    for view in state.replicas.values():
        leader = next((each for each in view.shards if each.shard.rank == 0), None)
        gone = view.not_running.get(0, "") if leader is None else leader.state if leader.state in TERMINAL else ""
        if not gone:
            continue
        why = gone if leader is None else f"its leader on {leader.shard.host} is {gone}"
        for each in view.shards:
            if each.shard.rank and each.state not in TERMINAL:
                words = f"{why}; its own agent stops it after its grace"
                yield Lost(each.shard.node_id, each.shard.host, each.shard.load_generation, words)


def _ghosts(state: FleetState) -> Iterator[Lost]:
    """Load records whose host has no shard, no reservation and no open command of them."""
    for name, view in state.hosts.items():
        entities = view.entities
        slots = {operation.subject for operation in entities.operations.values() if operation.result is None}
        for op_id, load in sorted(entities.loads.items()):
            planned = {shard.node_id for shard in load.plan.shards if shard.host == name}
            alive = any(shard.op_id == op_id for shard in entities.shards.values())
            if alive or op_id in entities.reservations or planned & slots or view.state is not HostState.LIVE:
                continue
            words = f"the load record of {op_id} by {load.by} is kept, and no process, shard or reservation of it is"
            yield Lost(load.plan.replica, HostId(name), load.plan.load_generation, words)


def _foreign(state: FleetState) -> Iterator[ForeignFound]:
    """Engines that no agent started, each once: several agents of one machine see each other's, and the same ones."""
    seen = {
        (shard.identity.boot_id, shard.identity.pid)
        for view in state.hosts.values()
        for shard in view.entities.shards.values()
        if shard.identity is not None
    }
    for name, view in state.hosts.items():
        for each in view.facts.foreign if view.facts is not None else ():
            process = (view.facts.boot_id if view.facts is not None else "", each.pid)
            if process in seen:
                continue
            seen.add(process)
            yield ForeignFound(
                host=name,
                pid=each.pid,
                program=each.program,
                model=each.model,
                ports=each.ports,
                memory=each.holds,
                engine=each.engine,
                role=each.role,
                devices=each.devices,
                served=each.served,
                user=each.user,
                started_unix_ms=each.started_unix_ms,
                start_ticks=each.start_ticks,
                answers=each.answers,
                words=each.words,
            )
