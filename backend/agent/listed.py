"""Devices that no driver measures and an engine's own list names, such as ``Vulkan0``: by that engine's word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from backend.agent.core.capacity import committed_memory, untaken_memory
from backend.contract.entities import Entities
from backend.contract.reports import DeviceFacts, EngineFacts
from backend.contract.words import UnixMs
from backend.engines.driver import Driver, EngineMissing, ListedDevice, ListingDriver
from backend.planning.fleet import is_of_a_driver, is_shared

LIST_SECONDS = 15.0
"""How often a list is asked for again while somebody watches: it starts a program, which opens the GPU's driver."""
PATIENCE = 1.0
"""How long a measurement waits for a list; what comes later counts at the next one."""


class _Listed(msgspec.Struct, frozen=True):
    """A device of a list, when it was asked for, and what this agent's shards had taken of the device by then."""

    engine: str
    device: ListedDevice
    unix_ms: UnixMs
    taken: int


class ListedDevices:
    """The last list of each engine that has names which no driver has. ``cap`` is the operator's word on a device."""

    def __init__(self, drivers: Mapping[str, Driver], cap: Callable[[str], int | None]) -> None:
        self._drivers = drivers
        self._cap = cap
        self._lists: dict[str, tuple[_Listed, ...]] = {}
        self._words: dict[str, str] = {}
        self._asking: asyncio.Task[None] | None = None
        self._asked_at: float | None = None

    async def look(self, engines: Sequence[EngineFacts], entities: Entities) -> None:
        """Ask again what is old; the first lists are waited for."""
        engines = [each for each in engines if self._only_listed(each)]
        if not engines:
            return
        is_first = self._asked_at is None
        if self._asking is None and (self._asked_at is None or time.monotonic() - self._asked_at >= LIST_SECONDS):
            self._asked_at = time.monotonic()
            self._asking = asyncio.create_task(self._ask(engines, entities))
        if self._asking is None:
            return
        done, _ = await asyncio.wait({self._asking}, timeout=None if is_first else PATIENCE)
        if done:
            asked, self._asking = self._asking, None
            asked.result()

    async def _ask(self, engines: Sequence[EngineFacts], entities: Entities) -> None:
        for facts in engines:
            driver, now = self._drivers[facts.engine], UnixMs(time.time_ns() // 1_000_000)
            try:
                found = await driver.list_devices() if isinstance(driver, ListingDriver) else _names(facts)
            except EngineMissing as error:
                self._words[facts.engine] = f"; it could not be asked again: {error}"
                continue
            except Exception as error:  # noqa: BLE001  one engine's odd list must not take the other engines' agent along
                self._words[facts.engine] = f"; a fault of the agent as it asked again: {type(error).__name__}: {error}"
                continue
            self._words.pop(facts.engine, None)
            self._lists[facts.engine] = tuple(
                _Listed(facts.engine, device, now, _taken(entities, device.name)) for device in found
            )

    def devices(self, measured: Sequence[DeviceFacts], entities: Entities) -> list[DeviceFacts]:
        """Those that are not ``measured``, the devices of the drivers and the CPU."""
        names, found = {device.name for device in measured}, []
        listed = [each for engine in sorted(self._lists) for each in self._lists[engine]]
        for each in listed:
            name = each.device.name
            if name in names or is_of_a_driver(name):
                continue
            names.add(name)
            twin = self._twin(each.device, listed, measured)
            if (facts := self._facts(each, twin, entities)) is not None:
                found.append(facts)
        return found

    def _facts(self, seen: _Listed, twin: DeviceFacts | None, entities: Entities) -> DeviceFacts | None:
        device, cap = seen.device, self._cap(seen.device.name)
        total, free, taken = device.total, device.free, seen.taken
        words = f"{device.words or device.name}, by the list of {seen.engine}{self._words.get(seen.engine, '')}"
        if twin is not None:
            caps = (each for each in (twin.total, self._cap(twin.name)) if each is not None)
            total, free = min(caps), twin.free
            words = f"{words}; the same as {twin.name}"
        elif total is None or free is None:
            if cap is None:
                return None
            total, free, taken, words = cap, cap, 0, f"{words}, which gives no memory: agent.toml does"
        if twin is None:
            free = max(0, free - max(0, _taken(entities, device.name) - taken))
        return DeviceFacts(
            name=device.name,
            uuid="",  # a list has none; the driver's belongs to the driver's name
            kind=device.name.rstrip("0123456789").lower(),
            total=total,
            free=free,
            words=words,
            listed_by=seen.engine,
            listed_unix_ms=seen.unix_ms,
            same_as="" if twin is None else twin.name,
            is_capped_only=twin is None and device.total is None,
        )

    def _twin(
        self, device: ListedDevice, listed: Sequence[_Listed], measured: Sequence[DeviceFacts]
    ) -> DeviceFacts | None:
        """The driver's device of the same description, where that leaves no doubt: one on each side."""
        alike = [each for each in measured if each.words == device.words and not is_shared(each.name)]
        others = {each.device.name for each in listed if each.device.words == device.words} - {device.name}
        return alike[0] if device.words and len(alike) == 1 and not others else None

    def _only_listed(self, facts: EngineFacts) -> bool:
        return any(not is_shared(name) and not is_of_a_driver(name) for name in facts.devices)


def _names(facts: EngineFacts) -> tuple[ListedDevice, ...]:
    """The list of an engine that says names and nothing of memory."""
    return tuple(ListedDevice(name) for name in facts.devices if not is_shared(name))


def _taken(entities: Entities, device: str) -> int:
    """Bytes that this agent's shards have allocated of a device."""
    return committed_memory(entities, device) - untaken_memory(entities, device)
