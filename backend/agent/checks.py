"""``check``: every guard that only this host can run, before anything is started. All are heard out."""

from __future__ import annotations

from pathlib import Path

from backend.agent.core.capacity import taken_ports
from backend.agent.model_files import resolve_model
from backend.agent.ports import can_bind
from backend.agent.soundness import guessed, unsound
from backend.contract.cordons import cordon_remedy
from backend.contract.entities import Entities
from backend.contract.findings import Finding, refuse
from backend.contract.plans import Plan, PlannedShard
from backend.contract.reports import HostFacts
from backend.contract.words import HostId
from backend.engines.driver import AskingDriver, Driver, EngineMissing, ModelUnreadable


async def check_plan(
    plan: Plan,
    facts: HostFacts,
    entities: Entities,
    drivers: dict[str, Driver],
    model_roots: tuple[str, ...],
    journal_health: str,
) -> tuple[Finding, ...]:
    """What speaks against the plan's shards on this host."""
    host = facts.host
    findings: list[Finding] = []
    if journal_health != "ok":
        findings.append(
            refuse(
                "journal.unhealthy",
                host,
                expected="a journal that can be written",
                found=journal_health,
                remedy="No journal, no load: free space or repair the journal on the host.",
            )
        )
    if facts.refuses_loads:
        findings.append(
            refuse(
                "host.refuses",
                host,
                expected="an agent that takes loads",
                found=facts.refuses_loads,
                remedy="Change what it names on the host, then load again.",
            )
        )
    if entities.cordon is not None:
        findings.append(
            refuse(
                "host.cordoned",
                host,
                expected="a host that takes new shards",
                found=entities.cordon.words,
                remedy=cordon_remedy(host),
            )
        )
    driver = drivers.get(plan.engine)
    if driver is None:
        known = ", ".join(sorted(drivers)) or "none"
        return (
            *findings,
            refuse(
                "engine.missing",
                host,
                expected=plan.engine,
                found=f"engines of this agent: {known}",
                remedy="Add the engine to agent.toml, or choose another host.",
            ),
        )
    findings += unsound(plan)
    for shard in plan.on_host(host):
        is_local = shard.rank == 0 or isinstance(driver, AskingDriver)
        findings += _check_ports(shard, plan, entities, "127.0.0.1" if is_local else shard.advertise)
        try:
            findings += _check_launch(shard, plan, driver)
            findings += await driver.check(shard, plan, facts)
            if shard.rank == _reads_model(plan, driver, host):
                findings += await _check_model(plan, driver, model_roots, host)
        except EngineMissing as error:
            findings.append(
                refuse(
                    "engine.missing", host, expected=f"a working {plan.engine}", found=error, remedy="Install it there."
                )
            )
    return tuple(findings)


def _reads_model(plan: Plan, driver: Driver, host: HostId) -> int:
    """The rank for which this host's file is checked, once: every stage of a chain reads it, of a ring the leader."""
    return min(shard.rank for shard in plan.on_host(host)) if isinstance(driver, AskingDriver) else 0


def _check_launch(shard: PlannedShard, plan: Plan, driver: Driver) -> list[Finding]:
    """What would start it is built and thrown away: what that refuses must not be found out with other ranks up."""
    try:
        if isinstance(driver, AskingDriver):
            driver.residence(shard, plan)
        else:
            driver.launch(shard, plan, Path(plan.model_path))
    except EngineMissing:
        raise
    except ValueError as error:
        return [
            refuse(
                "plan.unsound",
                f"{shard.node_id} on {shard.host}",
                expected=f"a command line for its role {shard.role!r}",
                found=error,
                remedy="No plan of this release says that. Plan again, with one release of ringtop everywhere.",
            )
        ]
    return []


def _check_ports(shard: PlannedShard, plan: Plan, entities: Entities, address: str) -> list[Finding]:
    ours = {
        port
        for reservation in entities.reservations.values()
        if reservation.load_generation == plan.load_generation
        for port in reservation.ports
    }
    taken = {port: holder for port, holder in taken_ports(entities).items() if port not in ours}
    findings = []
    for port in shard.ports:
        found = taken.get(port) or can_bind(address, port)
        if found is not None:
            findings.append(
                refuse(
                    "port.taken",
                    f"{shard.node_id} on {shard.host}",
                    expected=f"port {port} free on {address}",
                    found=found,
                    remedy="Stop what uses it, or give the profile another port.",
                )
            )
    return findings


async def _check_model(plan: Plan, driver: Driver, roots: tuple[str, ...], host: str) -> list[Finding]:
    try:
        facts = await driver.inspect(resolve_model(plan.model_path, roots))
    except ModelUnreadable as error:
        return [
            refuse(
                "model.unreadable",
                f"{plan.model} on {host}",
                expected=plan.model_path,
                found=error,
                remedy="Put the model file there, whole, or correct the catalog's path.",
            )
        ]
    findings = []
    if not facts.is_whole:
        findings.append(
            refuse(
                "model.truncated",
                f"{plan.model} on {host}",
                expected=f"{facts.expected_bytes} bytes by its header",
                found=f"{facts.file_bytes} bytes in {facts.path}",
                remedy="Copy the file again.",
            )
        )
    planned = plan.model_facts
    # The catalog may say some of the geometry itself, so a plan of this very file is held to its own.
    same = planned is not None and planned.header_digest == facts.header_digest
    findings += guessed(plan, planned if planned is not None and same else facts)
    if planned is not None and (planned.header_digest, planned.file_bytes) != (facts.header_digest, facts.file_bytes):
        findings.append(
            refuse(
                "model.differs",
                f"{plan.model} on {host}",
                expected=f"header {planned.header_digest[:8]}, {planned.file_bytes} bytes, as planned",
                found=f"header {facts.header_digest[:8]}, {facts.file_bytes} bytes in {facts.path}",
                remedy="Plan again.",
            )
        )
    return findings
