"""``check`` of one planned stage at its host: what the plan relied on, looked at again just before the load. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from backend.contract.findings import Finding, refuse
from backend.contract.plans import Plan, PlannedShard
from backend.contract.reports import EngineFacts, ResidentFacts
from backend.engines.p4.slots import CRITICAL_AT, SLOTS


def check_stage(shard: PlannedShard, plan: Plan, here: EngineFacts) -> Iterator[Finding]:
    """What speaks against this stage here: release, device, address, journal, slots, and a node that has its name."""
    planned = next((fact.release for fact in plan.facts if fact.host == shard.host), None)
    if planned is not None and planned != here.release:
        yield refuse(
            "release.moved",
            f"{here.engine} on {shard.host}",
            expected=f"release {planned}, with which the plan was made",
            found=f"release {here.release} in {here.folder}",
            remedy="Plan again; every rank of a ring needs the same release.",
        )
    if shard.device not in here.devices:
        yield refuse(
            "device.missing",
            f"{shard.device} on {shard.host}",
            expected=f"device {shard.device}, which the plan names",
            found=f"devices that its p4 agent lists: {', '.join(here.devices)}",
            remedy="Device names belong to a backend (CUDA0, ROCm0, MTL0). Name one of these in the profile.",
        )
    if here.resident is not None:
        yield from _check_resident(shard, plan, here.resident)


def _check_resident(shard: PlannedShard, plan: Plan, resident: ResidentFacts) -> Iterator[Finding]:
    subject = f"p4 on {shard.host}"
    address = plan.address_of(shard)
    if resident.address != address:
        yield refuse(
            "address.moved",
            subject,
            expected=f"{address or 'no p4 agent'}, when the plan was made",
            found=f"it advertises {resident.address}",
            remedy="What is sent to the old address goes nowhere, and nobody says so. Plan again.",
        )
    if resident.journal != "ok":
        yield refuse(
            "resident.journal",
            subject,
            expected="a journal folder that its agent was started with and can write",
            found=resident.journal,
            remedy="Start the p4 agent with P4_EVENT_OUTBOUND_JOURNAL_DIR set, and name the folder in agent.toml.",
        )
    if (resident.sockets or 0) >= CRITICAL_AT:
        yield refuse(
            "resident.slots",
            subject,
            expected=f"fewer than {CRITICAL_AT} of its {SLOTS} connection slots in use",
            found=f"{resident.sockets} sockets, {resident.hidden} of them hidden",
            remedy="At 256 it takes nobody and says nothing. Unload its rings and start the p4 agent again.",
        )
    there = next((node for node in resident.nodes if node.name == shard.node_id), None)
    if there is not None:
        yield refuse(
            "resident.name",
            f"{shard.node_id} on {shard.host}",
            expected=f"no node of that name at {resident.address}",
            found=f"one of generation {there.generation}, {there.phase}",
            remedy="Unload it there, or load another replica: p4 would refuse the LOAD after the others are up.",
        )
