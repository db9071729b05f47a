"""Adopting an engine that no agent started: what it would be adopted as, and the one command that does it."""

from __future__ import annotations

import asyncio

import msgspec

from backend.contract.commands import AdoptForeign
from backend.contract.plans import plan_digest
from backend.contract.reports import ForeignProcess
from backend.contract.states import HostState
from backend.contract.words import HostId, OpId
from backend.control.asking import QUICK_SECONDS, Asking, host_of
from backend.control.cannot_answer import CannotAnswer
from backend.control.catalog_reader import CatalogReader
from backend.control.confirming import check_confirmed
from backend.control.exit_codes import DONE, REFUSED, UNREACHABLE
from backend.control.fleet_facts import fleet_facts
from backend.control.reach import Reach
from backend.control.requests import AdoptForeignRequest, PlanForeign
from backend.control.views import Answer, FleetState, HostView
from backend.control.wall_clock import now_unix_ms
from backend.planning.catalog import CatalogError, UnknownModel
from backend.planning.foreign import plan_adoption

HEARD_SECONDS = 8.0
"""How long its agent may take to ask a foreign engine's port: it looks every few seconds."""


async def plan_foreign(
    reach: Reach, catalog: CatalogReader, op_id: OpId, request: PlanForeign, generation_floor: int
) -> Answer:
    """What adopting the process would make of it, with every finding. Raises CannotAnswer."""
    await reach.settle()
    find_foreign(reach.state, request)
    await reach.until(lambda state: _was_asked(find_foreign(state, request)), HEARD_SECONDS)
    process, fleet = find_foreign(reach.state, request), fleet_facts(reach.state)
    report = fleet.report(request.host)
    if report is None:
        raise CannotAnswer(UNREACHABLE, f"{request.host} fell silent; nothing was adopted")
    try:
        known = await asyncio.to_thread(catalog.current)
        entry, profile_name, profile = known.resolve(request.target)
    except (CatalogError, UnknownModel) as error:
        raise CannotAnswer(REFUSED, str(error.args[0] if error.args else error)) from error
    plan = plan_adoption(
        process,
        report,
        fleet,
        entry,
        profile_name,
        profile,
        now_unix_ms=now_unix_ms(),
        generation_floor=generation_floor,
    )
    refusals = [finding.words for finding in plan.findings if finding.is_refusal]
    return Answer(
        op_id=op_id,
        request="PlanForeign",
        done=True,
        exit_code=REFUSED if refusals else DONE,
        words="\n".join(refusals),
        plan=plan,
        value={"process": msgspec.to_builtins(process)},
    )


def foreign_of(answer: Answer) -> ForeignProcess:
    """The process that an answer to ``PlanForeign`` is about, as its agent saw it then."""
    return msgspec.convert(answer.value["process"], ForeignProcess)


async def adopt_foreign(asking: Asking, who: str, op_id: OpId, request: AdoptForeignRequest) -> str:
    """Have the process recorded at its agent, which looks at it once more first. Raises CannotAnswer."""
    plan, process, state = request.plan, request.process, asking.state
    check_confirmed(request.confirmed, plan.digest, plan_digest(plan), what="plan", again="Plan the adoption again")
    if plan.is_refused:
        refusals = [finding.words for finding in plan.findings if finding.is_refusal]
        raise CannotAnswer(REFUSED, "\n".join(refusals))
    host_of(state, request.host)
    _refuse_known(state, request.host, process)
    command = AdoptForeign(
        op_id=op_id,
        pid=process.pid,
        start_ticks=process.start_ticks,
        boot_id=process.boot_id,
        plan=plan,
        by=who,
        why=request.why,
    )
    await asking.ask(request.host, command, QUICK_SECONDS)
    return (
        f"pid {process.pid} of {request.host} is {plan.replica} now, {plan.model}:{plan.profile_name}, under the "
        f"number {plan.load_generation}. It is drained and stopped like any other: ringtop drain {plan.replica}"
    )


def find_foreign(state: FleetState, request: PlanForeign) -> ForeignProcess:
    """The process that is named. Raises CannotAnswer saying what there is."""
    view = host_of(state, request.host)
    if view.state is not HostState.LIVE or view.facts is None:
        raise CannotAnswer(UNREACHABLE, f"{request.host} is {view.state.value}: {view.words}")
    found = next((each for each in view.facts.foreign if each.pid == request.pid), None)
    if found is None:
        raise CannotAnswer(REFUSED, f"{request.host} has no foreign engine with pid {request.pid}; {_known(view)}")
    _refuse_known(state, request.host, found)
    return found


def _refuse_known(state: FleetState, host: HostId, process: ForeignProcess) -> None:
    """Several agents of one machine see each other's engines as foreign."""
    who = (process.boot_id, process.pid, process.start_ticks)
    for view in state.hosts.values():
        for shard in view.entities.shards.values():
            known = shard.identity
            if known is not None and (known.boot_id, known.pid, known.start_ticks) == who:
                raise CannotAnswer(
                    REFUSED,
                    f"pid {process.pid} of {host} is {shard.node_id} of {view.host}, on the same machine; it is "
                    "nobody's to adopt again",
                )


def _was_asked(process: ForeignProcess) -> bool:
    return bool(process.answers or process.words) or not process.ports


def _known(view: HostView) -> str:
    found = view.facts.foreign if view.facts is not None else ()
    listed = ", ".join(f"{each.pid} ({each.program})" for each in found)
    return f"it has {listed}" if listed else "it has none"
