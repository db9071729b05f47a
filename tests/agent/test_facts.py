"""The facts of a host and its devices. GPUs and service managers are injected: their tests say so by name."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from backend.agent import devices, facts
from backend.agent.cgroup import GroupMemory
from backend.agent.devices import GpuReading
from backend.agent.process_identity import boot_id
from backend.contract.reports import DeviceFacts, HostFacts
from backend.contract.words import HostId, Port, UnixMs

SAFE = {"KillMode": "process", "OOMPolicy": "continue"}
SERVICE = {"": "/system.slice/ringtop-agent.service"}


def measure(ports: tuple[int, int] = (18_000, 18_999), refuses: str = "") -> HostFacts:
    return facts.host_facts(
        host=HostId("host-a"),
        agent_version="0.1.0",
        devices=[devices.cpu_device(None)],
        engines=[],
        ports=(Port(ports[0]), Port(ports[1])),
        advertise="127.0.0.1",
        model_roots=["/models"],
        journal="healthy",
        refuses_loads=refuses,
        now=UnixMs(1_764_412_800_123),
    )


def test_a_host_is_measured() -> None:
    host = measure(refuses="why")
    assert host.boot_id == boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert host.cpu_count == os.cpu_count()
    assert host.memory_total == psutil.virtual_memory().total
    assert 0 < host.memory_free <= host.memory_total
    assert (host.refuses_loads, host.journal, host.measured_unix_ms) == ("why", "healthy", 1_764_412_800_123)
    assert [device.name for device in host.devices] == ["CPU"]


def test_ports_in_use_are_those_of_the_agents_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        low, high = sorted(int(server.getsockname()[1]) for server in (one, two))
        assert {low, high} <= set(measure((low, high)).ports_in_use)
        assert high not in measure((low, high - 1)).ports_in_use
        in_use = measure((1, 65_535)).ports_in_use
        assert list(in_use) == sorted(in_use)


def test_processor_features_are_those_that_every_processor_has(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor: 0\nflags\t\t: sse2 avx_vnni avx2\n\nprocessor: 1\nflags : avx2 sse2\n"
    )
    assert facts.cpu_flags(tmp_path) == ("avx2", "sse2")
    assert facts.cpu_flags()


def test_the_processors_are_a_device_with_the_machines_memory() -> None:
    cpu = devices.cpu_device(None)
    assert (cpu.name, cpu.uuid, cpu.kind) == ("CPU", "cpu", "cpu")
    assert 0 < cpu.total <= psutil.virtual_memory().total
    assert abs(devices.device_free("CPU") - cpu.free) < 1 << 30


def test_a_cap_lowers_the_total_and_never_raises_it() -> None:
    whole = devices.cpu_device(None).total
    assert devices.cpu_device(1 << 20).total == 1 << 20
    assert devices.cpu_device(whole * 2).total == whole


def test_an_injected_limit_of_the_unit_bounds_what_the_cpu_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "group_memory", lambda: GroupMemory(limit=3 << 20, used=2 << 20))
    cpu = devices.cpu_device(None)
    assert (cpu.total, cpu.free) == (3 << 20, 1 << 20)
    assert cpu.words.startswith("the agent's control group allows 3 MiB of ")


async def test_no_driver_is_a_fact_and_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices, "DRIVER_SIGNS", ())
    monkeypatch.setattr(devices, "DRM", tmp_path)
    reading = await devices.read_gpus()
    assert reading.devices == ()
    assert reading.words == "no GPU driver on this host"


def test_the_drivers_are_read_by_a_process_of_its_own() -> None:
    command = [sys.executable, "-I", "-m", "backend.agent.devices"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    reading = devices._decode(done.stdout, 5.0)
    assert done.stderr == b""
    assert reading.devices or "no NVIDIA driver" in reading.words


def test_a_device_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(devices.DeviceUnknown, match="this host has no device CUDA99; it has CPU"):
        devices.device_free("CUDA99")


async def test_an_injected_driver_that_hangs_is_given_up_and_not_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "DRIVER_SIGNS", (Path("/proc/self"),))
    run_probe = devices._run_probe
    started = []

    async def hang(command: list[str], seconds: float) -> bytes | None:
        started.append(command)
        return await run_probe([sys.executable, "-c", "import time; time.sleep(600)"], seconds)

    monkeypatch.setattr(devices, "_run_probe", hang)
    monkeypatch.setattr(devices, "_collect", lambda pid: False)  # as if KILL did not end it either
    for _ in range(3):
        reading = await devices.read_gpus(0.2)
        assert reading.devices == ()
        assert reading.words == "the GPU driver did not answer within 0.2 s; look at the kernel's log"
    assert len(started) == 1
    monkeypatch.undo()
    forget_the_probe()


def forget_the_probe() -> None:
    """End what the test left hanging, and forget what it said."""
    assert devices._Latest.hung is not None
    os.waitpid(devices._Latest.hung, 0)
    devices._Latest.hung = None
    devices._Latest.reading = devices.GpuReading()


def test_a_probe_that_fails_says_its_last_line() -> None:
    reading = devices._decode(b"Traceback\nKeyError: 'libamd_smi.so'\n", 5.0)
    assert reading.words == "reading the GPU drivers failed: KeyError: 'libamd_smi.so'"


class StandInNvml(ModuleType):
    """Stands in for NVML on a host without a GPU: two devices, of which one names no owners."""

    NVMLError = type("NVMLError", (Exception,), {})
    NVMLError_NotSupported = type("NVMLError_NotSupported", (NVMLError,), {})

    def __init__(self, count: int | None = 2) -> None:
        super().__init__("pynvml")
        self.count = count

    def nvmlInit(self) -> None:  # noqa: N802  the names of NVML
        return

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.count is None:
            raise self.NVMLError("Unknown Error")
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=100, free=60)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        if handle == 1:
            raise self.NVMLError_NotSupported("Not Supported")
        return [SimpleNamespace(pid=4711, usedGpuMemory=None), SimpleNamespace(pid=4712, usedGpuMemory=40)]


def test_an_injected_device_whose_driver_names_no_owners_is_a_device_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", StandInNvml())
    reading = devices.read_nvidia()
    assert [(device.name, device.total, device.free) for device in reading.devices] == [
        ("CUDA0", 100, 60),
        ("CUDA1", 100, 60),
    ]
    assert (reading.owners, reading.words) == ({"GPU-0": {4711: -1, 4712: 40}}, "")


def test_an_injected_driver_that_lists_no_devices_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", StandInNvml(None))
    assert devices.read_nvidia() == GpuReading(words="the NVIDIA driver does not list its devices (Unknown Error)")


def test_an_injected_amd_card_is_read_from_sysfs(tmp_path: Path) -> None:
    for name, vendor in (("card0", "0x1a03"), ("card10", "0x1002"), ("card2", "0x1002"), ("card2-DP-1", "0x1002")):
        folder = tmp_path / name / "device"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "mem_info_vram_total").write_text("1000\n")
        (folder / "mem_info_vram_used").write_text("400\n" if name == "card2" else "1\n")
        (folder / "unique_id").write_text(f"id-{name}\n")
    assert devices.read_amd(tmp_path).devices == (
        DeviceFacts(name="ROCm0", uuid="id-card2", kind="rocm", total=1000, free=600),
        DeviceFacts(name="ROCm1", uuid="id-card10", kind="rocm", total=1000, free=999),
    )


@pytest.fixture
def booted(tmp_path: Path) -> Path:
    """An injected sign that systemd is process 1."""
    return tmp_path


def test_an_injected_unit_with_systemds_defaults_refuses_loads_and_names_both_settings(booted: Path) -> None:
    defaults = {"KillMode": "control-group", "OOMPolicy": "stop"}
    words = facts.refuses_loads(SERVICE, lambda unit, is_user: defaults, booted)
    assert "ringtop-agent.service has KillMode=control-group" in words
    assert "OOMPolicy=stop" in words
    assert "Set KillMode=process and OOMPolicy=continue" in words


@pytest.mark.parametrize(
    ("settings", "named", "unnamed"),
    [
        (SAFE | {"KillMode": "mixed"}, "has KillMode=mixed", "OOMPolicy=stop"),
        (SAFE | {"OOMPolicy": "kill"}, "has OOMPolicy=kill", "KillMode=control-group"),
        ({}, "KillMode=unknown", "KillMode=control-group"),
    ],
)
def test_an_injected_unit_with_one_wrong_setting_refuses_loads(
    booted: Path, settings: dict[str, str], named: str, unnamed: str
) -> None:
    words = facts.refuses_loads(SERVICE, lambda unit, is_user: settings, booted)
    assert named in words
    assert unnamed not in words


@pytest.mark.parametrize("mode", ["process", "none"])
def test_an_injected_unit_that_leaves_engines_alone_allows_loads(booted: Path, mode: str) -> None:
    assert facts.refuses_loads(SERVICE, lambda unit, is_user: SAFE | {"KillMode": mode}, booted) == ""


def test_an_injected_manager_that_does_not_answer_refuses_loads(booted: Path) -> None:
    def silent(unit: str, is_user: bool) -> dict[str, str]:
        raise subprocess.TimeoutExpired("systemctl", 3.0)

    words = facts.refuses_loads(SERVICE, silent, booted)
    assert "did not say whether its restart kills the engines" in words
    assert "timed out after 3.0 seconds" in words


@pytest.mark.parametrize(
    "groups",
    [
        {},
        {"": "/"},
        {"": "/user.slice/user-1000.slice/session-3.scope"},
        {"": "/user.slice/user-1000.slice/user@1000.service/app.slice/terminal-7.scope"},
        {"name=systemd": "/docker/0123"},
    ],
)
def test_outside_a_service_nothing_is_refused(booted: Path, groups: dict[str, str]) -> None:
    def never(unit: str, is_user: bool) -> dict[str, str]:
        raise AssertionError(f"{unit} was asked for")

    assert facts.refuses_loads(groups, never, booted) == ""


def test_without_systemd_nothing_is_refused(tmp_path: Path) -> None:
    assert facts.refuses_loads(SERVICE, lambda unit, is_user: {}, tmp_path / "absent") == ""


@pytest.mark.parametrize(
    ("groups", "asked"),
    [
        (SERVICE, ("ringtop-agent.service", False)),
        ({"": "/system.slice/ringtop-agent.service/engines"}, ("ringtop-agent.service", False)),
        ({"": "/", "name=systemd": "/system.slice/ringtop-agent.service"}, ("ringtop-agent.service", False)),
        ({"": "/user.slice/user-7.slice/user@7.service/app.slice/ringtop.service"}, ("ringtop.service", True)),
    ],
)
def test_the_own_unit_is_found_in_its_control_group(
    booted: Path, groups: dict[str, str], asked: tuple[str, bool]
) -> None:
    calls: list[tuple[str, bool]] = []

    def record(unit: str, is_user: bool) -> dict[str, str]:
        calls.append((unit, is_user))
        return SAFE

    assert facts.refuses_loads(groups, record, booted) == ""
    assert calls == [asked]


def test_this_process_is_asked_about_without_arguments() -> None:
    assert isinstance(facts.refuses_loads(), str)
