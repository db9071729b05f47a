"""Guards about an engine's own agent on each host: its address, journal, slots and nodes, and who submits to it."""

from __future__ import annotations

from collections.abc import Iterator

from backend.contract.findings import Finding, refuse, warn
from backend.contract.reports import HostReport, ResidentFacts
from backend.planning.fleet import engine_of, machine_of
from backend.planning.guards.addresses import is_loopback, is_wildcard
from backend.planning.guards.situation import Guard, Situation
from backend.planning.guards.table import JOURNAL, LOOPBACK, refusing, warning

SLOTS_WARN = 128
SLOTS_CRITICAL = 192
"""Of 256 connections that a p4 agent holds in its life, inbound and outbound together."""


def address(situation: Situation) -> Iterator[Finding]:
    """What it advertises is its identity: on several hosts a loopback address is everybody's own."""
    seen: dict[str, str] = {}
    residents = _residents(situation)
    # On one machine loopback may do, but not beside an agent that is reached by another network.
    several = len({machine_of(report) for report, _ in residents}) > 1 or not all(
        is_loopback(host_of(resident.address)) for _, resident in residents
    )
    for report, resident in residents:
        host = host_of(resident.address)
        if (several and len(residents) > 1 and is_loopback(host)) or is_wildcard(host):
            yield refuse(
                "resident.loopback",
                f"{situation.plan.engine} on {report.host}",
                expected="an address of its own that the agents of the other hosts reach",
                found=f"it advertises {resident.address}",
                remedy="Its peers would send to themselves, and nobody would say so. Start the p4 agent with "
                "tcp://ADDRESS:PORT as its second argument, and write that as advertise of [engines.p4].",
            )
        other = seen.setdefault(resident.address, report.host)
        if other != report.host:
            yield refuse(
                "resident.same",
                f"{situation.plan.engine} on {report.host}",
                expected=f"another address than {other}'s",
                found=f"both advertise {resident.address}",
                remedy="A stage of the one would be looked for at the other. Give each its own.",
            )


def journal(situation: Situation) -> Iterator[Finding]:
    """Its own journal: a LOAD is refused without one, and one that it could not start again on is a risk."""
    for report, resident in _residents(situation):
        if resident.journal != "ok":
            yield refuse(
                "resident.journal",
                f"{situation.plan.engine} on {report.host}",
                expected="a journal folder that its agent was started with and can write",
                found=resident.journal or "nothing is known of it",
                remedy="Start the p4 agent with P4_EVENT_OUTBOUND_JOURNAL_DIR set, and name the folder as journal of "
                "[engines.p4] in agent.toml.",
            )
        if resident.restart:
            yield warn(
                "resident.restart",
                f"{situation.plan.engine} on {report.host}",
                expected="an agent that could start again after a crash",
                found=resident.restart,
                remedy="If it ends, this ring ends with it and stays down until the journal is moved aside by hand.",
            )


def slots(situation: Situation) -> Iterator[Finding]:
    """Its connection slots: at 256 it takes nobody, and nothing tells."""
    for report, resident in _residents(situation):
        used, hidden = resident.sockets or 0, resident.hidden or 0
        if used < SLOTS_WARN and not hidden:
            continue
        make = refuse if used >= SLOTS_CRITICAL else warn
        yield make(
            "resident.slots",
            f"{situation.plan.engine} on {report.host}",
            expected=f"fewer than {SLOTS_WARN} sockets, none of them hidden",
            found=f"{used} sockets, {hidden} hidden: connections that ended without FINISH, lost until it restarts",
            remedy="At 256 it accepts nobody and says nothing. Unload its rings and start the p4 agent again in time.",
        )


def names(situation: Situation) -> Iterator[Finding]:
    """A node of a planned name that is there already: the LOAD would be refused after every other stage is up."""
    for report, resident in _residents(situation):
        there = {node.name: node for node in resident.nodes}
        for shard in situation.shards_on(report.host):
            node = there.get(shard.node_id)
            if node is not None:
                yield refuse(
                    "resident.name",
                    f"{shard.node_id} on {report.host}",
                    expected=f"no node of that name at {resident.address}",
                    found=f"one of generation {node.generation}, {node.phase}",
                    remedy="Unload it there, or dismiss the replica that it belongs to, and plan again.",
                )


def bridge(situation: Situation) -> Iterator[Finding]:
    """Whoever submits to the ring compares generations: one that it was not told of is stale to it."""
    for report, resident in _residents(situation):
        leads = any(shard.rank == 0 for shard in situation.shards_on(report.host))
        if leads and resident.taught is False:
            yield warn(
                "resident.untold",
                f"{situation.plan.engine} on {report.host}",
                expected="a bridge that is told of this load: [engines.p4.bridge] in agent.toml",
                found="none: record and hook are not set",
                remedy="A bridge that was not told refuses requests to this ring as stale. Set record or hook, or tell "
                "it by hand after the load.",
            )


def host_of(address: str) -> str:
    """The host of an engine's address, ``tcp://host:port``."""
    return address.partition("://")[2].rpartition(":")[0].strip("[]")


def _residents(situation: Situation) -> list[tuple[HostReport, ResidentFacts]]:
    found = []
    for report in situation.reports:
        facts = engine_of(report, situation.plan.engine)
        if facts is not None and facts.resident is not None:
            found.append((report, facts.resident))
    return found


GUARDS: tuple[Guard, ...] = (
    refusing(
        "resident.loopback",
        "stages that are looked for at themselves, in silence",
        "Advertise an address that the others reach.",
        "what the engine's own agent advertises",
        address,
        drift=LOOPBACK,
    ),
    refusing("resident.same", "a stage looked for elsewhere", "Give each its own.", "its address", address),
    refusing(
        "resident.journal",
        "a LOAD refused after every other stage is up",
        "Start the engine's agent with a journal.",
        "the environment of its process, and its folder",
        journal,
        drift=JOURNAL,
    ),
    warning(
        "resident.restart",
        "an agent that refuses to start again",
        "Move its journal aside in time.",
        "the records in its journal's folder",
        journal,
    ),
    warning(
        "resident.slots",
        "an agent that takes no connection and says nothing",
        "Start it again in time.",
        "the sockets of its process",
        slots,
    ),
    refusing("resident.name", "a LOAD of a name that is taken", "Unload it.", "its nodes", names),
    warning(
        "resident.untold",
        "requests refused as stale after a good load",
        "Set record or hook of the bridge.",
        "agent.toml of the head's host",
        bridge,
    ),
)
