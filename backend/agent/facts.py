"""What an agent says of its host, and whether its own service manager would kill the engines that it starts."""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from backend.agent.cgroup import group_memory, group_paths
from backend.agent.ports import ephemeral_range, listening_ports
from backend.agent.process_identity import boot_id
from backend.agent.scopes import SYSTEMD_RUNS, own_scope
from backend.contract.reports import DeviceFacts, EngineFacts, ForeignProcess, HostFacts, Illness
from backend.contract.words import HostId, Port, UnixMs

PROC = Path("/proc")
SYSTEMCTL_SECONDS = 3.0
SAFE_KILL_MODES = ("process", "none")
SAFE_OOM_POLICY = "continue"


def host_facts(
    *,
    host: HostId,
    agent_version: str,
    devices: Sequence[DeviceFacts],
    engines: Sequence[EngineFacts],
    ports: tuple[Port, Port],
    advertise: str,
    model_roots: Sequence[str],
    journal: str,
    refuses_loads: str,
    now: UnixMs,
    illnesses: Sequence[Illness] = (),
    foreign: Sequence[ForeignProcess] = (),
    pool: str = "",
    fabric: str = "",
    cores: int = 0,
    power_w: int = 0,
) -> HostFacts:
    """The host as measured now. ``devices`` come from ``devices.cpu_device`` and ``devices.read_gpus``.

    ``journal`` says in words how it fares, ``refuses_loads`` is what ``refuses_loads()`` said at the start and what
    illnesses add to it.
    """
    memory, group = psutil.virtual_memory(), group_memory()
    return HostFacts(
        host=host,
        agent_version=agent_version,
        boot_id=boot_id(),
        cpu_count=os.cpu_count() or 1,
        cpu_flags=cpu_flags(),
        memory_total=int(memory.total),
        memory_free=int(memory.available),
        devices=tuple(devices),
        engines=tuple(engines),
        ports=ports,
        ports_in_use=tuple(Port(port) for port in sorted(listening_ports(*ports))),
        advertise=advertise,
        model_roots=tuple(model_roots),
        journal=journal,
        refuses_loads=refuses_loads,
        measured_unix_ms=now,
        illnesses=tuple(illnesses),
        foreign=tuple(foreign),
        pool=pool,
        fabric=fabric,
        cores=cores,
        power_w=power_w,
        ephemeral=ephemeral_range() or (0, 0),
        addresses=own_addresses(),
        memory_limit=group.limit if group is not None and group.limit < memory.total else 0,
    )


def own_addresses() -> tuple[str, ...]:
    """The addresses of this host's interfaces that are up, beyond loopback and link-local ones, sorted."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    found = []
    for name, entries in psutil.net_if_addrs().items():
        texts = (
            [each.address for each in entries if each.family in (socket.AF_INET, socket.AF_INET6)] if name in up else []
        )
        addresses = [ipaddress.ip_address(text.partition("%")[0]) for text in texts]
        found += [str(each) for each in addresses if not (each.is_loopback or each.is_link_local)]
    return tuple(sorted(set(found)))


@functools.cache
def cpu_flags(proc: Path = PROC) -> tuple[str, ...]:
    """The processor features that every processor of this host has, by the kernel's names, sorted."""
    sets = []
    for line in (proc / "cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            sets.append(set(value.split()))
    return tuple(sorted(set.intersection(*sets))) if sets else ()


def refuses_loads(
    paths: dict[str, str] | None = None,
    ask: Callable[[str, bool], dict[str, str]] | None = None,
    systemd_runs: Path = SYSTEMD_RUNS,
    has_scopes: bool | None = None,
) -> str:
    """Why no engine may be started here, or nothing: a restart of this agent's own unit would kill it.

    Reads the agent's control group (``paths``) and asks systemd for its unit's settings; blocks up to
    ``SYSTEMCTL_SECONDS``, so it is called once, at the start. What cannot be learned is refused: engines that die
    with their agent are found out too late. Where each engine gets a scope of its own (``has_scopes``), the unit's
    settings do not reach it.
    """
    groups = group_paths() if paths is None else paths
    path = groups.get("") if groups.get("", "/") != "/" else groups.get("name=systemd", "/")
    parts = [part for part in (path or "/").split("/") if part.endswith((".service", ".scope"))]
    if (own_scope("") is not None) if has_scopes is None else has_scopes:
        return ""
    if not systemd_runs.exists() or not parts or not parts[-1].endswith(".service"):
        return ""
    unit, is_user = parts[-1], len(parts) > 1 and parts[0].startswith("user@")
    try:
        settings = (ask or _ask_systemd)(unit, is_user)
    except (OSError, subprocess.SubprocessError) as unknown:
        return (
            f"this agent runs as {unit}, and systemd did not say whether its restart kills the engines ({unknown}). "
            f"Make 'systemctl show -p KillMode,OOMPolicy {unit}' answer, then restart the agent."
        )
    wrong = []
    if settings.get("KillMode") not in SAFE_KILL_MODES:
        wrong.append(f"KillMode={settings.get('KillMode', 'unknown')}: a restart of the agent would kill every engine")
    if settings.get("OOMPolicy") != SAFE_OOM_POLICY:
        wrong.append(f"OOMPolicy={settings.get('OOMPolicy', 'unknown')}: one engine out of memory would end them all")
    if not wrong:
        return ""
    return (
        f"{unit} has {'; '.join(wrong)}. Set KillMode=process and OOMPolicy=continue in its [Service] section, "
        f"then run systemctl daemon-reload and restart the agent."
    )


def _ask_systemd(unit: str, is_user: bool) -> dict[str, str]:
    """KillMode and OOMPolicy of a unit. Raises OSError, SubprocessError."""
    manager = ["--user"] if is_user else []
    command = ["systemctl", *manager, "show", "-p", "KillMode,OOMPolicy", "--", unit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SYSTEMCTL_SECONDS, check=True)
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
