"""Hosts have one stable id each: the same id from two places is refused, in words that name both."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.contract.states import HostState
from backend.contract.words import AgentAddress, HostId, UnixMs
from backend.control.contexts import Context
from backend.control.fleet import LEASE_SECONDS
from backend.control.fleet_events import Slept
from backend.control.link_ends import LinkSettings
from backend.control.reach import Reach
from tests.adoption.test_around import tick
from tests.adoption.world import a_fleet, folded, says, silence
from tests.control.factories import A, B
from tests.control.stand_in_agent import StandInAgent, agents, wait_for
from tests.e2e.fleet import Fleet, until
from tests.ports import claim_block

QUICK = LinkSettings(open=5.0, floor=0.2, ceiling=0.3, silence=5.0)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    made = Fleet(claim_block())
    yield made
    made.close()


def serve(fleet: Fleet, name: str) -> subprocess.CompletedProcess[str]:
    """An agent that must end by itself, refused."""
    return subprocess.run(
        [sys.executable, "-I", "-m", "backend.agent", "serve", "--config", str(fleet.home / f"{name}.toml")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def rewrite(fleet: Fleet, name: str, old: str, new: str) -> None:
    config = fleet.home / f"{name}.toml"
    config.write_text(config.read_text().replace(old, new))


@pytest.mark.adoption("one host id that answers at two addresses: the second is refused, both addresses in words")
async def test_two_links_that_hear_one_host_id_name_both_addresses(place: Path) -> None:
    ours, copy = StandInAgent("host-a", place / "a.sock"), StandInAgent("host-b", place / "b.sock")
    copy.says_host = HostId("host-a")
    addresses = {A: AgentAddress(f"unix:{ours.socket}"), B: AgentAddress(f"unix:{copy.socket}")}
    context = Context(name="test", label="TEST", home=place, catalog_path=place / "catalog.toml", hosts=addresses)
    reach = Reach(context, context.hosts, console="c-1", who="alice", settings=QUICK)
    async with agents(ours, copy):
        running = asyncio.create_task(reach.run())
        try:
            await wait_for(lambda: reach.state.hosts[B].state is HostState.REFUSED)
            await wait_for(lambda: reach.state.hosts[A].state is HostState.LIVE)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    words = reach.state.hosts[B].words
    assert "host id 'host-a' comes from two places" in words
    assert str(ours.socket) in words
    assert str(copy.socket) in words
    assert "a host id of its own in agent.toml" in words
    assert reach.state.hosts[A].reported_at, "the right one is heard all the same"


@pytest.mark.thorough
@pytest.mark.adoption("a cloned agent.toml: a real agent says whose id it has, and the console names both addresses")
def test_a_real_agent_with_a_cloned_id_is_refused_with_both_addresses(fleet: Fleet) -> None:
    rewrite(fleet, "host-b", 'host = "host-b"', 'host = "host-a"')
    fleet.start()

    def refused() -> str:
        hosts = {each["host"]: each for each in fleet.json("ls", "hosts", code=4)}
        return str(hosts["host-b"]["words"]) if hosts["host-b"]["state"] == "refused" else ""

    words = until("the refusal of the copy", refused)
    for said in ("host id 'host-a' comes from two places", str(fleet.socket("host-a")), str(fleet.socket("host-b"))):
        assert said in words


@pytest.mark.adoption("two agents on one state folder: the second is refused and says who holds it")
def test_a_second_agent_on_one_state_folder_is_refused_by_name(fleet: Fleet) -> None:
    fleet.start("host-a")
    rewrite(fleet, "host-b", str(fleet.home / "host-b"), str(fleet.home / "host-a"))
    rewrite(fleet, "host-b", f"{fleet.home / 'host-a'}.sock", f"{fleet.home / 'host-b'}.sock")
    refused = serve(fleet, "host-b")
    assert refused.returncode != 0
    assert f"held by process {fleet.agents['host-a'].pid}" in refused.stderr
    assert "stop that one first" in refused.stderr
    assert fleet.agents["host-a"].poll() is None


@pytest.mark.adoption("two agents at one socket: the second takes nothing from the first and says who answers there")
def test_a_second_agent_at_one_socket_is_refused_and_the_first_stays_reachable(fleet: Fleet) -> None:
    fleet.start("host-a")
    rewrite(fleet, "host-b", str(fleet.socket("host-b")), str(fleet.socket("host-a")))
    refused = serve(fleet, "host-b")
    assert refused.returncode != 0
    assert f"process {fleet.agents['host-a'].pid} answers at {fleet.socket('host-a')}" in refused.stderr
    fleet.write_contexts({"host-a": f"unix:{fleet.socket('host-a')}"})
    (host,) = fleet.json("ls", "hosts")
    assert host["state"] == "live"


@pytest.mark.thorough
@pytest.mark.adoption("a state folder keeps the host id it was made for: another id on it loads nothing and says both")
def test_a_state_folder_of_another_host_id_is_not_taken_over(fleet: Fleet) -> None:
    fleet.write_contexts({"host-a": f"unix:{fleet.socket('host-a')}"})
    fleet.start("host-a")
    until("its first word", lambda: fleet.json("ls", "hosts")[0]["journal"] == "ok")
    fleet.kill_agent("host-a")
    rewrite(fleet, "host-a", 'host = "host-a"', 'host = "host-x"')
    fleet.write_contexts({"host-x": f"unix:{fleet.socket('host-a')}"})
    fleet.start("host-a")
    (host,) = fleet.json("ls", "hosts")
    assert "of host 'host-a'" in host["journal"]
    assert "host 'host-x'" in host["journal"]


@pytest.mark.adoption(
    "a host is unreachable within its lease and lost after it, by the monotonic clock and never mixed"
)
def test_unreachable_and_lost_are_two_things_and_what_is_refused_is_neither() -> None:
    hosts = (A, B, HostId("host-c"))
    fleet = folded(says(A), says(B), says(hosts[2]), silence(B), fleet=a_fleet(hosts))
    assert fleet.state.hosts[B].state is HostState.UNREACHABLE
    fleet = folded(tick(5.0 + LEASE_SECONDS), fleet=fleet)
    assert fleet.state.hosts[B].state is HostState.LOST
    fleet = folded(silence(B, at=200.0), fleet=fleet)
    assert fleet.state.hosts[B].state is HostState.LOST, "silence after the lease does not begin a new one"
    fleet = folded(says(B), fleet=fleet)
    assert fleet.state.hosts[B].state is HostState.LIVE


@pytest.mark.adoption("the brake: 3 of 6 that fall silent together are not lost, 2 of 6 are; after a suspend nobody is")
@pytest.mark.parametrize(("silent", "state"), [(3, HostState.UNREACHABLE), (2, HostState.LOST)])
def test_half_of_the_hosts_and_at_least_three_brake(silent: int, state: HostState) -> None:
    hosts = [HostId(f"host-{letter}") for letter in "abcdef"]
    heard = folded(*(says(host) for host in hosts), fleet=a_fleet(hosts))
    quiet = folded(*(silence(host) for host in hosts[:silent]), fleet=heard)
    after = folded(tick(5.0 + LEASE_SECONDS), fleet=quiet)
    assert {after.state.hosts[host].state for host in hosts[:silent]} == {state}
    if state is HostState.UNREACHABLE:
        assert "3 of 6 hosts fell silent together" in after.state.hosts[hosts[0]].words
    slept = folded(Slept(at=90.0, unix_ms=UnixMs(90_000), seconds=60.0), tick(5.0 + LEASE_SECONDS), fleet=quiet)
    assert {slept.state.hosts[host].state for host in hosts[:silent]} == {HostState.UNREACHABLE}


@pytest.mark.adoption("the clock offset is measured on the socket: both clocks in the hello, half the way taken off")
async def test_the_clock_offset_is_measured_on_the_socket(place: Path) -> None:
    agent = StandInAgent("host-a", place / "a.sock")  # it answers two seconds ahead of what it was asked at
    context = Context(
        name="test",
        label="TEST",
        home=place,
        catalog_path=place / "catalog.toml",
        hosts={A: AgentAddress(f"unix:{agent.socket}")},
    )
    reach = Reach(context, context.hosts, console="c-1", who="alice", settings=QUICK)
    async with agents(agent):
        running = asyncio.create_task(reach.run())
        try:
            await wait_for(lambda: reach.state.hosts[A].state is HostState.LIVE)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    view = reach.state.hosts[A]
    assert view.clock_offset_ms is not None
    assert view.round_trip_ms is not None
    assert abs(view.clock_offset_ms - (2000 - view.round_trip_ms / 2)) <= 1


@pytest.mark.thorough
@pytest.mark.adoption("a socket that a killed agent left is nobody's: the next agent takes it")
def test_a_socket_that_a_killed_agent_left_is_taken(fleet: Fleet) -> None:
    fleet.write_contexts({"host-a": f"unix:{fleet.socket('host-a')}"})
    fleet.start("host-a")
    until("its first word", lambda: fleet.json("ls", "hosts")[0]["state"] == "live")
    fleet.agents["host-a"].kill()
    fleet.agents["host-a"].wait()
    assert fleet.socket("host-a").exists()
    fleet.start("host-a")
    until("the new agent", lambda: '"live"' in fleet.run("ls", "hosts", "--json").stdout)
