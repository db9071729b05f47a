"""What the host has: engines, devices and what of them is spoken for. Measured here, decided on by the core."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from backend.agent.config import AgentConfig, ConfigError
from backend.agent.core.capacity import committed_memory
from backend.agent.core.state import Capacity
from backend.agent.devices import cpu_device, read_gpus
from backend.agent.facts import host_facts, refuses_loads
from backend.contract.entities import Entities
from backend.contract.reports import DeviceFacts, EngineFacts, HostFacts
from backend.contract.words import UnixMs
from backend.engines.driver import Driver, EngineMissing
from backend.engines.registry import driver_for
from backend.versions import RINGTOP_VERSION

if TYPE_CHECKING:
    from backend.agent.journal import Journal

NOISE_BYTES = 64 << 20
"""Free memory that moved by less than this is not worth telling every console."""


class Inventory:
    """The measured host. ``facts`` is the last measurement; ``drivers`` the engines that are configured."""

    def __init__(self, config: AgentConfig, journal: Journal) -> None:
        self._config = config
        self._journal = journal
        self._refuses_loads = refuses_loads()
        self._engines: tuple[EngineFacts, ...] | None = None
        self.drivers: dict[str, Driver] = {}
        for name, engine in config.engines.items():
            try:
                self.drivers[name] = driver_for(name, Path(engine.folder) if engine.folder else None)
            except EngineMissing as error:
                raise ConfigError(f"engines.{name}: {error}") from error
        self.facts: HostFacts

    async def measure(self, entities: Entities) -> bool:
        """Measure again; whether anything moved that a console should hear of."""
        if self._engines is None or any(engine.words for engine in self._engines):
            self._engines = tuple([await self._engine_facts(name) for name in sorted(self.drivers)])
        devices = [cpu_device(self._config.device_cap("CPU")), *(await read_gpus()).devices]
        before = getattr(self, "facts", None)
        self.facts = host_facts(
            host=self._config.host,
            agent_version=RINGTOP_VERSION,
            devices=[self._committed(device, entities) for device in devices],
            engines=self._engines,
            ports=self._config.ports,
            advertise=self._config.advertise,
            model_roots=self._config.model_roots,
            journal=self._journal.health,
            refuses_loads=self._refuses_loads,
            now=UnixMs(time.time_ns() // 1_000_000),
        )
        return before is None or _moved(before, self.facts)

    def capacity(self, entities: Entities) -> Capacity:
        """What the core decides reservations on, with the main memory read at this moment."""
        cpu = cpu_device(self._config.device_cap("CPU"))
        devices = tuple(cpu if device.name == "CPU" else device for device in self.facts.devices)
        return Capacity(devices=devices, ports=self._config.ports, refuses_loads=self._refuses_loads)

    async def _engine_facts(self, name: str) -> EngineFacts:
        try:
            return await self.drivers[name].facts()
        except EngineMissing as error:
            folder = self._config.engines[name].folder
            return EngineFacts(engine=name, folder=folder, release="", devices=(), words=str(error))

    def _committed(self, device: DeviceFacts, entities: Entities) -> DeviceFacts:
        cap = self._config.device_cap(device.name)
        total = device.total if cap is None else min(cap, device.total)
        return msgspec.structs.replace(device, total=total, committed=committed_memory(entities, device.name))


def _moved(old: HostFacts, new: HostFacts) -> bool:
    if abs(old.memory_free - new.memory_free) > NOISE_BYTES:
        return True
    quiet = {"memory_free": 0, "measured_unix_ms": UnixMs(0), "devices": ()}
    if msgspec.structs.replace(old, **quiet) != msgspec.structs.replace(new, **quiet):
        return True
    return [_still(device) for device in old.devices] != [_still(device) for device in new.devices]


def _still(device: DeviceFacts) -> DeviceFacts:
    return msgspec.structs.replace(device, free=device.free // NOISE_BYTES)
