"""What the host has: engines, devices and what of them is spoken for. Measured here, decided on by the core."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from backend.agent.config import P4_ENGINE, AgentConfig, ConfigError
from backend.agent.core.capacity import committed_memory
from backend.agent.core.state import Capacity
from backend.agent.descriptors import OUT_OF_DESCRIPTORS
from backend.agent.devices import cpu_device, read_gpus
from backend.agent.facts import host_facts, refuses_loads
from backend.agent.foreign_watch import ForeignWatch
from backend.agent.illness import Health, judge
from backend.agent.journal_home import why_unknown_refuse
from backend.agent.listed import ListedDevices
from backend.agent.vitals import VitalSigns
from backend.contract.entities import Entities, LoadRecord, Shard
from backend.contract.reports import DeviceFacts, EngineFacts, ForeignProcess, HostFacts, Illness, same_device
from backend.contract.words import UnixMs
from backend.engines.driver import AskingDriver, Driver, EngineMissing
from backend.engines.p4.adoption import adoptable, adopted
from backend.engines.registry import driver_for
from backend.versions import RINGTOP_VERSION

if TYPE_CHECKING:
    from backend.agent.journal import DamagedJournal, Journal

FOREIGN_SECONDS = 3.0
"""How often foreign engines are looked for: it takes milliseconds, more where thousands of processes run."""
NOISE_BYTES = 64 << 20
"""Free memory that moved by less than this is not worth telling every console."""


class Inventory:
    """The measured host. ``facts`` is the last measurement; ``drivers`` the engines that are configured."""

    def __init__(self, config: AgentConfig, journal: Journal | DamagedJournal) -> None:
        self._config = config
        self._journal = journal
        self._refuses_loads = refuses_loads()
        self._engines: tuple[EngineFacts, ...] = ()
        self._asking: asyncio.Task[tuple[EngineFacts, ...]] | None = None
        self._foreign = ForeignWatch(Path(config.state) / "runs", config.model_roots)
        self._foreign_at = 0.0
        self._told: tuple[object, ...] = ()
        self._unknown = ""
        self._vitals = VitalSigns(config, journal)
        self.health = Health()
        self.drivers: dict[str, Driver] = {}
        for name, engine in config.engines.items():
            try:
                folder = Path(engine.folder) if engine.folder else None
                p4 = engine.settings if name == P4_ENGINE else None
                self.drivers[name] = driver_for(name, folder, p4, Path(config.state))
            except EngineMissing as error:
                raise ConfigError(f"engines.{name}: {error}") from error
        self._listed = ListedDevices(self.drivers, config.device_cap)
        self.facts: HostFacts

    def use(self, journal: Journal | DamagedJournal) -> None:
        """Speak of this journal from now on: another one took the place of the first."""
        self._journal = journal
        self._vitals = VitalSigns(self._config, journal)

    async def measure(self, entities: Entities) -> bool:
        """Measure again; whether anything moved that a console should hear of.

        Without a descriptor to measure with, what was measured last stands; its illness says so.
        """
        try:
            return await self._measure(entities)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not hasattr(self, "facts"):
                raise
            return await self.look(entities)

    async def _measure(self, entities: Entities) -> bool:
        before = getattr(self, "facts", None)
        self._engines = await self._all_engine_facts()
        gpus = await read_gpus()  # first: they tell which of them a foreign engine is on
        await self._look_for_foreign(entities)
        if before is None or self._unknown:
            # Only what ran before this agent can be unknown to its journal; what it starts itself is written first.
            self._unknown = await asyncio.to_thread(why_unknown_refuse, self._config, entities)
        await self._judge(entities)
        await self._listed.look(self._engines, entities)
        devices = self._with_listed([self._cpu(), *gpus.devices], entities)
        self.facts = host_facts(
            host=self._config.host,
            agent_version=RINGTOP_VERSION,
            devices=devices,
            engines=self._engines,
            ports=self._config.ports,
            advertise=self._config.advertise,
            model_roots=self._config.model_roots,
            journal=self._journal.health,
            refuses_loads=self._why_no_loads(),
            now=UnixMs(time.time_ns() // 1_000_000),
            illnesses=self.health.illnesses,
            foreign=self._foreign.processes(entities),
            pool=self._config.pool,
            fabric=self._config.fabric,
            cores=self._config.cores,
            power_w=self._config.power_w,
        )
        return before is None or _moved(before, self.facts)

    async def look(self, entities: Entities, *, is_watched: bool = True, patience: float = 0.0) -> bool:
        """Look at what costs little: the host's health, and now and then at foreign engines and engines' own agents.

        Whether an illness began, changed its degree or ended, or a foreign engine came or went. Those are looked for
        only while somebody watches (``is_watched``). The answers of agents are waited for ``patience`` seconds; what
        comes later counts at the next look.
        """
        if is_watched and time.monotonic() - self._foreign_at >= FOREIGN_SECONDS:
            await self._look_for_foreign(entities)
        if is_watched:
            await self._ask_agents(patience)
        await self._judge(entities)
        self.facts = msgspec.structs.replace(
            self.facts,
            engines=self._engines,
            illnesses=self.health.illnesses,
            refuses_loads=self._why_no_loads(),
            foreign=self._foreign.processes(entities),
            devices=self._with_listed(self.facts.devices, entities),
        )
        settled = _settled(self.facts)
        told, self._told = self._told, (_degrees(self.health.illnesses), settled.foreign, settled.engines)
        return told != self._told

    async def _ask_agents(self, patience: float) -> None:
        """Begin to ask engines with agents of their own, unless that is under way; a silent one holds nobody up."""
        if self._asking is None and any(isinstance(driver, AskingDriver) for driver in self.drivers.values()):
            self._asking = asyncio.create_task(self._all_engine_facts())
        asking = self._asking
        if asking is None:
            return
        done, _ = await asyncio.wait({asking}, timeout=patience)
        if done and self._asking is asking:  # another look may have waited for the same answer
            self._asking, self._engines = None, asking.result()

    async def _all_engine_facts(self) -> tuple[EngineFacts, ...]:
        return tuple([await self._engine_facts(name) for name in sorted(self.drivers)])

    async def _judge(self, entities: Entities) -> None:
        asked = [name for name, driver in self.drivers.items() if isinstance(driver, AskingDriver)]
        engines = tuple(engine for engine in self._engines if engine.engine in asked)
        vitals = msgspec.structs.replace(await self._vitals.take(), engines=engines)
        self.health = judge(self.health, vitals, entities)

    async def _look_for_foreign(self, entities: Entities) -> None:
        self._foreign_at = time.monotonic()
        try:
            await self._foreign.look(entities)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS:
                raise

    def foreign_now(self, pid: int, entities: Entities) -> ForeignProcess | None:
        """The foreign engine of this pid as it is at this moment; None when there is none, or none can be seen."""
        try:
            return self._foreign.find_now(pid, entities)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS:
                raise
            return None

    def capacity(self, entities: Entities) -> Capacity:
        """What the core decides reservations on, with the main memory read at this moment.

        When it cannot be read, as without a file descriptor left, the last measurement stands and no load is taken.
        """
        try:
            cpu = self._cpu()
        except OSError as error:
            why = f"the free memory of {self._config.host} cannot be read: {error.strerror}"
            return Capacity(devices=self.facts.devices, ports=self._config.ports, refuses_loads=why)
        config = self._config
        measured = [cpu if device.name == "CPU" else device for device in self.facts.devices]
        devices = self._with_listed(measured, entities)
        return Capacity(
            devices=devices,
            ports=config.ports,
            refuses_loads=self._why_no_loads(),
            cores=config.cores or os.cpu_count() or 1,
            power=config.power_w,
        )

    def _cpu(self) -> DeviceFacts:
        """Main memory; the files that foreign engines have mapped are free by the kernel's count, and in use."""
        cpu = cpu_device(self._config.device_cap("CPU"))
        return msgspec.structs.replace(cpu, free=max(0, cpu.free - self._foreign.mapped))

    def _why_no_loads(self) -> str:
        return "; ".join(filter(None, (self._refuses_loads, self._unknown, self.health.refuses_loads)))

    async def _engine_facts(self, name: str) -> EngineFacts:
        """What one engine is: once found out it stays so, but for one whose own agent has its own life."""
        known = next((engine for engine in self._engines if engine.engine == name), None)
        if known is not None and not known.words and not isinstance(self.drivers[name], AskingDriver):
            return known
        try:
            return await self.drivers[name].facts()
        except EngineMissing as error:
            words = str(error)
        except Exception as error:  # noqa: BLE001  one engine's odd answer must not take the other engines' agent along
            words = f"a fault of ringtop's agent while it looked at {name}: {type(error).__name__}: {error}"
            if known is None or known.words != words:
                sys.stderr.write(f"{words}\n{traceback.format_exc()}")
        folder = self._config.engines[name].folder
        return EngineFacts(engine=name, folder=folder, release="", devices=(), words=words)

    def _with_listed(self, devices: Sequence[DeviceFacts], entities: Entities) -> tuple[DeviceFacts, ...]:
        """The devices that were measured and those of engines' lists as of now, capped, with what is committed."""
        measured = [device for device in devices if not device.listed_by]
        every = [*measured, *self._listed.devices(measured, entities)]
        return tuple(self._committed(device, every, entities) for device in every)

    def _committed(self, device: DeviceFacts, every: Sequence[DeviceFacts], entities: Entities) -> DeviceFacts:
        cap = self._config.device_cap(device.name)
        total = device.total if cap is None else min(cap, device.total)
        committed = sum(committed_memory(entities, name) for name in same_device(every, device.name))
        return msgspec.structs.replace(device, total=total, committed=committed)


def discovered(facts: HostFacts, entities: Entities, now: UnixMs) -> list[tuple[Shard, LoadRecord]]:
    """What engines' own agents run that nobody here asked for, where their loader's record says what it is."""
    ours = {shard.resident for shard in entities.shards.values() if shard.resident is not None}
    found = [
        adopted(facts.host, engine.resident.address, node, now)
        for engine in facts.engines
        if engine.resident is not None
        for node in adoptable(engine.resident)
    ]
    return [(shard, load) for shard, load in found if shard.resident not in ours]


def _moved(old: HostFacts, new: HostFacts) -> bool:
    if abs(old.memory_free - new.memory_free) > NOISE_BYTES:
        return True
    if _settled(old) != _settled(new) or bool(old.refuses_loads) != bool(new.refuses_loads):
        return True
    if _degrees(old.illnesses) != _degrees(new.illnesses):
        return True
    return [_still(device) for device in old.devices] != [_still(device) for device in new.devices]


def _still(device: DeviceFacts) -> DeviceFacts:
    minute = UnixMs(device.listed_unix_ms // 60_000)  # so that a list that says the same is not shown as an old one
    return msgspec.structs.replace(device, free=device.free // NOISE_BYTES, listed_unix_ms=minute)


def _settled(facts: HostFacts) -> HostFacts:
    """The facts without what swings by itself or is compared apart."""
    foreign = tuple(msgspec.structs.replace(each, memory=None, device_memory=None) for each in facts.foreign)
    return msgspec.structs.replace(
        facts,
        memory_free=0,
        measured_unix_ms=UnixMs(0),
        devices=(),
        illnesses=(),
        refuses_loads="",
        foreign=foreign,
    )


def _degrees(illnesses: tuple[Illness, ...]) -> list[tuple[str, str, bool]]:
    """What of illnesses is worth telling: not each new number in their words."""
    return [(ill.kind, ill.subject, ill.refuses_loads) for ill in illnesses]
