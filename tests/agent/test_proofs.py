"""The proofs that end a hold, with real processes and ports. What a GPU's driver says is injected."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

from backend.agent import proofs, supervisor
from backend.agent.devices import GpuReading
from backend.agent.process_identity import see_process
from backend.contract.entities import ProcessIdentity
from backend.contract.reports import DeviceFacts
from backend.contract.words import Port
from tests.agent.looking import Looks, looks
from tests.agent.run_world import python, runs, said, until

__all__ = ["looks", "runs"]

GPU = DeviceFacts(name="CUDA0", uuid="GPU-1", kind="cuda", total=100, free=50)
FORKING = python(
    "import os, signal, sys, time\n"
    "if os.fork() == 0:\n"
    "    signal.signal(15, signal.SIG_IGN); print('up', os.getpid(), flush=True); time.sleep(600)\n"
    "sys.exit(0)\n"
)


async def waits(proof: asyncio.Task[None], looks: Looks) -> bool:
    """Whether it still waits after several looks."""
    await looks.several()
    return not proof.done()


async def test_ports_are_free_when_nobody_listens_on_any_of_them(looks: Looks) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = Port(server.getsockname()[1])
    proof = asyncio.create_task(proofs.ports_are_free((port,)))
    assert await waits(proof, looks)
    server.close()
    await asyncio.wait_for(proof, 20)


async def test_no_ports_are_free_at_once() -> None:
    await asyncio.wait_for(proofs.ports_are_free(()), 5)


async def test_a_device_is_held_while_a_child_of_the_engine_lives(runs: Path, looks: Looks) -> None:
    identity = await supervisor.spawn(runs / "a", "nonce-1", FORKING, {})
    until(lambda: "up" in said(runs / "a"), "the child is up")
    assert await supervisor.wait_ended(identity, runs / "a") == (0, None)
    proof = asyncio.create_task(proofs.device_is_released(identity, "CPU"))
    assert await waits(proof, looks)
    os.kill(int(said(runs / "a").split()[1]), signal.SIGKILL)
    await asyncio.wait_for(proof, 20)


async def test_a_run_that_never_had_a_process_holds_nothing() -> None:
    await asyncio.wait_for(proofs.device_is_released(None, "CPU"), 5)


def own() -> ProcessIdentity:
    """An identity of an earlier boot: all of its processes are gone, and its pid is a living one's now."""
    seen = see_process(os.getpid())
    assert seen is not None
    return ProcessIdentity(os.getpid(), seen.start_ticks, "an earlier boot", "nonce")


async def test_an_injected_gpu_driver_that_still_lists_the_engine_keeps_the_hold(looks: Looks) -> None:
    owners = {"GPU-1": {os.getpid(): 10}}

    async def read() -> GpuReading:
        return GpuReading(devices=(GPU,), owners=owners)

    proof = asyncio.create_task(proofs.device_is_released(own(), "CUDA0", read))
    assert await waits(proof, looks)
    owners["GPU-1"] = {}
    await asyncio.wait_for(proof, 20)


def test_an_injected_gpu_that_fell_off_the_bus_proves_nothing() -> None:
    silent = GpuReading(words="the GPU driver did not answer within 5 s", answered=False)
    assert not proofs.releases(silent, "CUDA0", {})
    assert not proofs.releases(GpuReading(), "CUDA0", {})


def test_a_device_that_no_driver_names_is_released_by_the_empty_group_and_no_owner_at_any_driver() -> None:
    assert proofs.releases(GpuReading(), "Vulkan0", {4_000_000: 5})
    listing = GpuReading(devices=(GPU,), owners={"GPU-1": {4_000_000: 10}})
    assert not proofs.releases(listing, "Vulkan0", {4_000_000: 5}), "it may be the same card"
    assert proofs.releases(listing, "Vulkan0", {4_000_001: 5})
    assert not proofs.releases(GpuReading(answered=False), "Vulkan0", {})


def test_an_injected_owner_with_the_number_of_an_engine_and_another_start_is_a_stranger() -> None:
    reading = GpuReading(devices=(GPU,), owners={"GPU-1": {os.getpid(): 10}})
    assert proofs.releases(reading, "CUDA0", {os.getpid(): 1})
    assert not proofs.releases(reading, "CUDA0", {os.getpid(): own().start_ticks})


def test_an_injected_owner_of_another_run_is_not_ours() -> None:
    reading = GpuReading(devices=(GPU,), owners={"GPU-1": {4_000_000: 10}})
    assert proofs.releases(reading, "CUDA0", {4_000_001: 5})
    assert not proofs.releases(reading, "CUDA0", {4_000_000: 5})


def test_an_injected_driver_that_names_no_owners_leaves_the_empty_group_as_the_proof() -> None:
    card = DeviceFacts(name="ROCm0", uuid="id", kind="rocm", total=100, free=50)
    assert proofs.releases(GpuReading(devices=(card,)), "ROCm0", {os.getpid(): own().start_ticks})
