"""What can be done with operations whose process is gone: resume, roll back, settle; and a ledger that was lost."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Iterator

from backend.contract.states import HostState
from backend.contract.words import OpId
from backend.control.cannot_answer import CannotAnswer
from backend.control.contexts import Context
from backend.control.exit_codes import FAILED, REFUSED
from backend.control.ledger import ENDED, ROLLING_BACK, LedgerError, LedgerWriter, Step, ledger_path, mend, reopen
from backend.control.ledger_views import read_operation
from backend.control.operations.recovery import APPROVED
from backend.control.operations.settle import Conclusion, conclude
from backend.control.operations.spawning import spawn_operation
from backend.control.reach import Reach
from backend.control.rebuilding import Restored, find_lost, is_run_elsewhere, rebuild
from backend.control.recovery_document import CENSUS
from backend.control.requests import ResumeOperation
from backend.control.views import OperationView
from backend.control.wall_clock import now_unix_ms


class Ownerless:
    """Acts on operations without an owner, in the name of one person."""

    def __init__(self, context: Context, reach: Reach, who: str) -> None:
        self._context = context
        self._reach = reach
        self._who = who

    async def resume(self, request: ResumeOperation) -> subprocess.Popen[bytes]:
        """Give an operation a new process, which goes on from where its ledger ends."""
        view = await self._ownerless(request.operation, "resumed")
        if request.move_journal:
            return await asyncio.to_thread(self._approve_and_resume, view, request.why)
        return await asyncio.to_thread(self._go_on, view.id)

    def _approve_and_resume(self, view: OperationView, why: str) -> subprocess.Popen[bytes]:
        """Write down who approves that a recovery moves a journal aside, and why; then it goes on."""
        if view.kind != "recovery":
            raise CannotAnswer(REFUSED, f"{view.id} is of kind {view.kind}; only a recovery moves a journal aside")
        if not why:
            raise CannotAnswer(REFUSED, "moving a journal aside is recorded with its reason: add --why TEXT")
        words = f"{self._who} approved that the journal is moved aside: {why}"
        step = Step(at_unix_ms=now_unix_ms(), target=CENSUS, what=APPROVED, words=words, lines=(self._who, why))
        return self._go_on(view.id, step)

    async def roll_back(self, op_id: OpId) -> subprocess.Popen[bytes]:
        """Give an operation a new process that takes it back; what was asked for is written down first."""
        view = await self._ownerless(op_id, "rolled back")
        if view.kind not in ("load", "drain", "reload"):
            raise CannotAnswer(
                REFUSED,
                f"{view.id} is of kind {view.kind}, which cannot be taken back: what was stopped is gone. "
                "Resume it, or settle it.",
            )
        asked = Step(
            at_unix_ms=now_unix_ms(),
            target=view.subject,
            what=ROLLING_BACK,
            words=f"{self._who} asked to take it back",
            phase=ROLLING_BACK,
            unknown=len(view.targets),
        )
        return await asyncio.to_thread(self._go_on, view.id, asked)

    def _go_on(self, op_id: OpId, decided: Step | None = None) -> subprocess.Popen[bytes]:
        """Write down what was decided and give the operation a process that owns it; it rolls back once only."""
        with self._owning(op_id) as writer:
            is_said = any(step.what == ROLLING_BACK for step in writer.steps)
            if decided is not None and not (is_said and decided.what == ROLLING_BACK):
                writer.append(decided)
            return spawn_operation(self._context, op_id, writer.fd)

    async def settle(self, op_id: OpId, *, despite_silence: bool) -> Conclusion:
        """Close an operation from what the fleet says. Refused while a rank moves, and while a host is silent."""
        view = await self._ownerless(op_id, "settled", also=("damaged",))
        if not view.targets and view.state == "damaged":
            raise CannotAnswer(REFUSED, f"{view.words}, so that nothing says what it was about.")
        await self._reach.settle()
        conclusion = conclude(view, self._reach.state, despite_silence=despite_silence)
        if conclusion.is_open:
            raise CannotAnswer(conclusion.code, f"{view.id} is not settled: {conclusion.words}.")
        await asyncio.to_thread(self._close, view, conclusion)
        return conclusion

    def _close(self, view: OperationView, conclusion: Conclusion) -> None:
        if view.state == "damaged":
            try:
                mend(self._context.ledger_folder, view.id)
            except (LedgerError, OSError) as error:
                raise CannotAnswer(REFUSED, str(error)) from error
        with self._owning(view.id) as writer:
            if writer.steps and writer.steps[-1].what == ENDED:
                raise CannotAnswer(REFUSED, f"{view.id} has ended meanwhile: {writer.steps[-1].words}")
            end = Step(
                at_unix_ms=now_unix_ms(),
                target=view.subject,
                what=ENDED,
                words=f"{conclusion.words}; settled by {self._who} from what the fleet says",
                lines=conclusion.lines,
                exit_code=conclusion.code,
            )
            writer.append(end)

    async def rebuild(self) -> Restored:
        """Write an entry for every load without one, but for those that somebody runs from elsewhere."""
        await self._reach.settle()
        state = self._reach.state
        silent = tuple(name for name, view in state.hosts.items() if view.state is not HostState.LIVE)
        folder = self._context.ledger_folder
        try:
            lost = await asyncio.to_thread(find_lost, state, folder)
            elsewhere = tuple(each.op_id for each in lost if is_run_elsewhere(each, state))
            written = [
                await asyncio.to_thread(rebuild, each, state, folder) for each in lost if each.op_id not in elsewhere
            ]
        except (OSError, LedgerError) as error:
            raise CannotAnswer(REFUSED, f"the ledger in {folder} cannot be written: {error}") from error
        return Restored(tuple(written), silent, elsewhere)

    async def _ownerless(self, op_id: OpId, done: str, also: tuple[str, ...] = ()) -> OperationView:
        """The operation as its file tells it now."""
        try:
            path = ledger_path(self._context.ledger_folder, op_id)
        except LedgerError as error:
            raise CannotAnswer(REFUSED, str(error)) from error
        if not path.exists():
            raise CannotAnswer(REFUSED, f"there is no operation {op_id} in {self._context.ledger_folder}")
        view = await asyncio.to_thread(read_operation, path)
        if view.state != "ownerless" and view.state not in also:
            raise CannotAnswer(REFUSED, f"{view.id} is {view.state}; only an ownerless operation can be {done}")
        self._check_context(view)
        return view

    def _check_context(self, view: OperationView) -> None:
        if view.context and view.context != self._context.name:
            raise CannotAnswer(
                REFUSED,
                f"{view.id} is of context {view.context}, this is {self._context.name}. Use --context {view.context}",
            )

    @contextlib.contextmanager
    def _owning(self, op_id: OpId) -> Iterator[LedgerWriter]:
        """The operation's ledger, owned for a moment. Raises CannotAnswer with whatever is in the way."""
        try:
            with contextlib.closing(reopen(self._context.ledger_folder, op_id)) as writer:
                yield writer
        except LedgerError as error:
            raise CannotAnswer(REFUSED, str(error)) from error
        except OSError as error:
            raise CannotAnswer(FAILED, f"{op_id} is still without an owner: {error}. Try again.") from error
