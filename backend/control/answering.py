"""What becomes of each request of the console: a question to agents, or an operation with a process of its own."""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import Any

import msgspec

from backend.contract.commands import ChangeDrain, Command, InspectModel, ReadLog, TestReplica
from backend.contract.entities import Result
from backend.contract.findings import has_refusal
from backend.contract.models import ModelFacts
from backend.contract.plans import Plan, plan_digest
from backend.contract.states import HostState
from backend.contract.words import HostId, LoadGeneration, NodeId, OpId, ReplicaId, UnixMs
from backend.control.adopting import chosen_shards, stop_options, targets_to_stop
from backend.control.adoption import classify
from backend.control.cannot_answer import CannotAnswer
from backend.control.catalog_reader import CatalogReader
from backend.control.contexts import Context
from backend.control.drift_answers import acknowledge_drift, header_read, model_files, reopen_drift
from backend.control.exit_codes import DONE, FAILED, REFUSED, UNKNOWN, UNREACHABLE
from backend.control.fleet_facts import fleet_facts, target_of
from backend.control.journal_questions import journal_question
from backend.control.keeper_answers import (
    claim_keeping,
    hold_subject,
    resign_keeping,
    resume_subject,
    shard_to_stop,
)
from backend.control.ledger import LedgerError, Operation, create
from backend.control.link_ends import AnswerUnknown, Refusal
from backend.control.operations.load import targets_of
from backend.control.operations.spare import Spare
from backend.control.ownerless import Ownerless, as_value, rebuilt_words
from backend.control.reach import Reach, is_settled
from backend.control.reloads import Reloads
from backend.control.requests import (
    AcknowledgeDrift,
    AskJournal,
    ChangeDrainRequest,
    CheckModels,
    ClaimKeeping,
    ForkJournalRequest,
    HoldSubject,
    LogRequest,
    MakePlan,
    PlanReload,
    RebuildLedger,
    ReopenDrift,
    Request,
    ResignKeeping,
    ResumeOperation,
    ResumeSubject,
    RollBackOperation,
    SettleOperation,
    StartAdopt,
    StartDrainRequest,
    StartLoad,
    StartReload,
    StartUnload,
    StopShard,
    TakeSnapshot,
    TestRequest,
)
from backend.control.snapshots import ModelRead, Snapshot
from backend.control.views import Answer, FleetState, ReplicaView, Target
from backend.planning.catalog import CatalogError, UnknownModel
from backend.planning.engines import rules
from backend.planning.plan import model_hosts, plan, recheck
from backend.versions import RINGTOP_VERSION

SETTLE_SECONDS = 10.0
INSPECT_SECONDS = 30.0
QUICK_SECONDS = 15.0
_TEST_SLACK_SECONDS = 10.0


class Answering:
    """Answers requests from the backend's loop."""

    def __init__(self, context: Context, reach: Reach, who: str) -> None:
        self._context = context
        self._reach = reach
        self._who = who
        self.catalog = CatalogReader(context.catalog_path)
        self._ownerless = Ownerless(context, reach, who)
        self._children: list[subprocess.Popen[bytes]] = []
        self._spare = Spare(context)
        self._reloads = Reloads(reach, self.catalog, self._inspect, self._highest_planned)

    async def answer(self, op_id: OpId, request: Request) -> Answer:
        """The final answer to one request; whatever a person did wrong is in its words."""
        kind = type(request).__name__
        try:
            match request:
                case MakePlan():
                    return await self._plan(op_id, request)
                case TakeSnapshot():
                    return await self._snapshot(op_id)
                case StartLoad():
                    words = await self._start_load(op_id, request)
                case PlanReload():
                    return await self._reloads.plan(op_id, request)
                case StartReload():
                    words = await self._start_reload(op_id, request)
                case StartUnload():
                    words = await self._start_unload(op_id, request)
                case StartDrainRequest():
                    words = await self._start_drain(op_id, request)
                case StartAdopt():
                    words = await self._start_adopt(op_id, request)
                case ResumeOperation():
                    self._children.append(await self._ownerless.resume(request.operation))
                    words = request.operation
                case RollBackOperation():
                    self._children.append(await self._ownerless.roll_back(request.operation))
                    words = request.operation
                case SettleOperation():
                    return await self._settle(op_id, request)
                case RebuildLedger():
                    return await self._rebuild(op_id)
                case AcknowledgeDrift():
                    words = await acknowledge_drift(self._context, self._reach.state, self._who, request)
                case ReopenDrift():
                    words = await reopen_drift(self._context, self._reach.state, request)
                case CheckModels():
                    words = await self._check_models(op_id)
                case HoldSubject():
                    words = await hold_subject(self._ask_one, self._reach.state, self._who, op_id, request)
                case ResumeSubject():
                    words = await resume_subject(self._ask_one, self._reach.state, self._who, op_id, request)
                case ClaimKeeping():
                    return await claim_keeping(self._ask_one, self._reach.state, op_id, request)
                case ResignKeeping():
                    words = await resign_keeping(self._ask_one, self._reach.state, self._who, op_id, request)
                case StopShard():
                    words = await self._stop_shard(op_id, request)
                case ChangeDrainRequest():
                    words = await self._change_drain(op_id, request)
                case TestRequest():
                    return await self._test(op_id, request)
                case LogRequest():
                    return await self._log(op_id, request)
                case AskJournal() | ForkJournalRequest():
                    return await self._journal(op_id, request)
                case _:
                    raise TypeError(f"{kind} is no request that the backend knows")
        except CannotAnswer as error:
            return Answer(op_id=op_id, request=kind, done=True, exit_code=error.code, words=str(error))
        return Answer(op_id=op_id, request=kind, done=True, words=words)

    def reap(self) -> None:
        """Collect operations' processes that have ended; their outcome is in the ledger."""
        running = [child for child in self._children if child.poll() is None]
        if self._children and not running:
            self._spare.prepare()  # where one operation ended, another may follow
        self._children = running

    def close(self) -> None:
        """End what only waits. Operations go on in their own processes."""
        self._spare.close()

    # --- plans ----------------------------------------------------------------------------------------------------

    async def _plan(self, op_id: OpId, request: MakePlan) -> Answer:
        await self._reach.until(is_settled, SETTLE_SECONDS)
        fleet = fleet_facts(self._reach.state)
        if not fleet.reports:
            silent = "; ".join(f"{host}: {words}" for host, words in fleet.unreachable)
            raise CannotAnswer(UNREACHABLE, f"no agent answers, so nothing can be planned. {silent}")
        try:
            catalog = await asyncio.to_thread(self.catalog.current)
            hosts = model_hosts(catalog, fleet, request)
            entry, _, _ = catalog.resolve(request.target)
            facts, where, words = await self._inspect(op_id, hosts, entry.path)
            made = plan(
                catalog,
                fleet,
                request,
                model=facts,
                now_unix_ms=_unix_ms(),
                model_words=words,
                model_host=where,
                generation_floor=self._highest_planned(),
                version=RINGTOP_VERSION,
            )
        except (CatalogError, UnknownModel) as error:
            raise CannotAnswer(REFUSED, str(error.args[0] if error.args else error)) from error
        refusals = [finding.words for finding in made.findings if finding.is_refusal]
        code = REFUSED if refusals else DONE
        if not refusals and not self._context.read_only:
            self._spare.prepare()  # a plan is made to be loaded
        return Answer(op_id=op_id, request="MakePlan", done=True, exit_code=code, words="\n".join(refusals), plan=made)

    async def _snapshot(self, op_id: OpId) -> Answer:
        """What the hosts say, and the headers of every model of the catalog that a header is read of."""
        await self._reach.until(is_settled, SETTLE_SECONDS)
        fleet = fleet_facts(self._reach.state)
        try:
            catalog = await asyncio.to_thread(self.catalog.current)
        except CatalogError as error:
            raise CannotAnswer(REFUSED, str(error)) from error
        paths = [each.path for each in catalog.models.values() if not each.trouble and rules(each.engine).reads_header]
        models: dict[str, ModelRead] = {}
        for index, path in enumerate(dict.fromkeys(paths)):
            hosts = tuple(report.host for report in fleet.reports)
            facts, host, words = await self._inspect(OpId(f"{op_id}-{index}"), hosts, path)
            models[path] = ModelRead(facts, host or "", words)
        taken = Snapshot(
            ringtop=RINGTOP_VERSION,
            context=self._context.name,
            taken_unix_ms=_unix_ms(),
            fleet=fleet,
            models=models,
            generation_floor=self._highest_planned(),
        )
        value = {"snapshot": msgspec.to_builtins(taken)}
        return Answer(op_id=op_id, request="TakeSnapshot", done=True, value=value)

    def _highest_planned(self) -> int:
        """The highest generation of any operation of this home."""
        views = self._reach.state.operations.values()
        planned = (view.plan.load_generation for view in views if view.plan is not None)
        return max((*(view.load_generation or 0 for view in views), *planned), default=0)

    async def _inspect(
        self, op_id: OpId, hosts: tuple[HostId, ...], path: str
    ) -> tuple[ModelFacts | None, HostId | None, str]:
        """The model's header from the first host that can read it; else why none could."""
        reasons: list[str] = []
        for host in hosts:
            try:
                result = await self._ask(
                    host, InspectModel(op_id=OpId(f"{op_id}-inspect-{host}"), path=path), INSPECT_SECONDS
                )
                facts = msgspec.convert(result.value.get("model"), ModelFacts)
                self._reach.apply(header_read(host, path, facts, _unix_ms()))
                return facts, host, ""
            except CannotAnswer as error:
                reasons.append(str(error) if str(error).startswith(host) else f"{host}: {error}")
            except msgspec.ValidationError as error:
                reasons.append(f"{host}: its answer cannot be read: {error}")
        return None, None, "; ".join(reasons) or "no live host was named to read it from"

    # --- operations -----------------------------------------------------------------------------------------------

    async def _start_load(self, op_id: OpId, request: StartLoad) -> str:
        wanted = request.plan
        computed = plan_digest(wanted)
        if not request.confirmed == wanted.digest == computed:
            raise CannotAnswer(
                REFUSED,
                f"confirmed was {request.confirmed[:8] or 'nothing'}, the plan says {wanted.digest[:8]} and its "
                f"content gives {computed[:8]}. Make the plan again and confirm what it shows.",
            )
        findings = (*wanted.findings, *recheck(wanted, fleet_facts(self._reach.state)))
        if has_refusal(findings):
            refusals = [finding.words for finding in findings if finding.is_refusal]
            raise CannotAnswer(REFUSED, "\n".join(dict.fromkeys(refusals)))
        options = {"keep_on_failure": request.keep_on_failure}
        return await self._start(
            op_id, "load", wanted.replica, wanted.load_generation, targets_of(wanted), options, wanted
        )

    async def _start_reload(self, op_id: OpId, request: StartReload) -> str:
        targets, options = self._reloads.confirmed(request)
        return await self._start(
            op_id, "reload", request.replica, request.load_generation, targets, options, request.plan
        )

    async def _start_unload(self, op_id: OpId, request: StartUnload) -> str:
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
            self._replica(request.replica)
            raise CannotAnswer(DONE, f"nothing to do: no host has a shard of {request.replica}")
        view = state.replicas.get(request.replica)
        generation = view.load_generation if view else None
        options = {"why": request.why, "reservations": reservations}
        return await self._start(op_id, "unload", request.replica, generation, targets, options)

    async def _start_drain(self, op_id: OpId, request: StartDrainRequest) -> str:
        view = self._replica(request.replica)
        if request.deadline_seconds <= 0:
            raise CannotAnswer(REFUSED, f"the deadline is {request.deadline_seconds:g} s; expected more than 0")
        targets = tuple(
            target_of(s.shard.host, s.shard.node_id, s.shard.rank, s.shard.node_generation, s.shard.engine)
            for s in view.shards
            if s.state not in ("stopped", "failed")
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

    async def _start_adopt(self, op_id: OpId, request: StartAdopt) -> str:
        await self._reach.until(is_settled, SETTLE_SECONDS)
        chosen = chosen_shards(request, classify(self._reach.state, _unix_ms()))
        subject = chosen[0].id if len(chosen) == 1 else f"{len(chosen)} shards"
        generation = chosen[0].load_generation if len(chosen) == 1 else None
        options = stop_options(request, chosen)
        return await self._start(op_id, "adopt", subject, generation, targets_to_stop(chosen), options)

    async def _stop_shard(self, op_id: OpId, request: StopShard) -> str:
        target = shard_to_stop(self._reach.state, request)
        options = {"why": request.why, "reservations": []}
        return await self._start(op_id, "unload", request.node_id, request.generation, (target,), options)

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
            started_unix_ms=_unix_ms(),
            plan=whole,
        )
        self._children.append(await asyncio.to_thread(_create_and_start, self._context, operation, self._spare))
        return op_id

    async def _settle(self, op_id: OpId, request: SettleOperation) -> Answer:
        found = await self._ownerless.settle(request.operation, despite_silence=request.despite_silence)
        value = {"operation": request.operation, "exit_code": found.code, "lines": list(found.lines)}
        return Answer(op_id=op_id, request="SettleOperation", done=True, words=found.words, value=value)

    async def _rebuild(self, op_id: OpId) -> Answer:
        written, silent = await self._ownerless.rebuild()
        words, value = rebuilt_words(written, silent), as_value(written, silent)
        code = UNREACHABLE if silent else DONE
        return Answer(op_id=op_id, request="RebuildLedger", done=True, exit_code=code, words=words, value=value)

    # --- questions ------------------------------------------------------------------------------------------------

    async def _change_drain(self, op_id: OpId, request: ChangeDrainRequest) -> str:
        hosts = draining_hosts(self._reach.state, request.replica)
        if not hosts:
            self._replica(request.replica)
            raise CannotAnswer(REFUSED, f"{request.replica} is not draining")
        if request.action == "force":
            hosts = hosts[:1]  # the leader goes first, its workers follow it; a worker that goes first aborts it
        for host in hosts:
            command = ChangeDrain(
                op_id=OpId(f"{op_id}-{host}"),
                replica=request.replica,
                by=self._who,
                action=request.action,
                extend_seconds=request.extend_seconds if request.action == "extend" else 0.0,
            )
            await self._ask(host, command, QUICK_SECONDS)
        return f"{request.action} was taken by {', '.join(hosts)}"

    async def _test(self, op_id: OpId, request: TestRequest) -> Answer:
        view = self._replica(request.replica)
        leader = next((shard.shard for shard in view.shards if shard.shard.rank == 0), None)
        if leader is None:
            raise CannotAnswer(REFUSED, f"{view.id} is {view.state.value}: no host has its rank 0")
        command = TestReplica(op_id=op_id, node_id=leader.node_id, prompt=request.prompt, max_tokens=request.max_tokens)
        result = await self._ask(leader.host, command, command.seconds + _TEST_SLACK_SECONDS)
        value = {"prompt": request.prompt, **result.value}
        return Answer(op_id=op_id, request="TestRequest", done=True, words=str(value.get("text", "")), value=value)

    async def _log(self, op_id: OpId, request: LogRequest) -> Answer:
        node_id = NodeId(request.node_id)
        having = [view for view in self._reach.state.hosts.values() if node_id in view.entities.shards]
        if not having:
            raise CannotAnswer(REFUSED, f"no host has the shard {request.node_id}")
        newest = max(having, key=lambda view: view.entities.shards[node_id].load_generation)
        shard = newest.entities.shards[node_id]
        command = ReadLog(
            op_id=op_id,
            node_id=node_id,
            generation=None if request.previous else shard.load_generation,
            offset=request.offset,
            limit=request.limit,
            previous=request.previous,
        )
        result = await self._ask(newest.host, command, QUICK_SECONDS)
        return Answer(op_id=op_id, request="LogRequest", done=True, value=result.value)

    async def _check_models(self, op_id: OpId) -> str:
        """Read the model file of every running replica again where its leader read it; returns what was read."""
        wanted = model_files(self._reach.state)
        found = await asyncio.gather(*(self._inspect(OpId(f"{op_id}-{n}"), (h,), p) for n, (h, p) in enumerate(wanted)))
        failed = [words for facts, _, words in found if facts is None]
        if failed:
            raise CannotAnswer(
                UNKNOWN, f"{len(failed)} of {len(wanted)} model files were not read: {'; '.join(failed)}"
            )
        return f"{len(wanted)} model files were read"

    async def _journal(self, op_id: OpId, request: AskJournal | ForkJournalRequest) -> Answer:
        host = HostId(request.host)
        if host not in self._reach.state.hosts:
            known = ", ".join(sorted(self._reach.state.hosts)) or "none"
            raise CannotAnswer(REFUSED, f"there is no host {request.host!r}; known: {known}")
        command, seconds = journal_question(op_id, request, self._who)
        result = await self._ask(host, command, seconds)
        words = str(result.value.get("words", ""))
        return Answer(op_id=op_id, request=type(request).__name__, done=True, words=words, value=result.value)

    def _replica(self, replica: ReplicaId) -> ReplicaView:
        replicas = self._reach.state.replicas
        if replica not in replicas:
            known = ", ".join(replicas) or "none"
            raise CannotAnswer(REFUSED, f"there is no replica {replica!r}; known: {known}")
        return replicas[replica]

    async def _ask_one(self, host: HostId, command: Command) -> str:
        """Why a host did not do it, or an empty text."""
        try:
            await self._ask(host, command, QUICK_SECONDS)
        except CannotAnswer as error:
            return str(error)
        return ""

    async def _ask(self, host: HostId, command: Command, seconds: float) -> Result:
        """The result when it succeeded; else CannotAnswer with the code that fits."""
        view = self._reach.state.hosts[host]
        if view.state is not HostState.LIVE:
            raise CannotAnswer(UNREACHABLE, f"{host} is {view.state.value}: {view.words}")
        try:
            result = await self._reach.links[host].ask(command, seconds)
        except AnswerUnknown as error:
            raise CannotAnswer(UNKNOWN if error.sent else UNREACHABLE, str(error)) from error
        except Refusal as error:
            raise CannotAnswer(REFUSED, f"{host} refused: {error}") from error
        if result.status != "succeeded":
            raise CannotAnswer(REFUSED if result.status == "rejected" else FAILED, f"{host}: {result.first_error}")
        return result


def draining_hosts(state: FleetState, replica: ReplicaId) -> list[HostId]:
    """The hosts with an open drain of a replica, rank 0's first."""
    view = state.replicas.get(replica)
    leader = next((s.shard.host for s in view.shards if s.shard.rank == 0), None) if view else None
    hosts = [
        host.host
        for host in state.hosts.values()
        if (drain := host.entities.drains.get(replica)) is not None and not drain.outcome
    ]
    return sorted(hosts, key=lambda host: (host != leader, host))


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
        raise CannotAnswer(FAILED, f"{operation.op_id} is written and its process did not start: {error}") from error
    finally:
        writer.close()


def _unix_ms() -> UnixMs:
    return UnixMs(time.time_ns() // 1_000_000)
