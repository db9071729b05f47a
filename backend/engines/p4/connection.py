"""One TCP connection to a p4 agent: a channel of its own, in direct or hop mode, left with FINISH.

The socket is a thin shell around ``BodyReader`` and ``HopSide``. Everything it holds is bounded: one body being read,
the bytes not yet taken by the peer, the events without a receipt.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import P4Event, P4Outer, decode_event, encode_event
from backend.contract.p4.framing import FINISH, MAX_BODY_BYTES, BodyReader, frame_body
from backend.contract.p4.hops import HopFrame, ReceiptStatus, decode_hop, encode_hop, is_hop_frame
from backend.engines.names import looked_up
from backend.engines.p4.hop_side import HopSide, Settled, TooManyOutstanding
from backend.engines.p4.slots import Mode

_CHUNK = 65_536
_LONGEST_WORDS = 1000
"""Characters that are kept of what quotes a peer."""


class P4Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and patience of a client; seconds, bytes and counts."""

    dial_seconds: float = 10.0
    hello_seconds: float = 10.0
    finish_seconds: float = 5.0
    """How long to wait for the p4 agent's own FINISH when leaving."""
    max_outstanding: int = 256
    """Events without a receipt, in hop mode."""
    max_receipt_bytes: int = 64 * 1024 * 1024
    max_body_bytes: int = MAX_BODY_BYTES
    max_unsent_bytes: int = 16 * 1024 * 1024
    """What may wait in a connection whose peer does not read."""
    max_asked: int = 256
    """Requests of one connection whose answers are listened for, late ones included."""
    stream_events: int = 1024
    """Events of one stream that wait for their reader; then the connection is not read on."""


class CannotSend(Exception):
    """The event did not leave; the message says what is in the way."""


class Ticket(msgspec.Struct, frozen=True):
    """What was sent: in hop mode the attempt and digest that its receipt will name."""

    attempt: int | None = None
    digest: bytes = b""


class Counters(msgspec.Struct):
    """What arrived on a connection and had nobody to go to. Counted, never silent."""

    ignored: int = 0
    unclaimed: int = 0
    last_ignored: str = ""


Ending = Literal["finished", "closed", "broken"]
"""How a connection ended: both sides said FINISH; the peer closed it; it broke a rule of the contract or its socket."""


class P4Connection:
    """One connection. ``hear`` takes the events that arrive, ``settle`` what receipts say of ours; both are awaited."""

    def __init__(
        self,
        route: P4Outer,
        mode: Mode,
        settings: P4Settings,
        *,
        hear: Callable[[P4Event], Awaitable[None]],
        settle: Callable[[Settled], None],
    ) -> None:
        self.route = route
        self.mode: Mode = mode
        self.counters = Counters()
        self.ending: Ending | None = None
        self.ending_words = ""
        self.was_left = False
        """We said FINISH before it was over."""
        self.had_rejection = False
        """A refused event holds its connection's slot at the p4 agent, in hop mode too."""
        self._settings = settings
        self._hear = hear
        self._settle = settle
        self._hop = HopSide(
            route.channel,
            route.connection_generation,
            settings.max_outstanding,
            settings.max_receipt_bytes,
            refusal=self._misdirected,
        )
        self._bodies = BodyReader(settings.max_body_bytes)
        self._sequence = 0
        self._finish_sent = False
        self._greeted = asyncio.Event()
        self._ended = asyncio.Event()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    async def open(self, host: str, port: int) -> None:
        """Dial. Raises OSError (TimeoutError included) when nobody answers; no slot is used then."""
        async with asyncio.timeout(self._settings.dial_seconds):
            with looked_up(host):
                self._reader, self._writer = await asyncio.open_connection(host, port)  # which sets TCP_NODELAY itself
        if self.mode == "direct":
            self._greeted.set()
        else:
            self._write(encode_hop(self._hop.hello))
        self._listening = asyncio.create_task(self._listen(), name=f"p4 connection {self.route.channel}")

    @property
    def is_open(self) -> bool:
        """Neither side said that it is over."""
        return self._writer is not None and self.ending is None and not self._finish_sent

    @property
    def is_greeted(self) -> bool:
        """Whether events may be sent: at once in direct mode, after HelloAck in hop mode."""
        return self._greeted.is_set()

    async def greeted(self, seconds: float) -> bool:
        """Whether events may be sent, waiting up to ``seconds`` for it. A slow peer's connection is kept."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._greeted, self._ended)]
        try:
            await asyncio.wait(waits, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return self._greeted.is_set() and self.is_open

    @property
    def is_slot_returned(self) -> bool:
        """Whether the p4 agent has its slot back, once the connection is over: only what is known counts.

        A direct connection gives it back with both FINISHes, a greeted one in hop mode in any case; one on which an
        event was refused never does.
        """
        if self.had_rejection:
            return False
        return self.ending == "finished" or (self.mode == "hop" and self._greeted.is_set())

    async def ended(self) -> None:
        """Return when the connection is over; ``ending`` and ``ending_words`` then say how."""
        await self._ended.wait()

    def next_sequence(self) -> int:
        """The next sequence number of this connection's source, from 1."""
        self._sequence += 1
        return self._sequence

    def send(self, event: P4Event) -> Ticket:
        """Put an event on the wire, with its receipt to come in hop mode.

        Raises CannotSend, and P4CodecError for an event that p4 does not allow: then nothing was sent.
        """
        body = encode_event(event)
        self._check_room(len(body))
        if self.mode == "direct":
            self._write(body)
            return Ticket()
        try:
            data = self._hop.send(body)
        except TooManyOutstanding as error:
            raise CannotSend(str(error)) from error
        self._write(encode_hop(data))
        return Ticket(data.attempt, data.digest)

    def query(self, ticket: Ticket) -> None:
        """Ask what became of an attempt; the answer comes to ``settle``. Raises CannotSend, in direct mode always."""
        if ticket.attempt is None:
            raise CannotSend("a direct connection has no receipts to ask for")
        self._check_room(0)
        self._write(encode_hop(self._hop.query(ticket.attempt, ticket.digest)))

    async def finish(self) -> bool:
        """Leave: FINISH, and wait for the p4 agent's own. True when it came, or the peer had already said it.

        FINISH is written before anything is waited for, so that a cancelled call has sent it as well.
        """
        if self._writer is None:
            return True
        self.was_left |= self.ending is None
        try:
            self._say_finish()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.finish_seconds):
                    await self._ended.wait()
        finally:
            if self._listening is not None:
                self._listening.cancel()
            if self.ending is None:
                self._end("closed", f"FINISH was not answered within {self._settings.finish_seconds:g} s")
            self._writer.close()
        return self.ending == "finished"

    def _say_finish(self) -> None:
        if self._writer is not None and not self._finish_sent and not self._writer.transport.is_closing():
            self._finish_sent = True
            self._writer.write(FINISH)

    def _check_room(self, size: int) -> None:
        if not self.is_open or self._writer is None:
            raise CannotSend(self.ending_words or "the connection is being left")
        if not self._greeted.is_set():
            raise CannotSend("the p4 agent has not answered Hello yet")
        unsent = self._writer.transport.get_write_buffer_size()
        if unsent and unsent + size > self._settings.max_unsent_bytes:
            raise CannotSend(
                f"{unsent} bytes wait for a p4 agent that does not read; with {size} more it would be over "
                f"{self._settings.max_unsent_bytes}"
            )

    def _write(self, body: bytes) -> None:
        assert self._writer is not None  # the callers look
        self._writer.write(frame_body(body, self._settings.max_body_bytes))

    async def _listen(self) -> None:
        """Read until one side is done, and keep how it ended."""
        assert self._reader is not None
        try:
            while not self._bodies.is_finished:
                data = await self._reader.read(_CHUNK)
                if not data:
                    self._end("closed", self._cut())
                    return
                for body in self._bodies.feed(data):
                    await self._take(body)
        except P4CodecError as error:
            self._say_finish()
            self._end("broken", f"the p4 agent sent what its contract does not allow: {error.reason}")
        except OSError as error:
            self._end("broken", f"the connection broke: {error.strerror or error}")
        else:
            self._say_finish()
            self._end("finished", "the p4 agent said FINISH")
        finally:
            self._end("broken", "this side stopped reading")  # only when nothing above said how

    def _cut(self) -> str:
        held = self._bodies.held_bytes
        if held:
            return f"the p4 agent closed the connection inside a message, {held} bytes into it"
        words = "the p4 agent closed the connection without FINISH"
        if not self._greeted.is_set():
            return f"{words}, in answer to Hello"
        return f"{words}; so it does when it refuses an event" if self.mode == "direct" else words

    async def _take(self, body: bytes) -> None:
        if self.mode == "direct":
            event = decode_event(body)
            refusal = self._misdirected(event)
            if refusal:
                self._ignored(refusal)
            else:
                await self._hear(event)
            return
        if not is_hop_frame(body):
            raise P4CodecError(f"a body beginning {body[:4]!r} where every one must be a hop frame")
        heard = self._hop.hear(decode_hop(body))
        if heard.greeted:
            self._greeted.set()
        if heard.ignored:
            self._ignored(heard.ignored)
        if heard.event is not None:
            await self._hear(heard.event)
        for answer in heard.answers:
            self._answer(answer)
        if heard.settled is not None:
            self.had_rejection |= heard.settled.status is ReceiptStatus.REJECTED
            self._settle(heard.settled)

    def _misdirected(self, event: P4Event) -> str:
        """Why an event is not for this connection, or empty."""
        if event.target == self.route:
            return ""
        return f"event {event.event_id} is for {event.target}, and this connection is {self.route.channel!r}"

    def _answer(self, frame: HopFrame) -> None:
        """Behind our own FINISH nothing is said; the peer then keeps what it has no receipt for."""
        if self._writer is None or self._finish_sent:
            return
        if self._writer.transport.get_write_buffer_size() > self._settings.max_unsent_bytes:
            raise P4CodecError("the p4 agent sends and does not read what answers it")
        self._write(encode_hop(frame))

    def _ignored(self, words: str) -> None:
        self.counters.ignored += 1
        self.counters.last_ignored = words[:_LONGEST_WORDS]

    def _end(self, ending: Ending, words: str) -> None:
        if self.ending is None:
            self.ending = ending
            self.ending_words = words
        self._ended.set()
