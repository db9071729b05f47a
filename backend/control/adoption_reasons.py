"""Why: each decision that follows from the reports, in words for the journal, the command line and the screen."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from backend.contract.durations import duration
from backend.contract.entities import Shard
from backend.contract.naming import few_of, ranks_together
from backend.contract.states import TERMINAL, HostState
from backend.contract.words import NodeId, counted
from backend.control.adoption_document import Decision
from backend.control.derive import OPEN_STATES, find_model
from backend.control.views import Drift, FleetState, HostView, OperationView, ReplicaView


class Record(msgspec.Struct, frozen=True):
    """What the ledger and the drift lens say, looked up once.

    Open operations by replica, who stopped a shard of a generation, and the open drifts of the catalog by replica.
    """

    opened: dict[str, list[OperationView]]
    stopped: dict[tuple[NodeId, int], OperationView]
    drifts: dict[str, list[Drift]]


def read_record(state: FleetState) -> Record:
    """The ledger and the drifts as the decisions ask them."""
    opened: dict[str, list[OperationView]] = {}
    stopped: dict[tuple[NodeId, int], OperationView] = {}
    for operation in state.operations.values():
        if operation.state in OPEN_STATES:
            opened.setdefault(operation.subject, []).append(operation)
        elif operation.kind in ("unload", "drain") and operation.state == "succeeded":
            stopped.update(((target.node_id, int(target.node_generation)), operation) for target in operation.targets)
    drifts: dict[str, list[Drift]] = {}
    for drift in state.drifts:
        if drift.is_open and drift.what in ("catalog", "profile changed"):
            drifts.setdefault(drift.subject, []).append(drift)
    return Record(opened, stopped, drifts)


def replica_decisions(view: ReplicaView, state: FleetState, record: Record) -> Iterator[Decision]:
    """What is decided of one replica: it is taken over, put together, or set against what was only placed."""
    live = [each.shard for each in view.shards if each.state not in TERMINAL]
    opened = record.opened.get(view.id, [])
    is_ours = any(each.load_generation == view.load_generation for each in opened)
    if live and not is_ours:
        yield from _taken_over(view, live, _known_words(view, state))
        yield from _wanted(view, state)
    if live:
        yield from _replaced(view, live, opened, state)
    yield from _denied(view)
    yield from _revived(live, record)
    yield from (Decision("warn", str(view.id), f"{words}; it is not counted", 1) for words in view.oddities)
    yield from _drifted(view, record)


def _known_words(view: ReplicaView, state: FleetState) -> str:
    """By what the model and profile of a replica are known."""
    name = f"{view.model}:{view.profile_name}"
    model = find_model(state.models, view.model)
    if model is not None and view.profile_name in model.profiles:
        return f"{name} is in the catalog"
    if view.plan is not None:
        return f"{name} is in its load record"
    return f"{name} is taken as it is reported, as the catalog cannot deny it"


def _taken_over(view: ReplicaView, live: list[Shard], known: str) -> Iterator[Decision]:
    hosts = sorted({shard.host for shard in live})
    ranks = f"{len(live)} of {view.world_size} ranks of generation {view.load_generation}"
    yield Decision("adopt", str(view.id), f"{ranks} are reported by {', '.join(hosts)}; {known}", 4)
    short = [*view.missing.values(), *view.not_running.values()]
    if len(hosts) > 1 or short:
        parts = [f"{counted(sum(shard.host == host for shard in live), 'rank')} of {host}" for host in hosts]
        later = f"; still short: {'; '.join(ranks_together(short))}" if short else ""
        words = f"{' and '.join(parts)} are one replica of generation {view.load_generation}{later}"
        yield Decision("merge", str(view.id), words, 5)


def _wanted(view: ReplicaView, state: FleetState) -> Iterator[Decision]:
    model = find_model(state.models, view.model)
    if model is not None and model.mode == "on_demand":
        idle = duration(model.idle_seconds)
        words = f"{model.name} is loaded on demand: it gets a whole idle timeout of {idle} from here"
        yield Decision("want", str(view.id), words, 13)


def _replaced(
    view: ReplicaView, live: list[Shard], opened: list[OperationView], state: FleetState
) -> Iterator[Decision]:
    """What was merely placed under this id gives way to what runs; the endpoint that was placed is named."""
    placed = [each.plan for each in opened if each.plan is not None and each.kind == "load"]
    if not placed:
        return
    reported = {
        shard.load_generation
        for host in state.hosts.values()
        for shard in host.entities.shards.values()
        if shard.replica == view.id
    }
    for plan in placed:
        if plan.load_generation in reported:
            continue
        leader = next((shard for shard in plan.shards if shard.rank == 0), None)
        where = f"{leader.advertise}:{leader.ports[0]}" if leader is not None and leader.ports else "no endpoint"
        yield Decision(
            "replace",
            str(view.id),
            f"generation {view.load_generation} runs on {live[0].host}; generation {plan.load_generation} was only "
            f"placed, at {where}, and does not stand",
            7,
        )
        yield Decision("warn", str(view.id), f"the placed endpoint {where} serves nothing; use {view.endpoint}", 7)


def _denied(view: ReplicaView) -> Iterator[Decision]:
    for words in view.not_running.values():
        yield Decision("fail_shard", str(view.id), words, 14)


def _revived(live: list[Shard], record: Record) -> Iterator[Decision]:
    """The ledger says that a shard was stopped, and its agent reports it running: the agent is right."""
    for shard in live:
        operation = record.stopped.get((shard.node_id, int(shard.node_generation)))
        if operation is not None:
            words = (
                f"{operation.id} by {operation.by} had stopped it, and {shard.host} reports generation "
                f"{shard.load_generation} {shard.state}: it is counted again"
            )
            yield Decision("revive", str(shard.node_id), words, 8, str(shard.host))


def _drifted(view: ReplicaView, record: Record) -> Iterator[Decision]:
    for drift in record.drifts.get(view.id, ()):
        words = f"catalog drift: {drift.one_source} {drift.one}, {drift.other_source} {drift.other}"
        yield Decision("warn", str(view.id), f"{words}. {drift.remedy}", 9)


def unwanted_decisions(kind: str, host: HostView, shard: Shard, state: FleetState) -> Iterator[Decision]:
    """Why a shard is a stray or unclaimed, and what it keeps until it has exited."""
    view = state.replicas[shard.replica]
    silent = "" if host.state is HostState.LIVE else f"; {host.host} is {host.state.value}, so this is as last heard"
    if kind == "stray":
        words = (
            f"rank {shard.rank} on {host.host} is of generation {shard.load_generation}, and generation "
            f"{view.load_generation} stands ({view.ranks_ready} of {view.world_size} ranks serve){silent}"
        )
        yield Decision("stray", str(shard.node_id), words, 3, str(host.host))
    else:
        words = (
            f"{shard.model}:{shard.profile_name} is neither in the catalog ({few_of(sorted(state.models))}) nor in a "
            f"load record{silent}"
        )
        yield Decision("unclaimed", str(shard.node_id), words, 9, str(host.host))
    ports = ", ".join(map(str, shard.ports))
    if ports:
        words = f"{counted(len(shard.ports), 'port')} {ports} until its process has exited and nothing listens there"
        yield Decision("hold_port", str(shard.node_id), words, 12, str(host.host))
    if shard.bound.memory:
        words = f"{shard.bound.memory} bytes of {shard.device} until its process has exited"
        yield Decision("hold_device", str(shard.node_id), words, 12, str(host.host))
