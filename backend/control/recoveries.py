"""Recoveries on request: measured and planned; and whether a plan that was confirmed still holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal

import msgspec

from backend.contract.commands import LookAtResident
from backend.contract.naming import few_of
from backend.contract.residents import ResidentLook
from backend.contract.states import HostState
from backend.contract.words import OpId
from backend.control.asking import Asking, host_of
from backend.control.cannot_answer import CannotAnswer
from backend.control.confirming import check_confirmed, check_deadline
from backend.control.derive import OPEN_STATES
from backend.control.exit_codes import DONE, REFUSED, UNREACHABLE
from backend.control.fleet_facts import target_of
from backend.control.keeper_answers import keeper_of
from backend.control.operations.recovery import LOOK_SECONDS
from backend.control.reach import Reach
from backend.control.recovery_document import RecoveryPlan, recovery_digest, recovery_moved
from backend.control.recovery_plan import make_recovery
from backend.control.requests import PlanRecovery, StartRecovery
from backend.control.views import Answer, FleetState, OperationView, Target
from backend.control.wall_clock import now_unix_ms

KIND = "recovery"


class Recoveries:
    """Plans recoveries and checks those that were confirmed."""

    def __init__(self, reach: Reach, asking: Asking) -> None:
        self._reach = reach
        self._asking = asking

    async def plan(self, op_id: OpId, request: PlanRecovery) -> Answer:
        """The plan; its refusals are in the words, and make the exit code 2."""
        check_deadline(request.deadline_seconds)
        made = await self._made(op_id, request.host, request.leave, request.deadline_seconds)
        refusals = [finding.words for finding in made.findings if finding.is_refusal]
        return Answer(
            op_id=op_id,
            request="PlanRecovery",
            done=True,
            exit_code=REFUSED if refusals else DONE,
            words="\n".join(refusals),
            value={"recovery": made},
        )

    async def confirmed(self, op_id: OpId, request: StartRecovery) -> tuple[tuple[Target, ...], dict[str, Any]]:
        """The targets, which are the ranks at stake, and the operation's options. Raises CannotAnswer."""
        plan = request.plan
        check_confirmed(request.confirmed, plan.digest, recovery_digest(plan), what="plan", again="Make it again")
        check_deadline(request.person_seconds, "the wait for a person's step")
        check_deadline(request.patience_seconds, "the wait for a condition")
        if plan.context != self._reach.state.context:
            raise CannotAnswer(
                REFUSED, f"the plan is of context {plan.context}, this is {self._reach.state.context}. Use --context."
            )
        now = await self._made(op_id, plan.host, plan.leave, plan.deadline_seconds)
        self._check_holds(plan, now)
        if now.moves_journal and not request.move_journal:
            raise CannotAnswer(
                REFUSED,
                f"{now.look.restart}. Nobody approved that, so nothing was touched: it would end the p4 agent of "
                f"{plan.host}, which could not start again. Approve it: --move-journal --why TEXT. "
                f"{now.look.journal.said} go from {now.look.journal.folder} to {plan.aside}; nothing is deleted.",
            )
        if request.move_journal and not request.why:
            raise CannotAnswer(REFUSED, "moving a journal aside is recorded with its reason: add --why TEXT")
        state = self._reach.state
        at_stake = {each.replica for each in plan.replicas}
        targets = tuple(
            target_of(view.host, shard.node_id, shard.rank, shard.node_generation, shard.engine)
            for view in state.hosts.values()
            for shard in view.entities.shards.values()
            if shard.replica in at_stake
        )
        return targets, {
            "recovery": msgspec.to_builtins(plan),
            "digest": plan.digest,
            "hosts": [view.host for view in state.hosts.values() if view.state is HostState.LIVE],
            "move_journal": request.move_journal,
            "why": request.why,
            "person_seconds": request.person_seconds,
            "patience_seconds": request.patience_seconds,
        }

    def _check_holds(self, plan: RecoveryPlan, now: RecoveryPlan) -> None:
        refusals = [finding.words for finding in now.findings if finding.is_refusal]
        if refusals:
            raise CannotAnswer(REFUSED, "\n".join(refusals))
        if moved := recovery_moved(plan, now):
            raise CannotAnswer(
                REFUSED,
                f"the plan no longer holds: {'; '.join(moved)}. Nothing was touched. Make it again: ringtop p4 recover "
                f"{plan.host} --plan -o FILE",
            )
        operation = in_the_way(
            self._reach.state.operations.values(), plan.host, {each.replica for each in plan.replicas}
        )
        if operation is not None:
            raise CannotAnswer(
                REFUSED,
                f"{operation.kind} {operation.id} of {operation.subject} by {operation.by} is {operation.state}. "
                f"Wait for its end, resume it or settle it: ringtop op show {operation.id}",
            )

    async def _made(
        self, op_id: OpId, name: str, leave: Literal["drain", "cut"], deadline_seconds: float
    ) -> RecoveryPlan:
        await self._reach.settle()
        view = host_of(self._reach.state, name)
        if view.state is not HostState.LIVE:
            raise CannotAnswer(UNREACHABLE, f"{view.host} is {view.state.value}: {view.words}")
        if view.facts is not None and all(engine.engine != "p4" for engine in view.facts.engines):
            with_p4 = _with_p4(self._reach.state)
            raise CannotAnswer(
                REFUSED, f"{view.host} has no p4 agent; expected [engines.p4] in its agent.toml. {with_p4}"
            )
        command = LookAtResident(op_id=OpId(f"{op_id}-look"), engine="p4")
        look = await self._asking.ask_for(view.host, command, LOOK_SECONDS, ResidentLook)
        now = now_unix_ms()
        state = self._reach.state
        return make_recovery(
            state,
            state.hosts[view.host],
            look,
            now,
            leave=leave,
            deadline_seconds=deadline_seconds,
            keeper=keeper_of(state),
        )


def in_the_way(operations: Iterable[OperationView], host: str, replicas: Collection[str]) -> OperationView | None:
    """The open operation beside which this host's p4 agent is not recovered, if there is one.

    One on a replica with a rank there, or a recovery: of the same host, or of another under the same ring.
    """
    for each in operations:
        is_recovery = each.kind == KIND and (
            each.subject == host or any(target.host == host for target in each.targets)
        )
        if each.state in OPEN_STATES and (is_recovery or each.subject in replicas):
            return each
    return None


def _with_p4(state: FleetState) -> str:
    """The hosts that have a p4 agent, in words."""
    known = [
        view.host
        for view in state.hosts.values()
        if view.facts is not None and any(engine.engine == "p4" for engine in view.facts.engines)
    ]
    return f"Hosts with one: {few_of(known)}."
