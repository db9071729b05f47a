"""What a control plane without memory needs to take a whole fleet over, beside a floor that only decodes and folds.

``python -m bench.adopt --json`` prints one object, goal A6: 1,000 hosts with 8,000 shards folded in from the frames
that their agents would send, and one report of 8 shards in such a fleet. Once with a ring of 8 ranks on each host, and
once with every ring over two hosts, so that each report completes or touches two replicas of 8 ranks. No process, no
socket and no disk.

Reports that come in one turn of a console's loop are folded together. Over real sockets the hosts of a fleet that is
dialled at once came in batches of 25 to 426 (200 and 1,000 agents of another process); here they come in 64 at once,
and for comparison one by one.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from backend.contract.endpoints import Agent, Outer
from backend.contract.entities import Buffers, Canary, Entities, LoadRecord, ProcessIdentity, Shard
from backend.contract.envelopes import decode_event, encode, event_envelope
from backend.contract.events import Reported, Welcome
from backend.contract.plans import Bound, Plan, PlannedShard, Profile, sealed
from backend.contract.reports import DeviceFacts, EngineFacts, HostFacts, HostReport, Measurement
from backend.contract.words import (
    AgentAddress,
    Bytes,
    HostId,
    LoadGeneration,
    NodeGeneration,
    NodeId,
    OpId,
    Port,
    ReplicaId,
    UnixMs,
)
from backend.control.adoption import classify
from backend.control.fleet import Fleet, empty_fleet, fold_event, fold_reports
from backend.control.fleet_events import CatalogRead
from backend.control.link_events import LinkUp
from backend.control.views import ModelView
from bench.fleet import BenchFailed, median, ratio

T = TypeVar("T")

HOSTS = 1000
RANKS = 8
BATCH = 64
"""Reports that one turn of the loop brings while a whole fleet is dialled."""
NOW = UnixMs(1_764_412_800_123)
GENERATION = LoadGeneration(NOW)
RELEASE = "build 1, commit 7e4c0a9"
GIB = 1 << 30
ONE_GOAL_RATIO = 25.0
"""0.1 ms beside a floor of 0.004 ms: what the goal means on a slower or busier machine."""
PROFILE = Profile(ranks=RANKS, device="CUDA*", context=32_768, sequences=8)
CATALOG = CatalogRead(
    at=0.0, unix_ms=NOW, models={"big": ModelView("big", (), "llamacpp", "big.gguf", {"wide": PROFILE})}, words=""
)


_CUDA = tuple(f"CUDA{number}" for number in range(RANKS))


def host_name(index: int) -> HostId:
    """The host of this number."""
    return HostId(f"gpu-{index:04}")


def a_bound() -> Bound:
    """What one rank was planned to take."""
    return Bound(Bytes(20 * GIB), Bytes(4 * GIB), Bytes(GIB), Bytes(1 << 20), Bytes(0), True, ())


def a_plan(number: int, span: int) -> Plan:
    """The plan of a replica over ``span`` hosts; the replicas of as many neighbours share them."""
    replica, first, here = ReplicaId(f"big-{number}"), number - number % span, RANKS // span
    planned = tuple(
        PlannedShard(
            rank=rank,
            host=host_name(first + rank // here),
            node_id=NodeId(f"{replica}/{rank}"),
            node_generation=NodeGeneration(GENERATION),
            role="leader" if rank == 0 else "worker",
            device=_device(number, rank, span),
            device_uuid=f"{host_name(first + rank // here)}-{_device(number, rank, span)}",
            layers=(16 * rank, 16 * rank + 16),
            holds_output=rank == RANKS - 1,
            ports=(Port(18_000 + RANKS * (number % span) + rank),),
            advertise=_address(first + rank // here),
            bound=a_bound(),
        )
        for rank in range(RANKS)
    )
    return sealed(
        Plan(
            replica=replica,
            model="big",
            model_path="big.gguf",
            model_facts=None,
            profile_name="wide",
            profile=PROFILE,
            profile_fingerprint="f",
            engine="llamacpp",
            load_generation=GENERATION,
            shards=planned,
            phases=(),
            facts=(),
            candidates=(),
            findings=(),
            made_unix_ms=NOW,
        )
    )


def _address(index: int) -> str:
    return f"10.{index // 250}.{index % 250}.7"


def _device(number: int, rank: int, span: int) -> str:
    here = RANKS // span
    return f"CUDA{here * (number % span) + rank % here}"


def a_shard(plan: Plan, rank: int) -> Shard:
    """One rank of a plan as its agent knows it while it serves."""
    planned = plan.shards[rank]
    return Shard(
        host=planned.host,
        replica=plan.replica,
        node_id=planned.node_id,
        rank=rank,
        world_size=RANKS,
        load_generation=plan.load_generation,
        node_generation=planned.node_generation,
        engine="llamacpp",
        release=RELEASE,
        role=planned.role,
        device=planned.device,
        device_uuid=planned.device_uuid,
        layers=planned.layers,
        ports=planned.ports,
        advertise=planned.advertise,
        model="big",
        profile_name="wide",
        profile_fingerprint="f",
        op_id=OpId(f"load-{plan.replica}"),
        bound=planned.bound,
        state="ready",
        since_unix_ms=NOW,
        words="a canary crossed every rank",
        endpoint=f"http://{planned.advertise}:{planned.ports[0]}" if rank == 0 else "",
        identity=ProcessIdentity(4000 + rank, 70_000 + rank, f"boot-{planned.host}", f"nonce-{planned.node_id}"),
        buffers=tuple(Buffers(each, 20 * GIB, 4 * GIB, GIB) for each in range(RANKS)) if rank == 0 else (),
        canary=Canary(True, 0.4, NOW, "ok") if rank == 0 else None,
    )


def facts_of(host: HostId, index: int) -> HostFacts:
    """A host with eight GPUs."""
    gpus = tuple(
        DeviceFacts(name=f"CUDA{n}", uuid=f"{host}-CUDA{n}", kind="cuda", total=80 * GIB, free=50 * GIB)
        for n in range(8)
    )
    return HostFacts(
        host=host,
        agent_version="0.1.0",
        boot_id=f"boot-{host}",
        cpu_count=128,
        cpu_flags=("avx2",),
        memory_total=512 * GIB,
        memory_free=300 * GIB,
        devices=gpus,
        engines=(EngineFacts(engine="llamacpp", folder="/opt/llama", release=RELEASE, devices=_CUDA),),
        ports=(Port(18_000), Port(18_999)),
        ports_in_use=(),
        advertise=_address(index),
        model_roots=("/models",),
        journal="ok",
    )


def a_frame(index: int, plans: list[Plan], span: int) -> str:
    """The frame in which an agent reports: its part of each replica that it shares, with the load records of them."""
    host, first = host_name(index), index - index % span
    mine = plans[first : first + span]
    shards = [a_shard(plan, each.rank) for plan in mine for each in plan.shards if each.host == host]
    loads = [LoadRecord(OpId(f"load-{plan.replica}"), "alice", plan, NOW) for plan in mine]
    report = HostReport(
        host=host,
        agent_epoch=f"epoch-{index}",
        journal_id=f"journal-{index}",
        journal_epoch=1,
        seq=40,
        oldest_seq=1,
        revision=4,
        facts=facts_of(host, index),
        entities=Entities(
            shards={shard.node_id: shard for shard in shards},
            loads={load.op_id: load for load in loads},
            highest_generation=GENERATION,
        ),
        measurements=tuple(
            Measurement(node_id=shard.node_id, observed_unix_ms=NOW, memory=24 * GIB, in_flight=0) for shard in shards
        ),
    )
    target = Outer(host, "bench", 1)
    event = Reported(report=report)
    return encode(
        event_envelope(event, source=Agent(host), target=target, sequence=1, correlation_id="hello", causation_id=None)
    )


# --- the floor ----------------------------------------------------------------------------------------------------


class _Tagged(msgspec.Struct):
    """The floor's idea of a frame: typed, and nothing else."""

    body: Reported


_DECODER = msgspec.json.Decoder(_Tagged)
Bare = dict[HostId, dict[NodeId, Shard]]


def floor_all(frames: list[str]) -> tuple[Bare, int]:
    """Decode every frame, keep its shards by host, and count the replicas of which every rank serves."""
    hosts: Bare = {}
    for frame in frames:
        report = _DECODER.decode(frame).body.report
        hosts[report.host] = report.entities.shards
    ready: dict[ReplicaId, int] = {}
    for shards in hosts.values():
        for shard in shards.values():
            ready[shard.replica] = ready.get(shard.replica, 0) + (shard.state == "ready")
    return hosts, sum(count == RANKS for count in ready.values())


def floor_one(hosts: Bare, report: HostReport) -> Bare:
    """One decoded report into a copy of the hosts."""
    return {**hosts, report.host: report.entities.shards}


# --- ours ---------------------------------------------------------------------------------------------------------


def an_empty_fleet() -> Fleet:
    """Nobody has been heard; the first second, in which a console holds journal lines back, has begun."""
    hosts = {host_name(index): AgentAddress(f"unix:/run/{index}") for index in range(HOSTS)}
    return fold_event(empty_fleet("bench", "BENCH", hosts, read_only=False), CATALOG)[0]


def link_up(report: HostReport) -> LinkUp:
    """A report as a link hands it over."""
    welcome = Welcome(
        host=report.host,
        agent_epoch=report.agent_epoch,
        journal_id=report.journal_id,
        journal_epoch=report.journal_epoch,
        head_seq=report.seq,
        major=1,
        minor=0,
        agent_version="0.1.0",
        read_only=False,
        asked_unix_ms=0,
        answered_unix_ms=0,
    )
    return LinkUp(
        host=report.host,
        at=0.5,
        unix_ms=NOW,
        welcome=welcome,
        report=report,
        round_trip_ms=1.0,
        clock_offset_ms=0,
    )


def decoded(frame: str) -> HostReport:
    """The report of a frame, read as a link reads it."""
    event = decode_event(frame)[1]
    if not isinstance(event, Reported):
        raise BenchFailed(f"the frame is no report but {type(event).__name__}")
    return event.report


def fold_all(frames: list[str], fleet: Fleet, batch: int) -> Fleet:
    """Every frame into the fleet, so many at once, as a console does that has just started."""
    for first in range(0, len(frames), batch):
        reports = [link_up(decoded(frame)) for frame in frames[first : first + batch]]
        fleet, _ = fold_reports(fleet, reports)
    return fleet


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Milliseconds of processor time of a call, and what it gave. Garbage is collected before, not meanwhile."""
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        result = work()
        return (time.process_time() - began) * 1000, result
    finally:
        gc.enable()


def check(fleet: Fleet) -> None:
    """Raises BenchFailed unless the whole fleet was taken over, and nothing of it is unwanted."""
    document = classify(fleet.state)
    adopted = sum(each.claim == "adopted" and each.state == "ready" for each in document.replicas)
    shards = sum(len(view.shards) for view in fleet.state.replicas.values())
    if (adopted, shards, document.stoppable, fleet.state.drifts) != (HOSTS, HOSTS * RANKS, (), ()):
        found = [drift.id for drift in fleet.state.drifts[:3]]
        raise BenchFailed(f"{adopted} of {HOSTS} replicas are adopted and ready, with {shards} shards; drifts: {found}")


def moved(report: HostReport, number: int) -> HostReport:
    """The same report with a worker that says something new, so that its replica is derived anew."""
    shards = dict(report.entities.shards)
    node = next(each for each in shards if shards[each].rank)
    shards[node] = msgspec.structs.replace(shards[node], words=f"round {number}")
    return msgspec.structs.replace(report, entities=msgspec.structs.replace(report.entities, shards=shards))


def measure(rounds: int, span: int) -> dict[str, list[float]]:
    """Milliseconds of each part and its floor in turn; the first round warms up and is not counted."""
    plans = [a_plan(number, span) for number in range(HOSTS)]
    frames = [a_frame(index, plans, span) for index in range(HOSTS)]
    names = ("all", "in_turn", "floor_all", "one", "same", "floor_one", "document")
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        taken, (bare, whole) = timed(lambda: floor_all(frames))
        if whole != HOSTS:
            raise BenchFailed(f"the floor found {whole} whole replicas of {HOSTS}")
        times["floor_all"].append(taken)
        empty = an_empty_fleet()
        times["in_turn"].append(timed(lambda start=empty: fold_all(frames, start, 1))[0])  # type: ignore[misc]  # bound
        taken, fleet = timed(lambda start=empty: fold_all(frames, start, BATCH))  # type: ignore[misc]  # in this round
        times["all"].append(taken)
        taken, _ = timed(lambda now=fleet: classify(now.state))  # type: ignore[misc]  # bound in this round
        times["document"].append(taken)
        check(fleet)
        reports = [decoded(frame) for frame in frames[::10]]
        said = [link_up(moved(report, number)) for report in reports]
        again = [link_up(report) for report in reports]
        times["floor_one"].append(timed(lambda: [floor_one(bare, each) for each in reports])[0] / len(reports))  # noqa: B023
        times["one"].append(timed(lambda: _each(fleet, said))[0] / len(said))  # noqa: B023  called at once
        times["same"].append(timed(lambda: _each(fleet, again))[0] / len(again))  # noqa: B023  called at once
    return {name: values[1:] for name, values in times.items()}


def figures(rounds: int) -> dict[str, Any]:
    """Every figure beside its floor."""
    found: dict[str, Any] = {"hosts": HOSTS, "shards": HOSTS * RANKS, "rounds": rounds}
    for span, name in ((1, ""), (2, "_rings_over_two_hosts")):
        times = measure(rounds, span)
        found[f"A6_all_at_once{name}"] = {
            "unit": "ms",
            "median": median(times["all"], 1),
            "floor": median(times["floor_all"], 1),
            "ratio": ratio(times["all"], times["floor_all"]),
            "goal_ratio": 5.0,
            "batch": BATCH,
            "ratio_one_by_one": ratio(times["in_turn"], times["floor_all"]),
        }
        for part, title in (("one", "A6_one_report"), ("same", "A6_one_report_that_repeats")):
            found[f"{title}{name}"] = {
                "unit": "ms",
                "median": median(times[part]),
                "floor": median(times["floor_one"]),
                "ratio": ratio(times[part], times["floor_one"]),
                "goal_at_most": 0.1,
                "goal_ratio": ONE_GOAL_RATIO,
            }
        found[f"document{name}"] = {"unit": "ms", "median": median(times["document"], 1)}
    return found


def _each(fleet: Fleet, events: list[LinkUp]) -> None:
    """Fold each into the same fleet."""
    for event in events:
        fold_event(fleet, event)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.option("--rounds", default=7, type=click.IntRange(3, 100), help="counted rounds, after one that is not")
def main(as_json: bool, rounds: int) -> None:
    """Fold 1,000 hosts with 8,000 shards in, and then one report, each beside its floor."""
    found = figures(rounds)
    if as_json:
        print(json.dumps(found))
        return
    for name, values in found.items():
        told = "  ".join(f"{key} {value}" for key, value in values.items()) if isinstance(values, dict) else values
        print(f"{name:48} {told}")


if __name__ == "__main__":
    main()
