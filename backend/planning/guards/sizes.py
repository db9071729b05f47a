"""Guards about shape, options, the model file, and whether it all fits."""

from __future__ import annotations

from collections.abc import Iterator

from backend.contract.findings import Finding, refuse, warn
from backend.planning.fleet import HOST_MEMORY, available_memory
from backend.planning.guards.situation import Situation
from backend.planning.placement import matching_devices


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


def result(situation: Situation) -> Iterator[Finding]:
    """The largest result of a shard against what may be kept of one."""
    for shard in situation.plan.shards:
        if shard.bound.result > shard.bound.result_limit:
            yield refuse(
                "bound.result",
                f"{shard.node_id} on {shard.host}",
                expected=f"results of at most {shard.bound.result_limit} bytes",
                found=f"{shard.bound.result} bytes with n_ubatch = {situation.plan.profile.n_ubatch}",
                remedy="Lower n_ubatch in the profile.",
            )


def memory(situation: Situation) -> Iterator[Finding]:
    """Every device against the sum of the shards that the plan puts on it."""
    for report in situation.reports:
        shards = situation.shards_on(report.host)
        for name in dict.fromkeys(shard.device for shard in shards):
            held = [shard for shard in shards if shard.device == name]
            need, free = sum(shard.bound.memory for shard in held), available_memory(report, name)
            if need > free and (name == HOST_MEMORY or name in {device.name for device in report.facts.devices}):
                nodes = " + ".join(f"{shard.node_id} {_mib(shard.bound.memory)}" for shard in held)
                yield refuse(
                    "memory.short",
                    f"{name} on {report.host}",
                    expected=f"{_mib(need)} free: {nodes}",
                    found=f"{_mib(free)} neither in use nor promised to others",
                    remedy="Unload something there, lower context, or spread the replica over more hosts.",
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


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
