"""A plan and a bound, each beside the least that Python must do for it, interleaved in one run.

``python -m bench.plan --json [--rounds 15]`` prints one object. The plan: 64 shards over 1,000 hosts with 8 GPUs each,
a third of them taken, everything derived, every host given a reason, every guard run. Its floor: the same reports read
once, the free memory of every device summed, the hosts sorted by it, and the finished plan encoded and hashed. The
bound: the p4 result bound as a tree with its fitting pairs. Its floor: the bare formula, as often as a bisection asks.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

import click
import msgspec

from backend.contract.entities import Entities, Hold, hold_key
from backend.contract.models import BlockFacts, ModelFacts
from backend.contract.plans import Plan, Profile, plan_digest
from backend.contract.reports import DeviceFacts, EngineFacts, HostFacts, HostReport
from backend.contract.words import Bytes, HostId, LoadGeneration, NodeId, Port, UnixMs
from backend.planning.catalog import Catalog, ModelEntry
from backend.planning.engines.p4_bounds import ResultShape, derivation, fitting_pairs
from backend.planning.fleet import FleetFacts
from backend.planning.plan import plan

T = TypeVar("T")

HOSTS, GPUS, SHARDS = 1_000, 8, 64
NOW = UnixMs(1_764_412_800_123)
GIB = 2**30


class Ask(msgspec.Struct, frozen=True):
    """What is asked for."""

    target: str = "big"
    hosts: tuple[str, ...] = ()


def a_model() -> ModelFacts:
    """A dense model of 126 layers and 235 GB."""
    return ModelFacts(
        path="/models/big.gguf",
        file_bytes=Bytes(235 * GIB),
        expected_bytes=Bytes(235 * GIB),
        header_digest="d" * 64,
        architecture="llama",
        name="big",
        n_layer=126,
        n_embd=16_384,
        n_head=128,
        n_head_kv=8,
        key_length=128,
        value_length=128,
        n_vocab=128_256,
        context_train=131_072,
        blocks=tuple(BlockFacts(index, Bytes(1_900_000_000)) for index in range(126)),
        output_bytes=Bytes(1_700_000_000),
        token_embd_bytes=Bytes(1_700_000_000),
        has_output=True,
        tensor_types=("f16",),
    )


def a_host(index: int) -> HostReport:
    """A host with eight GPUs, of which every third is held."""
    host = HostId(f"gpu-{index:04}")
    names = [f"CUDA{number}" for number in range(GPUS)]
    holds = [
        Hold(node_id=NodeId(f"old-{number}/1"), load_generation=LoadGeneration(9), kind="device", device=name)
        for number, name in enumerate(names)
        if (index + number) % 3 == 0
    ]
    cpu = DeviceFacts(name="CPU", uuid="cpu", kind="cpu", total=512 * GIB, free=(300 + index % 100) * GIB)
    gpus = [
        DeviceFacts(name=name, uuid=f"{host}-{name}", kind="cuda", total=80 * GIB, free=(60 + index % 19) * GIB)
        for name in names
    ]
    engine = EngineFacts(engine="llamacpp", folder="/opt/llama", release="1-7e4c0a9", devices=(*names, "CPU"))
    facts = HostFacts(
        host=host,
        agent_version="0.1.0",
        boot_id=f"boot-{index}",
        cpu_count=128,
        cpu_flags=("avx2",),
        memory_total=512 * GIB,
        memory_free=300 * GIB,
        devices=(cpu, *gpus),
        engines=(engine,),
        ports=(Port(18_000), Port(18_999)),
        ports_in_use=(),
        advertise=f"10.{index // 250}.{index % 250}.7",
        model_roots=("/models",),
        journal="ok",
        fabric=f"rack-{index // 50}",
    )
    return HostReport(
        host=host,
        agent_epoch=f"epoch-{index}",
        journal_id=f"journal-{index}",
        journal_epoch=1,
        seq=1,
        oldest_seq=1,
        revision=1,
        facts=facts,
        entities=Entities(holds={hold_key(hold): hold for hold in holds}),
    )


def a_plan(reports: tuple[HostReport, ...], catalog: Catalog, model: ModelFacts) -> Plan:
    """The whole plan, from reports that nothing was worked out of yet."""
    offsets = {report.host: 0 for report in reports}
    fleet = FleetFacts(reports=reports, clock_offsets_ms=offsets)
    return plan(catalog, fleet, Ask(), model=model, now_unix_ms=NOW)


def plan_floor(reports: tuple[HostReport, ...], made: Plan) -> str:
    """The least that any such plan must do: see every device once, order the hosts, hash the result."""
    free = {report.host: sum(device.free for device in report.facts.devices) for report in reports}
    sorted(free, key=lambda host: (-free[host], host))
    return hashlib.sha256(msgspec.json.encode(made, order="sorted")).hexdigest()


def a_bound(shape: ResultShape) -> int:
    """The tree and the pairs."""
    fitting_pairs(shape)
    return derivation(shape).value


def bound_floor(shape: ResultShape) -> int:
    """The bare formula, once for the bound and once per step of a bisection over each offered batch size."""
    b, u, s, t, p = shape.n_batch, shape.n_ubatch, shape.n_seq_max, shape.tensors, shape.payload_bytes
    steps = sum(size.bit_length() for size in (2**power for power in range(5, 17)))
    most = 0
    for _ in range(steps + 1):
        most = max(12 + b * (20_615 + 4 * s + 4_198 * t + p // u * u), 12 + b * (28_843 + 4 * s))
    return most


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Milliseconds of one call, and what it gave."""
    begin = time.perf_counter()
    result = work()
    return (time.perf_counter() - begin) * 1000, result


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.option("--rounds", default=15, type=click.IntRange(3, 200), help="counted rounds, after one that is not")
def main(as_json: bool, rounds: int) -> None:
    """Time 64 shards planned over 1,000 hosts, and one result bound, each beside its floor."""
    reports, model = tuple(a_host(index) for index in range(HOSTS)), a_model()
    profile = Profile(ranks=SHARDS, device="CUDA*", context=32_768, sequences=8)
    catalog = Catalog("bench", {"big": ModelEntry(name="big", path="big.gguf", profiles={"wide": profile})})
    shape = ResultShape(n_batch=2048, n_ubatch=512, n_seq_max=8, tensors=2, payload_bytes=16_777_216)
    times: dict[str, list[float]] = {"plan": [], "plan_floor": [], "bound": [], "bound_floor": []}
    made = a_plan(reports, catalog, model)
    assert plan_digest(made) == made.digest
    for _ in range(rounds + 1):
        times["plan"].append(timed(lambda: a_plan(reports, catalog, model))[0])
        times["plan_floor"].append(timed(lambda: plan_floor(reports, made))[0])
        times["bound"].append(timed(lambda: a_bound(shape))[0])
        times["bound_floor"].append(timed(lambda: bound_floor(shape))[0])
    middle = {name: statistics.median(values[1:]) for name, values in times.items()}
    ratios = {
        name: statistics.median(ours / floor for ours, floor in zip(times[name], times[f"{name}_floor"], strict=True))
        for name in ("plan", "bound")
    }
    figures = {
        "rounds": rounds,
        "hosts": HOSTS,
        "shards": len(made.shards),
        "hosts_chosen": len(made.hosts),
        "candidates_with_a_reason": sum(bool(candidate.reason) for candidate in made.candidates),
        "refusals": sum(finding.is_refusal for finding in made.findings),
        "plan_ms": round(middle["plan"], 2),
        "plan_floor_ms": round(middle["plan_floor"], 2),
        "plan_ratio": round(ratios["plan"], 1),
        "bound_ms": round(middle["bound"], 3),
        "bound_floor_ms": round(middle["bound_floor"], 3),
        "bound_ratio": round(ratios["bound"], 1),
    }
    if as_json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:26} {value}")


if __name__ == "__main__":
    main()
