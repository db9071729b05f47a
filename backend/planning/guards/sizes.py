"""Guards about shape, options, the model file, and whether it all fits."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from backend.contract.findings import Finding, has_refusal, refuse, warn
from backend.contract.reports import HostReport
from backend.contract.words import HostId
from backend.planning.engines.p4 import P4, cut_as_geometry, is_verified, pairs_that_fit, stage_result
from backend.planning.engines.p4_reported import agreed, cuts_for
from backend.planning.fleet import HOST_MEMORY, available_memory, machine_memory, machine_of
from backend.planning.guards.situation import Situation
from backend.planning.inventory import matching_devices

_SOURCES = 3  # reports, and cuts, that a finding names


def shape(situation: Situation) -> Iterator[Finding]:
    """Ranks against split and layers, by the engine's rules."""
    yield from situation.rules.check_shape(situation.plan.profile, situation.model)


def ranks(situation: Situation) -> Iterator[Finding]:
    """Ranks against the hosts named and the devices there."""
    profile = situation.plan.profile
    if len(situation.named) > profile.ranks:
        yield refuse(
            "ranks",
            situation.plan.replica,
            expected=f"at most {profile.ranks} hosts, from ranks = {profile.ranks}",
            found=f"{len(situation.named)} named: {', '.join(situation.named)}",
            remedy="Raise ranks, or name fewer hosts.",
        )
    for report in situation.reports:
        takes = [shard for shard in situation.shards_on(report.host) if situation.takes_device(shard)]
        names = matching_devices(report, situation.plan.engine, profile.device)
        if names and HOST_MEMORY not in names and len(takes) > len(names):
            yield refuse(
                "ranks",
                report.host,
                expected=f"at most {len(names)} ranks there, one for each of {', '.join(names)}",
                found=f"{len(takes)}: {', '.join(shard.node_id for shard in takes)}",
                remedy="Lower ranks, add hosts, or let device name more of that host's devices.",
            )


def options(situation: Situation) -> Iterator[Finding]:
    """Options against the engine's allowlist."""
    yield from situation.rules.check_options(situation.plan.profile)


def model_file(situation: Situation) -> Iterator[Finding]:
    """The model's header was read, and the file holds what it promises."""
    model, plan = situation.model, situation.plan
    if not situation.rules.reads_header:
        return
    if model is None:
        yield refuse(
            "model.unreadable",
            plan.model,
            expected=f"the header of {plan.model_path}, read by the leader's host",
            found=situation.model_words or "nobody has read it",
            remedy="Put the model file there, whole, or correct path in the catalog.",
        )
    elif not model.is_whole:
        yield refuse(
            "model.truncated",
            model.path,
            expected=f"{model.expected_bytes} bytes by its header",
            found=f"{model.file_bytes} bytes, {model.expected_bytes - model.file_bytes} short",
            remedy="Copy the file again.",
        )


def model_known(situation: Situation) -> Iterator[Finding]:
    """What the engine's rules know of this model."""
    if situation.model is not None:
        yield from situation.rules.check_model(situation.plan.profile, situation.model)


def reported(situation: Situation) -> Iterator[Finding]:
    """A cut that nobody verified, and of which an earlier load's READY said what it takes: offered, not taken."""
    model = situation.model
    if model is None or not isinstance(situation.rules, P4) or is_verified(model):
        return
    heard = cuts_for(situation.reported, model.architecture, model.n_embd, model.header_digest)
    if not heard:
        return
    cuts, sources = agreed(heard), "; ".join(each.source for each in heard[:_SOURCES])
    if not cuts:
        yield warn(
            "bound.reported",
            model.path,
            expected="reports that agree on one cut",
            found=f"{len(heard)} that contradict each other: {sources}",
            remedy="They were of other builds or other files. Load once more and read its READY.",
        )
        return
    offered, *others = (f"cut_tensors = {cut.tensors}, cut_row_bytes = {cut.row_bytes}" for cut in cuts)
    also = f" As well possible: {' or '.join(others[:_SOURCES])}; a load of another n_ubatch decides." if others else ""
    bound = stage_result(situation.plan.profile, cut_as_geometry(model, cuts[0]))
    yield warn(
        "bound.reported",
        model.path,
        expected=f"{offered}, from {sources}",
        found="neither in the catalog",
        remedy=f"Put them under [models.{situation.plan.model}.geometry] and plan again: the largest result of a stage "
        f"is then {bound} bytes.{also}",
    )


def result(situation: Situation) -> Iterator[Finding]:
    """The largest result of a shard against what may be kept of one."""
    profile = situation.plan.profile
    for shard in situation.plan.shards:
        if shard.bound.result > shard.bound.result_limit:
            yield refuse(
                "bound.result",
                f"{shard.node_id} on {shard.host}",
                expected=f"results of at most {shard.bound.result_limit} bytes",
                found=f"{shard.bound.result} bytes with n_batch = {profile.n_batch}, n_ubatch = {profile.n_ubatch}",
                remedy=_pairs(situation) or "Lower n_ubatch in the profile.",
            )


def _pairs(situation: Situation) -> str:
    """The batch sizes that would fit, largest batch first, for an engine whose result depends on both."""
    if not isinstance(situation.rules, P4) or situation.model is None:
        return ""
    pairs = sorted(pairs_that_fit(situation.plan.profile, situation.model), key=lambda pair: -pair.n_batch)
    offered = ", ".join(f"{pair.n_batch} with n_ubatch up to {pair.n_ubatch}" for pair in pairs)
    return f"These fit: n_batch {offered}." if offered else "No batch fits this store. Raise store in options."


def memory(situation: Situation) -> Iterator[Finding]:
    """Every device against the sum of the shards that the plan puts on it."""
    for report in situation.reports:
        for name, held in _by_device(situation, report.host).items():
            need, free = sum(held.values()), available_memory(report, name)
            if need > free and (name == HOST_MEMORY or name in {device.name for device in report.facts.devices}):
                nodes = " + ".join(f"{node} {_mib(size)}" for node, size in held.items())
                yield refuse(
                    "memory.short",
                    f"{name} on {report.host}",
                    expected=f"{_mib(need)} free: {nodes}",
                    found=f"{_mib(free)} neither in use nor promised to others",
                    remedy="Unload something there, lower context, or spread the replica over more hosts.",
                )
                yield from _smaller_batch(situation, report, name, free)


def _smaller_batch(situation: Situation, report: HostReport, name: str, free: int) -> Iterator[Finding]:
    """The largest micro-batch with which the shards would fit, where a smaller one is enough."""
    profile, rules, model = situation.plan.profile, situation.rules, situation.model
    counts = tuple(seat.layers[1] - seat.layers[0] for seat in situation.seats if seat.layers is not None)
    ranks = [shard.rank for shard in situation.shards_on(report.host) if name in shard.all_devices]
    if model is None or not counts or has_refusal(rules.check_options(profile)):
        return

    def fits(n_ubatch: int) -> bool:
        smaller = msgspec.structs.replace(profile, n_ubatch=n_ubatch)
        bounds = rules.bounds(model, smaller, counts)
        return sum(bounds[rank].memory for rank in ranks) <= free

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
