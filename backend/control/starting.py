"""Requests that become operations: checked against the fleet, written to the ledger, started in their own process."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

from backend.contract.findings import has_refusal
from backend.contract.plans import Plan, plan_digest
from backend.contract.states import TERMINAL
from backend.contract.words import LoadGeneration, OpId
from backend.control.adopting import chosen_shards, stop_options, targets_to_stop
from backend.control.adoption import classify
from backend.control.asking import replica_of
from backend.control.cannot_answer import CannotAnswer
from backend.control.confirming import check_confirmed, check_deadline
from backend.control.contexts import Context
from backend.control.exit_codes import DONE, FAILED, REFUSED
from backend.control.fleet_facts import fleet_facts, target_of
from backend.control.keeper_answers import keeper_stop_options, shard_to_stop
from backend.control.ledger import LedgerError, Operation, create
from backend.control.operations.adopt import target_key
from backend.control.operations.load import targets_of
from backend.control.operations.spare import Spare
from backend.control.reach import Reach
from backend.control.recoveries import KIND as RECOVERY
from backend.control.recoveries import Recoveries
from backend.control.reloads import Reloads
from backend.control.requests import (
    StartAdopt,
    StartDrainRequest,
    StartLoad,
    StartRecovery,
    StartReload,
    StartUnload,
    StopShard,
)
from backend.control.views import Target
from backend.control.wall_clock import now_unix_ms
from backend.planning.plan import recheck


class Starting:
    """Starts operations and collects their processes when they have ended."""

    def __init__(self, context: Context, reach: Reach, who: str, reloads: Reloads) -> None:
        self._context = context
        self._reach = reach
        self._who = who
        self._reloads = reloads
        self._children: list[subprocess.Popen[bytes]] = []
        self._spare = Spare(context)

    def prepare(self) -> None:
        """Have a process ready: an operation is likely to follow."""
        if not self._context.read_only:
            self._spare.prepare()

    def follow(self, child: subprocess.Popen[bytes]) -> None:
        """Collect this process too when it has ended."""
        self._children.append(child)

    def reap(self) -> None:
        """Collect operations' processes that have ended; their outcome is in the ledger."""
        running = [child for child in self._children if child.poll() is None]
        if self._children and not running:
            self._spare.prepare()  # where one operation ended, another may follow
        self._children = running

    def close(self) -> None:
        """End what only waits. Operations go on in their own processes."""
        self._spare.close()

    async def load(self, op_id: OpId, request: StartLoad) -> str:
        """A load by a plan that was confirmed as it stands, and still holds. Returns the operation."""
        wanted = request.plan
        check_confirmed(request.confirmed, wanted.digest, plan_digest(wanted), what="plan", again="Make the plan again")
        findings = (*wanted.findings, *recheck(wanted, fleet_facts(self._reach.state)))
        if has_refusal(findings):
            refusals = [finding.words for finding in findings if finding.is_refusal]
            raise CannotAnswer(REFUSED, "\n".join(dict.fromkeys(refusals)))
        options = {"keep_on_failure": request.keep_on_failure}
        return await self._start(
            op_id, "load", wanted.replica, wanted.load_generation, targets_of(wanted), options, wanted
        )

    async def reload(self, op_id: OpId, request: StartReload) -> str:
        """A reload as it was confirmed."""
        targets, options = self._reloads.confirmed(request)
        return await self._start(
            op_id, "reload", request.replica, request.load_generation, targets, options, request.plan
        )

    async def unload(self, op_id: OpId, request: StartUnload) -> str:
        """An unload of whatever any host has of a replica."""
        state = self._reach.state
        targets = tuple(
            target_of(view.host, shard.node_id, shard.rank, shard.node_generation, shard.engine)
            for view in state.hosts.values()
            for shard in view.entities.shards.values()
            if shard.replica == request.replica
        )
        reservations = [
            [view.host, reservation.op_id]
            for view in state.hosts.values()
            for reservation in view.entities.reservations.values()
            if reservation.replica == request.replica
        ]
        if not targets and not reservations:
            replica_of(state, request.replica)
            raise CannotAnswer(DONE, f"nothing to do: no host has a shard of {request.replica}")
        view = state.replicas.get(request.replica)
        generation = view.load_generation if view else None
        options = {"why": request.why, "reservations": reservations}
        return await self._start(op_id, "unload", request.replica, generation, targets, options)

    async def drain(self, op_id: OpId, request: StartDrainRequest) -> str:
        """A drain of every live rank of a replica."""
        view = replica_of(self._reach.state, request.replica)
        check_deadline(request.deadline_seconds)
        targets = tuple(
            target_of(s.shard.host, s.shard.node_id, s.shard.rank, s.shard.node_generation, s.shard.engine)
            for s in view.shards
            if s.state not in TERMINAL
        )
        if not any(target.rank == 0 for target in targets):
            raise CannotAnswer(
                REFUSED, f"{view.id} is {view.state.value} and has no live leader to empty. Unload it instead."
            )
        options = {
            "deadline_seconds": request.deadline_seconds,
            "at_deadline": request.at_deadline,
            "admission_closed_by": request.admission_closed_by,
            "why": request.why,
        }
        return await self._start(op_id, "drain", view.id, view.load_generation, targets, options)

    async def adopt(self, op_id: OpId, request: StartAdopt) -> str:
        """The stop of strays that a person chose from the adoption document."""
        await self._reach.settle()
        chosen = chosen_shards(request, classify(self._reach.state, now_unix_ms()))
        subject = chosen[0].id if len(chosen) == 1 else f"{len(chosen)} shards"
        generation = chosen[0].load_generation if len(chosen) == 1 else None
        options = stop_options(request, chosen)
        return await self._start(op_id, "adopt", subject, generation, targets_to_stop(chosen), options)

    async def recover(self, op_id: OpId, request: StartRecovery, recovering: Recoveries) -> str:
        """The recovery of a p4 agent by a plan that was confirmed as it stands, and still holds."""
        targets, options = await recovering.confirmed(op_id, request)
        return await self._start(op_id, RECOVERY, request.plan.host, None, targets, options)

    async def stop_shard(self, op_id: OpId, request: StopShard) -> str:
        """The stop of one shard by a keeper, read again by the operation before it acts."""
        target = shard_to_stop(self._reach.state, request)
        options = keeper_stop_options(target, request)
        return await self._start(op_id, "adopt", target_key(target), request.generation, (target,), options)

    async def _start(
        self,
        op_id: OpId,
        kind: str,
        subject: str,
        generation: LoadGeneration | None,
        targets: tuple[Target, ...],
        options: dict[str, Any],
        whole: Plan | None = None,
    ) -> str:
        operation = Operation(
            op_id=op_id,
            kind=kind,
            subject=subject,
            by=self._who,
            context=self._context.name,
            load_generation=generation,
            targets=targets,
            options=options,
            started_unix_ms=now_unix_ms(),
            plan=whole,
        )
        self._children.append(await asyncio.to_thread(_create_and_start, self._context, operation, self._spare))
        return op_id


def _create_and_start(context: Context, operation: Operation, spare: Spare) -> subprocess.Popen[bytes]:
    """Write the ledger file, then start the process, which gets the file's lock."""
    try:
        writer = create(context.ledger_folder, operation)
    except (OSError, LedgerError) as error:
        raise CannotAnswer(
            REFUSED, f"the ledger in {context.ledger_folder} cannot be written, so nothing was sent: {error}"
        ) from error
    try:
        return spare.start(operation.op_id, writer.fd)
    except OSError as error:
        again = f"Nothing was sent. Try again with: ringtop op resume {operation.op_id}"
        raise CannotAnswer(FAILED, f"the process of {operation.op_id} did not start: {error}. {again}") from error
    finally:
        writer.close()
