"""One context's backend: a thread of its own that follows the fleet, the ledger and the catalog, and takes requests.

No future and no coroutine leaves it, so that a stalled terminal never stalls a link. websockets is imported in that
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import traceback
from pathlib import Path

import msgspec

from backend.contract.durations import duration
from backend.contract.words import OpId
from backend.control.acknowledgements import AcknowledgementReader
from backend.control.answering import Answering
from backend.control.cannot_answer import SubmitRefused
from backend.control.contexts import Context, who_asks
from backend.control.fleet_events import AcknowledgementsRead, AnswerGiven, CatalogRead, Faulted, OperationsRead
from backend.control.journal_tail import JournalTail
from backend.control.ledger import new_op_id
from backend.control.ledger_views import LedgerReader
from backend.control.link_ends import LinkSettings
from backend.control.reach import Reach, is_settled
from backend.control.requests import Request
from backend.control.views import Answer, FleetState, JournalLine
from backend.control.wall_clock import now_unix_ms

STALE_SECONDS = 2.0
"""A loop that has not lived for this long takes no request."""
_BEAT_SECONDS = 0.25
_FILES_SECONDS = 0.5
_STOP_SECONDS = 5.0


class _Stopped(Exception):
    """The console asked the backend to end."""


class Backend:
    """One context's backend, in a thread of its own from ``start`` to ``stop``."""

    def __init__(self, context: Context, *, who: str | None = None, settings: LinkSettings | None = None) -> None:
        self.context = context
        self._who = who or who_asks()
        self._journal = JournalTail()
        self._reach = Reach(
            context,
            context.hosts,
            console=f"console-{new_op_id(self._who, now_unix_ms())}",
            who=self._who,
            read_only=context.read_only,
            settings=settings,
            show=self._journal.extend,
        )
        self._answering = Answering(context, self._reach, self._who)
        self._thread = threading.Thread(target=self._live, name="ringtop-backend", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._group: asyncio.TaskGroup | None = None
        self._started = threading.Event()
        self._settled = threading.Event()
        self._stopping = asyncio.Event()
        self._ledger = LedgerReader(context.ledger_folder)
        self._acknowledgements = AcknowledgementReader(context.home, context.name)
        self._reading = asyncio.Lock()
        self._stamp = 0.0

    def start(self) -> None:
        """Begin to follow the fleet. Returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the links. Operations go on in their own processes."""
        if not self._thread.is_alive():
            return
        self._started.wait(_STOP_SECONDS)
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop ended by itself a moment ago
                self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(_STOP_SECONDS)

    def state(self) -> FleetState:
        """The latest state; the same object for as long as nothing changed."""
        return self._reach.state

    def journal(self, after: int, limit: int) -> tuple[JournalLine, ...]:
        """At most ``limit`` journal lines with an index above ``after``, oldest first."""
        return self._journal.after(after, limit)

    def stamp(self) -> float:
        """When the backend's loop last lived, in monotonic seconds; 0 before it began."""
        return self._stamp

    def wait_settled(self, timeout: float) -> bool:
        """Whether within ``timeout`` seconds every host was heard, or is known to be unreachable or refused."""
        return self._settled.wait(timeout)

    def submit(self, request: Request) -> OpId:
        """Take a request; what becomes of it appears in ``state().answers`` under the id returned.

        Raises SubmitRefused for a write in a read-only context, for text that cannot be written down, and when the
        backend does not live.
        """
        if self.context.read_only and type(request).is_write:
            raise SubmitRefused(
                f"{type(request).__name__} changes the fleet, and context {self.context.name} is read-only. "
                "Set read_only = false in contexts.toml, or use another context."
            )
        _check_text(request)
        if fault := self.state().fault:
            raise SubmitRefused(f"the backend has stopped: {fault}. Start ringtop again.")
        self._started.wait(_STOP_SECONDS)
        age = time.monotonic() - self._stamp
        if self._loop is None or age > STALE_SECONDS:
            since = duration(age) if self._stamp else "its start"
            raise SubmitRefused(f"the backend has not answered since {since}, so nothing was sent. Try again.")
        op_id = new_op_id(_kind(request), now_unix_ms())
        try:
            self._loop.call_soon_threadsafe(self._begin, op_id, request)
        except RuntimeError as error:
            raise SubmitRefused("the backend has stopped, so nothing was sent. Start ringtop again.") from error
        return op_id

    # --- in the backend's thread ----------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001  # whatever escapes is shown, never lost with the thread
            words = f"{_fault_words(_innermost(error))}, see {_write_down(self.context.home, error)}"
            self._reach.apply(Faulted(at=time.monotonic(), unix_ms=now_unix_ms(), words=words))
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stamp = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for work in (self._beat, self._files, self._settle, self._reach.run):
                    group.create_task(work())
                self._started.set()
                await self._stopping.wait()
                raise _Stopped
        except* _Stopped:
            pass
        finally:
            self._answering.close()

    async def _beat(self) -> None:
        while True:
            self._stamp = time.monotonic()
            self._answering.reap()
            await asyncio.sleep(_BEAT_SECONDS)

    async def _settle(self) -> None:
        while not await self._reach.until(is_settled, 3600.0):
            continue
        self._settled.set()

    async def _files(self) -> None:
        """Follow the ledger and the catalog."""
        while True:
            await self._read_operations()
            await self._read_acknowledgements()
            models, words = await asyncio.to_thread(self._answering.catalog.read)
            self._reach.apply(CatalogRead(at=time.monotonic(), unix_ms=now_unix_ms(), models=models, words=words))
            await asyncio.sleep(_FILES_SECONDS)

    async def _read_operations(self) -> None:
        async with self._reading:
            operations = await asyncio.to_thread(self._ledger.read)
            self._reach.apply(OperationsRead(at=time.monotonic(), unix_ms=now_unix_ms(), operations=operations))

    async def _read_acknowledgements(self) -> None:
        async with self._reading:
            known, words = await asyncio.to_thread(self._acknowledgements.read)
            self._reach.apply(
                AcknowledgementsRead(at=time.monotonic(), unix_ms=now_unix_ms(), known=known, words=words)
            )

    def _begin(self, op_id: OpId, request: Request) -> None:
        assert self._group is not None
        self._give(Answer(op_id=op_id, request=type(request).__name__, done=False))
        self._group.create_task(self._answer(op_id, request))

    async def _answer(self, op_id: OpId, request: Request) -> None:
        answer = await self._answering.answer(op_id, request)
        if type(request).is_write:
            await self._read_operations()  # so that an operation is in the state before its id is in an answer
            await self._read_acknowledgements()
        self._give(answer)

    def _give(self, answer: Answer) -> None:
        self._reach.apply(AnswerGiven(at=time.monotonic(), unix_ms=now_unix_ms(), answer=answer))


def _kind(request: Request) -> str:
    """The first part of an operation id: ``load-…`` reads better than a number."""
    return type(request).__name__.removeprefix("Start").removesuffix("Request").lower()


def _check_text(request: Request) -> None:
    """Raise SubmitRefused for text that no file and no frame can hold: bytes from a terminal that are no UTF-8."""
    try:
        msgspec.json.encode(request)
    except UnicodeEncodeError as error:
        text = ascii(error.object[max(0, error.start - 20) : error.end + 20])
        raise SubmitRefused(
            f"{type(request).__name__} holds text that is no Unicode, at {text}, so nothing was sent. Type it anew."
        ) from error


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error


def _fault_words(error: BaseException) -> str:
    """What ended the backend; the system's own errors name the file that they are about."""
    return f"{type(error).__name__}: {error}" if isinstance(error, OSError) else repr(error)


def _write_down(home: Path, error: BaseException) -> Path:
    """Keep the whole traceback: the screen has room for one line of it."""
    path = home / "backend-fault.log"
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)))
    return path
