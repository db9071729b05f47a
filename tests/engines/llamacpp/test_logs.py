"""The parsers of a leader's log read real lines, and keep the last pass only."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.engines.driver import ListedDevice
from backend.engines.llamacpp.log_tail import LogTail
from backend.engines.llamacpp.logs import (
    MIB,
    BufferSize,
    Complaint,
    DevicePlan,
    LogEvent,
    Offloaded,
    parse_devices,
    parse_line,
    parse_release,
    read_picture,
)
from tests.engines.llamacpp.lines import ALONE, RING, TOO_BIG

BIG_PLAN = (
    "0.00.023.100 I common_memory_breakdown_print: |   - RPC0 (127.0.0.1:39229) "
    "| 24105 = 24105 + ( 742 =   600 +      80 +      62) +        -742 |"
)


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (BIG_PLAN, DevicePlan("127.0.0.1:39229", 24105, 742, 600, 80, 62)),
        (
            "0.00.1 I common_memory_breakdown_print: |   - CUDA0 (NVIDIA H200) | 1437 = 1400 + (9 = 5 + 3 + 1) + 0 |",
            DevicePlan("CUDA0", 1437, 9, 5, 3, 1),
        ),
        (
            "0.00.710.000 I load_tensors: RPC0[10.0.0.5:50052] model buffer size =   600.08 MiB",
            BufferSize("10.0.0.5:50052", "model", 60008),
        ),
        (
            "0.00.710.000 I load_tensors:   CPU_Mapped model buffer size =     0.14 MiB",
            BufferSize("CPU_Mapped", "model", 14),
        ),
        ("0.00.710.000 I load_tensors: offloaded 99/111 layers to GPU", Offloaded(99, 111)),
        (
            "0.00.012.000 E Failed to connect to 127.0.0.1:1",
            Complaint("Failed to connect to 127.0.0.1:1"),
        ),
        ("Failed to connect to 127.0.0.1:1", Complaint("Failed to connect to 127.0.0.1:1")),
        ("0.00.030.799 I llama_context:        CPU  output buffer size =     0.01 MiB", None),
        ("	repeat_last_n = 64, repeat_penalty = 1.000", None),
        ("", None),
    ],
)
def test_one_line_tells_one_thing(line: str, event: LogEvent | None) -> None:
    assert parse_line(line) == event


def test_buffers_are_keyed_by_endpoint_as_every_worker_is_called_rpc0() -> None:
    picture = read_picture(RING)
    assert picture.sizes("model") == {"CPU_Mapped": (14,), "127.0.0.1:19152": (56,), "127.0.0.1:19153": (70,)}
    assert picture.sizes("KV") == {"127.0.0.1:19152": (100,), "127.0.0.1:19153": (100,)}
    assert picture.sizes("compute") == {"127.0.0.1:19152": (427,), "127.0.0.1:19153": (427,), "CPU": (252,)}
    assert (picture.is_bound, picture.is_loaded, picture.url) == (True, True, "http://127.0.0.1:19180")
    assert picture.offloaded == Offloaded(5, 5)


def test_only_the_last_pass_counts() -> None:
    twice = [*RING[:20], *RING[13:]]
    assert read_picture(twice).sizes("model") == read_picture(RING).sizes("model")


def test_the_plan_is_the_one_before_the_weights_and_not_the_one_at_the_end() -> None:
    assert read_picture(RING).plans["127.0.0.1:19152"].taken == 5


def test_a_plan_that_does_not_fit_is_read_with_its_shortfall() -> None:
    picture = read_picture(TOO_BIG)
    assert picture.verdict is not None
    assert not picture.verdict.fits
    assert picture.verdict.words.endswith("n_gpu_layers already set by user to 999, abort")
    assert picture.left == {"127.0.0.1:19152": -19899, "127.0.0.1:19153": -19899}


def test_a_leader_alone_plans_on_the_host() -> None:
    picture = read_picture(ALONE)
    assert picture.plans == {"Host": DevicePlan("Host", None, 7, 1, 2, 4)}
    assert picture.sizes("model") == {"CPU_Mapped": (140,)}


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("version: 0.1.0-dev (build 1, commit 7e4c0a9)\nbuilt with GNU 11.4.0 for Linux x86_64", "1-7e4c0a9"),
        ("version: 4589 (eb7cf15a)\nbuilt with cc", "4589-eb7cf15a"),
        ("llama", None),
    ],
)
def test_the_release_is_build_and_commit(text: str, release: str | None) -> None:
    assert parse_release(text) == release


def test_devices_are_listed_without_the_cpu() -> None:
    assert parse_devices("Available devices:\n  (none)\n") == ()
    text = "Available devices:\n  Vulkan0: llvmpipe (LLVM 15.0.6, 256 bits) (2048 MiB, 1024 MiB free)\n"
    llvmpipe = "llvmpipe (LLVM 15.0.6, 256 bits)"
    assert parse_devices(text) == (ListedDevice("Vulkan0", llvmpipe, 2048 * MIB, 1024 * MIB),)


def test_devices_whose_memory_a_list_does_not_give_have_none_known() -> None:
    text = (
        "ggml_cuda_init: found 1 CUDA devices:\n"
        "  Device 0: NVIDIA RTX A6000, compute capability 8.6, VMM: yes\n"
        "  note: this is no device\n"
        "Available devices:\n"
        "  CUDA0: NVIDIA RTX A6000 (48549 MiB, 0 MiB free)\n"
        "  GPUOpenCL: Adreno (TM) 740 (0 MiB, 0 MiB free)\n"
        "  WebGPU: some adapter\n"
    )
    assert parse_devices(text) == (
        ListedDevice("CUDA0", "NVIDIA RTX A6000", 48549 * MIB, 0),
        ListedDevice("GPUOpenCL", "Adreno (TM) 740"),
        ListedDevice("WebGPU", "some adapter"),
    )
    older = "  Vulkan1: AMD Radeon (RADV) (16384 MiB, 16000 MiB free)\n  note: this is no device\n"
    assert [device.name for device in parse_devices(older)] == ["Vulkan1"]


def test_a_tail_gives_whole_lines_only_and_starts_again_when_the_log_was_cut(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    tail = LogTail(log)
    assert tail.new_lines() == []
    log.write_bytes(b"one\ntw")
    assert tail.new_lines() == ["one"]
    with log.open("ab") as more:
        more.write(b"o\nthree\n")
    assert tail.new_lines() == ["two", "three"]
    assert tail.new_lines() == []
    log.write_bytes(b"new\n")
    assert tail.new_lines() == ["new"]


def test_a_line_that_does_not_end_is_not_kept_whole(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    tail = LogTail(log)
    for _ in range(3):
        with log.open("ab") as more:
            more.write(b"." * 200_000)
        assert tail.new_lines() == []
    with log.open("ab") as more:
        more.write(b"\nthree\n")
    dots, three = tail.new_lines()
    assert (len(dots), three) == (65_536, "three")
