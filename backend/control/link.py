"""One link per host: connect, hello, report, stream, ask; and again, with a floor under the delay."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn, TypeVar

from backend.contract.commands import Command, Hello, Subscribe
from backend.contract.endpoints import Agent, Outer
from backend.contract.entities import Result
from backend.contract.envelopes import MAJOR, MINOR, command_envelope, command_type, decode_event, encode
from backend.contract.events import (
    Answered,
    AnyEvent,
    JournalBatch,
    JournalGap,
    Refused,
    Reported,
    Subscribed,
    UnknownEvent,
    Welcome,
)
from backend.contract.frames import MAX_FRAME_CHARS, FrameError
from backend.contract.words import AgentAddress, HostId, OpId, UnixMs
from backend.control import transports
from backend.control.hearing import Moment, Sequence, joined, told
from backend.control.link_ends import (
    AnswerUnknown,
    ConnectionEnded,
    LinkSettings,
    Refusal,
    WrongHost,
    closing_words,
)
from backend.control.link_events import AnyLinkEvent, LinkDown, LinkRefused, Noted
from backend.control.pending import Pending
from backend.failpoints import failpoint

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

E = TypeVar("E", bound=AnyEvent)


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
        self._cut_words = ""
        self._pending = Pending(host)
        self._generation = 0
        self._sequence = 0
        self._cursor: str | None = None
        self._heard_up_to = Sequence()
        self._subscription = OpId("")

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
        """Give the present connection up at once and dial again, for example after this machine slept.

        Without one nothing is given up: it is being dialled already.
        """
        if self._connection is not None:
            self._cut_words = words
            self._connection.transport.abort()

    async def run(self) -> None:
        """Keep the link up for ever. Ends only by cancellation."""
        attempt = 0
        while True:
            began = self._monotonic()
            self._cut_words = ""
            try:
                await self._converse()
            except WrongHost as error:
                delay = self._settings.refused
                self._tell(LinkRefused(words=self._next_try(str(error), delay), **self._now()))
                attempt = 0
            except (ConnectionError, OSError, TimeoutError) as error:
                if self._monotonic() - began > self._settings.settled:
                    attempt = 0
                delay = self._delay(attempt)
                attempt += 1
                words = self._cut_words or str(error) or type(error).__name__
                self._tell(LinkDown(words=self._next_try(words, delay), **self._now()))
            await asyncio.sleep(delay)

    async def ask(self, command: Command, timeout: float) -> Result:
        """Send one command and return its one result.

        Raises AnswerUnknown when none was heard within ``timeout`` seconds or before the connection broke, and
        Refusal when the agent did not take the frame.
        """
        connection = self._connection
        if connection is None or not self._live.is_set():
            raise AnswerUnknown(f"{self.host} is not connected", sent=False)
        try:
            with self._pending.waiting(command.op_id) as future:
                async with asyncio.timeout(timeout):
                    await self._send(connection, command)
                    end = await future
        except TimeoutError as error:
            words = f"{self.host} gave no answer to {command_type(command)} within {timeout:g} s"
            raise AnswerUnknown(words, sent=True) from error
        except ConnectionEnded as error:
            raise AnswerUnknown(f"{self.host}: {error}", sent=True) from error
        if isinstance(end, ConnectionEnded):
            raise AnswerUnknown(f"{self.host}: {end}", sent=True)
        if isinstance(end, Refusal):
            raise end
        return end

    def note(self, kind: str, words: str, level: str = "warn") -> None:
        """Say something in the journal pane that is no record of the agent."""
        self._tell(Noted(kind=kind, words=words, level=level, **self._now()))

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
                self._pending.break_off("the connection broke before the answer")

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
            raise WrongHost(self._wrong_host(report.host))
        self._connection = connection
        self._heard_up_to.begin(report)
        self._live.set()
        self._tap_frame()
        self._tell(joined(welcome, report, asked, round_trip, self._now()))
        await self._subscribe(connection, self._cursor)

    def _check(self, welcome: Welcome) -> None:
        if welcome.host != self.host:
            raise WrongHost(self._wrong_host(welcome.host))
        if welcome.major != MAJOR:
            raise WrongHost(
                f"the agent speaks version {welcome.major}.{welcome.minor} and ringtop here {MAJOR}.{MINOR}. Install "
                "one release of ringtop on both sides."
            )

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
            self.note("link.early", f"before {kind.__name__} came {type(event).__name__}")

    async def _receive(self, connection: ClientConnection) -> AnyEvent | UnknownEvent:
        from websockets.exceptions import ConnectionClosed

        while True:
            try:
                async with asyncio.timeout(self._settings.silence):
                    frame = await connection.recv()
            except TimeoutError as error:
                raise ConnectionEnded(f"silent for {self._settings.silence:g} s; heartbeats come every 5 s") from error
            except ConnectionClosed as error:
                raise ConnectionEnded(closing_words(error)) from error
            try:
                if not isinstance(frame, str):
                    raise FrameError(f"a frame is text, not {len(frame)} bytes")
                event = decode_event(frame)[1]
                self._frame = frame
                return event
            except FrameError as error:
                self.note("link.unreadable", f"a frame cannot be read: {error}")

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
        frame = encode(envelope)
        if len(frame) > MAX_FRAME_CHARS:
            raise Refusal(
                "frame.too_long",
                f"nothing was sent: {command_type(command)} has {len(frame)} characters, and an agent takes at most "
                f"{MAX_FRAME_CHARS}",
            )
        try:
            async with asyncio.timeout(self._settings.send):
                await connection.send(frame, text=True)
        except TimeoutError as error:
            connection.transport.abort()
            raise ConnectionEnded(
                f"the agent read nothing for {self._settings.send:g} s, so the connection was cut"
            ) from error
        except ConnectionClosed as error:
            raise ConnectionEnded(closing_words(error)) from error

    # --- what came ------------------------------------------------------------------------------------------------

    def _heard(self, event: AnyEvent | UnknownEvent) -> None:
        match event:
            case JournalBatch():
                self._check_order(event)
                self._cursor = event.cursor
            case JournalGap():
                self._heard_up_to.skip(event)
            case Answered():
                failpoint("link.after_answer")
                self._pending.end(event.op_id, event.result)
            case Refused():
                self._refused(event)
            case Welcome() | Reported():
                raise ConnectionEnded(f"the agent sent {type(event).__name__} twice on one connection")
        heard = told(event, self._now())
        if heard is None:
            return
        if not isinstance(heard, Noted):
            self._tap_frame()
        self._tell(heard)

    def _refused(self, event: Refused) -> None:
        if self._pending.end(OpId(event.op_id), Refusal(event.code, event.words)):
            return
        if self._cursor is not None and event.op_id == self._subscription:
            self._cursor = None
            raise ConnectionEnded(f"the agent does not know this console's place in its journal: {event.words}")
        self.note("link.refused", f"the agent refused a frame ({event.code}): {event.words}")

    def _check_order(self, batch: JournalBatch) -> None:
        """A hole behind the report would leave this console with a false state for ever: then begin again."""
        if missing := self._heard_up_to.missing(batch):
            self._cursor = None
            raise ConnectionEnded(f"journal records {missing[0]} to {missing[1]} never came; a new report is needed")

    async def _subscribed(self, connection: ClientConnection, event: Subscribed) -> None:
        if event.outcome == "ok":
            return
        if event.outcome == "gone":
            self.note("link.gap", f"the journal now begins at record {event.oldest}; what came before is not shown")
        else:
            self.note("link.journal", "the agent's journal is another one than before; its newest part is read")
        if self._cursor is not None:
            self._cursor = None
            await self._subscribe(connection, None)

    # --- words and times ------------------------------------------------------------------------------------------

    def _now(self) -> Moment:
        return {"host": self.host, "at": self._monotonic(), "unix_ms": UnixMs(self._unix_ms())}

    def _tap_frame(self) -> None:
        """Hand on the frame whose event is told next; what is told as a note of this link is handed on by its event."""
        if self._tap is not None:
            self._tap(self.host, self._frame)

    def _delay(self, attempt: int) -> float:
        """Full jitter over an exponential span, above a floor."""
        span = min(self._settings.ceiling, self._settings.floor * 2.0 ** min(attempt, 10))
        return self._settings.floor + self._uniform(0.0, span)

    def _next_try(self, words: str, delay: float) -> str:
        """Why there is no connection, and when the next try is."""
        when = time.strftime("%H:%M:%S", time.localtime(self._unix_ms() / 1000 + delay))
        return f"{words.rstrip('.')}; next try {when}"
