"""One simulated agent: its broker, its queues, its nodes, and the loop that answers what is addressed to it."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from tests.p4.simulator.broker import Broker, Full, Queue, Refusal
from tests.p4.simulator.inbound import Inbound, Pin, Slots
from tests.p4.simulator.journal import Journal, JournalRefused
from tests.p4.simulator.node import Node
from tests.p4.simulator.outbound import Peer
from tests.p4.simulator.sockets import Wire
from tests.p4.simulator.switches import Switches
from tests.p4.simulator.wire import Address, Event, NodeEnd, OuterEnd, encode_event

_RETRY_SECONDS = 0.002


@dataclass
class Failure:
    """One event that was not delivered, preserved until somebody reconciles it."""

    failure_id: str
    state: str
    event: Event
    detail: str
    at: int
    holder: Inbound | None


class SimulatedAgent:
    """Everything of one agent process; a restart is a new one, which knows nothing of the old."""

    def __init__(self, switches: Switches, address: Address, journal: Journal | None) -> None:
        self.switches = switches
        self.address = address
        self.journal = journal
        self.broker = Broker(address, switches.retained_bytes, switches.broker)
        self.slots = Slots(switches.slots)
        self.nodes: dict[str, Node] = {}
        self.connections: set[Inbound] = set()
        self.outers: dict[OuterEnd, Inbound] = {}
        self.tombstones: set[OuterEnd] = set()
        self.peers: dict[Address, Peer] = {}
        self.pins: dict[tuple[str, int, int], Pin] = {}
        self.failures: dict[str, Failure] = {}
        self.control: asyncio.Queue[Event] = asyncio.Queue()
        self.load_gate = asyncio.Lock()
        self.born = time.time_ns() // 1_000_000
        self.leaked = 0
        self.outer_missing = 0
        self.accepted = 0
        self._counter = 0
        self._generations = 0
        self._failed = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside everything else; an error of ours ends the process, loudly."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "the simulator is broken", "exception": task.exception(), "task": task}
            )

    def log(self, line: str) -> None:
        """One line of the agent's standard error."""
        print(line, file=sys.stderr, flush=True)

    def next_number(self) -> int:
        """The agent's one counter of replies and derived events."""
        self._counter += 1
        return self._counter

    def next_generation(self) -> int:
        """A generation for a connection that this agent opens."""
        self._generations += 1
        return self._generations

    async def accept(self, listener: socket.socket) -> None:
        """Take connections while there are slots; the ones beyond them stay in the backlog, unserved."""
        loop = asyncio.get_running_loop()
        while True:
            await self.slots.room()
            sock, _ = await loop.sock_accept(listener)
            self.slots.take()
            self.accepted += 1
            connection = Inbound(self, Wire(sock), self.accepted)
            self.connections.add(connection)
            self.spawn(connection.serve())

    async def admit(self, event: Event, raw: bytes, how: str) -> None:
        """Hand in an event from a connection; waits while its node is paused. Raises Refusal."""
        while True:
            try:
                queue = self.broker.offer(event, raw)
            except Full:
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                break
        if queue is Queue.NODE and self.journal is not None:
            try:
                self.journal.append(
                    "admission" if how == "direct" else "inbound", event.event_id, event.content_type, raw
                )
            except JournalRefused as refusal:
                raise Refusal(str(refusal)) from None
        self._place(queue, event, raw)

    def publish(self, event: Event) -> None:
        """Hand in an event of this agent or of one of its nodes."""
        raw = encode_event(event)
        try:
            self._place(self.broker.offer(event, raw), event, raw)
        except Full:
            self.spawn(self._publish_later(event, raw))
        except Refusal as refusal:
            self.fail("rejected_local", event, str(refusal))

    async def _publish_later(self, event: Event, raw: bytes) -> None:
        try:
            await self.admit(event, raw, "own")
        except Refusal as refusal:
            self.fail("rejected_local", event, str(refusal))

    def _place(self, queue: Queue, event: Event, raw: bytes) -> None:
        match queue:
            case Queue.CONTROL:
                self.control.put_nowait(event)
            case Queue.NODE:
                assert isinstance(event.target, NodeEnd)
                self.nodes[event.target.node].queue.put_nowait(event)
            case Queue.OUTER:
                assert isinstance(event.target, OuterEnd)
                connection = self.outers.get(event.target)
                if connection is not None:
                    connection.deliver(raw)
                else:
                    self.outer_missing += 1
                    self.log(f"P4_EVENT_OUTER_MISSING discarded={self.outer_missing} target={event.target}")
            case Queue.OUTBOUND:
                target = event.target.agent
                if target not in self.peers:
                    self.peers[target] = Peer(self, target)
                self.peers[target].queue.put_nowait((event, raw))
            case Queue.NOWHERE:
                pass

    def record(self, kind: str, event: Event, raw: bytes) -> None:
        """One more journal record; a full journal is only logged here, as the event is on its way already."""
        if self.journal is not None:
            try:
                self.journal.append(kind, event.event_id, event.content_type, raw)
            except JournalRefused as refusal:
                self.log(f"P4_EVENT_JOURNAL_FAILED error={refusal}")

    def fail(self, state: str, event: Event, detail: str, holder: Inbound | None = None) -> None:
        """Preserve an event that was not delivered."""
        self._failed += 1
        failure_id = f"transport-{self._failed}"
        now = time.time_ns() // 1_000_000
        self.failures[failure_id] = Failure(failure_id, state, event, detail, now, holder)

    def reconcile(self, failure_id: str) -> bool:
        """Let go of a preserved failure, and of the slot it held."""
        failure = self.failures.pop(failure_id, None)
        if failure is not None and failure.holder is not None:
            failure.holder.let_go()
        return failure is not None
