"""Where a replica goes: hosts, ranks over them, devices, ports, ids and generations."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from backend.contract.entities import Hold
from backend.contract.words import HostId, LoadGeneration, NodeId, Port, UnixMs
from backend.planning.engines.rules import Seat
from backend.planning.fleet import DAY_MS, available_memory, taken_ports
from backend.planning.inventory import matching_devices
from backend.planning.placement import mint_generation, next_replica_id, spread
from tests.planning.worlds import GIB, NOW, a_fleet, a_host, a_plan, a_reservation, a_shard, holding, ids


def seats(ranks: int) -> tuple[Seat, ...]:
    return tuple(Seat(rank, "leader" if rank == 0 else "worker", None, False, rank > 0, 1) for rank in range(ranks))


def test_workers_go_over_the_hosts_in_order_with_neighbours_together() -> None:
    a, b, c = (HostId(name) for name in "abc")
    assert spread([a, b], seats(3)) == (a, a, b)
    assert spread([a, b], seats(5)) == (a, a, a, b, b)
    assert spread([a, b], seats(2)) == (a, b)
    assert spread([a, b, c], seats(3)) == (a, b, c)
    assert spread([a], seats(1)) == (a,)
    assert spread([], seats(3)) == ()


@given(st.integers(1, 9), st.integers(1, 40))
def test_every_rank_has_one_host_and_no_host_has_two_more_workers_than_another(hosts: int, ranks: int) -> None:
    names = [HostId(f"h{index:02}") for index in range(min(hosts, ranks))]
    placed = spread(names, seats(ranks))
    assert len(placed) == ranks
    assert placed[0] == names[0]
    assert list(placed[1:]) == sorted(placed[1:])
    counts = [placed[1:].count(name) for name in names if name in placed[1:]]
    assert not counts or max(counts) - min(counts) <= 1
    assert set(placed) == set(names)


def test_named_hosts_are_taken_in_their_order_and_the_request_narrows_the_profile() -> None:
    plan = a_plan(hosts=("host-b", "host-a"))
    assert [shard.host for shard in plan.shards] == ["host-b", "host-b", "host-a"]
    assert [shard.host for shard in a_plan(hosts=("host-b",)).shards] == ["host-b"] * 3
    not_chosen = {c.host: c.reason for c in a_plan(hosts=("host-b",)).candidates if not c.chosen}
    assert not_chosen == {"host-a": "not named; named: host-b"}


def test_without_names_the_fewest_hosts_that_fit_are_taken_those_with_most_free_memory_first() -> None:
    fleet = a_fleet(
        a_host("host-a", devices={"CPU": (GIB, 0)}),
        a_host("host-b", devices={"CPU": (9 * GIB, 0)}),
        a_host("host-c", refuses_loads="its unit would kill engines"),
        a_host("host-d", journal="damaged"),
        unreachable=((HostId("host-e"), "connection refused"),),
    )
    plan = a_plan(fleet, profile={"hosts": ()})
    assert {shard.host for shard in plan.shards} == {"host-b"}
    reasons: dict[str, str] = {
        candidate.host: candidate.reason for candidate in plan.candidates if not candidate.chosen
    }
    assert reasons["host-a"].startswith("not needed: 1.0 GiB free on CPU, and host-b come")
    assert reasons["host-c"] == "refuses loads: its unit would kill engines"
    assert reasons["host-d"] == "its journal is damaged"
    assert reasons["host-e"] == "unreachable: connection refused"


def test_a_replica_too_large_for_one_host_takes_a_second() -> None:
    small = 12 * 2**20
    fleet = a_fleet(*(a_host(name, devices={"CPU": (small, 0)}) for name in ("host-a", "host-b", "host-c")))
    plan = a_plan(fleet, profile={"hosts": ()})
    assert [shard.host for shard in plan.shards] == ["host-a", "host-a", "host-b"]
    assert "memory.short" not in ids(plan)


def test_the_host_whose_model_was_read_leads() -> None:
    plan = a_plan(profile={"hosts": ()}, model_host=HostId("host-b"))
    assert plan.shards[0].host == "host-b"


def test_each_worker_of_a_host_gets_its_own_device() -> None:
    gpus = {"CUDA0": (20 * GIB, 0), "CUDA1": (20 * GIB, 0), "CPU": (20 * GIB, 0)}
    fleet = a_fleet(a_host("host-a", devices=gpus), a_host("host-b", devices=gpus))
    plan = a_plan(fleet, profile={"device": "CUDA*", "ranks": 4})
    assert [shard.device for shard in plan.shards] == ["CPU", "CUDA0", "CUDA1", "CUDA0"]
    assert [shard.device_uuid for shard in plan.shards][1:] == ["host-a-CUDA0", "host-a-CUDA1", "host-b-CUDA0"]
    assert not plan.is_refused


def test_a_device_is_matched_by_name_list_or_pattern_in_the_engines_words() -> None:
    host = a_host("host-a", devices={"ROCm0": (GIB, 0), "ROCm1": (GIB, 0), "CPU": (GIB, 0)})
    assert matching_devices(host, "llamacpp", "ROCm1") == ("ROCm1",)
    assert matching_devices(host, "llamacpp", "ROCm*") == ("ROCm0", "ROCm1")
    assert matching_devices(host, "llamacpp", "CUDA0, ROCm1") == ("ROCm1",)
    assert matching_devices(host, "llamacpp", "CUDA0") == ()


def test_ports_are_the_lowest_that_nobody_uses_holds_or_reserves() -> None:
    held = Hold(
        node_id=NodeId("old-1/1"), load_generation=LoadGeneration(9), kind="port", ports=(Port(18_003),), until="exit"
    )
    report = a_host(
        "host-a",
        ports_in_use=(Port(18_000),),
        entities=holding(
            a_shard("host-a", node="x-1/1", ports=(18_001,)),
            a_shard("host-a", node="x-2/1", ports=(18_005,), state="stopped"),
            reservation=a_reservation(ports=(18_002,)),
            hold=held,
        ),
    )
    plan = a_plan(a_fleet(report, a_host("host-b")))
    assert [shard.ports for shard in plan.on_host(HostId("host-a"))] == [(18_004,), (18_006,)]
    assert taken_ports(report)[Port(18_003)] == "held after old-1/1 until exit"


def test_agents_of_one_machine_are_not_given_one_port_twice() -> None:
    pair = [a_host(name, boot_id="one", advertise="127.0.0.1") for name in ("host-a", "host-b")]
    ports = [shard.ports[0] for shard in a_plan(a_fleet(*pair)).shards]
    assert len(set(ports)) == 3


def test_a_port_that_one_agent_of_a_machine_has_promised_is_not_given_by_the_other() -> None:
    promised = holding(reservation=a_reservation(ports=(18_000,)))
    there = a_host("host-b", boot_id="one", advertise="127.0.0.1", entities=promised)
    here = a_host("host-a", boot_id="one", advertise="127.0.0.1")
    assert a_plan(a_fleet(here, there)).shards[0].ports == (18_001,)
    elsewhere = a_host("host-b", boot_id="two", entities=promised)
    assert a_plan(a_fleet(here, elsewhere)).shards[0].ports == (18_000,)


def test_the_profiles_own_port_is_the_leaders() -> None:
    plan = a_plan(profile={"port": 18_007})
    assert [shard.ports for shard in plan.shards] == [(18_007,), (18_000,), (18_000,)]


def test_a_replica_gets_the_smallest_number_that_no_host_knows() -> None:
    known = [a_shard("host-a", node="tiny-1/1"), a_shard("host-a", node="tiny-3/1", state="failed")]
    fleet = a_fleet(a_host("host-a", entities=holding(*known)), a_host("host-b"))
    assert next_replica_id(fleet, "tiny") == "tiny-2"
    assert next_replica_id(fleet, "qwen") == "qwen-1"
    assert next_replica_id(fleet, "tin") == "tin-1"


def test_a_generation_is_now_or_one_above_the_highest_seen() -> None:
    assert int(mint_generation(a_fleet(), NOW)) == NOW
    ahead = a_fleet(a_host("host-a", entities=holding(highest=NOW + 5_000)))
    assert mint_generation(ahead, NOW) == NOW + 5_001
    assert mint_generation(a_fleet(), NOW, floor=NOW + 70) == NOW + 71
    reserved = a_fleet(a_host("host-a", entities=holding(reservation=a_reservation(generation=NOW + 8))))
    assert mint_generation(reserved, NOW) == NOW + 9


def test_a_generation_from_a_broken_clock_is_no_floor() -> None:
    fleet = a_fleet(a_host("host-a", entities=holding(highest=NOW + DAY_MS + 1)))
    assert int(mint_generation(fleet, NOW)) == NOW
    edge = a_fleet(a_host("host-a", entities=holding(highest=NOW + DAY_MS)))
    assert mint_generation(edge, UnixMs(NOW)) == NOW + DAY_MS + 1


def test_memory_is_what_is_neither_used_nor_promised() -> None:
    host = a_host("host-a", devices={"CPU": (20 * GIB, 4 * GIB)})
    assert available_memory(host, "CPU") == 20 * GIB
    promised = a_host("host-a", devices={"CPU": (20 * GIB, 10 * GIB)})
    assert available_memory(promised, "CPU") == 14 * GIB
    reserved = a_host("host-a", entities=holding(reservation=a_reservation(memory={"CPU": 3 * GIB})))
    assert available_memory(reserved, "CPU") == 17 * GIB


def test_a_shard_that_still_loads_will_take_its_memory_and_a_ready_one_has() -> None:
    for state, free in {"loading": 15, "ready": 20, "stopped": 20, "of a newer agent": 15}.items():
        shard = a_shard("host-a", state=state, memory=5 * GIB)
        assert available_memory(a_host("host-a", entities=holding(shard)), "CPU") == free * GIB, state


def test_a_host_that_lists_only_gpus_still_has_its_own_memory() -> None:
    host = a_host("host-a", devices={"CUDA0": (GIB, 0)})
    assert available_memory(host, "CPU") == 20 * GIB
    assert available_memory(host, "CUDA7") == 0
