"""How ill a host is, judged from what was measured. Every measurement here is injected."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.agent.illness import Clocks, DiskRoom, Health, Vitals, judge
from backend.contract.entities import Canary, Entities, Failing, Hold
from backend.contract.reports import EngineFacts, Illness, ResidentFacts, ResidentProcess
from backend.contract.words import LoadGeneration, NodeId, UnixMs
from tests.agent.core.world import World
from tests.factories import make_plan

GIB = 1 << 30
MIB = 1 << 20


def vitals(at: float = 0.0, **fields: Any) -> Vitals:
    """A healthy host, ``at`` seconds after the first look, with these measurements instead."""
    return Vitals(**{"clocks": Clocks(1_000_000 + int(at * 1000), 100.0 + at, 200.0 + at), **fields})


def ills(health: Health) -> dict[str, Illness]:
    return {ill.kind: ill for ill in health.illnesses}


def look(**fields: Any) -> dict[str, Illness]:
    return ills(judge(Health(), vitals(**fields), Entities()))


def test_a_healthy_host_has_no_illness() -> None:
    assert look(disk=DiskRoom("/s", 100 * GIB, 500 * GIB), descriptors=(40, 1024), ephemeral=(32_768, 60_999)) == {}


@pytest.mark.parametrize(("seconds", "refuses"), [(1.0, None), (1.1, False), (10.0, False), (10.1, True), (31.0, True)])
def test_a_slow_journal_warns_over_one_second_and_refuses_loads_over_ten(seconds: float, refuses: bool | None) -> None:
    ill = look(sync_seconds=seconds).get("journal slow")
    assert (None if ill is None else ill.refuses_loads) is refuses
    assert ill is None or f"takes {seconds:.1f} s" in ill.words


def resident(**fields: Any) -> dict[str, Illness]:
    own = ResidentFacts(**{"address": "tcp://10.0.0.7:4201", "journal": "ok", "sockets": 4, "hidden": 0, **fields})
    return look(engines=(EngineFacts(engine="p4", folder="/p4", release="1", devices=("CPU",), resident=own),))


def test_an_engines_own_agent_that_is_well_is_no_illness() -> None:
    assert resident() == {}


@pytest.mark.parametrize(
    ("fields", "kind", "refuses"),
    [
        ({"sockets": 128}, "p4 slots", False),
        ({"sockets": 192}, "p4 slots", True),
        ({"hidden": 1}, "p4 slots", False),
        ({"journal": "its agent was started without one"}, "p4 journal", False),
        ({"restart": "its journal holds 4 admitted requests", "journal_files": 12}, "p4 restart", False),
    ],
    ids=str,
)
def test_an_engines_own_agent_ails_before_it_falls_silent(fields: dict[str, Any], kind: str, refuses: bool) -> None:
    ill = resident(**fields)[kind]
    assert (ill.refuses_loads, ill.subject) == (refuses, "p4")


@pytest.mark.parametrize(
    ("stage", "subject", "said"),
    [
        ({"node_id": "a/0", "wait_policy": ""}, "a/0", "is not set; PASSIVE lets them sleep. Take wait_policy"),
        ({"wait_policy": "ACTIVE"}, "pid 7", 'is ACTIVE; PASSIVE lets them sleep. Add ["OMP_WAIT_POLICY", "PASSIVE"]'),
        ({"wait_policy": "passive"}, "pid 7", "So something else of it keeps polling"),
        ({}, "pid 7", "OMP_WAIT_POLICY may not be read"),
    ],
    ids=str,
)
def test_a_stage_that_spins_while_idle_says_both_values_and_what_to_do(
    stage: dict[str, Any], subject: str, said: str
) -> None:
    process = ResidentProcess(pid=7, port=4711, threads=9, idle_cores=8.0, spinning=8, **stage)
    ill = resident(processes=(process,))["p4 spinning"]
    assert (ill.subject, ill.refuses_loads) == (subject, False)
    assert "takes 8.0 cores, 8 of 9 threads spinning, while nothing crosses it" in ill.words
    assert said in ill.words
    assert resident(processes=(msgspec.structs.replace(process, idle_cores=0.2, spinning=0),)) == {}
    assert resident(processes=(msgspec.structs.replace(process, idle_cores=None, spinning=None),)) == {}


def test_an_engines_own_agent_that_does_not_answer_is_said_and_refuses_nothing_of_other_engines() -> None:
    silent = EngineFacts(engine="p4", folder="", release="", devices=(), words="the p4 agent does not answer")
    ill = look(engines=(silent,))["p4 silent"]
    assert (ill.words, ill.refuses_loads) == ("the p4 agent does not answer", False)


def test_a_damaged_journal_refuses_loads_in_its_own_words() -> None:
    health = judge(Health(), vitals(journal_health="the journal is fenced: EIO"), Entities())
    ill = ills(health)["journal damaged"]
    assert (ill.words, ill.refuses_loads) == ("the journal is fenced: EIO", True)


@pytest.mark.parametrize(
    ("free", "total", "refuses"),
    [
        (3 * GIB, 10 * GIB, None),
        (2 * GIB - MIB, 10 * GIB, False),
        (6 * GIB, 200 * GIB, False),
        (512 * MIB, 10 * GIB, False),
        (511 * MIB, 10 * GIB, True),
    ],
)
def test_a_low_disk_warns_and_a_very_low_one_refuses_loads(free: int, total: int, refuses: bool | None) -> None:
    ill = look(disk=DiskRoom("/state", free, total)).get("disk low")
    assert (None if ill is None else ill.refuses_loads) is refuses
    assert ill is None or f"{free >> 20} MiB free of {total >> 20} MiB under /state" in ill.words


def test_a_file_system_that_does_not_answer_refuses_loads() -> None:
    assert look(disk=DiskRoom("/state", 3 * GIB, 9 * GIB, silent=4.0)) == {}
    ill = look(disk=DiskRoom("/state", 3 * GIB, 9 * GIB, silent=6.0))["disk silent"]
    assert (ill.refuses_loads, "/state has not answered for 6 s" in ill.words) == (True, True)


@pytest.mark.parametrize(("left", "refuses"), [(64, None), (63, False), (16, False), (15, True), (0, True)])
def test_few_descriptors_warn_and_very_few_refuse_loads(left: int, refuses: bool | None) -> None:
    ill = look(descriptors=(1024 - left, 1024)).get("descriptors low")
    assert (None if ill is None else ill.refuses_loads) is refuses


@pytest.mark.parametrize(
    ("ports", "kept", "setting"),
    [
        ((18_000, 18_999), (), None),
        ((40_000, 40_999), (), "40000-40999"),
        ((32_000, 33_000), (), "32768-33000"),
        ((40_000, 40_999), ((40_000, 41_000),), None),
        ((40_000, 40_999), ((40_000, 40_499), (40_500, 40_999)), None),
        ((40_000, 40_999), ((8080, 8080), (40_000, 40_499)), "8080,40000-40499,40000-40999"),
    ],
)
def test_engine_ports_in_the_kernels_range_warn_with_the_exact_setting(
    ports: tuple[int, int], kept: tuple[tuple[int, int], ...], setting: str | None
) -> None:
    ill = look(ports=ports, ephemeral=(32_768, 60_999), kept=kept).get("ports ephemeral")
    if setting is None:
        assert ill is None
    else:
        assert ill is not None
        assert ill.words.endswith(f"Run: sysctl -w net.ipv4.ip_local_reserved_ports={setting}")
        assert not ill.refuses_loads


def after(clocks: Clocks) -> dict[str, Illness]:
    first = judge(Health(), vitals(), Entities())
    return ills(judge(first, vitals(clocks=clocks), Entities()))


@pytest.mark.parametrize(("wall", "words"), [(3_600_000, "+3600 s"), (-3_600_000, "-3600 s"), (-3000, "-3 s")])
def test_a_wall_clock_that_jumps_is_said_with_its_jump(wall: int, words: str) -> None:
    seen = after(Clocks(1_000_000 + 1000 + wall, 101.0, 201.0))
    assert seen.keys() == {"clock jumped"}
    assert f"jumped by {words}" in seen["clock jumped"].words


def test_a_clock_that_is_slewed_is_none() -> None:
    assert after(Clocks(1_000_000 + 1000 + 500, 101.0, 201.0)) == {}


def test_a_suspended_host_says_for_how_long_and_is_no_clock_jump() -> None:
    seen = after(Clocks(1_000_000 + 3_601_000, 101.0, 3801.0))
    assert seen.keys() == {"suspended"}
    assert "suspended for 1 h:" in seen["suspended"].words


def test_a_stuck_process_a_flapping_slot_and_an_engine_that_does_not_answer_come_from_the_books() -> None:
    world = World()
    world.bring_up(make_plan())
    leader = NodeId("tiny-1/0")
    silent = Canary(ok=False, seconds=30.0, at_unix_ms=UnixMs(7), words="no token within 30 s")
    shards = dict(world.state.entities.shards)
    shards[leader] = msgspec.structs.replace(shards[leader], canary=silent)
    hold = Hold(
        node_id=leader, load_generation=LoadGeneration(1), kind="stuck", device="CPU", until="process 7 is gone"
    )
    failing = Failing(
        node_id=NodeId("big-1/2"), failed_unix_ms=(UnixMs(1), UnixMs(2), UnixMs(3)), words="exit 1", is_quarantined=True
    )
    entities = msgspec.structs.replace(
        world.state.entities, shards=shards, holds={"x": hold}, failing={failing.node_id: failing}
    )
    seen = ills(judge(Health(), vitals(), entities))
    assert {kind: (ill.subject, ill.refuses_loads) for kind, ill in seen.items()} == {
        "stuck": ("tiny-1/0", False),
        "flapping": ("big-1/2", False),
        "unresponsive": ("tiny-1/0", False),
    }
    assert "CPU takes no load until process 7 is gone" in seen["stuck"].words
    assert "runs and does not answer: no token within 30 s" in seen["unresponsive"].words


def test_an_illness_keeps_its_beginning_and_tells_the_newest_numbers() -> None:
    first = judge(Health(), vitals(disk=DiskRoom("/s", 900 * MIB, 10 * GIB)), Entities())
    then = judge(first, vitals(5.0, disk=DiskRoom("/s", 800 * MIB, 10 * GIB)), Entities())
    (ill,) = then.illnesses
    assert ill.since_unix_ms == first.illnesses[0].since_unix_ms == 1_000_000
    assert "800 MiB free" in ill.words


def test_a_value_that_swings_about_its_limit_is_one_illness() -> None:
    health = Health()
    for second in range(0, 60, 2):
        slow = 1.5 if second % 20 == 0 else 0.01
        health = judge(health, vitals(float(second), sync_seconds=slow), Entities())
        assert ills(health).keys() == {"journal slow"}
    health = judge(health, vitals(80.0, sync_seconds=0.01), Entities())
    assert health.illnesses == ()


def test_what_lasts_after_its_cause_ends_by_itself() -> None:
    first = judge(Health(), vitals(), Entities())
    jumped = judge(first, vitals(clocks=Clocks(9_999_999_999, 101.0, 201.0)), Entities())
    later = judge(jumped, vitals(clocks=Clocks(9_999_999_999 + 599_000, 700.0, 800.0)), Entities())
    assert ills(later).keys() == {"clock jumped"}
    over = judge(later, vitals(clocks=Clocks(9_999_999_999 + 601_000, 702.0, 802.0)), Entities())
    assert over.illnesses == ()


def test_only_what_refuses_loads_is_named_as_the_reason() -> None:
    health = judge(
        Health(), vitals(disk=DiskRoom("/s", 100 * MIB, 10 * GIB), sync_seconds=2.0, journal_health="bad"), Entities()
    )
    assert health.refuses_loads.startswith("100 MiB free of 10240 MiB under /s")
    assert "sync" not in health.refuses_loads
    assert "bad" not in health.refuses_loads
