"""Placement over an inventory: pools, fabrics, budgets, bands and GPUs, and for every host not chosen its reason."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.contract.entities import Entities, LoadRecord
from backend.contract.plans import Plan, Profile
from backend.contract.reports import HostReport, Illness
from backend.contract.words import HostId, OpId, Port
from backend.planning.fleet import FleetFacts
from backend.planning.inventory import matching_devices, offer_of
from backend.planning.placement import spread
from backend.planning.ports import PortBook, lowest_band
from tests.planning.test_placement import seats
from tests.planning.worlds import GIB, NOW, a_cordon, a_fleet, a_host, a_plan, a_reservation, a_shard, holding, ids

MIB = 2**20


def gpus(count: int) -> dict[str, tuple[int, int]]:
    return {"CPU": (20 * GIB, 0)} | {f"CUDA{index}": (20 * GIB, 0) for index in range(count)}


def anywhere(*reports: HostReport, unreachable: tuple[tuple[HostId, str], ...] = (), **profile: Any) -> Plan:
    """A plan without named hosts over these."""
    return a_plan(a_fleet(*reports, unreachable=unreachable), profile={"hosts": (), **profile})


def reasons(made: Plan) -> dict[str, str]:
    return {str(each.host): each.reason for each in made.candidates if not each.chosen}


def test_the_most_ranks_of_a_host_follow_its_devices_memory_and_budgets() -> None:
    """By the bytes of the largest rank; what a leader beside them takes comes off the host's own memory alone."""

    def most(biggest: int, beside: int = 0, on: dict[str, tuple[int, int]] | None = None, **profile: Any) -> int:
        shape = Profile(**{"ranks": 9, "device": "*", **profile})
        report = a_host("host-a", devices=on or {"CPU": (20 * GIB, 0)}, power_w=500)
        return offer_of(report, shape, "llamacpp").most_ranks(shape, biggest, beside)

    assert [most(size * GIB) for size in (20, 10, 21)] == [1, 2, 0]
    assert [most(5 * GIB, beside * GIB) for beside in (0, 5, 6, 30)] == [4, 3, 2, 0]
    gpus = {"CUDA0": (20 * GIB, 0), "CUDA1": (10 * GIB, 0), "CUDA2": (9 * GIB, 0)}
    assert most(10 * GIB, on=gpus) == 2, "a GPU is taken whole, and exactly full is enough"
    assert most(10 * GIB, 19 * GIB, on=gpus) == 2, "a leader's memory is the host's"
    assert most(5 * GIB, 19 * GIB, on=gpus, share_device=True) == 4 + 2 + 1
    assert most(18 * GIB, on=gpus, devices=2) == 1, "each of two devices has half of it"
    assert most(GIB, power=200) == 2
    assert most(GIB, ranks_per_host=3) == 3
    assert most(0) == 9


def test_what_live_shards_were_promised_comes_off_a_hosts_budgets() -> None:
    made = a_plan(profile={"power": 300, "cpu_cores": 3})
    shard = a_shard("host-a", node="tiny-1/1", generation=int(made.load_generation))
    record = LoadRecord(op_id=OpId("op"), by="bob", plan=made, at_unix_ms=NOW)
    busy = msgspec.structs.replace(holding(shard), loads={record.op_id: record})
    offer = offer_of(a_host("host-a", entities=busy, power_w=500, cores=8), Profile(ranks=2), "llamacpp")
    assert (offer.power, offer.cores) == (200, 5)
    said = reasons(anywhere(a_host("host-a", entities=busy, power_w=500), a_host("host-b", power_w=1000), power=250))
    assert said == {"host-a": "200 W of its 500 W are left, and a rank needs 250 W"}


def test_a_cordoned_host_is_not_chosen_and_says_by_whom_since_when_and_why() -> None:
    made = anywhere(
        a_host("host-a", devices={"CPU": (10 * GIB, 0)}),
        a_host("host-b", devices={"CPU": (20 * GIB, 0)}, entities=holding(cordon=a_cordon("fan replaced"))),
    )
    assert not made.is_refused
    assert {shard.host for shard in made.shards} == {"host-a"}
    assert reasons(made) == {"host-b": "cordoned by alice@ops-1 since 2025-11-29 10:40 UTC: fan replaced"}


def test_every_host_that_is_not_chosen_says_why() -> None:
    used = holding(a_shard("host-g", node="glm-1/1", device="CUDA0"))
    made = anywhere(
        a_host("host-a", devices=gpus(4), pool="night", fabric="ib0"),
        a_host("host-b", devices=gpus(2), pool="day", fabric="ib0"),
        a_host("host-c", devices=gpus(2), fabric="ib0"),
        a_host("host-d", devices=gpus(2), pool="night", fabric="eth"),
        a_host("host-e", devices=gpus(2), pool="night", fabric="ib0", cores=1),
        a_host("host-f", devices=gpus(2), pool="night", fabric="ib0", power_w=200),
        a_host("host-g", devices=gpus(1), pool="night", fabric="ib0", entities=used),
        a_host("host-h", pool="night", fabric="ib0"),
        a_host("host-i", devices=gpus(2), pool="night", fabric="ib0", engines=()),
        a_host(
            "host-j", devices=gpus(2), pool="night", fabric="ib0", illnesses=(Illness("disk", "disk full", NOW, True),)
        ),
        unreachable=((HostId("host-z"), "timed out"),),
        device="CUDA*",
        pool="night",
        fabric="ib0",
        cpu_cores=2,
        power=300,
    )
    assert {shard.host for shard in made.shards} == {"host-a"}
    assert reasons(made) == {
        "host-b": "is in pool day, not night",
        "host-c": "is in no pool, not night",
        "host-d": "is on fabric eth, not ib0",
        "host-e": "1 of its 1 CPU cores are left, and a rank needs 2",
        "host-f": "200 W of its 200 W are left, and a rank needs 300 W",
        "host-g": "no CUDA* is free: CUDA0 used by glm-1/1 (ready)",
        "host-h": "llamacpp there has CPU, not CUDA*",
        "host-i": "has no llamacpp",
        "host-j": "is ill: disk full",
        "host-z": "unreachable: timed out",
    }
    assert not made.is_refused


def test_hosts_of_one_fabric_are_preferred_to_a_mix() -> None:
    made = anywhere(
        a_host("host-a", devices=gpus(1) | {"CUDA0": (23 * GIB, 0)}, fabric="one"),
        a_host("host-b", devices=gpus(1), fabric="two"),
        a_host("host-c", devices=gpus(1), fabric="two"),
        device="CUDA*",
    )
    assert [shard.host for shard in made.shards] == ["host-b", "host-b", "host-c"]
    mixed = anywhere(
        a_host("host-a", devices=gpus(1), fabric="one"), a_host("host-b", devices=gpus(1), fabric="two"), device="CUDA*"
    )
    assert {shard.host for shard in mixed.shards} == {"host-a", "host-b"}
    assert "fabric.differs" in ids(mixed)


def test_a_gpu_is_taken_whole_and_memory_of_the_cpu_is_shared() -> None:
    made = anywhere(a_host("host-a", devices=gpus(2)), device="CUDA*", ranks=3)
    assert [shard.device for shard in made.shards] == ["CPU", "CUDA0", "CUDA1"]
    crowded = anywhere(a_host("host-a", devices=gpus(2)), device="CUDA*", ranks=4)
    assert "ranks" in ids(crowded)
    on_cpu = anywhere(a_host("host-a"), ranks=5)
    assert [shard.device for shard in on_cpu.shards] == ["CPU"] * 5
    assert not on_cpu.is_refused


def test_a_gpu_that_somebody_has_is_passed_over() -> None:
    busy = holding(a_shard("host-a", node="glm-1/1", device="CUDA0"))
    made = anywhere(a_host("host-a", devices=gpus(3), entities=busy), device="CUDA*")
    assert [shard.device for shard in made.shards[1:]] == ["CUDA1", "CUDA2"]
    shared = anywhere(a_host("host-a", devices=gpus(2), entities=busy), device="CUDA*", share_device=True)
    assert [shard.device for shard in shared.shards[1:]] == ["CUDA0", "CUDA1"]
    assert not shared.is_refused


def test_two_ranks_are_not_planned_onto_the_last_free_gpu() -> None:
    busy = holding(a_shard("host-a", node="glm-1/1", device="CUDA0"))
    made = anywhere(a_host("host-a", devices=gpus(2), entities=busy), device="CUDA*")
    assert made.is_refused
    assert [shard.device for shard in made.shards[1:]] == ["CUDA1", "CUDA1"]
    (found,) = [finding for finding in made.findings if finding.id == "device.taken"]
    assert found.found == "CUDA1 is planned for tiny-1/1 too: no other one is left there"


def test_named_hosts_with_different_numbers_of_gpus_are_filled_as_far_as_those_go() -> None:
    fleet = a_fleet(a_host("host-a", devices=gpus(1)), a_host("host-b", devices=gpus(3)))
    made = a_plan(fleet, profile={"device": "CUDA*", "ranks": 5})
    assert [shard.host for shard in made.shards] == ["host-a", "host-a", "host-b", "host-b", "host-b"]
    assert not made.is_refused


def test_no_more_ranks_than_a_profile_allows_go_to_one_host() -> None:
    hosts = [a_host(f"host-{name}", devices=gpus(4)) for name in "abc"]
    made = anywhere(*hosts, device="CUDA*", ranks=5, ranks_per_host=2)
    assert [shard.host for shard in made.shards] == ["host-a", "host-a", "host-a", "host-b", "host-b"]


def test_budgets_limit_how_many_ranks_a_host_takes() -> None:
    hosts = [a_host(f"host-{name}", cores=2, power_w=900) for name in "ab"]
    assert {shard.host for shard in anywhere(*hosts, cpu_cores=1).shards} == {"host-a"}
    assert {shard.host for shard in anywhere(*hosts, cpu_cores=2).shards} == {"host-a", "host-b"}
    assert {shard.host for shard in anywhere(*hosts, power=500).shards} == {"host-a", "host-b"}


def test_a_rank_with_several_devices_takes_them_together() -> None:
    report = a_host("host-a", devices=gpus(4))
    assert matching_devices(report, "llamacpp", "host-a-CUDA2") == ("CUDA2",)
    assert matching_devices(report, "llamacpp", "CUDA1, host-a-CUDA3") == ("CUDA1", "CUDA3")


def test_a_host_without_ports_is_passed_over_and_one_with_few_takes_few_ranks() -> None:
    def with_ports(used: int) -> HostReport:
        ports = tuple(Port(port) for port in range(18_000, 18_000 + used))
        return a_host("host-a", devices={"CPU": (23 * GIB, 0)}, ports_in_use=ports)

    full = anywhere(with_ports(10), a_host("host-b"))
    assert {shard.host for shard in full.shards} == {"host-b"}
    assert reasons(full) == {"host-a": "all its ports of 18000-18009 are in use, held or reserved"}
    few = anywhere(with_ports(8), a_host("host-b"))
    assert [shard.host for shard in few.shards] == ["host-a", "host-a", "host-b"]
    assert not few.is_refused


def test_a_band_is_whole_and_the_lowest() -> None:
    assert lowest_band((Port(10), Port(19)), 3, {Port(11), Port(15)}) == (12, 13, 14)
    assert lowest_band((Port(10), Port(19)), 4, {Port(11), Port(15)}) == (16, 17, 18, 19)
    assert lowest_band((Port(10), Port(19)), 5, {Port(11), Port(15)}) == ()
    fleet = a_fleet(a_host("host-a", entities=holding(reservation=a_reservation(ports=(18_001,)))))
    book, report = PortBook(fleet), fleet.reports[0]
    assert book.take(report, 2) == (18_002, 18_003)
    assert book.take(report, 1) == (18_000,)
    assert book.take(report, 2, Port(18_001)) == (18_001, 18_002)
    assert book.has_room(report, 2, 3)
    assert not book.has_room(report, 2, 4)


@given(st.integers(1, 6), st.integers(1, 24), st.lists(st.integers(0, 8), min_size=6, max_size=6))
@settings(max_examples=60)
def test_no_host_gets_more_than_its_limit_when_all_together_have_room(
    hosts: int, ranks: int, limits: list[int]
) -> None:
    names = [HostId(f"h{index}") for index in range(hosts)]
    placed = spread(names, seats(ranks + 1), limits[:hosts])
    assert len(placed) == ranks + 1
    apart = hosts - min(hosts, ranks)
    if sum(limits[apart:hosts]) >= ranks:
        assert all(placed[1:].count(name) <= limit for name, limit in zip(names, limits, strict=False))
    assert list(placed[1:]) == sorted(placed[1:])


def test_a_large_fleet_is_planned_within_a_moment_and_every_host_has_a_reason() -> None:
    reports = tuple(a_host(f"host-{index:03}", devices=gpus(8), entities=Entities()) for index in range(300))
    fleet = FleetFacts(reports=reports)
    begin = time.monotonic()
    made = a_plan(fleet, profile={"hosts": (), "device": "CUDA*", "ranks": 5})
    assert time.monotonic() - begin < 20  # a pass over the fleet per shard and guard would take minutes
    assert len(made.candidates) == 300
    assert all(candidate.reason for candidate in made.candidates)
