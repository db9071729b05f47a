"""The guards about devices, budgets, addresses, memory and company: each on its own case, not on the one beside it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import backend
from backend.contract.entities import Hold, LoadRecord
from backend.contract.plans import Plan
from backend.contract.reports import HostReport
from backend.contract.words import Bytes, HostId, LoadGeneration, NodeId, OpId, Port
from backend.planning.fleet import FleetFacts, committed_budget, device_users, machine_memory
from backend.planning.guards import BY_ID, GUARDS
from backend.planning.guards.shape import endpoints_of, layers_of, ranks_of
from backend.planning.plan import plan, recheck
from tests.planning.worlds import (
    GIB,
    NOW,
    Ask,
    a_catalog,
    a_fleet,
    a_host,
    a_model,
    a_plan,
    a_reservation,
    a_shard,
    an_engine,
    holding,
    ids,
)

MIB = 2**20
GPUS = {"CPU": (20 * GIB, 0), "CUDA0": (20 * GIB, 0), "CUDA1": (20 * GIB, 0)}


def pair(name: str = "host-b", **changes: Any) -> FleetFacts:
    """host-a and host-b, one of them changed."""
    other = "host-a" if name == "host-b" else "host-b"
    return a_fleet(*sorted((a_host(name, **changes), a_host(other)), key=lambda report: report.host))


def both(**changes: Any) -> FleetFacts:
    return a_fleet(a_host("host-a", **changes), a_host("host-b", **changes))


def on_gpus(name: str = "host-b", **changes: Any) -> FleetFacts:
    other = "host-a" if name == "host-b" else "host-b"
    return a_fleet(a_host(name, devices=GPUS, **changes), a_host(other, devices=GPUS))


def with_uuids(name: str, *uuids: str) -> HostReport:
    """A host whose GPUs have these uuids, in order."""
    report = a_host(name, devices=GPUS)
    cpu, *gpus = report.facts.devices
    named = [msgspec.structs.replace(gpu, uuid=uuid) for gpu, uuid in zip(gpus, uuids, strict=True)]
    return msgspec.structs.replace(report, facts=msgspec.structs.replace(report.facts, devices=(cpu, *named)))


def running(cores: int = 0, power: int = 0, state: str = "ready") -> dict[str, Any]:
    """Entities of a host that runs one shard, which was promised this much."""
    made = a_plan(profile={"cpu_cores": cores, "power": power})
    record = LoadRecord(op_id=OpId("op"), by="bob", plan=made, at_unix_ms=NOW)
    shard = a_shard("host-b", node="tiny-1/1", state=state, generation=int(made.load_generation))
    kept = holding(shard, highest=NOW - 1)
    return {"entities": msgspec.structs.replace(kept, loads={record.op_id: record})}


Case = Callable[[], Plan]

CASES: list[tuple[str, str, Case, Case, tuple[str, ...]]] = [
    (
        "host.pool",
        "refuse",
        lambda: a_plan(pair(pool="day"), profile={"pool": "night"}),
        lambda: a_plan(both(pool="night"), profile={"pool": "night"}),
        ("pool night", "pool day", "a host of no pool"),
    ),
    (
        "host.fabric",
        "refuse",
        lambda: a_plan(pair(fabric="eth"), profile={"fabric": "ib0"}),
        lambda: a_plan(both(fabric="ib0"), profile={"fabric": "ib0"}),
        ("fabric ib0", "fabric eth"),
    ),
    (
        "fabric.differs",
        "warn",
        lambda: a_plan(a_fleet(a_host("host-a", fabric="ib0"), a_host("host-b", fabric="ib1"))),
        lambda: a_plan(pair(fabric="ib0")),
        ("host-a on ib0", "host-b on ib1"),
    ),
    (
        "host.cores",
        "refuse",
        lambda: a_plan(both(cores=4), profile={"cpu_cores": 5}),
        lambda: a_plan(both(cores=4), profile={"cpu_cores": 4}),
        ("5 CPU cores", "4 of 4"),
    ),
    (
        "host.cores",
        "refuse",
        lambda: a_plan(pair(**running(cores=4)), profile={"cpu_cores": 5}),
        lambda: a_plan(pair(**running(cores=4, state="stopped")), profile={"cpu_cores": 5}),
        ("4 of 8 CPU cores", "host-b"),
    ),
    (
        "host.power",
        "refuse",
        lambda: a_plan(both(power_w=700), profile={"power": 701}),
        lambda: a_plan(both(power_w=700), profile={"power": 700}),
        ("701 W", "700 of 700 W"),
    ),
    (
        "device.unseen",
        "warn",
        lambda: a_plan(on_gpus(engines=(an_engine("CPU", "CUDA0"),)), profile={"device": "CUDA*"}),
        lambda: a_plan(on_gpus(), profile={"device": "CUDA*"}),
        ("CUDA1 on host-b", "CPU, CUDA0"),
    ),
    (
        "device.unmeasured",
        "refuse",
        lambda: a_plan(both(engines=(an_engine("Vulkan0", "CPU"),)), profile={"device": "Vulkan0"}),
        lambda: a_plan(both(engines=(an_engine("Vulkan0", "CPU"),))),
        ("Vulkan0 on host-a", "CPU at the drivers"),
    ),
    (
        "device.taken",
        "refuse",
        lambda: a_plan(
            on_gpus(entities=holding(a_shard("host-b", node="glm-1/1", device="CUDA0"))), profile={"device": "CUDA0"}
        ),
        lambda: a_plan(
            on_gpus(entities=holding(a_shard("host-b", node="glm-1/1", device="CUDA0"))),
            profile={"device": "CUDA0", "share_device": True},
        ),
        ("tiny-1/2 on host-b", "CUDA0 is used by glm-1/1 (ready)"),
    ),
    (
        "device.taken",
        "refuse",
        lambda: a_plan(
            on_gpus(entities=holding(reservation=a_reservation(memory={"CUDA0": GIB}))), profile={"device": "CUDA0"}
        ),
        lambda: a_plan(
            on_gpus(entities=holding(reservation=a_reservation(memory={"CUDA0": GIB}))), profile={"device": "CUDA1"}
        ),
        ("reserved for qwen-1 by bob",),
    ),
    (
        "device.index",
        "refuse",
        lambda: a_plan(a_fleet(with_uuids("host-a", "GPU-7", "GPU-7"), a_host("host-b")), profile={"device": "CUDA*"}),
        lambda: a_plan(a_fleet(with_uuids("host-a", "GPU-7", "GPU-8"), a_host("host-b")), profile={"device": "CUDA*"}),
        ("CUDA1 and CUDA0 both are GPU-7",),
    ),
    (
        "device.index",
        "warn",
        lambda: a_plan(a_fleet(with_uuids("host-a", "", ""), a_host("host-b")), profile={"device": "CUDA*"}),
        lambda: a_plan(a_fleet(with_uuids("host-a", "", ""), a_host("host-b")), profile={"device": "CUDA0"}),
        ("CUDA0, CUDA1 by number only",),
    ),
    (
        "address.container",
        "warn",
        lambda: a_plan(pair(advertise="172.17.0.4")),
        lambda: a_plan(both(advertise="172.17.0.4", boot_id="one machine")),
        ("172.17.0.4", "Docker"),
    ),
    (
        "address.container",
        "warn",
        lambda: a_plan(pair(advertise="10.0.2.15")),
        lambda: a_plan(pair(advertise="172.18.0.4")),
        ("virtual machine",),
    ),
    (
        "address.foreign",
        "refuse",
        lambda: a_plan(pair(addresses=("192.168.0.6",))),
        lambda: a_plan(pair(addresses=("192.168.0.6",), advertise="192.168.0.6")),
        ("192.168.0.6", "advertise = 10.0.0."),
    ),
    (
        "address.same",
        "refuse",
        lambda: a_plan(both(advertise="10.1.1.1")),
        lambda: a_plan(both(advertise="10.1.1.1", boot_id="one machine")),
        ("host-a's", "10.1.1.1 on both"),
    ),
    (
        "port.ephemeral",
        "warn",
        lambda: a_plan(pair(ephemeral=(18_000, 60_999))),
        lambda: a_plan(pair(ephemeral=(18_001, 60_999))),
        ("18000-60999", "ip_local_reserved_ports=18000-18000"),
    ),
    (
        "ubatch.memory",
        "refuse",
        lambda: a_plan(pair(devices={"CPU": (8 * MIB, 0)}), profile={"n_ubatch": 2048}),
        lambda: a_plan(pair(devices={"CPU": (MIB // 2, 0)}), profile={"n_ubatch": 2048}),
        ("CPU on host-b", "n_ubatch = 2048", "n_ubatch of at most"),
    ),
    (
        "memory.machine",
        "refuse",
        lambda: a_plan(both(devices={"CPU": (14 * MIB, 0)}, boot_id="one machine", advertise="127.0.0.1")),
        lambda: a_plan(both(devices={"CPU": (14 * MIB, 0)})),
        ("host-a, host-b", "14.0 MiB", "one machine"),
    ),
    (
        "memory.limited",
        "refuse",
        lambda: a_plan(pair("host-a", memory_limit=11 * MIB)),
        lambda: a_plan(pair("host-a", memory_limit=13 * MIB)),
        ("1.4 MiB of mapped file", "11.0 MiB, the memory limit"),
    ),
    (
        "replica.loading",
        "warn",
        lambda: a_plan(pair(entities=holding(a_shard("host-b", node="tiny-7/1", state="loading")))),
        lambda: a_plan(pair(entities=holding(a_shard("host-b", node="tiny-7/1", state="ready")))),
        ("tiny-7 on host-b", "tiny-7/1 is loading"),
    ),
    (
        "protocol.skew",
        "warn",
        lambda: a_plan(pair(agent_version="0.2.0")),
        lambda: a_plan(pair(agent_version="0.1.9")),
        ("host-b", "0.1.0", "0.2.0"),
    ),
    (
        "protocol.skew",
        "warn",
        lambda: a_plan(version="0.2.0"),
        lambda: a_plan(version="0.1.7"),
        ("like this ringtop",),
    ),
    (
        "catalog.stale",
        "warn",
        lambda: plan(
            msgspec.structs.replace(a_catalog(), stale="catalog.toml is not TOML"),
            a_fleet(),
            Ask(),
            model=a_model(),
            now_unix_ms=NOW,
        ),
        lambda: a_plan(),
        ("catalog.toml is not TOML", "ringtop catalog check"),
    ),
    (
        "batch.order",
        "warn",
        lambda: a_plan(profile={"n_batch": 64, "n_ubatch": 65}),
        lambda: a_plan(profile={"n_batch": 64, "n_ubatch": 64}),
        ("n_batch = 64", "n_ubatch = 65"),
    ),
    (
        "ranks.devices",
        "refuse",
        lambda: a_plan(on_gpus(), profile={"device": "CUDA*", "devices": 2}),
        lambda: a_plan(on_gpus(), profile={"device": "CUDA*", "devices": 1}),
        ("devices = 2",),
    ),
]


@pytest.mark.parametrize(("id", "severity", "case", "neighbour", "words"), CASES, ids=[case[0] for case in CASES])
def test_the_guard_fires_and_its_neighbour_does_not(
    id: str, severity: str, case: Case, neighbour: Case, words: tuple[str, ...]
) -> None:
    fired = [finding for finding in case().findings if finding.id == id]
    assert fired, f"{id} stayed silent"
    assert severity in {finding.severity for finding in fired}
    said = " | ".join(finding.words for finding in fired)
    for word in words:
        assert word in said
    assert all(finding.remedy.endswith(".") for finding in fired)
    assert id not in ids(neighbour())


def changed(made: Plan, of_rank: int, **changes: Any) -> Plan:
    """The plan with one shard edited."""
    shards = [msgspec.structs.replace(each, **changes) if each.rank == of_rank else each for each in made.shards]
    return msgspec.structs.replace(made, shards=tuple(shards))


def test_a_rank_that_is_twice_there_or_missing_or_out_of_order_is_named() -> None:
    made = a_plan()
    assert list(ranks_of(made)) == []
    (found,) = ranks_of(changed(made, 2, rank=1))
    assert found.id == "ranks.order"
    assert "1 is there twice; 2 is missing" in found.found
    (found,) = ranks_of(msgspec.structs.replace(made, shards=made.shards[::-1]))
    assert "another order" in found.found
    (found,) = ranks_of(msgspec.structs.replace(made, shards=made.shards[:2]))
    assert "2 is missing" in found.found


def test_windows_with_a_gap_an_overlap_or_a_missing_end_are_named() -> None:
    made = a_plan(profile={"split": (2, 2)})
    assert list(layers_of(made)) == []
    for window, words in (((3, 4), "begins at layer 2"), ((1, 4), "begins at layer 2"), ((2, 3), "4 layers")):
        found = list(layers_of(changed(made, 2, layers=window)))
        assert [finding.id for finding in found] == ["layers.window"]
        assert words in found[0].expected
    (found_output,) = layers_of(changed(made, 1, holds_output=True))
    assert "tiny-1/1, tiny-1/2" in found_output.found


def test_two_shards_on_one_endpoint_are_named_band_by_band() -> None:
    made = a_plan()
    assert list(endpoints_of(made, a_fleet())) == []
    taken = changed(made, 1, ports=(Port(18_001), made.shards[0].ports[0]))
    (found,) = endpoints_of(taken, a_fleet())
    assert (found.id, found.subject) == ("port.clash", "tiny-1/1 on host-a")
    assert f"port {made.shards[0].ports[0]}" in found.found
    same_machine = both(boot_id="one")
    assert [f.id for f in endpoints_of(changed(made, 2, ports=made.shards[0].ports), same_machine)] == ["port.clash"]
    assert list(endpoints_of(changed(made, 2, ports=made.shards[0].ports), a_fleet())) == []


def test_a_saved_plan_is_refused_when_its_replica_exists_by_now_or_its_device_moved() -> None:
    made = a_plan(on_gpus(), profile={"device": "CUDA0"})
    assert recheck(made, on_gpus()) == ()
    known = on_gpus(entities=holding(a_shard("host-b", node="tiny-1/0", state="stopped")))
    assert "replica.twice" in [finding.id for finding in recheck(made, known)]
    moved = a_fleet(with_uuids("host-a", "GPU-other", "GPU-8"), a_host("host-b", devices=GPUS))
    (found,) = [finding for finding in recheck(made, moved) if finding.id == "device.index"]
    assert "host-a-CUDA0" in found.expected
    assert "GPU-other" in found.found


def test_a_device_of_a_hold_is_taken_until_its_proof() -> None:
    hold = Hold(
        node_id=NodeId("old-1/1"), load_generation=LoadGeneration(9), kind="device", device="CUDA0", until="no owner"
    )
    report = a_host("host-b", devices=GPUS, entities=holding(hold=hold))
    assert device_users(report) == {"CUDA0": "held after old-1/1 until no owner"}


def test_every_device_of_a_shard_with_several_is_taken() -> None:
    """Such a shard, of an adopted engine, names its first device; the load record has them all."""
    shard = a_shard("host-b", node="tiny-1/0", device="CUDA0")
    made = a_plan()
    planned = msgspec.structs.replace(made.shards[0], node_id=shard.node_id, device="CUDA0", devices=("CUDA0", "CUDA1"))
    plan = msgspec.structs.replace(
        made, replica=shard.replica, load_generation=shard.load_generation, shards=(planned,)
    )
    record = LoadRecord(op_id=OpId("adopt-1"), by="bob", plan=plan, at_unix_ms=NOW)
    held = msgspec.structs.replace(holding(shard), loads={record.op_id: record})
    assert set(device_users(a_host("host-b", devices=GPUS, entities=held))) == {"CUDA0", "CUDA1"}
    assert set(device_users(a_host("host-b", devices=GPUS, entities=holding(shard)))) == {"CUDA0"}


def test_budgets_come_from_the_load_record_of_what_lives() -> None:
    assert committed_budget(a_host("host-b", **running(cores=3, power=250))) == (3, 250)
    assert committed_budget(a_host("host-b", **running(cores=3, power=250, state="failed"))) == (0, 0)


def test_every_guard_says_what_it_prevents_where_it_looks_and_what_to_do() -> None:
    assert len(BY_ID) == len(GUARDS)
    for guard in GUARDS:
        assert guard.prevents, guard.id
        assert guard.remedy.endswith("."), guard.id
        assert guard.source, guard.id
        assert guard.severity in ("refuse", "warn"), guard.id
        assert guard.step in ("plan", "recheck", "check", "start", "load", "adopt", "recover"), guard.id
        assert (guard.check is not None) == (guard.step == "plan") or guard.id == "load.target", guard.id
    assert len({guard.drift for guard in GUARDS if guard.drift}) == 7


def test_every_finding_that_the_program_can_make_is_in_the_registry() -> None:
    root = Path(backend.__file__).parent
    made = set()
    for path in root.rglob("*.py"):
        made |= set(re.findall(r"\b(?:refuse|warn)\(\s*\"([a-z]+(?:\.[a-z_]+)?)\"", path.read_text()))
    assert made - set(BY_ID) == set()
    assert len(made) > 60


def test_the_largest_micro_batch_that_is_offered_fits_and_one_more_does_not() -> None:
    fleet = pair(devices={"CPU": (8 * MIB, 0)})
    (found,) = [f for f in a_plan(fleet, profile={"n_ubatch": 2048}).findings if f.id == "ubatch.memory"]
    match = re.search(r"at most (\d+)", found.expected)
    assert match is not None
    largest = int(match[1])
    assert "memory.short" not in ids(a_plan(fleet, profile={"n_ubatch": largest}))
    assert "memory.short" in ids(a_plan(fleet, profile={"n_ubatch": largest + 1}))


def test_the_demand_of_a_profile_counts_where_it_is_more_than_what_is_derived() -> None:
    plain, demanding = a_plan(), a_plan(profile={"memory": GIB})
    assert [shard.bound.memory for shard in demanding.shards[1:]] == [GIB, GIB]
    assert demanding.shards[0].bound == plain.shards[0].bound
    assert a_plan(profile={"memory": 1}).shards[1].bound.extra == Bytes(0)
    assert "memory.short" in ids(a_plan(profile={"memory": 21 * GIB}))


def test_hosts_are_found_by_their_name() -> None:
    fleet = a_fleet(a_host("host-a"), unreachable=((HostId("host-b"), "down"),))
    assert fleet.report("host-a") is fleet.reports[0]
    assert fleet.report("host-b") is None
    assert fleet.silence("host-b") == "down"
    assert fleet.silence("host-a") is None


def test_what_one_agent_of_a_machine_has_promised_is_not_free_for_another() -> None:
    promised = holding(reservation=a_reservation(memory={"CPU": 3 * GIB}))
    here = a_host("host-a", boot_id="one")
    there = a_host("host-b", boot_id="one", entities=promised)
    assert machine_memory(a_fleet(here, there), here) == 17 * GIB
    elsewhere = a_host("host-b", entities=promised)
    assert machine_memory(a_fleet(here, elsewhere), here) == 20 * GIB


def test_no_smaller_micro_batch_is_offered_where_the_demand_of_the_profile_is_what_does_not_fit() -> None:
    made = a_plan(pair(devices={"CPU": (8 * GIB, 0)}), profile={"n_ubatch": 2048, "memory": 20 * GIB})
    assert "memory.short" in ids(made)
    assert "ubatch.memory" not in ids(made), "with any micro-batch as much memory is demanded"
