"""What becomes of each request of the console: a question to agents, or an operation with a process of its own."""

from __future__ import annotations

import msgspec

from backend.contract.numbers import BadValue
from backend.contract.words import OpId
from backend.control.asking import Asking
from backend.control.cannot_answer import CannotAnswer
from backend.control.catalog_reader import CatalogReader
from backend.control.contexts import Context
from backend.control.cordon_answers import cordon_host
from backend.control.drift_answers import acknowledge_drift, reopen_drift
from backend.control.exit_codes import DONE, REFUSED, UNREACHABLE
from backend.control.foreign_adopting import adopt_foreign, plan_foreign
from backend.control.keeper_answers import claim_keeping, hold_subject, resign_keeping, resume_subject
from backend.control.ownerless import Ownerless
from backend.control.plan_answers import PlanAnswers
from backend.control.questions import ask_journal, change_drain, read_log, try_prompt
from backend.control.reach import Reach
from backend.control.recoveries import Recoveries
from backend.control.reloads import Reloads
from backend.control.requests import (
    AcknowledgeDrift,
    AdoptForeignRequest,
    AskJournal,
    ChangeDrainRequest,
    CheckModels,
    ClaimKeeping,
    CordonRequest,
    ForkJournalRequest,
    HoldSubject,
    LogRequest,
    MakePlan,
    PlanForeign,
    PlanRecovery,
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
    StartRecovery,
    StartReload,
    StartUnload,
    StopShard,
    TakeSnapshot,
    TestRequest,
    UncordonRequest,
)
from backend.control.starting import Starting
from backend.control.views import Answer


class Answering:
    """Answers requests from the backend's loop."""

    def __init__(self, context: Context, reach: Reach, who: str) -> None:
        self._context = context
        self._reach = reach
        self._who = who
        self.catalog = CatalogReader(context.catalog_path)
        self._asking = Asking(reach)
        self._plans = PlanAnswers(context, reach, self.catalog, self._asking)
        self._ownerless = Ownerless(context, reach, who)
        self._reloads = Reloads(reach, self.catalog, self._plans.inspect, self._plans.highest_planned)
        self._recovering = Recoveries(reach, self._asking)
        self._starting = Starting(context, reach, who, self._reloads)

    async def answer(self, op_id: OpId, request: Request) -> Answer:
        """The final answer to one request; whatever a person did wrong is in its words."""
        kind = type(request).__name__
        try:
            match request:
                case MakePlan():
                    return await self._plan(op_id, request)
                case TakeSnapshot():
                    return await self._plans.snapshot(op_id)
                case StartLoad():
                    words = await self._starting.load(op_id, request)
                case PlanReload():
                    return await self._reloads.plan(op_id, request)
                case StartReload():
                    words = await self._starting.reload(op_id, request)
                case StartUnload():
                    words = await self._starting.unload(op_id, request)
                case StartDrainRequest():
                    words = await self._starting.drain(op_id, request)
                case StartAdopt():
                    words = await self._starting.adopt(op_id, request)
                case PlanRecovery():
                    return await self._recovering.plan(op_id, request)
                case StartRecovery():
                    words = await self._starting.recover(op_id, request, self._recovering)
                case PlanForeign():
                    floor = self._plans.highest_planned()
                    return await plan_foreign(self._reach, self.catalog, op_id, request, floor)
                case AdoptForeignRequest():
                    words = await adopt_foreign(self._asking, self._who, op_id, request)
                case ResumeOperation():
                    self._starting.follow(await self._ownerless.resume(request))
                    words = request.operation
                case RollBackOperation():
                    self._starting.follow(await self._ownerless.roll_back(request.operation))
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
                    words = await self._plans.check_models(op_id)
                case HoldSubject():
                    words = await hold_subject(self._asking.why_not, self._reach.state, self._who, op_id, request)
                case ResumeSubject():
                    words = await resume_subject(self._asking.why_not, self._reach.state, self._who, op_id, request)
                case CordonRequest() | UncordonRequest():
                    words = await cordon_host(self._asking, self._who, op_id, request)
                case ClaimKeeping():
                    return await claim_keeping(self._asking.why_not, self._reach.state, op_id, request)
                case ResignKeeping():
                    words = await resign_keeping(self._asking.why_not, self._reach.state, self._who, op_id, request)
                case StopShard():
                    words = await self._starting.stop_shard(op_id, request)
                case ChangeDrainRequest():
                    words = await change_drain(self._asking, self._who, op_id, request)
                case TestRequest():
                    return await try_prompt(self._asking, op_id, request)
                case LogRequest():
                    return await read_log(self._asking, op_id, request)
                case AskJournal() | ForkJournalRequest():
                    return await ask_journal(self._asking, self._who, op_id, request)
                case _:
                    raise TypeError(f"{kind} is no request that the backend knows")
        except CannotAnswer as error:
            return Answer(op_id=op_id, request=kind, done=True, exit_code=error.code, words=str(error))
        except BadValue as error:  # what was asked for is nothing that an agent could be told
            return Answer(op_id=op_id, request=kind, done=True, exit_code=REFUSED, words=str(error))
        return Answer(op_id=op_id, request=kind, done=True, words=words)

    def reap(self) -> None:
        """Collect operations' processes that have ended; their outcome is in the ledger."""
        self._starting.reap()

    def close(self) -> None:
        """End what only waits. Operations go on in their own processes."""
        self._starting.close()

    async def _plan(self, op_id: OpId, request: MakePlan) -> Answer:
        answer = await self._plans.plan(op_id, request)
        if answer.exit_code == DONE:
            self._starting.prepare()  # a plan is made to be loaded
        return answer

    async def _settle(self, op_id: OpId, request: SettleOperation) -> Answer:
        found = await self._ownerless.settle(request.operation, despite_silence=request.despite_silence)
        value = {"operation": request.operation, "exit_code": found.code, "lines": list(found.lines)}
        return Answer(op_id=op_id, request="SettleOperation", done=True, words=found.words, value=value)

    async def _rebuild(self, op_id: OpId) -> Answer:
        restored = await self._ownerless.rebuild()
        value = {
            "rebuilt": msgspec.to_builtins(restored.written),
            "silent": list(restored.silent),
            "elsewhere": list(restored.elsewhere),
        }
        code = UNREACHABLE if restored.silent else DONE
        return Answer(
            op_id=op_id, request="RebuildLedger", done=True, exit_code=code, words=restored.words, value=value
        )
