"""Devices by an engine's own list: what of them is free, by whose word. Lists and drivers are injected."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest

from backend.agent import listed
from backend.agent.listed import ListedDevices
from backend.contract.entities import Entities
from backend.contract.reports import DeviceFacts, EngineFacts, same_device
from backend.engines.driver import EngineMissing, ListedDevice
from backend.engines.llamacpp.drive import LlamaCpp
from tests.agent.core.world import World
from tests.factories import make_plan
from tests.planning.worlds import a_reservation, holding

GIB = 1 << 30
CPU = DeviceFacts(name="CPU", uuid="cpu", kind="cpu", total=64 * GIB, free=32 * GIB)
CARD = DeviceFacts(name="CUDA0", uuid="GPU-1", kind="cuda", total=24 * GIB, free=20 * GIB, words="RTX 4090")
VULKAN = ListedDevice("Vulkan0", "Arc A770", 16 * GIB, 12 * GIB)


class InjectedList(LlamaCpp):
    """An engine whose list the test says; None is one that cannot be asked."""

    def __init__(self, *devices: ListedDevice) -> None:
        super().__init__(None)
        self.listed: tuple[ListedDevice, ...] | None = devices
        self.answers = asyncio.Event()
        self.answers.set()

    async def list_devices(self) -> tuple[ListedDevice, ...]:
        await self.answers.wait()
        if self.listed is None:
            raise EngineMissing("llama-server is gone")
        return self.listed

    @property
    def engine_facts(self) -> EngineFacts:
        names = ("CPU", *(device.name for device in self.listed or ()))
        return EngineFacts(engine="llamacpp", folder="/f", release="1-a", devices=names)


def uncapped(device: str) -> int | None:
    return None


async def look(
    *devices: ListedDevice, measured: tuple[DeviceFacts, ...] = (CPU,), **caps: int
) -> dict[str, DeviceFacts]:
    engine = InjectedList(*devices)
    lists = ListedDevices({"llamacpp": engine}, caps.get)
    await lists.look([engine.engine_facts], Entities())
    return {device.name: device for device in lists.devices(measured, Entities())}


async def test_a_device_that_only_a_list_names_is_one_of_the_host_by_the_engines_word() -> None:
    before = time.time_ns() // 1_000_000
    device = (await look(VULKAN))["Vulkan0"]
    assert (device.kind, device.uuid, device.total, device.free) == ("vulkan", "", 16 * GIB, 12 * GIB)
    assert (device.words, device.listed_by) == ("Arc A770, by the list of llamacpp", "llamacpp")
    assert device.listed_unix_ms >= before
    assert not device.is_capped_only


async def test_what_a_driver_measures_or_has_lost_is_never_taken_from_a_list() -> None:
    lists = (ListedDevice("CUDA0", "RTX 4090", 24 * GIB, GIB), ListedDevice("ROCm0", "RX", GIB, GIB), VULKAN)
    assert (await look(*lists, measured=(CPU, CARD))).keys() == {"Vulkan0"}


async def test_a_list_without_memory_needs_the_operators_word() -> None:
    assert await look(ListedDevice("WebGPU0", "adapter")) == {}
    device = (await look(ListedDevice("WebGPU0", "adapter"), WebGPU0=3 * GIB))["WebGPU0"]
    assert (device.total, device.free, device.is_capped_only) == (3 * GIB, 3 * GIB, True)
    assert device.words == "adapter, by the list of llamacpp, which gives no memory: agent.toml does"


async def test_one_description_on_both_sides_is_one_device_with_the_drivers_memory() -> None:
    same = ListedDevice("Vulkan0", "RTX 4090", 23 * GIB, 5 * GIB)
    device = (await look(same, measured=(CPU, CARD)))["Vulkan0"]
    assert (device.same_as, device.total, device.free) == ("CUDA0", 24 * GIB, 20 * GIB)
    assert same_device((CPU, CARD, device), "Vulkan0") == same_device((CPU, CARD, device), "CUDA0")
    assert same_device((CPU, CARD, device), "CPU") == ("CPU",)
    assert (await look(same, measured=(CPU, CARD), CUDA0=8 * GIB))["Vulkan0"].total == 8 * GIB


@pytest.mark.parametrize("doubled", ["at the driver", "in the list"])
async def test_two_of_one_description_are_not_compared(doubled: str) -> None:
    same = ListedDevice("Vulkan0", "RTX 4090", 24 * GIB, 5 * GIB)
    other = msgspec.structs.replace(CARD, name="CUDA1", uuid="GPU-2")
    measured = (CPU, CARD, other) if doubled == "at the driver" else (CPU, CARD)
    listing = (same,) if doubled == "at the driver" else (same, msgspec.structs.replace(same, name="Vulkan1"))
    found = await look(*listing, measured=measured)
    assert {device.same_as for device in found.values()} == {""}
    assert found["Vulkan0"].free == 5 * GIB


def ready(device: str) -> tuple[Entities, int]:
    """A host that runs a worker on a device, and the bytes that it took."""
    world = World()
    world.bring_up(make_plan())
    shards = world.state.entities.shards
    moved = {key: msgspec.structs.replace(shard, device=device) for key, shard in shards.items()}
    return msgspec.structs.replace(world.state.entities, shards=moved), sum(s.bound.memory for s in shards.values())


async def test_what_our_shards_took_since_the_list_comes_off_it_until_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = InjectedList(VULKAN)
    lists = ListedDevices({"llamacpp": engine}, uncapped)
    await lists.look([engine.engine_facts], Entities())
    busy, taken = ready("Vulkan0")
    assert taken > 0
    (device,) = lists.devices((CPU,), busy)
    assert device.free == 12 * GIB - taken
    (device,) = lists.devices((CPU,), holding(reservation=a_reservation(memory={"Vulkan0": GIB})))
    assert device.free == 12 * GIB, "what is reserved and not taken yet is still free, and counted as promised"
    await lists.look([engine.engine_facts], busy)
    (device,) = lists.devices((CPU,), busy)
    assert device.free == 12 * GIB - taken, "within 15 s the list is not asked for again"
    monkeypatch.setattr(listed, "LIST_SECONDS", 0.0)
    engine.listed = (msgspec.structs.replace(VULKAN, free=11 * GIB),)
    await lists.look([engine.engine_facts], busy)
    (device,) = lists.devices((CPU,), busy)
    assert device.free == 11 * GIB


async def test_a_list_that_hangs_or_fails_keeps_the_last_one_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed, "LIST_SECONDS", 0.0)
    monkeypatch.setattr(listed, "PATIENCE", 0.01)
    engine = InjectedList(VULKAN)
    facts: Any = [engine.engine_facts]
    lists = ListedDevices({"llamacpp": engine}, uncapped)
    await lists.look(facts, Entities())
    engine.answers.clear()
    engine.listed = None
    await lists.look(facts, Entities())
    (device,) = lists.devices((CPU,), Entities())
    assert device.words == "Arc A770, by the list of llamacpp"
    engine.answers.set()
    await lists.look(facts, Entities())
    (device,) = lists.devices((CPU,), Entities())
    assert device.free == 12 * GIB
    assert device.words.endswith("; it could not be asked again: llama-server is gone")
    engine.listed = ()
    await lists.look(facts, Entities())
    assert lists.devices((CPU,), Entities()) == [], "a device that is gone from the list is gone"
