"""Stages as processes of their own: READY in their own words, memory plans without a load, and whom they die with."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.p4.peer import GENERATION, BarePeer, PlannedStage, changed, planned_ring
from tests.p4.ring import SECONDS, simulated_ring, stage_binary
from tests.p4.simulator.wire import parse_address


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    with_ports = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in with_ports]
    for each in with_ports:
        each.close()
    return ports


def staged(binary: Path, stages: list[PlannedStage]) -> list[PlannedStage]:
    """The stages with a real binary and endpoints of their own."""
    ports = free_ports(len(stages))
    return [
        changed(stage, binary=str(binary), endpoint=f"127.0.0.1:{port}", ready_timeout_ms=30_000)
        for stage, port in zip(stages, ports, strict=True)
    ]


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def inspect_plan(binary: Path, plan: str, *, by_argument: bool = True) -> tuple[int, dict[str, Any]]:
    text = plan.encode()
    done = subprocess.run(
        [str(binary), *(["--inspect-memory-plan"] if by_argument else [])],
        input=struct.pack("<I", len(text)) + text,
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    lines = done.stderr.decode().splitlines()
    found = [json.loads(line.removeprefix("MEMORY_PLAN ")) for line in lines if line.startswith("MEMORY_PLAN ")]
    return done.returncode, found[0] if found else {}


def test_stage_processes_say_ready_serve_and_die_with_their_agent(tmp_path: Path) -> None:
    binary = stage_binary(tmp_path, upstream="from-the-binary")
    with simulated_ring(tmp_path, 1, stage_processes=True) as ring:
        stages = staged(binary, planned_ring([ring[0].address], count=2))
        peer = BarePeer(ring[0].dial, ring[0].address)
        for stage, bound in zip(stages, (137_935_244, 3_696_012), strict=True):
            result = peer.result(peer.load(stage))
            assert result is not None
            loaded = json.loads(result.body)
            assert (loaded["max_physical_result_bytes"], loaded["upstream_commit"]) == (bound, "from-the-binary")
        for event in peer.open_session(stages, "s-1"):
            assert peer.answer(event, "session-ready") is not None
        assert peer.answer(peer.prefill(stages, "s-1", "r-1"), "release-receipt") is not None
        running = children_of(ring[0].pid)
        assert len(running) == 2
        result = peer.result(peer.unload(stages[1]))
        assert result is not None
        assert result.metadata["status"] == "succeeded"
        assert len(children_of(ring[0].pid)) == 1
        ring[0].end(signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        while not all(is_gone(pid) for pid in running):
            assert time.monotonic() < deadline, "a stage outlived its agent"
            time.sleep(0.01)


def test_a_stage_process_that_dies_leaves_its_node_stopped(tmp_path: Path) -> None:
    with simulated_ring(tmp_path, 1, stage_processes=True) as ring:
        stage = staged(stage_binary(tmp_path), planned_ring([ring[0].address])[:1])[0]
        peer = BarePeer(ring[0].dial, ring[0].address)
        assert peer.result(peer.load(stage)) is not None
        os.kill(children_of(ring[0].pid)[0], signal.SIGKILL)
        said = ring[0].until("the node is stopped", lambda said: said["nodes"][stage.node]["stopped"])
        assert said["nodes"][stage.node]["state"] == "failed:stage server exited: signal: 9"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"devices": ["ROCm0"]}, "stage server exited while starting: exit status: 5"),
        ({"stage_lacks": ["max_physical_result_bytes"]}, "stage server HELLO omits max_physical_result_bytes"),
        ({"ready_bound": 7}, "profile=137935244, READY=7"),
    ],
    ids=["device", "older", "bound"],
)
def test_a_stage_process_that_does_not_fit_fails_its_load(tmp_path: Path, facts: dict[str, Any], words: str) -> None:
    with simulated_ring(tmp_path, 1, stage_processes=True) as ring:
        stage = staged(stage_binary(tmp_path, **facts), planned_ring([ring[0].address])[:1])[0]
        peer = BarePeer(ring[0].dial, ring[0].address)
        result = peer.result(peer.load(stage))
        assert result is not None
        assert result.metadata["first_error"].endswith(words)
        assert children_of(ring[0].pid) == []


def test_a_memory_plan_says_bound_devices_and_fit_without_a_load(tmp_path: Path) -> None:
    head, *_, tail = planned_ring([str(parse_address("tcp://10.77.0.1:52001"))], generation=GENERATION)
    binary = stage_binary(tmp_path)
    code, plan = inspect_plan(binary, head.body["plan"])
    assert (code, plan["max_physical_result_bytes"], plan["fits_current_free"]) == (0, 137_935_244, True)
    assert plan["entries"][0]["name"] == "CUDA0"
    assert inspect_plan(binary, tail.body["plan"])[1]["max_physical_result_bytes"] == 3_696_012
    stage_binary(tmp_path, device_bytes=1)
    assert inspect_plan(binary, head.body["plan"])[0] == 7
    stage_binary(tmp_path, devices=["ROCm0"])
    code, plan = inspect_plan(binary, head.body["plan"])
    assert (code, plan["complete"], plan["layer_default_devices"]) == (7, False, [])
    asked_in_the_plan = f"{head.body['plan']} --inspect-memory-plan"
    stage_binary(tmp_path)
    assert inspect_plan(binary, asked_in_the_plan, by_argument=False)[1]["max_physical_result_bytes"] == 137_935_244
    stage_binary(tmp_path, stage_lacks=["inspect-memory-plan"])
    assert inspect_plan(binary, head.body["plan"]) == (2, {})
    assert inspect_plan(binary, asked_in_the_plan, by_argument=False) == (3, {})
