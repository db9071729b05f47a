"""One console's connection: a cursor into the journal, not a queue of it.

One sender per connection, one send in flight, each with a deadline followed by an abort: the keepalive of the
library does not protect a sender (websockets 17.4).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from backend.agent.access import peer_uid
from backend.agent.journal import JournalDamaged
from backend.contract.endpoints import Agent, Outer
from backend.contract.entities import JournalRecord
from backend.contract.envelopes import encode, event_envelope
from backend.contract.events import Event, Heartbeat, JournalBatch, JournalGap, Measured
from backend.contract.reports import HostFacts, HostReport, HostVitals, Measurement, Presence, vitals_of, with_vitals
from backend.contract.words import HostId, NodeId, UnixMs
from backend.failpoints import failpoint

SEND_DEADLINE_SECONDS = 10.0
HEARTBEAT_SECONDS = 5.0
MEASURED_EVERY_SECONDS = 0.25
BATCH_RECORDS = 64
BATCH_BYTES = 512 << 10
"""A record with a large plan is large: a batch ends before it grows past this, but for a single record."""
LAG_RECORDS = 20_000
"""A console further behind than this is moved near the head; what it must see is still sent."""
KEPT_AFTER_GAP = 2_000
VITALS_MINOR = 1
"""The first minor version whose consoles understand ``measured.vitals``."""


class JournalReader(Protocol):
    """What a connection needs of the journal."""

    @property
    def head_seq(self) -> int: ...

    @property
    def oldest_seq(self) -> int: ...

    def read(self, after: int, limit: int) -> tuple[JournalRecord, ...]: ...

    def next_readable(self, after: int) -> int: ...

    def cursor(self, seq: int) -> str: ...


class Connection:
    """Sends to one console. Everything else only marks what there is to send."""

    def __init__(self, number: int, socket: ServerConnection, host: HostId, clock: Callable[[], UnixMs]) -> None:
        self.number = number
        self.who = "?"
        self.console = "?"
        self.since: UnixMs = clock()
        self.read_only = False
        self.minor = 0
        self.channel = Outer(host, f"connection-{number}", 1)
        self._socket = socket
        self._host = host
        self._journal: JournalReader
        self.report_seq = 0
        self._clock = clock
        self._events: deque[tuple[Event, str]] = deque()
        self._measurements: dict[NodeId, Measurement] = {}
        self._facts: HostFacts | None = None
        self._told: HostFacts | None = None
        self._present: tuple[Presence, ...] | None = None
        self._cursor: int | None = None
        self._sequence = 0
        self._wake = asyncio.Event()
        self._leaving = ""

    def say(self, event: Event, correlation: str) -> None:
        """Queue one event; answers are few and are never dropped."""
        self._events.append((event, correlation))
        self._wake.set()

    def reported(self, report: HostReport, journal: JournalReader) -> None:
        """This report was said: of its facts only what moves is said again, and the records behind it are here."""
        self._told, self._journal, self.report_seq = report.facts, journal, report.seq

    def stream_from(self, seq: int) -> None:
        """Stream the journal after ``seq`` from now on."""
        self._cursor = seq
        self._wake.set()

    def wake(self) -> None:
        """There may be something new to send."""
        self._wake.set()

    def measured(
        self,
        measurements: dict[NodeId, Measurement],
        facts: HostFacts | None = None,
        present: tuple[Presence, ...] | None = None,
    ) -> None:
        """Newer measurements replace older unsent ones."""
        self._measurements.update(measurements)
        self._facts = facts or self._facts
        self._present = present if present is not None else self._present
        self._wake.set()

    @property
    def is_local(self) -> bool:
        """Whether the other side is on this host, by the agent's own unix socket: its user was checked."""
        return peer_uid(self._socket.transport.get_extra_info("socket")) is not None

    def leave(self, words: str) -> None:
        """Close once everything said was sent: the console comes again and gets a whole report."""
        self._leaving = words
        self._wake.set()

    def abort(self) -> None:
        """Cut the connection now, without a closing handshake.

        asyncio's own transport fails there when it was closed with data left to send and has sent it since
        (``_SelectorTransport._force_close`` after ``_call_connection_lost``, Python 3.11 to 3.13): then it is cut.
        """
        with contextlib.suppress(AttributeError):
            self._socket.transport.abort()

    async def send_now(self, event: Event, correlation: str) -> None:
        """Send outside the loop: for a connection that is refused before it has one."""
        await self._send(event, correlation)

    async def send_loop(self) -> None:
        """Send until the connection ends: answers first, then the journal, then measurements, then a heartbeat."""
        loop = asyncio.get_running_loop()
        next_beat = loop.time() + HEARTBEAT_SECONDS
        next_measured = loop.time()
        while True:
            self._wake.clear()
            while self._events:
                event, correlation = self._events.popleft()
                await self._send(event, correlation)
            if self._leaving:
                await self._socket.close(1012, self._leaving)
                return
            if await self._send_journal():
                continue
            now = loop.time()
            if self._has_measured() and now >= next_measured:
                next_measured = now + MEASURED_EVERY_SECONDS
                await self._send_measured()
            if now >= next_beat:
                next_beat = now + HEARTBEAT_SECONDS
                await self._send(Heartbeat(head_seq=self._journal.head_seq, at_unix_ms=self._clock()), "heartbeat")
            until = min(next_beat, next_measured) if self._has_measured() else next_beat
            try:
                async with asyncio.timeout(max(0.0, until - loop.time())):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _has_measured(self) -> bool:
        return bool(self._measurements) or self._facts is not None or self._present is not None

    async def _send_measured(self) -> None:
        facts, vitals = self._facts_to_say()
        event = Measured(
            measurements=tuple(self._measurements.values()), facts=facts, present=self._present, vitals=vitals
        )
        self._measurements, self._facts, self._present = {}, None, None
        await self._send(event, "measured")

    def _facts_to_say(self) -> tuple[HostFacts | None, HostVitals | None]:
        """The facts that wait: whole, or what moved of them where this console knows the rest already."""
        facts, told = self._facts, self._told
        if facts is None:
            return None, None
        self._told = facts
        if self.minor < VITALS_MINOR or told is None or with_vitals(told, vitals_of(facts)) != facts:
            return facts, None
        return None, vitals_of(facts)

    async def _send_journal(self) -> bool:
        """Send one batch; whether there was one."""
        if self._cursor is None or self._cursor >= self._journal.head_seq:
            return False
        self._cut_when_passed()
        if self._journal.head_seq - self._cursor > LAG_RECORDS:
            await self._skip_ahead()
        try:
            records = _that_fit(self._journal.read(self._cursor, BATCH_RECORDS))
        except JournalDamaged as damaged:
            await self._skip_damage(damaged)
            return True
        if not records:
            return False
        self._cursor = records[-1].seq
        await self._send(JournalBatch(records=records, cursor=self._journal.cursor(self._cursor)), "journal")
        return True

    def _cut_when_passed(self) -> None:
        """Retention took records that this console never had: it must begin again with a report."""
        if self._cursor is not None and self._cursor < self._journal.oldest_seq - 1:
            self.abort()
            raise ConnectionClosed(None, None)

    async def _skip_damage(self, damaged: JournalDamaged) -> None:
        """What lies in a damaged segment can be sent to nobody, and whoever follows the journal hears that."""
        assert self._cursor is not None
        first, self._cursor = self._cursor + 1, self._journal.next_readable(self._cursor)
        words = f"they cannot be read, {damaged.file.name} is damaged at byte {damaged.offset}"
        await self._send(JournalGap(first=first, last=self._cursor, words=words), "journal")

    async def _skip_ahead(self) -> None:
        """Leave out what a lagging console can do without: records that change nothing and alarm nobody."""
        assert self._cursor is not None
        target = self._journal.head_seq - KEPT_AFTER_GAP
        while self._cursor < target:
            self._cut_when_passed()
            try:
                records = self._journal.read(self._cursor, BATCH_RECORDS)
            except JournalDamaged as damaged:
                await self._skip_damage(damaged)
                continue
            if not records:
                return
            first, self._cursor = self._cursor + 1, records[-1].seq
            kept = tuple(r for r in records if r.change is not None or r.level != "info" or r.by)
            if len(kept) < len(records):
                await self._send(JournalGap(first=first, last=self._cursor), "journal")
            if kept:
                await self._send(JournalBatch(records=kept, cursor=self._journal.cursor(self._cursor)), "journal")

    async def _send(self, event: Event, correlation: str) -> None:
        self._sequence += 1
        frame = encode(
            event_envelope(
                event,
                source=Agent(self._host),
                target=self.channel,
                sequence=self._sequence,
                correlation_id=correlation,
                causation_id=None,
            )
        )
        try:
            async with asyncio.timeout(SEND_DEADLINE_SECONDS):
                await self._socket.send(frame, text=True)
                failpoint("agent.after_send")
        except TimeoutError:
            # The bytes may be in the buffer: this connection is never written to again.
            self.abort()
            raise ConnectionClosed(None, None) from None


def _that_fit(records: tuple[JournalRecord, ...]) -> tuple[JournalRecord, ...]:
    """The first records, at least one, that stay within the bytes of a batch."""
    size = 0
    for index, record in enumerate(records):
        size += len(msgspec.json.encode(record)) if record.change is not None and record.change.load else 2048
        if size > BATCH_BYTES and index:
            return records[:index]
    return records
