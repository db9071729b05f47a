"""One link per host: connect, hello, report, stream, ask; and again, with a floor under the delay."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn, TypedDict, TypeVar

from backend.contract.commands import Command, Hello, OperationStatus, Subscribe
from backend.contract.endpoints import Agent, Outer
from backend.contract.entities import Result
from backend.contract.envelopes import MAJOR, MINOR, command_envelope, command_type, decode_event, encode
from backend.contract.events import (
    Accepted,
    Answered,
    AnyEvent,
    Heartbeat,
    JournalBatch,
    JournalGap,
    Measured,
    Refused,
    Reported,
    Subscribed,
    UnknownEvent,
    Welcome,
)
from backend.contract.frames import FrameError, convert
from backend.contract.words import AgentAddress, HostId, OpId, UnixMs
from backend.control import transports
from backend.control.link_ends import AnswerUnknown, ConnectionEnded, LinkSettings, Refusal, WrongHost
from backend.control.link_events import (
    AnyLinkEvent,
    BeatHeard,
    LinkDown,
    LinkRefused,
    LinkUp,
    MeasuredHeard,
    Noted,
    RecordsHeard,
    gap_words,
    is_unrecorded,
    unknown_words,
)
from backend.failpoints import failpoint

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

E = TypeVar("E", bound=AnyEvent)


class _Stamp(TypedDict):
    host: HostId
    at: float
    unix_ms: UnixMs


class Link:
    """The console's side of one connection, kept up until ``run`` is cancelled.

    ``addresses`` are those of all hosts of the context: one id that answers at two of them is named with both.
    ``tell`` is called in the loop's thread with each event, in order; ``tap`` before it with the frame that it came of.
    """

    def __init__(
        self,
        host: HostId,
        address: AgentAddress,
        tell: Callable[[AnyLinkEvent], None],
        *,
        console: str,
        who: str,
        read_only: bool = False,
        settings: LinkSettings | None = None,
        addresses: Mapping[HostId, AgentAddress] | None = None,
        tap: Callable[[HostId, str], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.host = host
        self.address = address
        self._tell = tell
        self._console = console
        self._who = who
        self._read_only = read_only
        self._settings = settings or LinkSettings()
        self._addresses = addresses or {}
        self._tap = tap
        self._frame = ""
        self._monotonic = monotonic
        self._unix_ms = unix_ms
        self._uniform = uniform
        self._connection: ClientConnection | None = None
        self._live = asyncio.Event()
        self._cut = asyncio.Event()
        self._cut_words = ""
        self._pending: dict[OpId, asyncio.Future[Result]] = {}
        self._generation = 0
        self._sequence = 0
        self._cursor: str | None = None
        self._next_seq = 1
        self._subscription = OpId("")
        self.unread_frames = 0

    @property
    def is_live(self) -> bool:
        """The report of the present connection was heard."""
        return self._live.is_set()

    async def wait_live(self, seconds: float) -> bool:
        """Whether the link is up within ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._live.wait()
        except TimeoutError:
            return False
        return True

    def reconnect(self, words: str) -> None:
        """Give the present connection up at once and dial again, for example after this machine slept."""
        self._cut_words = words
        self._cut.set()
        if self._connection is not None:
            self._connection.transport.abort()

    async def run(self) -> None:
        """Keep the link up for ever. Ends only by cancellation."""
        attempt = 0
        while True:
            began = self._monotonic()
            self._cut.clear()
            try:
                await self._converse()
            except WrongHost as error:
                delay = self._settings.refused
                self._tell(LinkRefused(words=f"{error} {self._next_try(delay)}", **self._now()))
                attempt = 0
            except (ConnectionError, OSError, TimeoutError) as error:
                if self._monotonic() - began > self._settings.settled:
                    attempt = 0
                delay = self._delay(attempt)
                attempt += 1
                words = self._cut_words if self._cut.is_set() else str(error) or type(error).__name__
                self._tell(LinkDown(words=f"{words.rstrip('.')}; {self._next_try(delay)}", **self._now()))
            await asyncio.sleep(delay)

    async def ask(self, command: Command, timeout: float) -> Result:
        """Send one command and return its one result.

        Raises AnswerUnknown when none was heard within ``timeout`` seconds or before the connection broke, and
        Refusal when the agent did not take the frame.
        """
        connection = self._connection
        if connection is None or not self._live.is_set():
            raise AnswerUnknown(f"{self.host} is not connected", sent=False)
        if command.op_id in self._pending:
            raise ValueError(f"{command.op_id} is already asked at {self.host} and has no answer yet")
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._pending[command.op_id] = future
        try:
            async with asyncio.timeout(timeout):
                await self._send(connection, command)
                return await future
        except TimeoutError as error:
            words = f"{self.host} gave no answer to {command_type(command)} within {timeout:g} s"
            raise AnswerUnknown(words, sent=True) from error
        except ConnectionEnded as error:
            raise AnswerUnknown(f"{self.host}: {error}", sent=True) from error
        finally:
            self._pending.pop(command.op_id, None)

    async def ask_until_known(self, command: Command, timeout: float) -> Result:
        """Like ``ask``, but a lost connection is waited out and the command asked for again by its op_id.

        So is an agent that cannot record the end: its words are noted at once, and the truth comes with its next life.
        Raises AnswerUnknown when ``timeout`` seconds were not enough; ``sent`` False then proves that nothing left.
        """
        deadline = self._monotonic() + timeout
        sent, why = False, ""
        while True:
            left = deadline - self._monotonic()
            if left <= 0 or not await self.wait_live(left):
                words = f"{self.host} gave no answer to {command_type(command)} in {timeout:g} s"
                raise AnswerUnknown(f"{words}: {why}" if why else words, sent=sent)
            try:
                known = await self._recall(command.op_id, deadline) if sent else None
                if known is not None:
                    return known
                left = max(0.0, deadline - self._monotonic())
                result = await self.ask(command, left)
                if not is_unrecorded(result):
                    return result
                sent, why = True, result.first_error
                self._note("link.unknown", f"{command_type(command)} {command.op_id}: {why}")
                await asyncio.sleep(0.2)
            except AnswerUnknown as error:
                sent = sent or error.sent
                await asyncio.sleep(0.2)

    async def _recall(self, asked: OpId, deadline: float) -> Result | None:
        """The result of a command sent before; None when the agent never took it, so that it must be sent again.

        Only the agent's own word about the command decides: a status that is refused or unreadable leaves it unknown.
        """
        while True:
            self._sequence += 1
            status = OperationStatus(op_id=OpId(f"{asked}-status-{self._sequence}"), asked=asked)
            left = deadline - self._monotonic()
            try:
                answer = await self.ask(status, max(0.0, min(left, 10.0)))
                if answer.status != "succeeded":
                    raise AnswerUnknown(
                        f"{self.host} cannot say what became of {asked}: {answer.first_error}", sent=True
                    )
                if not answer.value.get("known"):
                    return None
                tree = answer.value.get("result")
                if tree is not None:
                    return convert(tree, Result, f"result of {asked} at {self.host}")
            except (Refusal, FrameError) as error:
                raise AnswerUnknown(f"{self.host} cannot say what became of {asked}: {error}", sent=True) from error
            if self._monotonic() >= deadline:
                raise AnswerUnknown(f"{self.host} still works on {asked}", sent=True)
            await asyncio.sleep(0.5)

    # --- one connection -------------------------------------------------------------------------------------------

    async def _converse(self) -> NoReturn:
        async with transports.connect(self.address, self._settings.open) as connection:
            try:
                await self._introduce(connection)
                while True:
                    event = await self._receive(connection)
                    if isinstance(event, Subscribed):
                        await self._subscribed(connection, event)
                    else:
                        self._heard(event)
            finally:
                self._live.clear()
                self._connection = None
                for future in self._pending.values():
                    if not future.done():
                        future.set_exception(ConnectionEnded("the connection broke before the answer"))

    async def _introduce(self, connection: ClientConnection) -> None:
        failpoint("link.before_hello")
        self._generation = max(self._generation + 1, self._unix_ms())
        asked, began = self._unix_ms(), self._monotonic()
        hello = Hello(
            op_id=OpId(f"hello-{self._generation}"),
            host=self.host,
            console=self._console,
            who=self._who,
            connection_generation=self._generation,
            major=MAJOR,
            minor=MINOR,
            read_only=self._read_only,
            sent_unix_ms=asked,
        )
        await self._send(connection, hello)
        welcome = await self._expect(connection, Welcome)
        round_trip = (self._monotonic() - began) * 1000
        self._check(welcome)
        self._tap_frame()
        report = (await self._expect(connection, Reported)).report
        if report.host != self.host:
            raise WrongHost(f"the report is of host {report.host!r}; this context expects {self.host!r} here.")
        self._connection = connection
        self._next_seq = report.seq + 1
        self._live.set()
        self._tap_frame()
        self._tell(
            LinkUp(
                welcome=welcome,
                report=report,
                round_trip_ms=round_trip,
                clock_offset_ms=round(welcome.answered_unix_ms - (asked + round_trip / 2)),
                **self._now(),
            )
        )
        await self._subscribe(connection, self._cursor)

    def _check(self, welcome: Welcome) -> None:
        if welcome.host != self.host:
            raise WrongHost(self._wrong_host(welcome.host))
        if welcome.major != MAJOR:
            raise WrongHost(f"the agent speaks version {welcome.major}.{welcome.minor}; this console {MAJOR}.{MINOR}.")

    def _wrong_host(self, says: str) -> str:
        """Both ids, and both addresses when this context has the other id elsewhere."""
        elsewhere = self._addresses.get(HostId(says))
        if elsewhere is None or elsewhere == self.address:
            return (
                f"the agent there is of host {says!r}; this context expects {self.host!r}. "
                "Correct the address in contexts.toml, or the host in agent.toml."
            )
        return (
            f"host id {says!r} comes from two places: {self.address}, where this context expects {self.host!r}, and "
            f"{elsewhere}. Nothing is asked of the first. Give each machine a host id of its own in agent.toml, or "
            "correct the address in contexts.toml."
        )

    async def _subscribe(self, connection: ClientConnection, cursor: str | None) -> None:
        self._subscription = op_id = OpId(f"subscribe-{self._generation}-{self._sequence}")
        await self._send(connection, Subscribe(op_id=op_id, cursor=cursor, tail=0 if cursor else self._settings.tail))

    async def _expect(self, connection: ClientConnection, kind: type[E]) -> E:
        """The next event of this kind during the introduction; a refusal ends it."""
        while True:
            event = await self._receive(connection)
            if isinstance(event, kind):
                return event
            if isinstance(event, Refused) and event.host != self.host and event.host in self._addresses:
                raise WrongHost(self._wrong_host(event.host))
            if isinstance(event, Refused):
                raise WrongHost(f"the agent refused the introduction ({event.code}): {event.words}")
            self._note("link.early", f"before {kind.__name__} came {type(event).__name__}")

    async def _receive(self, connection: ClientConnection) -> AnyEvent | UnknownEvent:
        from websockets.exceptions import ConnectionClosed

        while True:
            try:
                async with asyncio.timeout(self._settings.silence):
                    frame = await connection.recv()
            except TimeoutError as error:
                raise ConnectionEnded(f"silent for {self._settings.silence:g} s; heartbeats come every 5 s") from error
            except ConnectionClosed as error:
                raise ConnectionEnded(_closing_words(error.rcvd.code if error.rcvd else 1006, error)) from error
            try:
                if not isinstance(frame, str):
                    raise FrameError(f"a frame is text, not {len(frame)} bytes")
                event = decode_event(frame)[1]
                self._frame = frame
                return event
            except FrameError as error:
                self.unread_frames += 1
                self._note("link.unreadable", f"a frame cannot be read: {error}")

    async def _send(self, connection: ClientConnection, command: Command) -> None:
        from websockets.exceptions import ConnectionClosed

        failpoint("link.before_send")
        self._sequence += 1
        envelope = command_envelope(
            command,
            source=Outer(self.host, self._console, max(1, self._generation)),
            target=Agent(self.host),
            sequence=self._sequence,
        )
        try:
            async with asyncio.timeout(self._settings.send):
                await connection.send(encode(envelope), text=True)
        except TimeoutError as error:
            connection.transport.abort()
            raise ConnectionEnded(
                f"the agent read nothing for {self._settings.send:g} s, so the connection was cut"
            ) from error
        except ConnectionClosed as error:
            raise ConnectionEnded(_closing_words(error.rcvd.code if error.rcvd else 1006, error)) from error

    # --- what came ------------------------------------------------------------------------------------------------

    def _heard(self, event: AnyEvent | UnknownEvent) -> None:
        match event:
            case JournalBatch():
                self._check_order(event)
                self._cursor = event.cursor
                self._tap_frame()
                self._tell(RecordsHeard(records=event.records, **self._now()))
            case Measured():
                self._tap_frame()
                self._tell(MeasuredHeard(measured=event, **self._now()))
            case Heartbeat():
                self._tap_frame()
                self._tell(BeatHeard(head_seq=event.head_seq, **self._now()))
            case Answered():
                self._answered(event.op_id, event.result)
            case Refused():
                self._refused(event)
            case Accepted():
                pass  # durable intent; the result is still to come
            case JournalGap():
                self._next_seq = max(self._next_seq, event.last + 1)
                self._note("link.gap", gap_words(event))
            case UnknownEvent():
                self._note(f"unknown.{event.type}", unknown_words(event), level="info")
            case Welcome() | Reported():
                raise ConnectionEnded(f"the agent sent {type(event).__name__} twice on one connection")

    def _answered(self, op_id: OpId, result: Result) -> None:
        failpoint("link.after_answer")
        future = self._pending.get(op_id)
        if future is not None and not future.done():
            future.set_result(result)

    def _refused(self, event: Refused) -> None:
        future = self._pending.get(OpId(event.op_id))
        if future is not None and not future.done():
            future.set_exception(Refusal(event.code, event.words))
        elif self._cursor is not None and event.op_id == self._subscription:
            self._cursor = None
            raise ConnectionEnded(f"the agent does not know this console's place in its journal: {event.words}")
        else:
            self._note("link.refused", f"the agent refused a frame ({event.code}): {event.words}")

    def _check_order(self, batch: JournalBatch) -> None:
        """A hole behind the report would leave this console with a false state for ever: then begin again."""
        if not batch.records:
            return
        if batch.records[0].seq > self._next_seq:
            self._cursor = None
            raise ConnectionEnded(
                f"journal records {self._next_seq} to {batch.records[0].seq - 1} never came; a new report is needed"
            )
        self._next_seq = max(self._next_seq, batch.records[-1].seq + 1)

    async def _subscribed(self, connection: ClientConnection, event: Subscribed) -> None:
        if event.outcome == "ok":
            return
        if event.outcome == "gone":
            self._note("link.gap", f"the journal now begins at record {event.oldest}; what came before is not shown")
        else:
            self._note("link.journal", "the agent's journal is another one than before; its newest part is read")
        if self._cursor is not None:
            self._cursor = None
            await self._subscribe(connection, None)

    # --- words and times ------------------------------------------------------------------------------------------

    def _now(self) -> _Stamp:
        return {"host": self.host, "at": self._monotonic(), "unix_ms": UnixMs(self._unix_ms())}

    def _tap_frame(self) -> None:
        """Hand on the frame whose event is told next; what is told as a note of this link is handed on by its event."""
        if self._tap is not None:
            self._tap(self.host, self._frame)

    def _note(self, kind: str, words: str, level: str = "warn") -> None:
        self._tell(Noted(kind=kind, words=words, level=level, **self._now()))

    def _delay(self, attempt: int) -> float:
        """Full jitter over an exponential span, above a floor."""
        span = min(self._settings.ceiling, self._settings.floor * 2.0 ** min(attempt, 10))
        return self._settings.floor + self._uniform(0.0, span)

    def _next_try(self, delay: float) -> str:
        return f"next try {time.strftime('%H:%M:%S', time.localtime(self._unix_ms() / 1000 + delay))}"


def _closing_words(code: int, error: Exception) -> str:
    if code == 1001:
        return "the agent is stopping"
    if code == 1006:
        return "the connection broke off"
    return f"the agent closed the connection: {error}"
