"""Worlds with one p4 ring over two hosts, what is measured at the first of them, and the plan of its recovery."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.reports import DeviceFacts, EngineFacts, HostFacts, ResidentFacts, ResidentNode
from backend.contract.residents import Commands, FolderCount, ResidentLook, StageProcess
from backend.contract.words import HostId, UnixMs
from backend.control.recovery_document import RecoveryPlan
from backend.control.recovery_plan import make_recovery
from backend.control.views import FleetState
from tests.console.worlds import GENERATION, bound, fleet, host, replica, shard, shard_view

GIB = 1 << 30
MADE = UnixMs(1_764_412_900_000)
"""When the plans here were made."""
A = HostId("gpu-a")


def a_look(**changes: Any) -> ResidentLook:
    given: dict[str, Any] = {
        "engine": "p4",
        "address": "tcp://10.0.0.7:4201",
        "port": 4201,
        "looked_unix_ms": MADE,
        "pid": 4711,
        "life": "4711:81234",
        "user": "p4",
        "is_listening": True,
        "nodes": (ResidentNode(name="big-1/0", generation=GENERATION, phase="loaded", is_ours=True),),
        "sockets": 201,
        "unique": 200,
        "hidden": 196,
        "processes": (StageProcess("4720:81300", "p4_staged_server"),),
        "journal": FolderCount(folder="/var/lib/p4/journal", files=26_510, bytes=8_100_123, admissions=9),
        "restart": "its journal holds 9 admitted requests",
        "commands": Commands(end="systemctl stop p4.service", begin="systemctl start p4.service"),
        "devices": (
            DeviceFacts(name="CPU", uuid="cpu", kind="cpu", total=64 * GIB, free=40 * GIB),
            DeviceFacts(name="CUDA0", uuid="u0", kind="gpu", total=24 * GIB, free=2 * GIB),
        ),
        "memory_available": 40 * GIB,
    }
    return ResidentLook(**{**given, **changes})


def well(name: str, journal: str = "ok") -> HostFacts:
    """What a host says of itself, and of its own agent's journal."""
    facts = host(name).facts
    assert facts is not None
    p4 = EngineFacts(
        engine="p4",
        folder="/opt/p4",
        release="p4-1",
        devices=("CUDA0",),
        resident=ResidentFacts(address="tcp://10.0.0.7:4201", sockets=201, hidden=196, restart="9 admitted requests"),
    )
    return msgspec.structs.replace(facts, journal=journal, engines=(*facts.engines, p4))


def a_world() -> FleetState:
    """One p4 replica over two hosts; its head is on the host to recover, on a GPU."""
    ranks = tuple(
        shard("big-1", rank, name, engine="p4", device="CUDA0", bound=bound(20 * GIB, GIB), world_size=2)
        for rank, name in enumerate(("gpu-a", "gpu-b"))
    )
    views = tuple(msgspec.structs.replace(shard_view(each.rank), shard=each) for each in ranks)
    state = fleet(replica("big-1", shards=views, in_flight=3, plan=None))
    hosts = {
        HostId(each.host): msgspec.structs.replace(
            host(each.host, facts=well(each.host)),
            entities=msgspec.structs.replace(host().entities, shards={each.node_id: each}),
        )
        for each in ranks
    }
    return msgspec.structs.replace(state, hosts=hosts)


def planned(look: ResidentLook | None = None, **options: Any) -> RecoveryPlan:
    state = a_world()
    given: dict[str, Any] = {"leave": "cut", "deadline_seconds": 120.0}
    return make_recovery(state, state.hosts[A], look or a_look(), MADE, **{**given, **options})
