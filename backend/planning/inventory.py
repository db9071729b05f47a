"""What one host could give a profile, or why it can give nothing. Pure; worked out once per host and plan."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from backend.contract.plans import Profile
from backend.contract.reports import HostReport
from backend.contract.words import HostId
from backend.planning.fleet import (
    HOST_MEMORY,
    available_memory,
    committed_budget,
    device_users,
    engine_of,
    engine_trouble,
    is_shared,
    taken_ports,
)
from backend.planning.ports import lowest_band


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One host before a profile. ``names`` are its matching devices that may be taken, ``memory`` bytes by device.

    ``cores`` and ``power`` are what is left of its budgets, None where it has none. ``unable`` says why it cannot take
    part, or nothing.
    """

    host: HostId
    report: HostReport
    names: tuple[str, ...]
    memory: dict[str, int]
    cores: int | None
    power: int | None
    unable: str

    @property
    def room(self) -> int:
        """Free bytes on all of its devices."""
        return sum(self.memory[name] for name in self.names)

    def most_ranks(self, profile: Profile, biggest: int, beside: int = 0) -> int:
        """How many ranks of ``biggest`` bytes it can take at most, with ``beside`` bytes of its memory spoken for."""
        limits = []
        shared = [name for name in self.names if profile.share_device or is_shared(name)]
        alone = (len(self.names) - len(shared)) // profile.devices
        if biggest:
            each = -(-biggest // profile.devices)
            alone = sum(self.memory[name] >= each for name in self.names if name not in shared) // profile.devices
            room = sum((self.memory[name] - (beside if name == HOST_MEMORY else 0)) // each for name in shared)
            limits.append(alone + max(0, room) // profile.devices)
        elif not shared:
            limits.append(alone)
        if profile.ranks_per_host:
            limits.append(profile.ranks_per_host)
        if profile.cpu_cores and self.cores is not None:
            limits.append(self.cores // profile.cpu_cores)
        if profile.power and self.power is not None:
            limits.append(self.power // profile.power)
        return min(limits, default=profile.ranks)


def offer_of(report: HostReport, profile: Profile, engine: str) -> Offer:
    """What a host could give this profile now."""
    names = matching_devices(report, engine, profile.device)
    users = device_users(report)
    free = names if profile.share_device else tuple(name for name in names if is_shared(name) or name not in users)
    cores_used, power_used = committed_budget(report)
    facts = report.facts
    cores = max(0, (facts.cores or facts.cpu_count) - cores_used)
    power = max(0, facts.power_w - power_used) if facts.power_w else None
    offer = Offer(
        host=report.host,
        report=report,
        names=free,
        memory={name: available_memory(report, name) for name in dict.fromkeys((*free, HOST_MEMORY))},
        cores=cores,
        power=power,
        unable="",
    )
    return msgspec.structs.replace(offer, unable=_unable(offer, profile, engine, names, users))


def matching_devices(report: HostReport, engine: str, wanted: str) -> tuple[str, ...]:
    """Devices of a host for a profile's ``device``, under the engine's names.

    ``wanted`` has names, patterns (``CUDA*``) or whole uuids, separated by commas.
    """
    installed = engine_of(report, engine)
    names = installed.devices if installed else ()
    uuids = {device.uuid: device.name for device in report.facts.devices if device.uuid}
    patterns = [uuids.get(pattern.strip(), pattern.strip()) for pattern in wanted.split(",")]
    return tuple(dict.fromkeys(name for pattern in patterns for name in names if fnmatchcase(name, pattern)))


def _unable(offer: Offer, profile: Profile, engine: str, names: tuple[str, ...], users: dict[str, str]) -> str:
    """Why a host cannot take part at all, or nothing. What a person set comes before what was measured."""
    facts = offer.report.facts
    installed = engine_of(offer.report, engine)
    if facts.refuses_loads:
        return f"refuses loads: {facts.refuses_loads}"
    if offer.report.entities.cordon is not None:
        return offer.report.entities.cordon.words
    if ill := next((illness.words for illness in facts.illnesses if illness.refuses_loads and not illness.subject), ""):
        return f"is ill: {ill}"
    if facts.journal != "ok":
        return f"its journal is {facts.journal}"
    if profile.pool and facts.pool != profile.pool:
        return f"is in {f'pool {facts.pool}' if facts.pool else 'no pool'}, not {profile.pool}"
    if profile.fabric and facts.fabric != profile.fabric:
        return f"is on {f'fabric {facts.fabric}' if facts.fabric else 'no fabric'}, not {profile.fabric}"
    if installed is None:
        known = any(other.engine == engine for other in facts.engines)
        return f"its {engine} does not work: {engine_trouble(offer.report, engine)}" if known else f"has no {engine}"
    if not names:
        return f"{engine} there has {', '.join(installed.devices) or 'no device'}, not {profile.device}"
    if not offer.names:
        return f"no {profile.device} is free: {'; '.join(f'{name} {users[name]}' for name in names)}"
    if not lowest_band(facts.ports, 1, taken_ports(offer.report).keys()):
        return f"all its ports of {facts.ports[0]}-{facts.ports[1]} are in use, held or reserved"
    if offer.cores is not None and offer.cores < profile.cpu_cores:
        cores = facts.cores or facts.cpu_count
        return f"{offer.cores} of its {cores} CPU cores are left, and a rank needs {profile.cpu_cores}"
    if offer.power is not None and offer.power < profile.power:
        return f"{offer.power} W of its {facts.power_w} W are left, and a rank needs {profile.power} W"
    return ""
