"""Guards about memory: whether what a plan puts on each device, host and machine fits there."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from backend.contract.findings import Finding, has_refusal, refuse, warn
from backend.contract.naming import few_of
from backend.contract.reports import HostReport
from backend.contract.words import HostId
from backend.planning.engines.rules import demanded
from backend.planning.fleet import HOST_MEMORY, available_memory, holders_on, machine_memory, machine_of
from backend.planning.guards.situation import Guard, Situation
from backend.planning.guards.table import refusing, warning


def memory(situation: Situation) -> Iterator[Finding]:
    """Every device against the sum of the shards that the plan puts on it."""
    for report in situation.reports:
        for name, held in _by_device(situation, report.host).items():
            need, free = sum(held.values()), available_memory(report, name)
            if need > free and (name == HOST_MEMORY or name in {device.name for device in report.facts.devices}):
                nodes = " + ".join(f"{node} {_mib(size)}" for node, size in held.items())
                others = holders_on(report, name)
                beside = f"; there are {few_of(others, 4)}" if others else ""
                yield refuse(
                    "memory.short",
                    f"{name} on {report.host}",
                    expected=f"{_mib(need)} free: {nodes}",
                    found=f"{_mib(free)} neither in use nor promised to others{beside}",
                    remedy="Unload something there, lower context, or spread the replica over more hosts.",
                )
                yield from _smaller_batch(situation, report, name, free)


def _smaller_batch(situation: Situation, report: HostReport, name: str, free: int) -> Iterator[Finding]:
    """The largest micro-batch with which the shards would fit, where a smaller one is enough."""
    profile, rules, model = situation.plan.profile, situation.rules, situation.model
    counts = tuple(seat.layers[1] - seat.layers[0] for seat in situation.seats if seat.layers is not None)
    shards = [shard for shard in situation.shards_on(report.host) if name in shard.all_devices]
    if model is None or not counts or has_refusal(rules.check_options(profile)):
        return

    def fits(n_ubatch: int) -> bool:
        smaller = msgspec.structs.replace(profile, n_ubatch=n_ubatch)
        bounds = rules.bounds(model, smaller, counts)
        # What the profile's memory demands beyond the derived sizes is demanded of every micro-batch.
        demands = ((bounds[shard.rank], profile.memory * situation.takes_device(shard)) for shard in shards)
        return sum(demanded(bound, memory).memory for bound, memory in demands) <= free

    low, high = 0, min(profile.n_ubatch, profile.n_batch) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    if low > 0:
        yield refuse(
            "ubatch.memory",
            f"{name} on {report.host}",
            expected=f"n_ubatch of at most {low}, with which the estimate fits {_mib(free)}",
            found=f"n_ubatch = {profile.n_ubatch} in the profile",
            remedy="The engine would take it, load it all, and run out of memory at the first long prompt. Lower it.",
        )


def machine(situation: Situation) -> Iterator[Finding]:
    """Agents of one machine each see all of its memory as free."""
    machines: dict[str, list[HostReport]] = {}
    for report in situation.reports:
        machines.setdefault(machine_of(report), []).append(report)
    for together in machines.values():
        needs = {each.host: sum(_by_device(situation, each.host).get(HOST_MEMORY, {}).values()) for each in together}
        free, need = machine_memory(situation.fleet, together[0]), sum(needs.values())
        fits_alone = all(needs[each.host] <= available_memory(each, HOST_MEMORY) for each in together)
        if len(together) > 1 and need > free and fits_alone:
            yield refuse(
                "memory.machine",
                ", ".join(needs),
                expected=f"{_mib(need)} free together: " + " + ".join(f"{host} {_mib(n)}" for host, n in needs.items()),
                found=f"{_mib(free)}, which each of them counts as its own, as they are one machine",
                remedy="The kernel would end the largest of them. Name a host of another machine, or lower context.",
            )


def limited(situation: Situation) -> Iterator[Finding]:
    """In a unit or container with a memory limit the mapped model file and its page cache count as well."""
    for report in situation.reports:
        held = _by_device(situation, report.host).get(HOST_MEMORY, {})
        leads = any(shard.rank == 0 for shard in situation.shards_on(report.host))
        file = situation.rules.mapped_bytes(situation.model, situation.plan.profile) if situation.model and leads else 0
        need, limit = sum(held.values()) + file, report.facts.memory_limit
        if held and limit and need > limit:
            yield refuse(
                "memory.limited",
                report.host,
                expected=f"a limit of {_mib(need)} or more: {_mib(need - file)} of shards, {_mib(file)} of mapped file",
                found=f"{_mib(limit)}, the memory limit of its agent's unit or container",
                remedy="The kernel would end the leader (signal 9) within the load. Raise the limit (MemoryMax=).",
            )


def mapped(situation: Situation) -> Iterator[Finding]:
    """Rank 0 maps the model's file while it loads; in a limited unit or container that counts as its memory."""
    if situation.model is None:
        return
    file = situation.rules.mapped_bytes(situation.model, situation.plan.profile)
    for shard, report in situation.seated:
        on_host = [other for other in situation.shards_on(report.host) if other.device == HOST_MEMORY]
        need, free = sum(other.bound.memory for other in on_host), available_memory(report, HOST_MEMORY)
        if shard.rank == 0 and need <= free < need + file:
            yield warn(
                "memory.mapped",
                f"{shard.node_id} on {shard.host}",
                expected=f"{_mib(need + file)} free: {_mib(need)} of shards, and {_mib(file)} of mapped file",
                found=f"{_mib(free)}",
                remedy="The load will be slow; under a memory limit the kernel would end the leader (signal 9).",
            )


def _by_device(situation: Situation, host: HostId) -> dict[str, dict[str, int]]:
    """Bytes per device of a host, by shard. A shard of several devices is on each in equal parts."""
    found: dict[str, dict[str, int]] = {}
    for shard in situation.shards_on(host):
        names = shard.all_devices
        for name in names:
            found.setdefault(name, {})[shard.node_id] = -(-shard.bound.memory // len(names))
    return found


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


GUARDS: tuple[Guard, ...] = (
    refusing("memory.short", "an end after the full load", "Lower context, add hosts.", "derived bounds", memory),
    refusing(
        "ubatch.memory",
        "an engine that runs out of memory at its first long prompt",
        "Lower n_ubatch to the number given.",
        "the compute estimate",
        memory,
    ),
    refusing(
        "memory.machine",
        "two agents that count the same free memory",
        "Name a host of another machine.",
        "boot ids and free memory",
        machine,
    ),
    warning("memory.mapped", "a slow load, or an end by the kernel", "Free memory.", "the mapped model file", mapped),
    refusing(
        "memory.limited",
        "a leader ended by the kernel (signal 9) for its page cache",
        "Raise MemoryMax of the unit.",
        "the memory limit of the unit or container",
        limited,
    ),
)
