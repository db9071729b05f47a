"""What a console is sent that lags: gaps for what it can do without, and never for what it must see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from backend.agent import connections
from backend.agent.connections import Connection
from backend.agent.journal import Journal
from backend.contract.entities import Change, Entities, JournalRecord, fold
from backend.contract.envelopes import decode_event
from backend.contract.events import JournalBatch, JournalGap
from backend.contract.reports import HostFacts, HostReport
from backend.contract.words import HostId, NodeId, UnixMs
from tests.agent.journal.worlds import SMALL, WAIT_SECONDS, StillClock, open_journal, record
from tests.contract.factories import shard
from tests.planning.worlds import a_host

FACTS = a_host("host-a").facts


class HeardSocket:
    """In place of a websocket: keeps what is sent, read back as a console would."""

    def __init__(self) -> None:
        self.frames: list[object] = []
        self.aborted = False
        self.transport = self
        self.came = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.came.clear()
            await self.came.wait()

    async def send(self, frame: str, *, text: bool) -> None:
        assert text
        self.frames.append(decode_event(frame)[1])
        self.came.set()
        await asyncio.sleep(0)

    def abort(self) -> None:
        self.aborted = True


def record_of(n: int) -> JournalRecord:
    """Every 50th changes a shard, every 70th is an alarm, every 90th somebody's action; the others can be missed."""
    plain = record(n)
    if n % 50 == 0:
        slot = NodeId(f"tiny-{n % 3}/0")
        return msgspec.structs.replace(
            plain, change=Change(shard=msgspec.structs.replace(shard(), node_id=slot, words=f"w{n}"))
        )
    if n % 70 == 0:
        return msgspec.structs.replace(plain, level="alarm")
    return msgspec.structs.replace(plain, by="alice") if n % 90 == 0 else plain


async def filled(folder: Path, count: int) -> Journal:
    journal = open_journal(folder, limits=msgspec.structs.replace(SMALL, ring_records=100))
    for start in range(1, count + 1, 256):
        await journal.append([record_of(n) for n in range(start, min(start + 256, count + 1))]).durable
    return journal


def connection_to(journal: Journal, socket: HeardSocket, facts: HostFacts = FACTS) -> Connection:
    """A connection that said a report as of now."""
    connection = Connection(1, cast(Any, socket), HostId("host-a"), lambda: UnixMs(1))
    durable = journal.snapshot()
    report = HostReport(
        host=HostId("host-a"),
        agent_epoch="epoch",
        journal_id=journal.journal_id,
        journal_epoch=journal.journal_epoch,
        seq=durable.seq,
        oldest_seq=durable.oldest_seq,
        revision=durable.revision,
        facts=facts,
        entities=durable.entities,
    )
    connection.reported(report, journal)
    return connection


async def test_a_lagging_console_gets_gaps_and_still_every_record_that_it_must_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LAG_RECORDS", 2000)
    monkeypatch.setattr(connections, "KEPT_AFTER_GAP", 300)
    count = 5000
    journal, socket = await filled(tmp_path, count), HeardSocket()
    connection = connection_to(journal, socket)
    connection.stream_from(0)
    sending = asyncio.ensure_future(connection.send_loop())
    async with asyncio.timeout(WAIT_SECONDS):
        await socket.until(
            lambda: any(isinstance(f, JournalBatch) and f.records[-1].seq == count for f in socket.frames)
        )
    sending.cancel()
    heard = [r for frame in socket.frames if isinstance(frame, JournalBatch) for r in frame.records]
    gaps = [frame for frame in socket.frames if isinstance(frame, JournalGap)]
    assert gaps
    everything = list(journal.replay())
    missed = {r.seq for r in everything} - {r.seq for r in heard}
    must_see = {r.seq for r in everything if r.change is not None or r.level != "info" or r.by}
    assert not missed & must_see
    assert all(any(gap.first <= seq <= gap.last for gap in gaps) for seq in missed)
    assert [r.seq for r in heard] == sorted({r.seq for r in heard})
    assert {r.seq for r in heard} >= set(range(count - 200, count + 1))
    assert entities_of(heard) == entities_of(everything) == journal.entities
    await journal.close()


def entities_of(records: list[JournalRecord]) -> Entities:
    entities = Entities()
    for each in records:
        entities = fold(entities, each)
    return entities


async def test_a_console_that_keeps_up_is_never_gapped(tmp_path: Path) -> None:
    journal, socket = await filled(tmp_path, 3000), HeardSocket()
    connection = connection_to(journal, socket)
    connection.stream_from(0)
    sending = asyncio.ensure_future(connection.send_loop())
    async with asyncio.timeout(WAIT_SECONDS):
        await socket.until(lambda: sum(len(f.records) for f in socket.frames if isinstance(f, JournalBatch)) >= 3000)
    sending.cancel()
    assert not [frame for frame in socket.frames if isinstance(frame, JournalGap)]
    await journal.close()


async def test_a_console_that_retention_has_passed_is_cut_and_not_gapped(tmp_path: Path) -> None:
    clock = StillClock()
    limits = msgspec.structs.replace(SMALL, segment_bytes=3000, ring_records=3, keep_bytes=6000)
    journal = Journal.open(tmp_path, host="host-a", clock=clock, limits=limits)
    for n in range(1, 120):
        await journal.append([record_of(n)]).durable
    clock.mono += 61 * 1_000_000_000
    await journal.keep_up()
    assert journal.oldest_seq > 2
    socket = HeardSocket()
    connection = connection_to(journal, socket)
    connection.stream_from(1)
    with pytest.raises(ConnectionClosed):
        await asyncio.wait_for(connection.send_loop(), WAIT_SECONDS)
    assert socket.aborted
    assert not [frame for frame in socket.frames if isinstance(frame, JournalBatch | JournalGap)]
    await journal.close()
