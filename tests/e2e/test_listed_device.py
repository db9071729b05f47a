"""A device that no driver measures and the engine's own list names: planned, held, loaded and given back, for real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from backend.engines.driver import ListedDevice
from backend.engines.llamacpp.drive import LlamaCpp
from backend.local.tiny_model import TINY_COMPLETION, TINY_PROMPT, TINY_TOKENS
from tests.e2e.fleet import CATALOG, Fleet, until

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.thorough]

SECONDS = 300.0
"""A software device compiles its shaders at the first request, on processors that everything here shares."""
BESIDE_THE_CPU = """
[models.tiny.profiles.vulkan]
ranks = 3
hosts = ["host-a", "host-b"]
device = "Vulkan*, CPU"
context = 2048

[models.tiny.profiles.vulkan-alone]
ranks = 1
hosts = ["host-a"]
device = "Vulkan0"
context = 2048
"""


@pytest.fixture
def vulkan(monkeypatch: pytest.MonkeyPatch) -> ListedDevice:
    """The first Vulkan device of this machine, software ones included, which engines list only when asked for."""
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    found = [each for each in asyncio.run(LlamaCpp(None).list_devices()) if each.name == "Vulkan0"]
    if not found:
        pytest.skip("the engine lists no Vulkan0 here: this machine has no Vulkan driver (mesa-vulkan-drivers is one)")
    return found[0]


@pytest.mark.refusals("let through: a worker on a device that only the engine's list names, and one on the CPU")
@pytest.mark.timeout(400)
def test_a_ring_is_loaded_with_a_worker_on_a_device_that_only_the_engine_lists(
    make_fleet: Callable[..., Fleet], vulkan: ListedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet(CATALOG + BESIDE_THE_CPU)
    fleet.start("host-a")
    monkeypatch.delenv("GGML_VK_VISIBLE_DEVICES")
    fleet.start("host-b")
    device = listed(fleet)
    assert (device["kind"], device["total"], device["free"]) == ("vulkan", vulkan.total, vulkan.free)
    assert device["words"] == f"{vulkan.words}, by the list of llamacpp"
    loaded = fleet.run("load", "tiny:vulkan", "--yes", seconds=SECONDS)
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    replica = fleet.replica()
    assert replica is not None
    places = [(shard["host"], shard["device"], shard["state"]) for shard in replica["shards"]]
    assert places == [("host-a", "CPU", "ready"), ("host-a", "Vulkan0", "ready"), ("host-b", "CPU", "ready")]
    assert all(shard["bound"]["agrees"] for shard in replica["shards"])
    promised = replica["shards"][1]["bound"]["derived"]
    assert listed(fleet)["committed"] >= promised > 0
    again = fleet.run("plan", "tiny:vulkan")
    assert "Vulkan0" not in again.stdout, f"it is taken whole: {again.stdout}"
    assert ask(fleet) == TINY_COMPLETION
    unloaded = fleet.run("unload", "tiny-1", "--yes", seconds=SECONDS)
    assert unloaded.returncode == 0, unloaded.stdout + unloaded.stderr
    until("the end of its hold", lambda: listed(fleet)["committed"] == 0 or None)
    assert fleet.engines() == []


@pytest.mark.refusals("let through: one rank that holds every layer on a device that only the engine's list names")
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("vulkan")
def test_one_rank_holds_every_layer_on_a_device_that_only_the_engine_lists(make_fleet: Callable[..., Fleet]) -> None:
    fleet = make_fleet(CATALOG + BESIDE_THE_CPU)
    fleet.start()
    loaded = fleet.run("load", "tiny:vulkan-alone", "--yes", seconds=SECONDS)
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    replica = fleet.replica()
    assert replica is not None
    assert [(shard["device"], shard["bound"]["agrees"]) for shard in replica["shards"]] == [("Vulkan0", True)]
    assert ask(fleet) == TINY_COMPLETION


def ask(fleet: Fleet) -> str:
    prompt = ("--prompt", TINY_PROMPT, "--max-tokens", str(TINY_TOKENS), "--json")
    answer = fleet.run("test", "tiny-1", *prompt, seconds=SECONDS)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return str(json.loads(answer.stdout)["text"])


def listed(fleet: Fleet) -> dict[str, Any]:
    """What the agent of host-a says of Vulkan0."""
    (host,) = [each for each in fleet.json("ls", "hosts") if each["host"] == "host-a"]
    (device,) = [each for each in host["devices"] if each["listed_by"] == "llamacpp"]
    assert device["name"] == "Vulkan0"
    return dict(device)
