"""vLLM and SGLang as the plan sees them: one process per host, a rendezvous at rank 0, and what fails in silence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.contract.plans import Plan, Profile
from backend.planning.catalog import Catalog, ModelEntry
from backend.planning.engines.sglang import SGLANG, launch_command
from backend.planning.engines.vllm import VLLM, serve_command
from backend.planning.plan import model_hosts, plan
from tests.planning.worlds import GIB, NOW, Ask, a_fleet, a_host, an_engine, ids

LANS = ("10.0.0.5", "192.168.7.5")


def a_pair(engine: str = "vllm", *, hosts: dict[str, Any] | None = None, kind: str = "CUDA", **profile: Any) -> Plan:
    """Two hosts with two GPUs each, one rank on each."""
    shape = Profile(**{"ranks": 2, "devices": 2, "device": f"{kind}*", "ranks_per_host": 1, **profile})
    entry = ModelEntry(name="glm", path="org/glm-5", engine=engine, profiles={"pair": shape})
    gpus = {"CPU": (20 * GIB, 0), f"{kind}0": (23 * GIB, 0), f"{kind}1": (23 * GIB, 0)}
    installed = msgspec.structs.replace(an_engine(*gpus), engine=engine)
    facts = {"devices": gpus, "engines": (installed,), **(hosts or {})}
    fleet = a_fleet(a_host("host-a", **facts), a_host("host-b", **facts))
    return plan(Catalog("c", {"glm": entry}), fleet, Ask("glm"), model=None, now_unix_ms=NOW)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_model_by_id_is_planned_without_any_header(engine: str) -> None:
    made = a_pair(engine)
    assert made.findings == ()
    assert [shard.host for shard in made.shards] == ["host-a", "host-b"]
    assert [shard.all_devices for shard in made.shards] == [("CUDA0", "CUDA1")] * 2
    assert made.shards[0].device_uuids == ("host-a-CUDA0", "host-a-CUDA1")
    assert [len(shard.ports) for shard in made.shards] == [2, 0 if engine == "vllm" else 1]
    assert made.phase_seconds("loading") == (600.0 if engine == "vllm" else 1200.0)


def test_no_host_is_asked_for_a_header_that_the_engine_does_not_read() -> None:
    entry = ModelEntry(name="glm", path="org/glm-5", engine="vllm", profiles={"pair": Profile(ranks=1)})
    assert model_hosts(Catalog("c", {"glm": entry}), a_fleet(), Ask("glm")) == ()


def test_the_memory_of_the_profile_is_what_each_rank_is_planned_with() -> None:
    made = a_pair(memory=30 * GIB)
    assert [shard.bound.memory for shard in made.shards] == [30 * GIB] * 2
    assert made.findings == ()
    assert "memory.short" in ids(a_pair(memory=47 * GIB))


def test_every_rank_of_vllm_is_told_rank_0s_address_and_its_own() -> None:
    made = a_pair(options={"interface": "eth1"})
    argv, env = serve_command(made, made.shards[1], "/opt/vllm/bin/vllm", "/models/glm")
    leader = made.shards[0]
    words = " ".join(argv)
    assert f"--nnodes 2 --node-rank 1 --master-addr {leader.advertise} --master-port {leader.ports[1]}" in words
    assert "--tensor-parallel-size 4 --pipeline-parallel-size 1" in words
    assert "--gpu-memory-utilization 0.9" in words
    assert "--shutdown-timeout 60" in words
    assert words.endswith("--headless")
    assert env["VLLM_HOST_IP"] == made.shards[1].advertise
    assert (env["CUDA_DEVICE_ORDER"], env["CUDA_VISIBLE_DEVICES"]) == ("PCI_BUS_ID", "0,1")
    assert env["NCCL_SOCKET_IFNAME"] == env["GLOO_SOCKET_IFNAME"] == "eth1"
    head, _ = serve_command(made, leader, "vllm", "/models/glm")
    assert "--headless" not in head
    assert ("--port", str(leader.ports[0])) == head[-2:]


def test_every_rank_of_sglang_is_told_rank_0s_address_and_its_own() -> None:
    made = a_pair("sglang", kind="ROCm", options={"force_shutdown": "on", "tensor_parallel": 2, "pipeline_parallel": 2})
    argv, env = launch_command(made, made.shards[1], "/opt/sglang/bin/python", "org/glm-5")
    leader = made.shards[0]
    words = " ".join(argv)
    assert f"--nnodes 2 --node-rank 1 --dist-init-addr {leader.advertise}:{leader.ports[1]}" in words
    assert "--tp-size 2 --pp-size 2" in words
    assert "--mem-fraction-static 0.85" in words
    assert env == {
        "SGLANG_HOST_IP": made.shards[1].advertise,
        "HIP_VISIBLE_DEVICES": "0,1",
        "SGL_FORCE_SHUTDOWN": "1",
    }


def test_a_shard_of_another_plan_gets_no_command() -> None:
    made = a_pair()
    stranger = msgspec.structs.replace(made.shards[1], rank=7)
    with pytest.raises(ValueError, match="has no address"):
        serve_command(made, stranger, "vllm", "m")


def test_the_leader_stops_first_and_all_start_together() -> None:
    made = a_pair()
    assert VLLM.stop_order(made) == ((0,), (1,))
    assert SGLANG.start_order(made) == ((0, 1),)


@pytest.mark.parametrize(
    ("id", "severity", "wrong", "right", "words"),
    [
        (
            "rendezvous.loopback",
            "refuse",
            {"options": {"rendezvous": "127.0.0.1"}},
            {"options": {"rendezvous": "10.0.0.5"}},
            ("127.0.0.1", "2 machines"),
        ),
        (
            "rendezvous.loopback",
            "refuse",
            {"hosts": {"advertise": "127.0.0.1"}},
            {"hosts": {"advertise": "127.0.0.1", "boot_id": "one"}, "devices": 1},
            ("advertise of host-a",),
        ),
        (
            "address.unset",
            "refuse",
            {"hosts": {"addresses": LANS}, "options": {"host_address": "auto"}},
            {"hosts": {"addresses": LANS[:1]}, "options": {"host_address": "auto"}},
            ("host_address = 'auto'", "10.0.0.5, 192.168.7.5"),
        ),
        (
            "address.interface",
            "warn",
            {"hosts": {"addresses": LANS}},
            {"hosts": {"addresses": LANS}, "options": {"interface": "eth1"}},
            ("10.0.0.5, 192.168.7.5",),
        ),
        (
            "visible.twice",
            "refuse",
            {"options": {"hip_visible_devices": "0,1", "rocr_visible_devices": "0,1"}},
            {"options": {"hip_visible_devices": "0,1"}},
            ("hip_visible_devices = '0,1'", "rocr_visible_devices"),
        ),
        (
            "shutdown.zero",
            "warn",
            {"options": {"shutdown_timeout": 0}},
            {"options": {"shutdown_timeout": 1}},
            ("shutdown_timeout = 0",),
        ),
        (
            "shutdown.zero",
            "warn",
            {"engine": "sglang", "options": {"force_shutdown": "on"}},
            {"engine": "sglang", "options": {"force_shutdown": "off"}},
            ("force_shutdown",),
        ),
        (
            "batch.unbounded",
            "warn",
            {"engine": "sglang", "options": {"chunked_prefill_size": -1}},
            {"engine": "sglang", "options": {"chunked_prefill_size": 4096}},
            ("-1",),
        ),
        (
            "memory.share",
            "refuse",
            {"options": {"gpu_memory_utilization": 97}},
            {"options": {"gpu_memory_utilization": 95}},
            ("97 % of 24.0 GiB", "23.0 GiB"),
        ),
        (
            "ranks.parallel",
            "refuse",
            {"options": {"tensor_parallel": 2}},
            {"options": {"tensor_parallel": 2, "pipeline_parallel": 2}},
            ("4 devices", "tensor_parallel 2 × pipeline_parallel 1 = 2"),
        ),
        ("split.engine", "refuse", {"split": (1, 1)}, {}, ("split = [1, 1]",)),
        ("options.refused", "refuse", {"options": {"api_key": "k"}}, {}, ("secret",)),
        ("options.value", "refuse", {"options": {"interface": "eth 1"}}, {}, ("such as eth1",)),
        ("options.unknown", "refuse", {"options": {"shutdown_timeot": 3}}, {}, ("Did you mean shutdown_timeout",)),
    ],
)
def test_what_would_fail_in_silence_is_named(
    id: str, severity: str, wrong: dict[str, Any], right: dict[str, Any], words: tuple[str, ...]
) -> None:
    fired = [finding for finding in a_pair(**wrong).findings if finding.id == id]
    assert fired, f"{id} stayed silent"
    assert {finding.severity for finding in fired} == {severity}
    for word in words:
        assert any(word in finding.words for finding in fired), word
    assert id not in ids(a_pair(**right))
