"""The devices of this host and the memory that is free on them.

GPUs are read by a process of its own with a deadline (``python -I -m backend.agent.devices``): a driver whose card
fell off the bus may never return, and must not take the agent with it. No driver is a fact, never an error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil

from backend.agent.cgroup import group_memory
from backend.contract.reports import DeviceFacts

DRM = Path("/sys/class/drm")
AMD_VENDOR = "0x1002"
DRIVER_SIGNS = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"), Path("/dev/dxg"), Path("/dev/kfd"))
"""Any of these says that a GPU driver is loaded: NVIDIA's, the same under WSL, AMD's."""
PROBE_SECONDS = 5.0


class DeviceUnknown(LookupError):
    """No device of that name. The message names the devices that there are."""


class GpuReading(msgspec.Struct, frozen=True):
    """What the drivers said. ``owners`` is bytes by process of each device, by its uuid; -1 where they do not say.

    ``answered`` is False when they were asked and said nothing that is understood.
    """

    devices: tuple[DeviceFacts, ...] = ()
    owners: dict[str, dict[int, int]] = {}
    words: str = "no GPU driver on this host"
    answered: bool = True


class _Latest:
    """The last reading, and the probe that never came back, if one did not."""

    reading = GpuReading()
    hung: int | None = None


def cpu_device(cap: int | None = None) -> DeviceFacts:
    """The processors and main memory as a device named ``CPU``, in bytes.

    ``total`` is the least of what the machine has, what the unit or container of this agent allows and ``cap``;
    ``free`` what is available within machine and unit.
    """
    memory = psutil.virtual_memory()
    total, free, words = int(memory.total), int(memory.available), ""
    group = group_memory()
    if group is not None and group.limit < total:
        words = f"the agent's control group allows {group.limit >> 20} MiB of {total >> 20} MiB"
        total, free = group.limit, max(0, min(free, group.limit - group.used))
    return DeviceFacts(
        name="CPU", uuid="cpu", kind="cpu", total=total if cap is None else min(cap, total), free=free, words=words
    )


def device_free(device_name: str) -> int:
    """Bytes free on a device: of main memory now, of a GPU at the last ``read_gpus``. Raises DeviceUnknown."""
    if device_name == "CPU":
        return cpu_device().free
    for device in _Latest.reading.devices:
        if device.name == device_name:
            return device.free
    names = ", ".join(["CPU", *(device.name for device in _Latest.reading.devices)])
    raise DeviceUnknown(f"this host has no device {device_name}; it has {names} ({_Latest.reading.words or 'drivers'})")


def last_reading() -> GpuReading:
    """What the drivers said at the last ``read_gpus``."""
    return _Latest.reading


async def read_gpus(seconds: float = PROBE_SECONDS) -> GpuReading:
    """Ask every GPU driver of this host; without one this costs three looks at the file system.

    When the drivers do not answer within ``seconds`` the reading has no devices and its words say so; while that
    probe hangs no other is started.
    """
    if not any(sign.exists() for sign in DRIVER_SIGNS) and not any(DRM.glob("card[0-9]*")):  # noqa: ASYNC240 sysfs
        _Latest.reading = GpuReading()
    elif _Latest.hung is None or _collect(_Latest.hung):
        _Latest.hung = None
        try:
            output = await _run_probe([sys.executable, "-I", "-m", "backend.agent.devices"], seconds)
            _Latest.reading = _decode(output, seconds)
        except OSError as refused:
            words = f"the GPU drivers cannot be asked: {refused.strerror}"
            _Latest.reading = GpuReading(words=words, answered=False)
    return _Latest.reading


def _decode(output: bytes | None, seconds: float) -> GpuReading:
    if output is None:
        words = f"the GPU driver did not answer within {seconds:g} s; look at the kernel's log"
        return GpuReading(words=words, answered=False)
    try:
        return msgspec.json.decode(output, type=GpuReading)
    except msgspec.DecodeError:
        last = output.decode(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        return GpuReading(words=f"reading the GPU drivers failed: {last[0]}", answered=False)


async def _run_probe(command: list[str], seconds: float) -> bytes | None:
    """Everything that a command wrote; None when it did not end in time. It is killed then, but never waited for."""
    output = os.memfd_create("ringtop-probe")
    try:
        pid = os.posix_spawn(  # noqa: ASYNC221 returns in 0.2 ms
            command[0],
            command,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
        )
        pidfd = os.pidfd_open(pid)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        try:
            await asyncio.wait_for(ended.wait(), seconds)
        except TimeoutError:
            pass
        finally:
            loop.remove_reader(pidfd)
            if not ended.is_set():
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
            if not _collect(pid):
                _Latest.hung = pid
        return os.pread(output, 1 << 20, 0) if ended.is_set() else None
    finally:
        os.close(output)


def _collect(pid: int) -> bool:
    """Reap a probe of ours; False while it has not ended."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return True  # somebody else reaped it


def read_nvidia() -> GpuReading:
    """NVIDIA's devices by NVML, in PCI order: engines count alike only with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as missing:
        return GpuReading(words=f"no NVIDIA driver ({missing})")
    try:
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as lost:
        return GpuReading(words=f"the NVIDIA driver does not list its devices ({lost})")
    devices, owners, complaints = [], {}, []
    for index in range(count):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            if (listed := _nvidia_owners(pynvml, handle)) is not None:
                owners[uuid] = listed
            words = str(pynvml.nvmlDeviceGetName(handle))
        except pynvml.NVMLError as lost:
            complaints.append(f"CUDA{index} does not answer ({lost})")
            continue
        devices.append(
            DeviceFacts(
                name=f"CUDA{index}", uuid=uuid, kind="cuda", total=int(memory.total), free=int(memory.free), words=words
            )
        )
    return GpuReading(devices=tuple(devices), owners=owners, words="; ".join(complaints))


def _nvidia_owners(pynvml: Any, handle: Any) -> dict[int, int] | None:
    """Processes of this namespace with memory on a device; bytes, or -1 where the driver does not say.

    None where it names no owners at all, as in some virtual machines: the device is one all the same.
    """
    try:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError_NotSupported:
        return None
    return {int(one.pid): -1 if one.usedGpuMemory is None else int(one.usedGpuMemory) for one in running}


def read_amd(drm: Path = DRM) -> GpuReading:
    """AMD's devices as the kernel's driver shows them in /sys/class/drm, in card order."""
    devices: list[DeviceFacts] = []
    cards = sorted((int(card.name[4:]), card) for card in drm.glob("card*") if card.name[4:].isdigit())
    for _, card in cards:
        folder = card / "device"
        if _text(folder / "vendor") != AMD_VENDOR or not (total := _text(folder / "mem_info_vram_total")):
            continue
        devices.append(
            DeviceFacts(
                name=f"ROCm{len(devices)}",
                uuid=_text(folder / "unique_id") or folder.resolve().name,
                kind="rocm",
                total=int(total),
                free=max(0, int(total) - int(_text(folder / "mem_info_vram_used") or total)),
                words=_text(folder / "product_name") or "",
            )
        )
    return GpuReading(devices=tuple(devices), words="" if devices else "no AMD driver")


def _text(file: Path) -> str | None:
    """A line of sysfs; None when the driver does not offer it."""
    try:
        return file.read_text().strip()
    except OSError:
        return None


def main() -> None:
    """Print one reading of every driver, for ``read_gpus``."""
    nvidia, amd = read_nvidia(), read_amd()
    words = "; ".join(reading.words for reading in (nvidia, amd) if reading.words)
    both = GpuReading(devices=nvidia.devices + amd.devices, owners=nvidia.owners, words=words)
    sys.stdout.buffer.write(msgspec.json.encode(both))


if __name__ == "__main__":
    main()
