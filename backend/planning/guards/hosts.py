"""Guards about hosts: known, reachable, willing, with the engine and device that the plan wants."""

from __future__ import annotations

from collections.abc import Iterator

from backend.contract.cordons import cordon_remedy
from backend.contract.findings import Finding, refuse, warn
from backend.contract.naming import few_of, nearest, said_by
from backend.contract.reports import HostReport
from backend.planning.fleet import HOST_MEMORY, build_of, committed_budget, engine_of, engine_trouble
from backend.planning.guards.situation import Guard, Situation
from backend.planning.guards.table import JOURNAL, RELEASE, refusing, warning


def unknown(situation: Situation) -> Iterator[Finding]:
    """A host that was named and is not in this context."""
    known = situation.fleet.hosts
    for host in situation.named:
        if host not in known:
            near = nearest(host, known)
            yield refuse(
                "host.unknown",
                host,
                expected=f"one of {few_of(known) if known else 'no hosts at all'}",
                found=f"{host}, which this context does not have",
                remedy=f"{f'Did you mean {near}? ' if near else ''}Correct the profile, or add it to contexts.toml.",
            )


def unreachable(situation: Situation) -> Iterator[Finding]:
    """A host of the plan that is not live."""
    hosts = dict.fromkeys((*situation.named, *(shard.host for shard in situation.plan.shards)))
    for host in hosts:
        words = situation.fleet.silence(host)
        if words is not None and situation.fleet.report(host) is None:
            yield refuse(
                "host.unreachable",
                host,
                expected="a live agent",
                found=words or "silence",
                remedy="Bring its agent back, or name other hosts.",
            )


def none(situation: Situation) -> Iterator[Finding]:
    """No host can take part, and none was named."""
    if not situation.plan.shards and not situation.named:
        reasons = said_by({candidate.host: candidate.reason for candidate in situation.plan.candidates})
        yield refuse(
            "hosts.none",
            situation.plan.replica,
            expected="a host that can take part",
            found=reasons or "a context without hosts",
            remedy="Name hosts in the profile, or change what speaks against these.",
        )


def refuses(situation: Situation) -> Iterator[Finding]:
    """A host whose own agent refuses loads."""
    for report in situation.reports:
        if report.facts.refuses_loads:
            yield refuse(
                "host.refuses",
                report.host,
                expected="an agent that takes loads",
                found=report.facts.refuses_loads,
                remedy="Change what it names on the host and restart its agent, or name another host.",
            )


def cordoned(situation: Situation) -> Iterator[Finding]:
    """A host that somebody keeps new shards away from, although somebody named it."""
    for report in situation.reports:
        yield from host_cordoned(report)


def host_cordoned(report: HostReport) -> list[Finding]:
    """What speaks against new shards on one host, where a person said so."""
    cordon = report.entities.cordon
    if cordon is None:
        return []
    return [
        refuse(
            "host.cordoned",
            report.host,
            expected="a host that takes new shards",
            found=cordon.words,
            remedy=cordon_remedy(report.host),
        )
    ]


def journal(situation: Situation) -> Iterator[Finding]:
    """No journal, no load."""
    for report in situation.reports:
        if report.facts.journal != "ok":
            yield refuse(
                "journal.unhealthy",
                report.host,
                expected="a journal that can be written",
                found=report.facts.journal or "no word of its journal",
                remedy="No journal, no load: free space or repair the journal on the host.",
            )


def engine(situation: Situation) -> Iterator[Finding]:
    """A host without the engine."""
    for report in situation.reports:
        if engine_of(report, situation.plan.engine) is None:
            yield refuse(
                "engine.missing",
                report.host,
                expected=f"a working {situation.plan.engine}",
                found=engine_trouble(report, situation.plan.engine),
                remedy="Install it and name its folder in agent.toml, or choose another host.",
            )


def pool(situation: Situation) -> Iterator[Finding]:
    """A host outside the pool that the profile belongs to, although somebody named it."""
    wanted = situation.plan.profile.pool
    for report in situation.reports:
        if wanted and report.facts.pool != wanted:
            yield refuse(
                "host.pool",
                report.host,
                expected=f"a host of pool {wanted}, from the profile",
                found=f"pool {report.facts.pool}" if report.facts.pool else "a host of no pool",
                remedy="Name another host, or set pool in its agent.toml.",
            )


def fabric(situation: Situation) -> Iterator[Finding]:
    """A host on another network than the profile asks for, or ranks that would cross from one to another."""
    wanted = situation.plan.profile.fabric
    said = {report.host: report.facts.fabric for report in situation.reports}
    for host, found in said.items():
        if wanted and found != wanted:
            yield refuse(
                "host.fabric",
                host,
                expected=f"a host on fabric {wanted}, from the profile",
                found=f"fabric {found}" if found else "a host on no fabric",
                remedy="Name another host, or set fabric in its agent.toml.",
            )
    known = {found for found in said.values() if found}
    if not wanted and len(known) > 1:
        yield warn(
            "fabric.differs",
            situation.plan.replica,
            expected="ranks on one fabric",
            found=", ".join(f"{host} on {found or 'none'}" for host, found in said.items()),
            remedy="Every token would cross between them. Set fabric in the profile, or name other hosts.",
        )


def budgets(situation: Situation) -> Iterator[Finding]:
    """CPU cores and power of a host against what its ranks are said to take, and hosts that have no such budget."""
    profile = situation.plan.profile
    for report in situation.reports:
        count = sum(situation.takes_device(shard) for shard in situation.shards_on(report.host))
        used_cores, used_power = committed_budget(report)
        cores, power = report.facts.cores or report.facts.cpu_count, report.facts.power_w
        if profile.power and count and not power:
            yield warn(
                "host.unbudgeted",
                report.host,
                expected=f"a budget of {profile.power * count} W or more, for {count} ranks of power = {profile.power}",
                found="no power_w in its agent.toml, so that nothing limits what is promised there",
                remedy="Set power_w to what its circuit may give, or take power out of the profile.",
            )
        for id, need, has, used, unit in (
            ("host.cores", profile.cpu_cores * count, cores, used_cores, "CPU cores"),
            ("host.power", profile.power * count, power, used_power, "W"),
        ):
            if need and has and need > has - used:
                yield refuse(
                    id,
                    report.host,
                    expected=f"{need} {unit} left for {count} ranks, from the profile",
                    found=f"{max(0, has - used)} of {has} {unit}",
                    remedy="Unload something there, name another host, or lower the demand in the profile.",
                )


def release(situation: Situation) -> Iterator[Finding]:
    """One release on every rank: a worker of another one ends the leader, or its wire is misread."""
    installed = {
        report.host: facts
        for report in situation.reports
        if (facts := engine_of(report, situation.plan.engine)) is not None
    }
    exact = situation.plan.profile.exact_build
    said = {host: build_of(facts) if exact else facts.release for host, facts in installed.items()}
    if len(set(said.values())) > 1:
        first, *others = said
        for host in others:
            if said[host] != said[first]:
                yield refuse(
                    "release.differs",
                    host,
                    expected=f"{said[first]}, as on {first}" + (" (exact_build)" if exact else ""),
                    found=f"{said[host] or 'no release'} on {host}",
                    remedy=f"Install one release of {situation.plan.engine} on every host of the ring.",
                )


def cpu(situation: Situation) -> Iterator[Finding]:
    """A CPU without an instruction that the engine's build executes on quantized data: it dies of signal 4."""
    if situation.model is None:
        return
    for report in situation.reports:
        facts = engine_of(report, situation.plan.engine)
        on_cpu = any(
            situation.takes_device(shard) and shard.device == HOST_MEMORY for shard in situation.shards_on(report.host)
        )
        if facts is None or not on_cpu:
            continue
        missing = tuple(need for need in facts.cpu_needs if need not in report.facts.cpu_flags)
        what = situation.rules.check_cpu(situation.plan.profile, situation.model, missing)
        if what:
            yield refuse(
                "cpu.features",
                report.host,
                expected=f"{', '.join(missing)}, which this build of {facts.engine} needs for {what} on the CPU",
                found=f"a processor without {', '.join(missing)}",
                remedy="It would die of signal 4 (illegal instruction) at its warm-up. Use an f16 model and cache, a "
                "GPU, or a build made for this processor.",
            )


GUARDS: tuple[Guard, ...] = (
    refusing("host.unknown", "a load planned for a host nobody has", "Correct hosts.", "contexts.toml", unknown),
    refusing(
        "host.unreachable",
        "a load that waits for a host that does not answer",
        "Bring its agent back, or name others.",
        "the links",
        unreachable,
    ),
    refusing("hosts.none", "a plan without any host", "Change what speaks against each.", "placement", none),
    refusing(
        "host.refuses",
        "engines that die when their agent restarts or one of them runs out of memory",
        "Set KillMode=process and OOMPolicy=continue in the agent's unit.",
        "the agent's control group and unit",
        refuses,
    ),
    refusing(
        "host.cordoned",
        "new shards on a host that somebody keeps empty",
        "Load elsewhere, or take it back: ringtop uncordon HOST.",
        "the cordon at the host's agent",
        cordoned,
    ),
    refusing("host.pool", "a load on a host that is kept for others", "Name another host.", "pool in agent.toml", pool),
    refusing("host.fabric", "a ring over the slow network", "Name another host.", "fabric in agent.toml", fabric),
    warning(
        "fabric.differs",
        "every token crossing between two networks",
        "Set fabric.",
        "fabric in agent.toml",
        fabric,
    ),
    refusing(
        "host.cores",
        "more CPU promised than there is",
        "Unload something, or lower cpu_cores.",
        "load records against cores in agent.toml",
        budgets,
    ),
    refusing(
        "host.power",
        "a circuit that trips",
        "Unload something, or lower power.",
        "load records against power_w in agent.toml",
        budgets,
    ),
    warning(
        "host.unbudgeted",
        "watts promised to a host that nobody counts",
        "Set power_w in its agent.toml.",
        "power of the profile against agent.toml",
        budgets,
    ),
    refusing(
        "journal.unhealthy",
        "a load that nobody remembers after a restart",
        "Free space, or repair the journal on the host.",
        "the agent's journal",
        journal,
        drift=JOURNAL,
    ),
    refusing("engine.missing", "a load that no program can serve", "Install it there.", "agent.toml", engine),
    refusing(
        "release.differs",
        "ranks that misread each other, or hang",
        "Install one release on every host of the ring.",
        "the engine's own version on every host",
        release,
        drift=RELEASE,
    ),
    refusing(
        "cpu.features",
        "an engine that dies of signal 4 (illegal instruction) at its warm-up",
        "Use an f16 model and cache, a GPU, or another build.",
        "/proc/cpuinfo against the build",
        cpu,
    ),
)
