"""What a plan may know of the fleet, and what each host has left to give."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from statistics import median_low

import msgspec

from backend.contract.naming import by_number
from backend.contract.plans import Plan
from backend.contract.reports import DeviceFacts, EngineFacts, HostReport, same_device
from backend.contract.states import ShardState, shard_state
from backend.contract.words import HostId, LoadGeneration, Port, ReplicaId

DAY_MS = 86_400_000
HOST_MEMORY = "CPU"
"""The device whose memory is the host's own."""
ALLOCATED = frozenset({ShardState.READY, ShardState.DRAINING, ShardState.STOPPING})
"""States in which an engine has taken its memory, so that the free memory is without it."""


class FleetFacts(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The reports of the hosts that are live, why the others are not, and each agent's clock minus ours."""

    reports: tuple[HostReport, ...]
    unreachable: tuple[tuple[HostId, str], ...] = ()
    clock_offsets_ms: dict[HostId, int] = {}

    def report(self, host: str) -> HostReport | None:
        """The report of one host, or None when it is not live."""
        return self._by_host.get(host)

    def same_machine(self, report: HostReport) -> tuple[HostReport, ...]:
        """Every agent on the machine of one, itself included: they share its ports and its memory."""
        return self._by_machine[machine_of(report)]

    @cached_property
    def _by_host(self) -> dict[str, HostReport]:
        return {report.host: report for report in self.reports}

    @cached_property
    def _silent(self) -> dict[str, str]:
        return {str(host): words for host, words in self.unreachable}

    @cached_property
    def _by_machine(self) -> dict[str, tuple[HostReport, ...]]:
        machines: dict[str, list[HostReport]] = {}
        for report in self.reports:
            machines.setdefault(machine_of(report), []).append(report)
        return {machine: tuple(reports) for machine, reports in machines.items()}

    def silence(self, host: str) -> str | None:
        """Why a host of the context is not live, or None."""
        return self._silent.get(host)

    @property
    def hosts(self) -> tuple[HostId, ...]:
        """Every host of the context, live or not, by id."""
        return tuple(sorted({*(report.host for report in self.reports), *(host for host, _ in self.unreachable)}))

    @property
    def clock_median_ms(self) -> int:
        """The agents' median clock minus ours; 0 while no agent's clock is known."""
        return median_low(self.clock_offsets_ms.values()) if self.clock_offsets_ms else 0


def machine_of(report: HostReport) -> str:
    """What tells machines apart; an agent that names no boot is taken as a machine of its own."""
    return report.facts.boot_id or report.host


def is_shared(device: str) -> bool:
    """Whether a device is shared by memory as a matter of course: the CPU is, a GPU is not."""
    return device == HOST_MEMORY


def engine_of(report: HostReport, engine: str) -> EngineFacts | None:
    """The engine as it works on a host, or None when it is not there or does not answer with its release."""
    return next((facts for facts in report.facts.engines if facts.engine == engine and facts.release), None)


def build_of(facts: EngineFacts) -> str:
    """Release and flavour: the backends it was built with, and the processor features it needs.

    The families of its devices stand in for backends that it does not name.
    """
    families = sorted({name.rstrip("0123456789") for name in facts.devices})
    needs = f", needs {' '.join(sorted(facts.cpu_needs))}" if facts.cpu_needs else ""
    return f"{facts.release} for {facts.flavour or ' '.join(families)}{needs}"


def computes(layers: tuple[int, int] | None, device: str) -> bool:
    """Whether a shard takes of its host's CPU and power budgets: it holds layers, or is on a device of its own."""
    return layers is not None or device != HOST_MEMORY


def engine_trouble(report: HostReport, engine: str) -> str:
    """Why a host has no working engine of this kind, in words."""
    for facts in report.facts.engines:
        if facts.engine == engine:
            return facts.words or f"{engine} in {facts.folder} does not say its release"
    return f"engines of its agent: {', '.join(facts.engine for facts in report.facts.engines) or 'none'}"


def device_of(report: HostReport, name: str) -> DeviceFacts | None:
    """One device under the name that the engine gives it, or None."""
    return next((device for device in report.facts.devices if device.name == name), None)


def is_of_a_driver(device: str) -> bool:
    """Whether a driver that agents ask gives such names: then it alone says whether the device is there.

    One that it lost may still stand in a list that an engine made before.
    """
    return device.startswith(("CUDA", "ROCm"))


def how_to_measure(device: str) -> str:
    """What to do so that an agent knows the memory of a device that its engine lists."""
    if is_of_a_driver(device):
        return "see on that host why its GPU driver does not show it (nvidia-smi, /sys/class/drm)"
    return f'set `[devices.{device}] memory = "8GiB"`, or what it has, in agent.toml there and restart the agent'


def available_memory(report: HostReport, name: str) -> int:
    """Bytes of a device that a new shard may take: none promised to another, none taken by anything else.

    Promises that their holders have not allocated yet are still inside the free memory and come off it.
    """
    device = device_of(report, name)
    if device is None:
        # A host may list only its GPUs; what a rank without a device takes still comes out of its memory.
        return report.facts.memory_free if name == HOST_MEMORY else 0
    untaken = sum(_untaken(report, each) for each in same_device(report.facts.devices, name))
    return max(min(device.total - device.committed, device.free - untaken), 0)


def machine_memory(fleet: FleetFacts, report: HostReport) -> int:
    """Bytes of a machine's memory that new shards of all its agents together may take.

    Each agent there sees the whole memory as free, so what one has promised is still in what another one says.
    """
    together = fleet.same_machine(report)
    devices = [device_of(each, HOST_MEMORY) for each in together]
    free = min(
        device.free if device else each.facts.memory_free for each, device in zip(together, devices, strict=True)
    )
    return max(0, free - sum(_untaken(each, HOST_MEMORY) for each in together))


def _untaken(report: HostReport, name: str) -> int:
    """Bytes promised of a device whose holders have not allocated them yet, so that its free memory is with them."""
    entities = report.entities
    untaken = sum(reservation.memory.get(name, 0) for reservation in entities.reservations.values())
    for shard in entities.shards.values():
        state = shard_state(shard.state)
        starting = state is None or (state.is_live and state not in ALLOCATED)
        if shard.device == name and starting:
            untaken += shard.bound.memory
    return untaken


def taken_ports(report: HostReport, *, ended: bool = True) -> dict[Port, str]:
    """Every port of a host that is not to be had, with its holder in words.

    With ``ended`` an ended shard's ports count until it is dismissed: a new load gets new ports.
    """
    taken: dict[Port, str] = dict.fromkeys(report.facts.ports_in_use, "in use by something else on the host")
    for hold in report.entities.holds.values():
        taken.update((port, f"held after {hold.node_id} until {hold.until or 'its proof'}") for port in hold.ports)
    for reservation in report.entities.reservations.values():
        words = f"reserved for {reservation.replica} by {reservation.by}"
        taken.update((port, words) for port in reservation.ports)
    for shard in report.entities.shards.values():
        state = shard_state(shard.state)
        if ended or state is None or not state.is_terminal:
            taken.update((port, f"used by {shard.node_id} ({shard.state})") for port in shard.ports)
    return taken


def holders_on(report: HostReport, device: str) -> list[str]:
    """Who has something of a device at this agent: live shards and what is held after one, and who reserved."""
    entities = report.entities
    found = [
        str(shard.node_id)
        for shard in entities.shards.values()
        if shard.device == device and ((state := shard_state(shard.state)) is None or state.is_live)
    ]
    found += [str(hold.node_id) for hold in entities.holds.values() if hold.device == device]
    found += [str(each.replica) for each in entities.reservations.values() if each.memory.get(device)]
    return sorted(dict.fromkeys(found), key=by_number)


def device_users(report: HostReport) -> dict[str, str]:
    """Every device that somebody of this agent has, by name, with the holder in words."""
    users: dict[str, str] = {}
    for hold in report.entities.holds.values():
        if hold.device:
            users[hold.device] = f"held after {hold.node_id} until {hold.until or 'its proof'}"
    for reservation in report.entities.reservations.values():
        words = f"reserved for {reservation.replica} by {reservation.by}"
        users.update((name, words) for name, memory in reservation.memory.items() if memory)
    plans = _plans_of(report)
    for shard in report.entities.shards.values():
        state = shard_state(shard.state)
        if state is None or state.is_live:
            plan = plans.get((shard.replica, shard.load_generation))
            # Of several devices a shard names the first, and its load record all.
            planned = (each for each in (plan.shards if plan is not None else ()) if each.node_id == shard.node_id)
            others = next((each.devices for each in planned), ())
            users.update(dict.fromkeys((shard.device, *others), f"used by {shard.node_id} ({shard.state})"))
    devices = report.facts.devices
    return {other: words for name, words in users.items() for other in same_device(devices, name)} | users


def _plans_of(report: HostReport) -> dict[tuple[ReplicaId, LoadGeneration], Plan]:
    """The plans of a host's load records, by replica and generation."""
    plans = (record.plan for record in report.entities.loads.values())
    return {(plan.replica, plan.load_generation): plan for plan in plans}


def committed_budget(report: HostReport) -> tuple[int, int]:
    """CPU cores and watts that reservations hold and live shards were promised, by the profiles of their load records.

    What a process takes of them is not something that it reports, so the demand counts.
    """
    plans = _plans_of(report)
    cores = sum(reservation.cores for reservation in report.entities.reservations.values())
    power = sum(reservation.power for reservation in report.entities.reservations.values())
    for shard in report.entities.shards.values():
        state = shard_state(shard.state)
        plan = plans.get((shard.replica, shard.load_generation))
        if plan is not None and (state is None or state.is_live) and computes(shard.layers, shard.device):
            cores += plan.profile.cpu_cores
            power += plan.profile.power
    return cores, power


def highest_generation(report: HostReport) -> int:
    """The highest load generation that a host has ever stored."""
    entities = report.entities
    seen: Iterable[int] = (
        entities.highest_generation,
        *(shard.load_generation for shard in entities.shards.values()),
        *(record.plan.load_generation for record in entities.loads.values()),
        *(reservation.load_generation for reservation in entities.reservations.values()),
        *(node.generation for engine in report.facts.engines if engine.resident for node in engine.resident.nodes),
    )
    return max(seen)


def replica_ids(report: HostReport) -> set[str]:
    """Every replica id that a host still knows of, ended or not."""
    entities = report.entities
    return {
        *(shard.replica for shard in entities.shards.values()),
        *(record.plan.replica for record in entities.loads.values()),
        *(reservation.replica for reservation in entities.reservations.values()),
        *entities.drains,
        *(hold.node_id.rpartition("/")[0] for hold in entities.holds.values()),
    }
