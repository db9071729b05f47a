"""Wrong and right loads around what hosts are kept for, what they share, and what the serving engines need."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.contract.entities import Entities, LoadRecord
from backend.contract.plans import Plan, Profile
from backend.contract.reports import DeviceFacts
from backend.contract.words import OpId
from backend.planning.catalog import Catalog, ModelEntry
from backend.planning.fleet import FleetFacts
from backend.planning.plan import plan
from tests.planning.worlds import GIB, NOW, Ask, a_fleet, a_host, a_model, a_plan, a_reservation, a_shard, holding
from tests.refusals.rows import RightPlan, WrongPlan, as_parameters, assert_refuses, both, gpus, pair
from tests.refusals.test_wrong_plans import needed_on

pytestmark = pytest.mark.refusals

TOGETHER = needed_on("host-a") + needed_on("host-b")
MAPPED = a_model().expected_bytes


def doubled() -> FleetFacts:
    """host-b shows one GPU under two names."""
    report = a_host("host-b", devices={"CUDA0": (20 * GIB, 0), "CUDA1": (20 * GIB, 0), "CPU": (20 * GIB, 0)})
    devices: tuple[DeviceFacts, ...] = tuple(
        msgspec.structs.replace(device, uuid="GPU-7") if device.name.startswith("CUDA") else device
        for device in report.facts.devices
    )
    facts = msgspec.structs.replace(report.facts, devices=devices)
    other = a_host("host-a", devices={"CUDA0": (20 * GIB, 0), "CUDA1": (20 * GIB, 0), "CPU": (20 * GIB, 0)})
    return a_fleet(other, msgspec.structs.replace(report, facts=facts))


def one_machine(free: int) -> FleetFacts:
    """Two agents of one machine, which each say that all of its memory is free."""
    return both(boot_id="one", advertise="127.0.0.1", devices={"CPU": (free, 0)})


def busy_gpus(**shard: Any) -> FleetFacts:
    """Two hosts with one GPU each; something has host-b's."""
    devices = {"CPU": (20 * GIB, 0), "CUDA0": (20 * GIB, 0)}
    used = holding(a_shard("host-b", node="glm-1/1", device="CUDA0", **shard))
    return a_fleet(a_host("host-a", devices=devices), a_host("host-b", devices=devices, entities=used))


def served(engine: str, fleet: FleetFacts | None = None, **profile: Any) -> Plan:
    """A plan of vLLM or SGLang over both hosts, one GPU each."""
    devices = {"CPU": (20 * GIB, 0), "CUDA0": (23 * GIB, 0)}
    shape = Profile(**{"ranks": 2, "hosts": ("host-a", "host-b"), "device": "CUDA0", **profile})
    entry = ModelEntry(name="big", path="org/big", engine=engine, profiles={"p": shape})
    hosts = fleet or both(devices=devices)
    reports = [with_engine(report, engine) for report in hosts.reports]
    return plan(
        Catalog("catalog.toml", {"big": entry}),
        msgspec.structs.replace(hosts, reports=tuple(reports)),
        Ask("big"),
        model=None,
        now_unix_ms=NOW,
    )


def with_engine(report: Any, engine: str) -> Any:
    engines = tuple(msgspec.structs.replace(each, engine=engine) for each in report.facts.engines)
    return msgspec.structs.replace(report, facts=msgspec.structs.replace(report.facts, engines=engines))


def gpu_hosts(**changes: Any) -> FleetFacts:
    return both(devices={"CPU": (20 * GIB, 0), "CUDA0": (changes.pop("free", 23 * GIB), 0)}, **changes)


def reserved(**budgets: int) -> Entities:
    """A host with a reservation that holds this much of its budgets."""
    return holding(reservation=msgspec.structs.replace(a_reservation(), **budgets))


def serving(power: int) -> Entities:
    """A host where one rank of vLLM runs, which holds no layers that anybody knows, with this demand."""
    made = served("vllm", power=power)
    record = LoadRecord(op_id=OpId("op"), by="bob", plan=made, at_unix_ms=NOW)
    generation = int(made.load_generation)
    shard = a_shard("host-b", node=f"{made.replica}/1", device="CUDA0", layers=None, generation=generation)
    return msgspec.structs.replace(holding(shard), loads={record.op_id: record})


WRONG = [
    WrongPlan(
        "a host of another pool",
        "host.pool",
        ("pool prod", "pool test", "host-b"),
        lambda: a_plan(a_fleet(a_host("host-a", pool="prod"), a_host("host-b", pool="test")), profile={"pool": "prod"}),
    ),
    WrongPlan(
        "a host of no pool", "host.pool", ("a host of no pool",), lambda: a_plan(both(), profile={"pool": "prod"})
    ),
    WrongPlan(
        "a host on another fabric",
        "host.fabric",
        ("fabric ib0", "fabric eth", "host-b"),
        lambda: a_plan(
            a_fleet(a_host("host-a", fabric="ib0"), a_host("host-b", fabric="eth")), profile={"fabric": "ib0"}
        ),
    ),
    WrongPlan(
        "one CPU core more than a host has",
        "host.cores",
        ("9 CPU cores", "8 of 8"),
        lambda: a_plan(pair(cores=8), profile={"cpu_cores": 9}),
    ),
    WrongPlan(
        "one watt more than a host has",
        "host.power",
        ("701 W", "700 of 700"),
        lambda: a_plan(both(power_w=700), profile={"power": 701}),
    ),
    WrongPlan(
        "one CPU core more than a reservation leaves",
        "host.cores",
        ("6 CPU cores", "5 of 8"),
        lambda: a_plan(pair(cores=8, entities=reserved(cores=3)), profile={"cpu_cores": 6}),
    ),
    WrongPlan(
        "one watt more than a reservation leaves",
        "host.power",
        ("401 W", "400 of 700"),
        lambda: a_plan(both(power_w=700, entities=reserved(power=300)), profile={"power": 401}),
    ),
    WrongPlan(
        "watts that a vLLM rank on a GPU has been promised",
        "host.power",
        ("400 W", "300 of 700"),
        lambda: served("vllm", gpu_hosts(power_w=700, entities=serving(power=400)), power=400, share_device=True),
    ),
    WrongPlan(
        "a GPU that a replica uses",
        "device.taken",
        ("CUDA0 is used by glm-1/1 (ready)",),
        lambda: a_plan(busy_gpus(), profile={"device": "CUDA0"}),
    ),
    WrongPlan(
        "a GPU that a reservation has",
        "device.taken",
        ("CUDA0 is reserved for qwen-1 by bob",),
        lambda: a_plan(
            pair(
                devices={"CPU": (20 * GIB, 0), "CUDA0": (20 * GIB, 0)},
                entities=holding(reservation=a_reservation(memory={"CUDA0": GIB})),
            ),
            hosts=("host-b",),
            profile={"device": "CUDA0", "ranks": 2},
        ),
    ),
    WrongPlan(
        "one GPU under two names",
        "device.index",
        ("CUDA1 and CUDA0 both are GPU-7", "one uuid per device"),
        lambda: a_plan(doubled(), profile={"device": "CUDA*", "ranks": 5}),
    ),
    WrongPlan(
        "an advertised address that is none of the host's",
        "address.foreign",
        ("10.9.9.9", "10.0.0.7, 10.1.0.7"),
        lambda: a_plan(pair(advertise="10.9.9.9", addresses=("10.0.0.7", "10.1.0.7"))),
    ),
    WrongPlan(
        "one address for two machines",
        "address.same",
        ("10.0.0.7 on both", "host-a's"),
        lambda: a_plan(both_at("10.0.0.7")),
    ),
    WrongPlan(
        "two devices for a worker that takes one",
        "ranks.devices",
        ("devices = 2", "1 device per rank"),
        lambda: a_plan(gpus(4), profile={"device": "CUDA*", "devices": 2}),
    ),
    WrongPlan(
        "a micro-batch one row too large for the memory",
        "ubatch.memory",
        ("n_ubatch = 512", "at most"),
        lambda: a_plan(pair(devices={"CPU": (needed_on("host-b") - 1, 0)})),
    ),
    WrongPlan(
        "two agents that count one byte twice",
        "memory.machine",
        ("host-a, host-b", "which each of them counts as its own"),
        lambda: a_plan(one_machine(TOGETHER - 1)),
    ),
    WrongPlan(
        "a unit limited to one byte less than shards and mapped file",
        "memory.limited",
        ("MemoryMax=", "host-a", "mapped file"),
        lambda: a_plan(pair("host-a", memory_limit=needed_on("host-a") + MAPPED - 1)),
    ),
    WrongPlan(
        "vLLM ranks that would wait for themselves",
        "rendezvous.loopback",
        ("127.0.0.1", "rendezvous in the profile", "2 machines"),
        lambda: served("vllm", options={"rendezvous": "127.0.0.1"}),
    ),
    WrongPlan(
        "SGLang's rendezvous at an address to listen on",
        "rendezvous.loopback",
        ("0.0.0.0",),
        lambda: served("sglang", options={"rendezvous": "0.0.0.0"}),
    ),
    WrongPlan(
        "a guessed address on hosts with two networks",
        "address.unset",
        ("host_address = 'auto'", "10.0.0.7, 192.168.1.7"),
        lambda: served("vllm", gpu_hosts(addresses=("10.0.0.7", "192.168.1.7")), options={"host_address": "auto"}),
    ),
    WrongPlan(
        "both of AMD's masks",
        "visible.twice",
        ("hip_visible_devices = '0'", "rocr_visible_devices = '0,1'"),
        lambda: served("sglang", options={"hip_visible_devices": "0", "rocr_visible_devices": "0,1"}),
    ),
    WrongPlan(
        "tensor and pipeline parallelism that do not meet the devices",
        "ranks.parallel",
        ("2 devices", "tensor_parallel 4"),
        lambda: served("vllm", options={"tensor_parallel": 4}),
    ),
    WrongPlan(
        "a share of a GPU that is not free",
        "memory.share",
        ("90 %", "gpu_memory_utilization"),
        lambda: served("vllm", gpu_hosts(free=21 * GIB)),
    ),
    WrongPlan(
        "a split for an engine that divides by itself",
        "split.engine",
        ("split = [2, 2]", "vllm"),
        lambda: served("vllm", split=(2, 2)),
    ),
    WrongPlan(
        "a secret in a plan",
        "options.refused",
        ("api_key", "a secret"),
        lambda: served("sglang", options={"api_key": "s3cret"}),
    ),
]


def both_at(address: str) -> FleetFacts:
    return both(advertise=address)


@pytest.mark.parametrize("row", as_parameters(WRONG))
def test_wrong(row: WrongPlan) -> None:
    """A wrong load is refused in the plan: by id, with both values and a remedy."""
    made = row.make()
    assert made.is_refused
    assert_refuses(made.findings, row.id, row.words)


RIGHT = [
    RightPlan("hosts of the pool", lambda: a_plan(both(pool="prod"), profile={"pool": "prod"})),
    RightPlan("a pool that the profile does not ask for", lambda: a_plan(both(pool="prod"))),
    RightPlan("hosts on the fabric", lambda: a_plan(both(fabric="ib0"), profile={"fabric": "ib0"})),
    RightPlan(
        "ranks on two fabrics that nobody asked about",
        lambda: a_plan(a_fleet(a_host("host-a", fabric="ib0"), a_host("host-b", fabric="eth"))),
        ("fabric.differs",),
    ),
    RightPlan("every CPU core of a host", lambda: a_plan(pair(cores=8), profile={"cpu_cores": 8})),
    RightPlan("every watt of a host", lambda: a_plan(both(power_w=700), profile={"power": 700})),
    RightPlan(
        "a demand of watts on a host that says nothing of its power",
        lambda: a_plan(pair(power_w=700), profile={"power": 700}),
        ("host.unbudgeted",),
    ),
    RightPlan(
        "cores that a reservation leaves",
        lambda: a_plan(pair(cores=8, entities=reserved(cores=3)), profile={"cpu_cores": 5}),
    ),
    RightPlan(
        "a GPU shared on purpose", lambda: a_plan(busy_gpus(), profile={"device": "CUDA0", "share_device": True})
    ),
    RightPlan("a GPU whose replica has ended", lambda: a_plan(busy_gpus(state="stopped"), profile={"device": "CUDA0"})),
    RightPlan(
        "an advertised address that is the host's second",
        lambda: a_plan(pair(advertise="10.1.0.7", addresses=("10.0.0.7", "10.1.0.7"))),
    ),
    RightPlan(
        "memory that two agents of one machine share exactly",
        lambda: a_plan(one_machine(TOGETHER)),
    ),
    RightPlan(
        "a unit limited to shards and mapped file exactly",
        lambda: a_plan(pair("host-a", memory_limit=needed_on("host-a") + MAPPED)),
    ),
    RightPlan("vLLM over two machines", lambda: served("vllm")),
    RightPlan("SGLang over two machines", lambda: served("sglang")),
    RightPlan(
        "tensor times pipeline as many as devices",
        lambda: served("vllm", options={"tensor_parallel": 1, "pipeline_parallel": 2}),
    ),
]


@pytest.mark.parametrize("row", as_parameters(RIGHT))
def test_right(row: RightPlan) -> None:
    """A right load is not refused, and told no more than it must be."""
    made = row.make()
    assert [finding.words for finding in made.findings if finding.is_refusal] == []
    assert {finding.id for finding in made.findings} == set(row.warns)
