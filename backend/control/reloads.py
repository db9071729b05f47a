"""Reload requests: how a replica would be loaded again, and whether what was confirmed still holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from backend.contract.findings import has_refusal
from backend.contract.models import ModelFacts
from backend.contract.plans import Plan, plan_digest
from backend.contract.states import TERMINAL
from backend.contract.words import HostId, OpId, ReplicaId
from backend.control.asking import replica_of
from backend.control.cannot_answer import CannotAnswer
from backend.control.catalog_reader import CatalogReader
from backend.control.confirming import check_confirmed, check_deadline
from backend.control.derive import OPEN_STATES
from backend.control.exit_codes import DONE, REFUSED, UNREACHABLE
from backend.control.fleet_facts import fleet_facts, target_of
from backend.control.reach import Reach
from backend.control.requests import PlanReload, StartReload
from backend.control.views import Answer, FleetState, ReplicaView, Target
from backend.control.wall_clock import now_unix_ms
from backend.planning.catalog import Catalog, CatalogError, UnknownModel
from backend.planning.fleet import FleetFacts, highest_generation
from backend.planning.plan import model_hosts, plan, recheck
from backend.planning.reloading import Wanted, recorded_catalog, without_replica
from backend.versions import RINGTOP_VERSION

BESIDE, IN_PLACE = "replacement first", "in place"
Inspect = Callable[[OpId, tuple[HostId, ...], str], Awaitable[tuple[ModelFacts | None, HostId | None, str]]]


class Reloads:
    """Plans reloads and checks those that were confirmed. ``inspect`` reads a model's header at the first host."""

    def __init__(
        self, reach: Reach, catalog: CatalogReader, inspect: Inspect, highest_planned: Callable[[], int]
    ) -> None:
        self._reach = reach
        self._catalog = catalog
        self._inspect = inspect
        self._highest_planned = highest_planned

    async def plan(self, op_id: OpId, request: PlanReload) -> Answer:
        """The plan, beside the old replica where there is room; its answer's value says which way and why."""
        await self._reach.settle()
        state = self._reach.state
        view = replica_of(state, request.replica)
        fleet = fleet_facts(state)
        if not fleet.reports:
            raise CannotAnswer(UNREACHABLE, f"no agent answers, so the reload of {view.id} cannot be planned")
        try:
            catalog, wanted = await self._what(view, request.plan_of)
            entry, _, profile = catalog.resolve(wanted.target)
            hosts = model_hosts(catalog, fleet, wanted)
            header = await self._inspect(op_id, hosts, entry.path)
        except (CatalogError, UnknownModel) as error:
            raise CannotAnswer(REFUSED, str(error.args[0] if error.args else error)) from error
        leave = leave_of(view)
        reason = f"no rank of {view.id} serves: it is {view.state.value}"
        made = None
        if leave == "drain":
            made = self._made(catalog, fleet, wanted, header, None)
            reason = "there is room beside it"
            if made.is_refused:
                refusal = next(finding.words for finding in made.findings if finding.is_refusal)
                made, reason = None, f"there is no room beside it: {refusal}"
        mode = BESIDE if made is not None else IN_PLACE
        if made is None:
            made = self._made(catalog, without_replica(fleet, view.id, profile.port), wanted, header, view.id)
        refusals = [finding.words for finding in made.findings if finding.is_refusal]
        value = {
            "mode": mode,
            "reason": reason,
            "replica": view.id,
            "load_generation": view.load_generation,
            "leave": leave,
            "endpoint": view.endpoint,
            "plan_of": request.plan_of,
        }
        return Answer(
            op_id=op_id,
            request="PlanReload",
            done=True,
            exit_code=REFUSED if refusals else DONE,
            words="\n".join(refusals),
            plan=made,
            value=value,
        )

    def confirmed(self, request: StartReload) -> tuple[tuple[Target, ...], dict[str, Any]]:
        """The targets that are to go, and the operation's options. Raises CannotAnswer for what holds no more."""
        wanted, state = request.plan, self._reach.state
        check_confirmed(
            request.confirmed, wanted.digest, plan_digest(wanted), what="plan", again="Plan the reload again"
        )
        check_deadline(request.deadline_seconds)
        view = replica_of(state, request.replica)
        if view.load_generation != request.load_generation:
            raise CannotAnswer(
                REFUSED,
                f"{view.id} has generation {view.load_generation} by now, and the reload was planned for "
                f"{request.load_generation}: somebody loaded it meanwhile. Plan the reload again.",
            )
        _refuse_busy(state, view)
        fleet = fleet_facts(state)
        if wanted.replica == view.id:
            fleet = without_replica(fleet, view.id, wanted.profile.port)
        findings = (*wanted.findings, *recheck(wanted, fleet))
        if has_refusal(findings):
            refusals = [finding.words for finding in findings if finding.is_refusal]
            raise CannotAnswer(REFUSED, "\n".join(dict.fromkeys(refusals)))
        return _targets(view), {
            "leave": leave_of(view),
            "deadline_seconds": request.deadline_seconds,
            "at_deadline": request.at_deadline,
            "admission_closed_by": request.admission_closed_by,
            "why": request.why or "reload",
        }

    async def _what(self, view: ReplicaView, plan_of: Literal["last", "now"]) -> tuple[Catalog, Wanted]:
        """The catalog to plan from and the target in it."""
        if plan_of == "now":
            catalog = await asyncio.to_thread(self._catalog.current)
            return catalog, Wanted(f"{view.model}:{view.profile_name}")
        if view.plan is None:
            raise CannotAnswer(
                REFUSED,
                f"no host keeps the load record of {view.id}, so its last plan is not known. Reload it by the "
                "catalog's present profile: --plan-of now",
            )
        try:
            present = await asyncio.to_thread(self._catalog.current)
        except CatalogError:
            present = None  # the load record has all that a catalog says but the geometry that it overrides
        return recorded_catalog(view.plan, present), Wanted(f"{view.plan.model}:{view.plan.profile_name}")

    def _made(
        self,
        catalog: Catalog,
        fleet: FleetFacts,
        wanted: Wanted,
        header: tuple[ModelFacts | None, HostId | None, str],
        replica: ReplicaId | None,
    ) -> Plan:
        facts, where, words = header
        known = [highest_generation(report) for report in fleet_facts(self._reach.state).reports]
        return plan(
            catalog,
            fleet,
            wanted,
            model=facts,
            now_unix_ms=now_unix_ms(),
            model_words=words,
            model_host=where,
            generation_floor=max(self._highest_planned(), *known, 0),
            version=RINGTOP_VERSION,
            replica=replica,
        )


def leave_of(view: ReplicaView) -> Literal["drain", "unload"]:
    """How the old one goes: drained while its leader lives, else unloaded, for nothing is left to empty."""
    lives = any(each.shard.rank == 0 and each.state not in TERMINAL for each in view.shards)
    return "drain" if lives and view.state.value not in TERMINAL else "unload"


def _refuse_busy(state: FleetState, view: ReplicaView) -> None:
    """Nothing else may be at work on it."""
    for operation in state.operations.values():
        if operation.subject == view.id and operation.state in OPEN_STATES:
            raise CannotAnswer(
                REFUSED,
                f"{operation.kind} {operation.id} of {view.id} by {operation.by} is {operation.state}. "
                f"Wait for its end, or see it with: ringtop op show {operation.id}",
            )
    if view.drain is not None and not view.drain.outcome:
        raise CannotAnswer(
            REFUSED,
            f"{view.id} is draining already, by {view.drain.by}. Wait, or end it: ringtop drain {view.id} --cancel",
        )


def _targets(view: ReplicaView) -> tuple[Target, ...]:
    """Every shard that is to go: of one that serves those that live, else also those that ended, to be dismissed."""
    is_drained = leave_of(view) == "drain"
    return tuple(
        target_of(s.shard.host, s.shard.node_id, s.shard.rank, s.shard.node_generation, s.shard.engine)
        for s in view.shards
        if not is_drained or s.state not in TERMINAL
    )
