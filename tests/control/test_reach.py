"""What links tell is folded in its order; reports that come together are folded as one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backend.contract.events import Measured
from backend.contract.reports import Measurement
from backend.contract.states import HostState, ReplicaState
from backend.contract.words import AgentAddress, HostId, NodeId, UnixMs
from backend.control.contexts import Context
from backend.control.link_ends import LinkSettings
from backend.control.link_events import LinkDown, MeasuredHeard
from backend.control.reach import Reach
from backend.control.views import FleetState
from tests.control.factories import REPLICA, A, B, a_leader, a_plan, a_shard, entities_of, report_of, up

AT_A = report_of(A, entities_of(a_leader(), a_shard(1), plan=a_plan()))
AT_B = report_of(B, entities_of(a_shard(2)))


def two_hosts(home: Path) -> Reach:
    hosts = {host: AgentAddress(f"unix:{home}/{host}") for host in (A, B)}
    context = Context(name="test", label="TEST", home=home, catalog_path=home / "catalog.toml", hosts=hosts)
    return Reach(context, hosts, console="console-1", who="alice", settings=LinkSettings(floor=60.0, ceiling=60.0))


async def test_whatever_follows_a_report_in_the_same_turn_finds_it_folded(tmp_path: Path) -> None:
    reach = two_hosts(tmp_path)
    reach.apply(up(AT_A))
    reach.apply(up(AT_B))
    seen = Measurement(node_id=NodeId("tiny-1/0"), observed_unix_ms=UnixMs(5), in_flight=3)
    reach.apply(MeasuredHeard(host=A, at=2.0, unix_ms=UnixMs(7), measured=Measured(measurements=(seen,))))
    assert reach.state.replicas[REPLICA].in_flight == 3
    reach.apply(up(AT_B))
    reach.apply(LinkDown(host=B, at=3.0, unix_ms=UnixMs(8), words="no route"))
    assert reach.state.hosts[B].state is HostState.UNREACHABLE


async def test_of_two_reports_of_one_host_in_one_turn_the_second_one_stands(tmp_path: Path) -> None:
    reach = two_hosts(tmp_path)
    reach.apply(up(report_of(A, seq=3), at=1.0))
    reach.apply(up(report_of(A, seq=4), at=2.0))
    reach.apply(LinkDown(host=B, at=3.0, unix_ms=UnixMs(8), words="no route"))
    assert (reach.state.hosts[A].entities_seq, reach.state.hosts[A].reported_at) == (4, 2.0)


async def test_reports_that_come_together_change_the_state_once(tmp_path: Path) -> None:
    reach = two_hosts(tmp_path)
    running = asyncio.create_task(reach.run())
    try:
        assert await reach.until(lambda state: all_are(state, HostState.UNREACHABLE), 30.0)
        seen: list[FleetState] = []
        reach.apply(up(AT_A))
        reach.apply(up(AT_B))

        def are_live(state: FleetState) -> bool:
            seen.append(state)
            return all_are(state, HostState.LIVE)

        assert await reach.until(are_live, 30.0)
        assert [len(state.replicas) for state in seen] == [0, 1]
        assert seen[-1].replicas[REPLICA].state is ReplicaState.READY
    finally:
        running.cancel()
        await asyncio.wait([running])


def all_are(state: FleetState, word: HostState) -> bool:
    return all(host.state is word for host in state.hosts.values())


async def test_a_report_that_cannot_be_folded_ends_the_run_with_its_fault(tmp_path: Path) -> None:
    reach = two_hosts(tmp_path)
    running = asyncio.create_task(reach.run())
    assert await reach.until(lambda state: all_are(state, HostState.UNREACHABLE), 30.0)
    reach.apply(up(report_of(HostId("host-nobody-knows"))))
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.timeout(30.0):
            await running
    assert caught.group_contains(KeyError, match="host-nobody-knows")
