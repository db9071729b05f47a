"""The journal beside SQLite (WAL, synchronous=FULL) on the same disk, interleaved in one run.

``python -m bench.journal --json [--rounds 9] [--events 1000000]`` prints one object. Both store the same JSON of about
242 bytes per event, encoded inside the time that counts; each append is acknowledged before the next one is made.

Ours is awaited from an event loop that stays free, through the writer thread, as the agent does it. SQLite has one
connection and prepared statements, and is taken twice: called (``sqlite``), which blocks its caller for as long as the
disk takes, and awaited from the same event loop through a thread of its own (``sqlite_awaited``), which is the job that
an agent has. Its write-ahead log has reached its full size before anything counts: from then on it is written over, and
its syncs are as cheap as they get. ``bare`` is a write and an fdatasync of the same bytes over bytes that were there:
the floor of anything durable. ``--folder /dev/shm`` leaves the disk out and shows what each program takes by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from backend.agent.journal import Journal, Limits, SystemClock
from backend.agent.journal.verifying import verify
from backend.contract.entities import JournalRecord
from backend.contract.words import UnixMs

GROUP = 64
GOAL = 1.3
ROUND_SINGLES = 200
ROUND_GROUPS = 40
CHECKPOINT_PAGES = 1000
"""SQLite's default of wal_autocheckpoint."""
LOADS = (1000, 5000)
RESUMED = 1000


def event(n: int) -> JournalRecord:
    """An event of the size that an agent's have in the middle."""
    return JournalRecord(
        kind="loading",
        words=f"loaded {n % 97}.{n % 10} of 98.4 GiB on CUDA{n % 8} at 1.42 GiB/s; 31 s left; layers 12 to 35 of 80; "
        "every worker answers within 20 ms",
        at_unix_ms=UnixMs(1_764_412_800_000 + n),
        by="alice",
        replica=f"llama-70b-{n % 4}",
        node_id=f"llama-70b-{n % 4}/{n % 8}",
    )


EVENT_BYTES = len(msgspec.json.encode(event(12_345)))


class Sqlite:
    """The peer: one row per event, committed one by one or in groups."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = full")
        self._db.execute("create table if not exists events (seq integer primary key, body blob)")

    def append(self, events: Sequence[JournalRecord]) -> None:
        """Durable when it returns."""
        rows = [(msgspec.json.encode(each),) for each in events]
        if len(rows) == 1:
            self._db.execute("insert into events (body) values (?)", rows[0])
            return
        self._db.execute("begin")
        self._db.executemany("insert into events (body) values (?)", rows)
        self._db.execute("commit")

    def fill_log(self) -> None:
        """Write as many pages as make the log as long as it will be: it is written over from then on."""
        for n in range(CHECKPOINT_PAGES + 50):
            self.append([event(n)])

    def resume(self, after: int, limit: int) -> int:
        """How many events come behind a place, decoded."""
        found = self._db.execute("select body from events where seq > ? order by seq limit ?", (after, limit))
        return len([msgspec.json.decode(body, type=JournalRecord) for (body,) in found])

    def close(self) -> None:
        self._db.close()


def bare_seconds(folder: Path, count: int, size: int) -> list[float]:
    """What each write and sync of ``size`` bytes takes on this disk."""
    fd = os.open(folder / f"bare-{size}", os.O_RDWR | os.O_CREAT)
    taken = []
    try:
        os.pwrite(fd, bytes(count * size), 0)
        os.fsync(fd)
        data = b"x" * size
        for n in range(count):
            began = time.perf_counter()
            os.pwrite(fd, data, n * size)
            os.fdatasync(fd)
            taken.append(time.perf_counter() - began)
    finally:
        os.close(fd)
    return taken


async def ours(journal: Journal, count: int, group: int) -> float:
    """Events per second, each group awaited before the next."""
    groups = [[event(n * group + k) for k in range(group)] for n in range(count)]
    began = time.perf_counter()
    for records in groups:
        await journal.append(records).durable
    return count * group / (time.perf_counter() - began)


def theirs(peer: Sqlite, count: int, group: int) -> float:
    """The same by SQLite."""
    groups = [[event(n * group + k) for k in range(group)] for n in range(count)]
    began = time.perf_counter()
    for records in groups:
        peer.append(records)
    return count * group / (time.perf_counter() - began)


async def theirs_awaited(peer: Sqlite, thread: Executor, count: int, group: int) -> float:
    """The same by SQLite in a thread of its own: the event loop stays free, as it does with ours."""
    groups = [[event(n * group + k) for k in range(group)] for n in range(count)]
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    for records in groups:
        await loop.run_in_executor(thread, peer.append, records)
    return count * group / (time.perf_counter() - began)


async def acknowledged(journal: Journal, per_second: int, seconds: float) -> list[float]:
    """Seconds from the append to the acknowledgement, at a steady rate of single events that nobody waits for."""
    loop = asyncio.get_running_loop()
    taken: list[float] = []
    waiting = []
    began = loop.time()
    for n in range(int(per_second * seconds)):
        due = began + n / per_second
        if (pause := due - loop.time()) > 0.0005:
            await asyncio.sleep(pause)
        elif n % 16 == 0:
            await asyncio.sleep(0)
        at = time.perf_counter()
        durable = journal.append([event(n)]).durable
        durable.add_done_callback(partial(_note, taken, at))
        waiting.append(durable)
    await asyncio.gather(*waiting)
    return taken


def _note(taken: list[float], at: float, _: object) -> None:
    taken.append(time.perf_counter() - at)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds."""
    ordered = sorted(seconds)
    return {
        "p50_ms": round(ordered[len(ordered) // 2] * 1000, 3),
        "p99_ms": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000, 3),
    }


async def durable_figures(folder: Path, rounds: int) -> dict[str, Any]:
    """Singles and groups side by side: each round has a try of each in turn, after one round that is not counted."""
    journal = Journal.open(folder / "journal", host="bench", clock=SystemClock())
    peer = Sqlite(folder / "peer.db")
    peer.fill_log()
    figures: dict[str, Any] = {}
    thread = ThreadPoolExecutor(1)
    try:
        for name, count, group in (("one_by_one", ROUND_SINGLES, 1), ("groups_of_64", ROUND_GROUPS, GROUP)):
            size = 40 + group * (24 + EVENT_BYTES + 7)
            tried: dict[str, list[float]] = {"ours": [], "sqlite": [], "sqlite_awaited": [], "bare_sync": []}
            for n in range(rounds + 1):
                # Every second round the other way round: what one leaves behind on the disk is not always the same's.
                for which in sorted(tried, reverse=bool(n % 2)):
                    if which == "ours":
                        rate = await ours(journal, count, group)
                    elif which == "sqlite":
                        rate = theirs(peer, count, group)
                    elif which == "sqlite_awaited":
                        rate = await theirs_awaited(peer, thread, count, group)
                    else:
                        rate = count * group / sum(bare_seconds(folder, count, size))
                    tried[which].append(rate)
            figures[name] = compared({which: rates[1:] for which, rates in tried.items()})
    finally:
        thread.shutdown()
        await journal.close()
        peer.close()
    return figures


def compared(tried: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and the median of each round's own ratio, which the disk's moods touch least."""
    figures: dict[str, Any] = {f"{which}_per_s": round(statistics.median(rates)) for which, rates in tried.items()}
    for which, name in (("sqlite", "sqlite"), ("sqlite_awaited", "sqlite_awaited"), ("bare_sync", "bare")):
        ratios = sorted(a / b for a, b in zip(tried["ours"], tried[which], strict=True))
        figures[f"ratio_to_{name}"] = round(statistics.median(ratios), 2)
        figures[f"quartiles_to_{name}"] = [round(ratios[len(ratios) // 4], 2), round(ratios[3 * len(ratios) // 4], 2)]
    bare = zip(tried["bare_sync"], tried["sqlite"], strict=True)
    figures["bare_to_sqlite"] = round(statistics.median(a / b for a, b in bare), 2)
    figures["goal_ratio_to_sqlite"] = GOAL
    return figures


async def acknowledgement_figures(folder: Path, seconds: float) -> dict[str, Any]:
    """How long an append waits at two loads, beside the bare sync of the same moment."""
    figures: dict[str, Any] = {}
    for per_second in LOADS:
        journal = Journal.open(folder / f"rate-{per_second}", host="bench", clock=SystemClock())
        before = bare_seconds(folder, 300, 320)
        taken = await acknowledged(journal, per_second, seconds)
        after = bare_seconds(folder, 300, 320)
        await journal.close()
        figures[f"at_{per_second}_per_s"] = {"ack": spread(taken), "bare_sync": spread([*before, *after])}
    return figures


async def reading_figures(folder: Path, events: int, tries: int) -> dict[str, Any]:
    """Resuming at random cursors and a whole checked scan, over ``events`` events; SQLite has the same."""
    journal = Journal.open(folder / "long", host="bench", clock=SystemClock(), limits=Limits(ring_records=1))
    peer = Sqlite(folder / "long.db")
    for start in range(0, events, 512):
        records = [event(n) for n in range(start, min(start + 512, events))]
        await journal.append(records).durable
        peer.append(records)
    random.seed(7)
    pairs = []
    for _ in range(tries):
        cursor = random.randrange(journal.oldest_seq, max(journal.head_seq - RESUMED, journal.oldest_seq + 1))
        text = journal.cursor(cursor)
        began = time.perf_counter()
        outcome = journal.resolve(text)
        count = len(journal.read(outcome.from_seq, RESUMED))
        ended = time.perf_counter()
        assert count == peer.resume(min(cursor, events - RESUMED), RESUMED), "both must give as many"
        pairs.append((ended - began, time.perf_counter() - ended))
    found = verify(journal)
    await journal.close()
    began = time.perf_counter()
    again = Journal.open(folder / "long", host="bench", clock=SystemClock())
    opened = time.perf_counter() - began
    await again.close()
    peer.close()
    assert not found.words, found.words
    return {
        "resume_1000": {
            "ours_ms": round(statistics.median(a for a, _ in pairs) * 1000, 3),
            "sqlite_ms": round(statistics.median(b for _, b in pairs) * 1000, 3),
            "ratio": round(statistics.median(a / b for a, b in pairs), 2),
        },
        "scan": {
            "events": found.records,
            "segments": found.segments,
            "seconds": round(found.seconds, 3),
            "events_per_s": round(found.records / found.seconds),
        },
        "open_seconds": round(opened, 3),
    }


async def measure(folder: Path, rounds: int, events: int) -> dict[str, Any]:
    """Every figure, in one run."""
    return {
        "rounds": rounds,
        "event_bytes": EVENT_BYTES,
        "sqlite": sqlite3.sqlite_version,
        "durable": await durable_figures(folder, rounds),
        "acknowledgement": await acknowledgement_figures(folder, min(3.0, 0.5 * rounds)),
        **(await reading_figures(folder, events, 5 * rounds)),
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
@click.option("--rounds", default=9, type=click.IntRange(1, 100), help="counted rounds, after one that is not")
@click.option("--events", default=1_000_000, type=click.IntRange(2_000), help="events of the long journal")
@click.option("--folder", default="/tmp", help="the disk to measure: a folder on it")
def main(as_json: bool, rounds: int, events: int, folder: str) -> None:
    """Time the journal beside SQLite and beside the bare disk."""
    place = Path(tempfile.mkdtemp(prefix="rtb", dir=folder))
    try:
        figures = asyncio.run(measure(place, rounds, events))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    print(json.dumps(figures) if as_json else json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
