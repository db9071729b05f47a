"""A replica that has gone is planned again by the plan of its load, from within an operation."""

from __future__ import annotations

import asyncio

from backend.contract.commands import InspectModel
from backend.contract.frames import FrameError, convert
from backend.contract.models import ModelFacts
from backend.contract.naming import said_by
from backend.contract.plans import Plan
from backend.contract.words import HostId, OpId, ReplicaId
from backend.control.catalog_reader import CatalogReader
from backend.control.fleet_facts import fleet_facts, highest_planned
from backend.control.ledger_views import LedgerReader
from backend.control.operations.conduct import Conduct
from backend.control.wall_clock import now_unix_ms
from backend.planning.catalog import CatalogError
from backend.planning.fleet import highest_generation
from backend.planning.plan import model_hosts, plan
from backend.planning.reloading import Wanted, recorded_catalog, without_replica
from backend.versions import RINGTOP_VERSION

INSPECT_SECONDS = 30.0


async def plan_again(conduct: Conduct, last: Plan, replica: ReplicaId) -> Plan:
    """The plan of loading it again under the same name, with all its findings."""
    reach = conduct.reach
    try:
        present = await asyncio.to_thread(CatalogReader(reach.context.catalog_path).current)
    except CatalogError:
        present = None  # the plan of its load has all that a catalog says but the geometry that it overrides
    catalog = recorded_catalog(last, present)
    entry, _, profile = catalog.resolve(f"{last.model}:{last.profile_name}")
    wanted = Wanted(f"{last.model}:{last.profile_name}", last.hosts if not profile.hosts else ())
    fleet = fleet_facts(reach.state)
    facts, where, words = await _header(conduct, model_hosts(catalog, fleet, wanted), entry.path)
    known = [highest_generation(report) for report in fleet.reports]
    operations = await asyncio.to_thread(LedgerReader(reach.context.ledger_folder).read)
    return plan(
        catalog,
        without_replica(fleet, replica, profile.port),
        wanted,
        model=facts,
        now_unix_ms=now_unix_ms(),
        model_words=words,
        model_host=where,
        generation_floor=max(*known, highest_planned(operations.values()), 0),
        version=RINGTOP_VERSION,
        replica=replica,
    )


async def _header(
    conduct: Conduct, hosts: tuple[HostId, ...], path: str
) -> tuple[ModelFacts | None, HostId | None, str]:
    """The model's header from the first host that can read it; else why none could."""
    reasons: dict[str, str] = {}
    for host in hosts:
        op_id = OpId(f"{conduct.operation.op_id}-inspect-{host}-{len(conduct.steps)}")
        outcome = await conduct.ask(host, InspectModel(op_id=op_id, path=path), INSPECT_SECONDS)
        if not outcome.succeeded:
            reasons[host] = outcome.words
            continue
        try:
            return convert(outcome.value.get("model"), ModelFacts, "its answer"), host, ""
        except FrameError as error:
            reasons[host] = str(error)
    return None, None, said_by(reasons) or "no live host was named to read it from"
