"""Reading a journal back: records after a place, the whole of it, and what a console's cursor is worth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from backend.agent.journal.cursor import Cursor, CursorOutcome, parse_cursor
from backend.agent.journal.opening import chain_at, segment_of
from backend.agent.journal.segments import CHUNK, Segment, StoredBatch, batches_from
from backend.agent.journal.shared import Shared
from backend.contract.entities import Entities, JournalRecord
from backend.contract.numbers import check_u64

_RETRIES = 10
MOST_PLACES = 16
"""How many readers of the disk find their places again; one more than that is slower, and no less right."""
RECORD_BYTES = 512
"""What a record takes, in the middle: how much of a file is read at once for how many."""


class Place(msgspec.Struct, frozen=True):
    """Where a reader stands behind a record: the next batch begins at ``offset`` of ``path``.

    ``epoch`` and ``chain`` are of the record's own batch, ``rest`` is what the reader has not had of that.
    """

    path: Path
    offset: int
    epoch: int
    chain: int
    rest: tuple[JournalRecord, ...] = ()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything durable at one moment, as of record ``seq``: what the records behind it carry on from.

    ``revision`` counts the decisions since this journal was opened.
    """

    seq: int
    oldest_seq: int
    entities: Entities
    revision: int


class StoredLog:
    """What is durable of a journal. Any thread may read; reading is bounded by ``limit`` and never waits."""

    def __init__(self, journal_id: str, journal_epoch: int, shared: Shared) -> None:
        self.journal_id = journal_id
        self.journal_epoch = journal_epoch
        self._shared = shared
        self._places: dict[int, Place] = {}

    @property
    def head_seq(self) -> int:
        """The last durable record; 0 while there is none."""
        with self._shared.lock:
            return self._shared.head_seq

    @property
    def oldest_seq(self) -> int:
        """The oldest record kept; one past ``head_seq`` while there is none."""
        with self._shared.lock:
            return self._shared.oldest_seq

    @property
    def entities(self) -> Entities:
        """The fold of everything durable."""
        with self._shared.lock:
            return self._shared.entities

    def snapshot(self) -> Snapshot:
        """Entities, revision and the place in the log that they are of, read at one moment."""
        shared = self._shared
        with shared.lock:
            return Snapshot(
                seq=shared.head_seq,
                oldest_seq=shared.oldest_seq,
                entities=shared.entities,
                revision=shared.revision,
            )

    def replay(self) -> Iterator[JournalRecord]:
        """Every durable record in order. Raises JournalDamaged for what no longer reads as it was written."""
        return self._stored(0)

    def read(self, after: int, limit: int) -> tuple[JournalRecord, ...]:
        """At most ``limit`` durable records past ``after``, from memory when recent, else from the file.

        The first is the oldest one kept when retention has passed ``after`` meanwhile.
        """
        check_u64("after", after)
        shared = self._shared
        with shared.lock:
            if after >= shared.head_seq or limit <= 0:
                return ()
            if (recent := shared.recent.after(after, limit)) is not None:
                return recent
        for _ in range(_RETRIES):
            try:
                return self._read_on(after, limit)
            except FileNotFoundError:
                continue  # retention removed the segment between the look at the list and the open
        return self._read_on(after, limit)

    def next_readable(self, after: int) -> int:
        """Where to read on when what follows ``after`` is damaged: the last record before the next segment, or all."""
        firsts = [segment.header.first_seq for segment in self.segments()]
        return min((first - 1 for first in firsts if first > after + 1), default=self.head_seq)

    def cursor(self, seq: int) -> str:
        """The cursor of somebody who has everything up to ``seq`` (0: nothing). Raises ValueError outside the log."""
        oldest, head = self.oldest_seq, self.head_seq
        if not oldest - 1 <= seq <= head:
            raise ValueError(f"no cursor for record {seq}: the journal holds {oldest}..{head}")
        epoch, chain = self._mark(seq)
        return str(Cursor(self.journal_id, epoch, seq, chain))

    def resolve(self, cursor: str) -> CursorOutcome:
        """Where the holder of a cursor goes on. Raises ValueError for a text that is no cursor."""
        asked = parse_cursor(cursor)
        oldest, head = self.oldest_seq, self.head_seq
        if asked.journal_id != self.journal_id:
            return self._diverged(f"the cursor is of journal {asked.journal_id}, this one is {self.journal_id}")
        if asked.journal_epoch < (forked := self._forked_epoch()):
            return self._diverged(
                f"the cursor is of epoch {asked.journal_epoch}; that one was given up, the journal was forked and "
                f"begins with epoch {forked}"
            )
        if asked.seq > head:
            return self._diverged(
                f"the cursor has seen record {asked.seq}, the journal ends with {head}: the journal went backwards"
            )
        if asked.seq < oldest - 1:
            return CursorOutcome(outcome="gone", oldest=oldest, journal_epoch=self.journal_epoch)
        epoch, chain = self._mark(asked.seq)
        is_before_all = asked.seq == oldest - 1
        if chain != asked.chain or (epoch != asked.journal_epoch and not is_before_all):
            return self._diverged(
                f"the cursor has record {asked.seq} of epoch {asked.journal_epoch} with chain {asked.chain:08x}, the "
                f"journal has it in epoch {epoch} with {chain:08x}"
            )
        return CursorOutcome(outcome="ok", from_seq=asked.seq, oldest=oldest, journal_epoch=self.journal_epoch)

    def segments(self) -> list[Segment]:
        """The segments as they stand now, for reading."""
        with self._shared.lock:
            return [Segment(s.path, s.header, s.end, s.index, s.seal, s.is_base) for s in self._shared.segments]

    def _forked_epoch(self) -> int:
        """The epoch in which a fork began this log anew, while its first segment is still here; else 0."""
        with self._shared.lock:
            first = self._shared.segments[0].header if self._shared.segments else None
        is_forked = first is not None and first.first_batch_no == 1 and first.epoch > 1
        return first.epoch if first is not None and is_forked else 0

    def _diverged(self, words: str) -> CursorOutcome:
        return CursorOutcome(outcome="diverged", oldest=self.oldest_seq, journal_epoch=self.journal_epoch, words=words)

    def _mark(self, seq: int) -> tuple[int, int]:
        shared = self._shared
        if (place := self._places.get(seq)) is not None:
            return place.epoch, place.chain
        with shared.lock:
            chain = shared.head_chain if seq == shared.head_seq else shared.recent.chain_of(seq)
            last = shared.segments[-1].header if shared.segments else None
        if chain is not None and last is not None and last.first_seq <= seq:
            return last.epoch, chain  # as a console that keeps up has it, without a look at the list of segments
        segments = self.segments()
        if not segments:
            return self.journal_epoch, shared.head_chain
        segment = segment_of(segments, seq)
        if chain is None and segment.header.first_seq <= seq:
            for _, batch in self._batches(seq - 1):
                # Whoever asks for this mark reads on from here next.
                rest = tuple(record for record in batch.records if record.seq > seq)
                self._keep(seq, Place(segment.path, batch.end, segment.header.epoch, batch.header.crc, rest))
                return segment.header.epoch, batch.header.crc
        return segment.header.epoch, chain_at(segments, seq) if chain is None else chain

    def _stored(self, after: int) -> Iterator[JournalRecord]:
        for _, batch in self._batches(after):
            yield from (record for record in batch.records if record.seq > after)

    def _batches(
        self, after: int, place: Place | None = None, chunk: int = CHUNK
    ) -> Iterator[tuple[Segment, StoredBatch]]:
        """The batches with records past ``after``, from ``place`` on when somebody was there already."""
        segments = self.segments()
        if not segments:
            return
        first = segments.index(segment_of(segments, after + 1))
        for segment in segments[first:]:
            is_there = place is not None and place.path == segment.path
            offset = place.offset if place is not None and is_there else segment.offset_near(after + 1)
            for batch in batches_from(segment, offset, segment.end, after, chunk):
                yield segment, batch

    def _read_on(self, after: int, limit: int) -> tuple[JournalRecord, ...]:
        """At most ``limit`` stored records past ``after``; where they end is kept for who reads on from there.

        A console far behind reads batch after batch: looked for by the index each time, every batch would be read and
        checked with up to a thousand records before it.
        """
        place = self._places.get(after)
        if place is not None and len(place.rest) >= limit:
            found = list(place.rest[:limit])
            self._keep(found[-1].seq, msgspec.structs.replace(place, rest=place.rest[limit:]))
            return tuple(found)
        found = list(place.rest) if place is not None else []
        last = found[-1].seq if found else after
        for segment, batch in self._batches(last, place, chunk=min(CHUNK, RECORD_BYTES * limit)):
            records = [record for record in batch.records if record.seq > last]
            wanted = limit - len(found)
            found += records[:wanted]
            if len(records) >= wanted:
                rest = tuple(records[wanted:])
                self._keep(found[-1].seq, Place(segment.path, batch.end, segment.header.epoch, batch.header.crc, rest))
                break
        return tuple(found)

    def _keep(self, seq: int, place: Place) -> None:
        with self._shared.lock:
            self._places[seq] = place
            while len(self._places) > MOST_PLACES:
                del self._places[next(iter(self._places))]
