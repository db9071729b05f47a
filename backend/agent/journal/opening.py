"""Opening a journal: judge everything first, change nothing before that, then cut a torn tail or make a new journal."""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backend.agent.journal.checkpoint import RECOVERED
from backend.agent.journal.disk import Disk, own_folder
from backend.agent.journal.errors import JournalDamaged, JournalWriteFailed
from backend.agent.journal.format import SEGMENT_HEADER_BYTES, SegmentHeader, encode_batch, encode_record
from backend.agent.journal.head import HEAD_NAME, Head, HeadFile
from backend.agent.journal.limits import Clock, Limits
from backend.agent.journal.recent import Records
from backend.agent.journal.recovery import Position
from backend.agent.journal.retention import base_of
from backend.agent.journal.segment_writer import Fenced, NotWritten, SegmentWriter, error_words
from backend.agent.journal.segments import (
    Loaded,
    Segment,
    batches_from,
    create_segment,
    load_segments,
    save_torn_tail,
    seal_segment,
    torn_copy,
)
from backend.agent.journal.shared import Shared
from backend.agent.journal.space import Space
from backend.agent.journal.writer import batch_chain
from backend.contract.entities import Entities, JournalRecord, fold
from backend.contract.words import UnixMs

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
FORK_SUFFIX = ".fork"


@dataclass(slots=True)
class Opened:
    """A journal ready for its writer. ``recovered_bytes`` is the size of a torn tail that was cut off just now."""

    journal_id: str
    is_new: bool
    recovered_bytes: int
    shared: Shared
    end: SegmentWriter
    head: HeadFile
    space: Space
    place: Path


def open_folder(folder: Path, *, host: str, clock: Clock, disk: Disk, limits: Limits) -> Opened:
    """Open the one journal under ``folder``, or begin one. Raises JournalDamaged, JournalWriteFailed and OSError."""
    journal_id = find_journal(folder, disk)
    is_new = journal_id is None
    journal_id = journal_id or uuid.uuid4().hex
    place = folder / journal_id
    own_folder(place)
    disk.fsync_folder(folder)
    head = HeadFile(place / HEAD_NAME, disk)
    try:
        witness = head.load()
        witnessed = witness.seq if witness is not None else 0
        loaded = load_segments(place, disk, journal_id=journal_id, host=host, witnessed=witnessed)
        check_witness(place, witness, loaded)
        if witness is None:
            head.create(Head(journal_id=journal_id, epoch=1, seq=0, oldest=1, chain=0))
        if loaded is None:
            loaded, recovered = _begin(place, journal_id, host, disk), 0
        else:
            loaded, recovered = _go_on(place, loaded, disk, clock)
        entities = entities_of(loaded.segments)
        end = SegmentWriter(place, loaded.segments[-1], loaded.position, loaded.digest, disk, limits)
    except BaseException:
        head.close()
        raise
    shared = Shared(loaded.segments, loaded.position, limits, entities)
    opened = Opened(journal_id, is_new, recovered, shared, end, head, _room(place, disk, limits, shared), place)
    if recovered:
        _record_recovery(opened, clock)
    return opened


def check_witness(place: Path, head: Head | None, loaded: Loaded | None) -> None:
    """Raise JournalDamaged when the head file has seen what the log no longer holds."""
    path = place / HEAD_NAME
    if head is None:
        if loaded is not None:
            raise JournalDamaged(path, 0, "the head file is missing, so nobody can tell whether the log is whole")
        return
    if head.journal_id != place.name:
        raise JournalDamaged(path, 0, f"it witnesses journal {head.journal_id}, not {place.name}")
    if loaded is None:
        if head.seq:
            raise JournalDamaged(path, 0, f"it witnessed record {head.seq}, and there is no segment at all")
        return
    segments, position = loaded.segments, loaded.position
    first, last = segments[0].header.first_seq, position.next_seq - 1
    if head.seq > last or head.epoch > position.epoch:
        raise JournalDamaged(
            segments[-1].path,
            segments[-1].end,
            f"the journal went backwards: record {head.seq} of epoch {head.epoch} was witnessed as durable, the log "
            f"ends with record {last} of epoch {position.epoch}",
        )
    if head.oldest < first:
        raise JournalDamaged(segments[0].path, 0, f"the log begins with record {first}; {head.oldest} was witnessed")
    chain = chain_at(segments, head.seq)
    if chain != head.chain:
        raise JournalDamaged(
            path, 0, f"record {head.seq} was witnessed with chain {head.chain:08x}, the log has {chain:08x}"
        )


def segment_of(segments: list[Segment], seq: int) -> Segment:
    """The segment that holds a record; the oldest one for what lies before it."""
    return next((s for s in reversed(segments) if s.header.first_seq <= seq), segments[0])


def chain_at(segments: list[Segment], seq: int) -> int:
    """The chain value of the batch that holds a durable record, or of what precedes the oldest. Raises KeyError."""
    segment = segment_of(segments, seq)
    if seq < segment.header.first_seq:
        return segment.header.prev_chain
    for batch in batches_from(segment, segment.offset_near(seq), segment.end, seq - 1):
        if batch.header.last_seq >= seq:
            return batch.header.crc
    raise KeyError(seq)


def entities_of(segments: list[Segment]) -> Entities:
    """The fold of everything durable, from the newest base on. Raises JournalDamaged."""
    entities = Entities()
    for segment in segments[base_of(segments) :]:
        for batch in batches_from(segment, SEGMENT_HEADER_BYTES, segment.end):
            for record in batch.records:
                entities = fold(entities, record)
    return entities


def find_journal(folder: Path, disk: Disk) -> str | None:
    """The id of the one journal here, None for none; a fork that was cut short in its last step is ended first."""
    found = journals_in(folder)
    if len(found) > 1:
        raise JournalDamaged(folder, 0, f"it holds {len(found)} journals ({', '.join(found)}); move all but one away")
    if found:
        return found[0]
    drafts = sorted(
        path for path in folder.glob(f"*{FORK_SUFFIX}") if _ID.fullmatch(path.name.removesuffix(FORK_SUFFIX))
    )
    if not drafts:
        return None
    whole = folder / drafts[0].name.removesuffix(FORK_SUFFIX)
    disk.publish(drafts[0], whole)
    return whole.name


def journals_in(folder: Path) -> list[str]:
    """The ids of the journals in a folder."""
    return sorted(path.name for path in folder.iterdir() if _ID.fullmatch(path.name))


def _begin(place: Path, journal_id: str, host: str, disk: Disk) -> Loaded:
    first = SegmentHeader(journal_id=journal_id, epoch=1, first_seq=1, first_batch_no=1, prev_chain=0, host=host)
    return _begun([], create_segment(place, first, disk), Position(epoch=1, next_batch_no=1, next_seq=1, chain=0))


def _begun(before: list[Segment], segment: Segment, position: Position) -> Loaded:
    digest = hashlib.sha256(segment.path.read_bytes()[:SEGMENT_HEADER_BYTES])
    return Loaded([*before, segment], position, SEGMENT_HEADER_BYTES, digest)


def _go_on(place: Path, loaded: Loaded, disk: Disk, clock: Clock) -> tuple[Loaded, int]:
    """Cut a torn tail and go on in a new epoch; also finishes a recovery or rotation that was interrupted."""
    segments, position = loaded.segments, loaded.position
    last = segments[-1]
    if loaded.is_torn:
        save_torn_tail(last, loaded.torn_end, disk)
    copy = torn_copy(last)
    epoch, recovered = position.epoch, 0
    if copy.exists():
        epoch, recovered = epoch + 1, copy.stat().st_size
        if last.seal is None:
            seal_segment(last, position, loaded.digest, clock.wall_ns(), disk)
    elif last.seal is None:
        if len(segments) > 1 and last.end == SEGMENT_HEADER_BYTES and torn_copy(segments[-2]).exists():
            recovered = torn_copy(segments[-2]).stat().st_size
        return loaded, recovered
    header = SegmentHeader(
        journal_id=last.header.journal_id,
        epoch=epoch,
        first_seq=position.next_seq,
        first_batch_no=position.next_batch_no,
        prev_chain=position.chain,
        host=last.header.host,
    )
    begun = create_segment(place, header, disk)
    return _begun(segments, begun, msgspec.structs.replace(position, epoch=epoch)), recovered


def _room(place: Path, disk: Disk, limits: Limits, shared: Shared) -> Space:
    """The first look at the disk's room, which makes the reserve; a full disk does not stop the start."""
    space = Space(place, disk, limits)
    try:
        space.look()
    except OSError as error:
        shared.note("journal.space", "warn", f"the reserve of the journal could not be made: {error_words(error)}")
    if space.words:
        shared.note("journal.full", "alarm", space.words)
    shared.is_low, shared.full = space.is_low, space.words
    return space


def _record_recovery(opened: Opened, clock: Clock) -> None:
    end, wall = opened.end, clock.wall_ns()
    position = end.position
    record = JournalRecord(
        kind=RECOVERED,
        words=(
            f"a torn tail of {opened.recovered_bytes} bytes, acknowledged to nobody, was kept beside the journal and "
            f"cut off; epoch {position.epoch} begins"
        ),
        at_unix_ms=UnixMs(wall // 1_000_000),
        level="warn",
    )
    frame = encode_record(msgspec.json.encode(record), wall_ns=wall, mono_ns=clock.mono_ns())
    batch = encode_batch(
        [frame], batch_no=position.next_batch_no, first_seq=position.next_seq, prev_chain=position.chain
    )
    after = Position(
        epoch=position.epoch,
        next_batch_no=position.next_batch_no + 1,
        next_seq=position.next_seq + 1,
        chain=batch_chain(batch),
    )
    try:
        end.prepare(len(batch))
        end.write(batch)
        end.sync(batch, after)
    except (NotWritten, Fenced) as error:
        end.close()
        opened.head.close()
        raise JournalWriteFailed(f"the recovery of the journal could not be recorded: {error}", fenced=True) from error
    shared = opened.shared
    shared.publish((Records(position.next_seq, (record,)),), after, len(batch), shared.entities, shared.revision)
    shared.next_seq = after.next_seq
