"""Connections that callers and other agents open: direct or hop by the first body, their slots, and their end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.p4.simulator import hops
from tests.p4.simulator.broker import Refusal
from tests.p4.simulator.hops import Data, Hello, HelloAck, Query, QueryResult, Receipt, ReceiptAck, Status
from tests.p4.simulator.sockets import FINISH, Wire
from tests.p4.simulator.wire import Event, OuterEnd, Refused, decode_event

if TYPE_CHECKING:
    from tests.p4.simulator.agent import SimulatedAgent


class Slots:
    """The agent's connection permits, inbound and outbound alike. Nobody is accepted while none is free."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._freed = asyncio.Event()

    async def room(self) -> None:
        """Wait until a permit is free; for ever when they have leaked."""
        while self.used >= self.limit:
            self._freed.clear()
            await self._freed.wait()

    def take(self) -> None:
        """One permit less."""
        self.used += 1

    def give(self) -> None:
        """One permit back."""
        self.used -= 1
        self._freed.set()


@dataclass
class Pin:
    """What an attempt was answered, until its sender lets go; no status yet while the event is not admitted."""

    digest: bytes
    size: int
    status: Status | None = None
    detail: str = ""


class Ended(Exception):
    """This connection is over; the text is what the agent logs."""


class Inbound:
    """One accepted connection."""

    def __init__(self, agent: SimulatedAgent, wire: Wire, number: int) -> None:
        self.agent = agent
        self.wire = wire
        self.number = number
        self.mode = "none"
        self.held = 0
        self.ended = False
        self._outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        self._writer: asyncio.Task[None] | None = None
        self._hello: Hello | None = None
        self._room = asyncio.Event()
        self._unanswered: dict[int, bytes] = {}
        self._attempt = 0

    def deliver(self, raw: bytes) -> None:
        """Queue one event for this caller."""
        if self.agent.switches.silence != "replies":
            self._outgoing.put_nowait(raw)

    async def serve(self) -> None:
        """Everything from the first body to the end."""
        try:
            body = await self.wire.receive()
            if self.agent.switches.silence == "all":
                while body is not None:
                    body = await self.wire.receive()
            elif body:
                self._writer = self.agent.spawn(self._write())
                body = await (self._hop(body) if body.startswith(hops.MAGIC) else self._direct(body))
            await self._end(finished=body == FINISH)
        except (Ended, Refused) as reason:
            self.agent.log(f"P4_EVENT_CONNECTION_STOPPED connection={self.number} error={reason}")
            self._close()

    async def _direct(self, body: bytes) -> bytes | None:
        self.mode = "direct"
        following: bytes | None = body
        while following:
            try:
                await self._admit(decode_event(following), following, "direct")
            except Refusal as refusal:
                raise Ended(str(refusal)) from None
            following = await self.wire.receive()
        return following

    async def _hop(self, body: bytes) -> bytes | None:
        frame = hops.decode_hop(body)
        if not isinstance(frame, Hello):
            raise Ended("first hop frame is not hello")
        self.mode, self._hello = "hop", frame
        switches = self.agent.switches
        ack = HelloAck(
            frame.generation, str(self.agent.address), self.number, switches.outstanding, switches.receipt_bytes
        )
        await self.wire.send(hops.encode_hop(ack))
        while following := await self.wire.receive():
            await self._frame(hops.decode_hop(following))
        return following

    async def _frame(self, frame: hops.Frame | None) -> None:
        match frame:
            case Data():
                await self._data(frame)
            case Receipt() | QueryResult():
                await self._answered(frame)
            case ReceiptAck():
                self.agent.pins.pop((frame.sender, frame.generation, frame.attempt), None)
            case Query():
                await self.wire.send(hops.encode_hop(self._look_up(frame)))
            case Hello():
                raise Ended("second hop hello")
            case HelloAck():
                raise Ended("unexpected hop hello ack")
            case None:
                raise Ended("event frame on a hop connection")

    async def _data(self, frame: Data) -> None:
        assert self._hello is not None
        key = self._hello.sender, self._hello.generation, frame.attempt
        pin = self.agent.pins.get(key)
        if pin is None:
            pin = await self._receive(key, frame)
            if self.agent.switches.lost_receipts:
                if self.agent.switches.lost_receipts == "forgotten":
                    self.agent.pins.pop(key, None)
                return
        elif pin.digest != frame.digest:
            pin = Pin(frame.digest, 0, Status.CONFLICT, "attempt digest differs")
        assert pin.status is not None
        await self.wire.send(hops.encode_hop(Receipt(frame.attempt, frame.digest, pin.status, pin.detail)))

    async def _receive(self, key: tuple[str, int, int], frame: Data) -> Pin:
        """Admit the event of a new attempt, and pin the answer."""
        try:
            event = decode_event(frame.event)
        except Refused as refusal:
            return Pin(frame.digest, 0, Status.REJECTED, str(refusal))
        size = 128 + len(key[0].encode()) + len(event.event_id.encode()) + 4096
        limit = self.agent.switches.receipt_bytes
        if size > limit:
            return Pin(frame.digest, 0, Status.REJECTED, "hop receipt exceeds byte limit")
        if sum(pin.size for pin in self.agent.pins.values()) + size > limit:
            return Pin(frame.digest, 0, Status.REJECTED, "hop receipt store full")
        pin = self.agent.pins[key] = Pin(frame.digest, size)
        try:
            await self._admit(event, frame.event, "hop")
        except Refusal as refusal:
            pin.status, pin.detail = Status.REJECTED, str(refusal)
        else:
            pin.status = Status.ACCEPTED
        return pin

    def _look_up(self, query: Query) -> QueryResult:
        pin = self.agent.pins.get((query.sender, query.generation, query.attempt))
        if pin is None:
            return QueryResult(query.attempt, query.digest, Status.UNKNOWN, "receipt is not pinned")
        if pin.digest != query.digest:
            return QueryResult(query.attempt, query.digest, Status.CONFLICT, "attempt digest differs")
        if pin.status is None:
            return QueryResult(query.attempt, query.digest, Status.UNKNOWN, "receipt commit is pending")
        return QueryResult(query.attempt, query.digest, pin.status, pin.detail)

    async def _answered(self, receipt: Receipt | QueryResult) -> None:
        """The caller's receipt for one of our events; it is let go of, and the room given to the next."""
        if self._unanswered.pop(receipt.attempt, None) is None:
            return
        self._room.set()
        ack = ReceiptAck(str(self.agent.address), self.number, receipt.attempt, receipt.digest)
        await self.wire.send(hops.encode_hop(ack))

    async def _admit(self, event: Event, raw: bytes, how: str) -> None:
        """Bind the caller's route, and hand the event in; a refusal is kept together with a hold on this slot."""
        try:
            if isinstance(event.source, OuterEnd) and event.source.agent == self.agent.address:
                if event.source in self.agent.tombstones:
                    raise Refusal("outer route is tombstoned")
                self.agent.outers[event.source] = self
            await self.agent.admit(event, raw, how)
        except Refusal as refusal:
            self.held += 1
            self.agent.fail("rejected_local", event, str(refusal), self)
            raise

    async def _write(self) -> None:
        while True:
            raw = await self._outgoing.get()
            if not await self.wire.send(await self._framed(raw)):
                gone = [route for route, connection in self.agent.outers.items() if connection is self]
                self.agent.tombstones.update(gone)
                for route in gone:
                    del self.agent.outers[route]
                self.agent.log(f"P4_EVENT_WRITE_FAILED connection={self.number} tombstoned={len(gone)}")
                return
            self._outgoing.task_done()

    async def _framed(self, raw: bytes) -> bytes:
        if self._hello is None:
            return raw
        most = min(self._hello.max_outstanding, self.agent.switches.outstanding)
        while len(self._unanswered) >= most:
            self._room.clear()
            await self._room.wait()
        self._attempt += 1
        self._unanswered[self._attempt] = raw
        return hops.encode_hop(Data(self._attempt, raw))

    async def _end(self, *, finished: bool) -> None:
        """FINISH is echoed behind what is queued. A direct connection that just ends keeps route, socket and slot."""
        if finished and self.agent.switches.silence != "all":
            if self._writer is not None and not self._writer.done():
                await asyncio.wait(
                    (asyncio.ensure_future(self._outgoing.join()), self._writer), return_when="FIRST_COMPLETED"
                )
            await self.wire.send(FINISH)
        elif self.mode == "direct" and self.agent.switches.slot_leak:
            self.agent.leaked += 1
            return
        self._close()

    def _close(self) -> None:
        self.ended = True
        if self._writer is not None:
            self._writer.cancel()
        for route in [route for route, connection in self.agent.outers.items() if connection is self]:
            del self.agent.outers[route]
        self.agent.connections.discard(self)
        self.wire.close()
        if not self.held:
            self.agent.slots.give()

    def let_go(self) -> None:
        """One preserved refusal was reconciled; the slot of an ended connection is free with its last one."""
        self.held -= 1
        if self.ended and not self.held:
            self.agent.slots.give()
