"""Guards about who else is at it: the same replica twice, other versions, a catalog that is no longer the file's."""

from __future__ import annotations

from collections.abc import Iterator

from backend.contract.findings import Finding, refuse, warn
from backend.contract.plans import Plan
from backend.contract.reports import HostReport
from backend.contract.states import ShardState, shard_state
from backend.planning.fleet import FleetFacts, replica_ids
from backend.planning.guards.situation import Guard, Situation
from backend.planning.guards.table import warning

_STARTING = (
    ShardState.RESERVED,
    ShardState.SPAWNING,
    ShardState.CONNECTING,
    ShardState.LOADING,
    ShardState.WARMING,
)


def twice(situation: Situation) -> Iterator[Finding]:
    """The same model is being loaded in the same shape at this moment: most often a key that was pressed twice."""
    plan = situation.plan
    for report in situation.fleet.reports:
        for replica, words in _being_loaded(plan, report).items():
            yield warn(
                "replica.loading",
                f"{replica} on {report.host}",
                expected=f"no other load of {plan.model}:{plan.profile_name} under way",
                found=words,
                remedy=f"Look at that one first; {plan.replica} would be one more copy beside it.",
            )
            return


def replica_known(plan: Plan, fleet: FleetFacts) -> Iterator[Finding]:
    """A plan made earlier whose replica exists by now."""
    for report in fleet.reports:
        if plan.replica in replica_ids(report):
            yield refuse(
                "replica.twice",
                f"{plan.replica} on {report.host}",
                expected="a replica id that no host knows, as when the plan was made",
                found=f"{report.host} has {plan.replica}",
                remedy="This plan was loaded before, or somebody took its name. Plan again.",
            )


def held(situation: Situation) -> Iterator[Finding]:
    """A person decided that this replica or model is left alone; told once, whoever else keeps the same words."""
    plan = situation.plan
    seen: set[tuple[str, str]] = set()
    for report in situation.fleet.reports:
        for hold in report.entities.operator_holds.values():
            subject = plan.replica if hold.scope == "replica" else plan.model
            if hold.subject != subject or (hold.scope, hold.subject) in seen:
                continue
            seen.add((hold.scope, hold.subject))
            why = f": {hold.why}" if hold.why else ", no reason given"
            yield warn(
                "replica.held",
                hold.subject,
                expected=f"a {hold.scope} that nobody holds",
                found=f"{hold.kind} by {hold.by}, as {report.host} keeps it{why}",
                remedy=f"Ask {hold.by}, or release it first: ringtop resume {hold.subject}.",
            )


def draining(situation: Situation) -> Iterator[Finding]:
    """A host of the plan that somebody is emptying, one replica at a time."""
    for report in situation.reports:
        for drain in report.entities.drains.values():
            if not drain.outcome:
                yield warn(
                    "host.draining",
                    report.host,
                    expected="a host that nobody empties",
                    found=f"{drain.replica} drains there, by {drain.by}{f': {drain.why}' if drain.why else ''}",
                    remedy=f"Ask {drain.by} whether the host is wanted empty, or name another host.",
                )


def skew(situation: Situation) -> Iterator[Finding]:
    """Agents, and this program, of different releases: what one sends the other may not know."""
    versions = {report.host: report.facts.agent_version for report in situation.reports}
    reference = situation.version or next(iter(versions.values()), "")
    side = "this ringtop" if situation.version else next(iter(versions), "")
    for host, version in versions.items():
        if _minor(version) != _minor(reference):
            yield warn(
                "protocol.skew",
                host,
                expected=f"an agent of {reference}, like {side}",
                found=f"{version or 'no version'}",
                remedy="What the newer side sends the older may drop or refuse. Bring both to one release.",
            )


def stale_catalog(situation: Situation) -> Iterator[Finding]:
    """The catalog was edited since it could last be read."""
    if situation.catalog_stale:
        yield warn(
            "catalog.stale",
            situation.plan.model,
            expected="a plan from the catalog as it is in the file",
            found=f"the last one that could be read, as {situation.catalog_stale}",
            remedy="Correct the file; ringtop catalog check says when it can be read.",
        )


def _being_loaded(plan: Plan, report: HostReport) -> dict[str, str]:
    """Replicas of the plan's model that an agent is starting, or holds a reservation for, each in words."""
    found = {
        str(reservation.replica): f"reserved by {reservation.by}"
        for reservation in report.entities.reservations.values()
        if reservation.replica.rpartition("-")[0] == plan.model
    }
    for shard in report.entities.shards.values():
        is_same = (shard.model, shard.profile_name) == (plan.model, plan.profile_name)
        if is_same and shard_state(shard.state) in _STARTING:
            found[shard.replica] = f"{shard.node_id} is {shard.state}"
    return found


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


GUARDS: tuple[Guard, ...] = (
    warning("replica.loading", "one replica loaded twice", "Look at the other load.", "reservations", twice),
    warning(
        "replica.held",
        "a load of what a person holds down",
        "Ask who holds it, or release it: ringtop resume NAME.",
        "what people decided, as the agents keep it",
        held,
    ),
    warning(
        "host.draining",
        "new shards on a host that somebody is emptying",
        "Ask whether the host is wanted empty.",
        "the drains at the plan's hosts",
        draining,
    ),
    warning("protocol.skew", "words that one side drops", "Bring both to one release.", "agent versions", skew),
    warning("catalog.stale", "a plan from an old catalog", "Correct the file.", "catalog.toml", stale_catalog),
)
