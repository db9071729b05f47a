"""No device, port, core or watt is handed out twice: loads planned one after another over what a fleet reports.

Each plan is folded in as its agents would report it, through the state that adoption folds, before the next is made.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.contract.entities import Entities, Hold, LoadRecord, Reservation, Shard, hold_key
from backend.contract.plans import Plan
from backend.contract.reports import HostReport
from backend.contract.words import HostId, LoadGeneration, NodeId, OpId, Port, ReplicaId, UnixMs
from backend.control.fleet_facts import fleet_facts
from backend.planning.fleet import FleetFacts, committed_budget, device_users, taken_ports
from tests.adoption.world import a_fleet, folded
from tests.control.factories import up
from tests.planning.worlds import GIB, a_host, a_plan, a_shard

HOSTS = tuple(HostId(f"host-{letter}") for letter in "abc")
GPUS = tuple(f"CUDA{number}" for number in range(4))
CORES, WATTS = 6, 900
WANTED = {"hosts": (), "device": "CUDA*", "ranks": 3, "cpu_cores": 2, "power": 300}


@st.composite
def holdings(draw: st.DrawFn, host: HostId) -> Entities:
    """What a host has before any load: live and ended shards, reservations, and holds of devices and ports."""
    shards: dict[NodeId, Shard] = {}
    holds: dict[str, Hold] = {}
    reservations: dict[OpId, Reservation] = {}
    for number, device in enumerate(GPUS):
        port = 18_010 + number
        made = draw(st.sampled_from(["free", "free", "loading", "ready", "failed", "hold", "ports", "reserved"]))
        node = NodeId(f"old-{number}/1")
        if made in ("loading", "ready", "failed"):
            shards[node] = a_shard(host, node=node, state=made, device=device, ports=(port,))
        elif made in ("hold", "ports"):
            kind = {"hold": {"kind": "device", "device": device}, "ports": {"kind": "ports", "ports": (Port(port),)}}
            hold = Hold(node_id=node, load_generation=LoadGeneration(1_000), **kind[made])  # type: ignore[arg-type]
            holds[hold_key(hold)] = hold
        elif made == "reserved":
            reservations[OpId(f"r{number}")] = _reservation(number, device, port)
    return Entities(shards=shards, holds=holds, reservations=reservations)


def _reservation(number: int, device: str, port: int) -> Reservation:
    return Reservation(
        op_id=OpId(f"r{number}"),
        by="bob",
        replica=ReplicaId(f"other-{number}"),
        load_generation=LoadGeneration(1_000),
        node_ids=(NodeId(f"other-{number}/1"),),
        ports=(Port(port),),
        memory={device: GIB},
        made_unix_ms=UnixMs(1),
        expires_unix_ms=UnixMs(2),
    )


@st.composite
def fleets(draw: st.DrawFn) -> tuple[HostReport, ...]:
    """Three hosts with four GPUs each."""
    devices = dict.fromkeys(("CPU", *GPUS), (20 * GIB, 0))
    return tuple(
        a_host(host, devices=devices, entities=draw(holdings(host)), cores=CORES, power_w=WATTS, boot_id=host)
        for host in HOSTS
    )


def seen(reports: tuple[HostReport, ...]) -> FleetFacts:
    """The fleet as a control plane without memory has it, once every host has spoken."""
    return fleet_facts(folded(*(up(report) for report in reports), fleet=a_fleet(HOSTS)).state)


def loaded(reports: tuple[HostReport, ...], made: Plan) -> tuple[HostReport, ...]:
    """The reports once this plan is loaded."""
    op_id = OpId(f"load-{made.load_generation}")
    after = []
    for report in reports:
        mine = [shard for shard in made.shards if shard.host == report.host]
        shards = {
            planned.node_id: a_shard(
                planned.host,
                node=planned.node_id,
                device=planned.device,
                ports=planned.ports,
                generation=int(made.load_generation),
                layers=planned.layers,
                bound=planned.bound,
            )
            for planned in mine
        }
        loads = {op_id: LoadRecord(op_id, "alice", made, UnixMs(1))} if mine else {}
        entities = msgspec.structs.replace(
            report.entities, shards={**report.entities.shards, **shards}, loads={**report.entities.loads, **loads}
        )
        after.append(msgspec.structs.replace(report, entities=entities))
    return tuple(after)


@pytest.mark.adoption("no device, port, core or watt is handed out twice, whatever a fleet runs, holds and reserves")
@given(reports=fleets(), data=st.data())
@settings(max_examples=20, deadline=None)
def test_r10_nothing_is_handed_out_twice(reports: tuple[HostReport, ...], data: Any) -> None:
    for _ in range(5):
        facts = seen(tuple(data.draw(st.permutations(reports))))
        made = a_plan(facts, profile=WANTED)
        if made.is_refused:
            break
        chosen = [(shard.host, shard.device) for shard in made.shards if shard.device != "CPU"]
        assert len(chosen) == len(set(chosen)) == 3 - 1
        ports = [(shard.host, port) for shard in made.shards for port in shard.ports]
        assert len(ports) == len(set(ports))
        for report in facts.reports:
            assert not {device for host, device in chosen if host == report.host} & device_users(report).keys()
            assert not {port for host, port in ports if host == report.host} & taken_ports(report).keys()
        reports = loaded(reports, made)
        for report in seen(reports).reports:
            cores, watts = committed_budget(report)
            assert cores <= CORES
            assert watts <= WATTS
    else:
        pytest.fail("12 GPUs cannot take five rings of two")


@pytest.mark.adoption("what a fleet reports leaves nothing to hand out: the plan is refused and says who has it")
def test_r10_a_full_fleet_is_refused() -> None:
    devices = dict.fromkeys(("CPU", "CUDA0"), (20 * GIB, 0))
    reports: tuple[HostReport, ...] = tuple(a_host(host, devices=devices, boot_id=host) for host in HOSTS[:2])
    made = a_plan(seen(reports), profile={**WANTED, "cpu_cores": 0, "power": 0})
    assert not made.is_refused
    again = a_plan(seen(loaded(reports, made)), profile={**WANTED, "cpu_cores": 0, "power": 0})
    assert again.is_refused
    assert any("no CUDA* is free" in candidate.reason for candidate in again.candidates)
