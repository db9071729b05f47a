"""A checkpoint: records at the start of a segment that restate everything an agent has, so that older ones may go.

Restating records come first, each with after-images; the last record has kind ``journal.checkpoint`` and says that
the checkpoint is whole. A segment that begins with a whole one is a base: a fold from there gives all there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from backend.contract.entities import Change, Entities, JournalRecord
from backend.contract.words import UnixMs

RESTATED = "journal.restated"
CHECKPOINT = "journal.checkpoint"
FORKED = "journal.forked"
RECOVERED = "journal.recovered"
_BEFORE_ITS_END = (RESTATED, FORKED, RECOVERED)


def _fields() -> dict[str, str]:
    """The field of a Change for each table of Entities, by their names: ``shards`` is set by ``shard``."""
    tables = [name for name, kind in Entities.__annotations__.items() if str(kind).startswith("dict")]
    return {table: table if table in Change.__struct_fields__ else table.removesuffix("s") for table in tables}


def restating_records(entities: Entities, at_unix_ms: UnixMs) -> tuple[JournalRecord, ...]:
    """The records of a checkpoint: folded from nothing they give ``entities``; at least one, the last says the end."""
    changes = [
        Change(**{field: value}, restates=True)
        for table, field in _fields().items()
        for value in getattr(entities, table).values()
    ]
    if entities.keeper is not None:
        changes.append(Change(keeper=entities.keeper, restates=True))
    if entities.cordon is not None:
        changes.append(Change(cordon=entities.cordon, restates=True))
    counts = [f"{len(getattr(entities, table))} {table}" for table in _fields() if getattr(entities, table)]
    words = f"a new segment begins; restated: {', '.join(counts) or 'nothing is open'}"
    restated = [
        JournalRecord(kind=RESTATED, words=_words(change), at_unix_ms=at_unix_ms, change=change) for change in changes
    ]
    highest = Change(highest_generation=entities.highest_generation, restates=True)
    return (*restated, JournalRecord(kind=CHECKPOINT, words=words, at_unix_ms=at_unix_ms, change=highest))


def begins_with_checkpoint(records: Iterator[JournalRecord]) -> bool:
    """Whether these records, the first of a segment, begin with a whole checkpoint."""
    for record in records:
        if record.kind not in _BEFORE_ITS_END:
            return record.kind == CHECKPOINT
    return False


def _words(change: Change) -> str:
    fields: dict[str, Any] = {name: getattr(change, name) for name in change.__struct_fields__}
    set_names = [name for name, value in fields.items() if isinstance(value, msgspec.Struct)]
    return f"{', '.join(set_names)} restated"
