"""What the desk answers about the journal: verified, counted, exported. Large reads run beside the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from backend.agent.journal import DamagedJournal, Journal
from backend.agent.journal.verifying import stats, verify
from backend.contract.entities import JournalRecord
from backend.contract.frames import tree_of

MOST_RECORDS = 256
MOST_BYTES = 384 << 10
"""A page of an export stays well below a frame's limit, but for a single record that is larger."""


async def verified(journal: Journal | DamagedJournal) -> dict[str, Any]:
    """Every byte read and checked. ``is_sound``, and when it is not: file, offset and words."""
    found = await asyncio.to_thread(verify, journal)
    tree: dict[str, Any] = tree_of(found)
    words = found.words or (journal.health if journal.is_read_only else "")
    return {**tree, "is_sound": not words, "words": words, "health": journal.health}


def statistics(journal: Journal | DamagedJournal) -> dict[str, Any]:
    """What there is of the journal, how it fares, and how long its last sync took."""
    return {
        **stats(journal),
        "health": journal.health,
        "is_read_only": journal.is_read_only,
        "last_sync_seconds": journal.last_sync_seconds,
        "dropped_records": journal.dropped_records,
    }


async def exported(journal: Journal | DamagedJournal, after: int, limit: int) -> dict[str, Any]:
    """Whole records after ``after``, as they are stored; ``next`` is what to ask with for those behind them."""
    records = await asyncio.to_thread(journal.read, after, min(limit, MOST_RECORDS))
    page: list[JournalRecord] = []
    size = 0
    for record in records:
        size += len(msgspec.json.encode(record))
        if page and size > MOST_BYTES:
            break
        page.append(record)
    return {
        "records": [tree_of(record) for record in page],
        "next": page[-1].seq if page else after,
        "oldest_seq": journal.oldest_seq,
        "head_seq": journal.head_seq,
    }
