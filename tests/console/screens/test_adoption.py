"""The adoption screen: who was heard, what is unwanted and why, and the stop of one stray behind a confirmation."""

from __future__ import annotations

import msgspec
import pytest

from backend.api import Answer, Entities, FleetState, HostId, HostState, LoadGeneration, ProcessIdentity, StartAdopt
from backend.contract.entities import LoadRecord, Resident
from backend.contract.words import NodeGeneration, OpId, ReplicaId, UnixMs
from tests.console import worlds as w
from tests.console.driving import SIZES, running
from tests.console.stand_in import StandInDoor

OLDER = LoadGeneration(w.GENERATION - 1000)
STRAY = msgspec.structs.replace(
    w.shard_view(2, replica="tiny-1", host="gpu-b").shard,
    load_generation=OLDER,
    node_generation=OLDER,
    op_id=OpId("load-0-reserve"),
    identity=ProcessIdentity(4711, 81_234, "boot-1", "n-1"),
)


def a_fleet(*, silent: bool = False, pid: int = 4711, read_only: bool = False) -> FleetState:
    """A ring that serves, and a rank of an older generation on gpu-b."""
    process = ProcessIdentity(pid, 81_234, "boot-1", "n-1")
    stray = msgspec.structs.replace(STRAY, identity=process)
    load = LoadRecord(STRAY.op_id, "alice", w.plan(), UnixMs(w.NOW_MS))
    hosts = {
        HostId("gpu-a"): w.host("gpu-a"),
        HostId("gpu-b"): w.host("gpu-b", entities=Entities(shards={stray.node_id: stray}, loads={STRAY.op_id: load})),
    }
    if silent:
        hosts[HostId("gpu-c")] = w.host("gpu-c", HostState.UNREACHABLE, words="timed out", facts=None)
    state = w.fleet(w.replica("tiny-1"), hosts=hosts, read_only=read_only)
    assert ReplicaId("tiny-1") in state.replicas
    return state


@pytest.mark.parametrize("size", SIZES)
async def test_the_count_of_reporters_and_the_stray_with_its_reason_stand_on_every_size(size: tuple[int, int]) -> None:
    async with running(StandInDoor(a_fleet(silent=True)), size) as console:
        await console.press("A")
        for words in ("2 of 3 hosts heard", "1 shard could be stopped", "gpu-c: unreachable: timed out"):
            await console.see(words)
        for words in ("stray tiny-1/2 on gpu-b", "pid 4711", "ticks 81234", f"generation {OLDER}", "holds "):
            await console.see(words)


async def test_a_stray_is_stopped_behind_a_confirmation_that_names_who_it_is() -> None:
    async with running(StandInDoor(a_fleet()), (120, 40)) as console:
        await console.press("A")
        await console.see("s stop this one")
        await console.press("s")
        await console.see("STOP stray tiny-1/2 on gpu-b")
        for words in ("pid 4711, started ", "(ticks 81234)", f"generation {OLDER}, holds ", "of CPU"):
            await console.see(words)
        assert console.door.submitted == []
        await console.press("y")
        await console.until(lambda: bool(console.door.submitted), "the request")
        (request,) = console.door.submitted
        assert isinstance(request, StartAdopt)
        assert (request.only, request.despite_silence) == ("tiny-1/2@gpu-b", False)
        assert request.confirmed == request.document.digest


async def test_a_stray_that_its_engines_agent_runs_is_named_by_address_node_and_generation() -> None:
    node = Resident("tcp://10.0.0.7:4201", "tiny-1/2", NodeGeneration(OLDER))
    state = a_fleet()
    asked = msgspec.structs.replace(STRAY, identity=None, resident=node, engine="p4")
    host = w.host("gpu-b", entities=Entities(shards={asked.node_id: asked}))
    state = msgspec.structs.replace(state, hosts={**state.hosts, HostId("gpu-b"): host})
    async with running(StandInDoor(state), (80, 24)) as console:
        await console.press("A")
        await console.see("node tiny-1/2 at tcp://10.0.0.7:4201")
        await console.press("s")
        await console.see("STOP stray tiny-1/2 on gpu-b")
        await console.see(f"generation {OLDER}")
        await console.see("another node in its place is left alone")
        await console.press("y")
        await console.until(lambda: bool(console.door.submitted), "the request")
        (request,) = console.door.submitted
        assert isinstance(request, StartAdopt)
        assert request.only == "tiny-1/2@gpu-b"


async def test_escape_stops_nothing_and_a_shard_that_became_another_cannot_be_confirmed() -> None:
    async with running(StandInDoor(a_fleet()), (120, 40)) as console:
        await console.press("A", "s")
        await console.see("STOP stray")
        console.door.put(a_fleet(pid=4712))
        await console.see("It is not there like this any more")
        await console.press("y", "escape")
        await console.gone("STOP stray")
        assert console.door.submitted == []


async def test_despite_silence_is_said_before_it_is_confirmed() -> None:
    async with running(StandInDoor(a_fleet(silent=True)), (120, 40)) as console:
        await console.press("A", "s")
        await console.see("Only 2 of 3 hosts heard")
        await console.press("y")
        await console.until(lambda: bool(console.door.submitted), "the request")
        (request,) = console.door.submitted
        assert isinstance(request, StartAdopt)
        assert request.despite_silence


async def test_a_refusal_is_shown_where_it_was_asked() -> None:
    def refuses(request: object) -> Answer:
        return w.answer("", "StartAdopt", exit_code=2, words="tiny-1/2@gpu-b is no longer a stray")

    async with running(StandInDoor(a_fleet(), refuses), (120, 40)) as console:
        await console.press("A", "s")
        await console.see("STOP stray")
        await console.press("y")
        await console.see("is no longer a stray")


async def test_in_a_read_only_context_nothing_can_be_stopped() -> None:
    async with running(StandInDoor(a_fleet(read_only=True)), (120, 40)) as console:
        await console.press("A")
        await console.see("stray tiny-1/2 on gpu-b")
        assert "s stop this one" not in console.text()
        await console.press("s")
        await console.pilot.pause(0.1)
        assert "STOP stray" not in console.text()
