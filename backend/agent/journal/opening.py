"""Opening a journal: judge everything first, change nothing before that, then cut a torn tail or make a new journal."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from pathlib import Path

import msgspec

from backend.agent.journal.disk import Disk, own_folder
from backend.agent.journal.errors import JournalDamaged, JournalWriteFailed
from backend.agent.journal.format import SEGMENT_HEADER_BYTES, SegmentHeader, encode_batch, encode_record
from backend.agent.journal.head import HEAD_NAME, Head, HeadFile
from backend.agent.journal.recovery import Position, SegmentScan
from backend.agent.journal.segments import (
    Segment,
    batches_from,
    create_segment,
    load_segments,
    save_torn_tail,
    torn_copy,
)
from backend.agent.journal.writer import Clock, Fenced, Limits, NotWritten, SegmentWriter, Shared, batch_chain
from backend.contract.entities import JournalRecord
from backend.contract.words import UnixMs

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)


@dataclass(slots=True)
class Opened:
    """A journal ready for its writer. ``recovered_bytes`` is the size of a torn tail that was cut off just now."""

    journal_id: str
    is_new: bool
    recovered_bytes: int
    shared: Shared
    end: SegmentWriter
    head: HeadFile


def open_folder(folder: Path, *, host: str, clock: Clock, disk: Disk, limits: Limits) -> Opened:
    """Open the one journal under ``folder``, or begin one. Raises JournalDamaged, JournalWriteFailed and OSError."""
    journal_id = _find_journal(folder)
    is_new = journal_id is None
    journal_id = journal_id or uuid.uuid4().hex
    place = folder / journal_id
    own_folder(place)
    disk.fsync_folder(folder)
    segments, scan = load_segments(place, disk, journal_id=journal_id, host=host)
    head = HeadFile(place / HEAD_NAME, disk)
    try:
        witness = head.load()
        check_witness(place, witness, segments, scan)
        if witness is None:
            head.create(Head(journal_id=journal_id, epoch=1, seq=0, oldest=1, chain=0))
        if scan is None:
            first = SegmentHeader(
                journal_id=journal_id, epoch=1, first_seq=1, first_batch_no=1, prev_chain=0, host=host
            )
            segments = [create_segment(place, first, disk)]
            position, recovered = Position(epoch=1, next_batch_no=1, next_seq=1, chain=0), 0
        else:
            position, recovered = _begin_new_epoch_when_torn(place, segments, scan, disk)
        end = SegmentWriter(place, segments[-1], position, disk, limits)
    except BaseException:
        head.close()
        raise
    opened = Opened(journal_id, is_new, recovered, Shared(segments, position, limits), end, head)
    if recovered:
        _record_recovery(opened, clock)
    return opened


def check_witness(place: Path, head: Head | None, segments: list[Segment], scan: SegmentScan | None) -> None:
    """Raise JournalDamaged when the head file has seen what the log no longer holds."""
    path = place / HEAD_NAME
    if head is None:
        if segments:
            raise JournalDamaged(path, 0, "the head file is missing, so nobody can tell whether the log is whole")
        return
    if head.journal_id != place.name:
        raise JournalDamaged(path, 0, f"it witnesses journal {head.journal_id}, not {place.name}")
    if scan is None:
        if head.seq:
            raise JournalDamaged(path, 0, f"it witnessed record {head.seq}, and there is no segment at all")
        return
    first, last = segments[0].header.first_seq, scan.position.next_seq - 1
    if head.seq > last or head.epoch > scan.position.epoch:
        raise JournalDamaged(
            segments[-1].path,
            scan.end,
            f"the journal went backwards: record {head.seq} of epoch {head.epoch} was witnessed as durable, the log "
            f"ends with record {last} of epoch {scan.position.epoch}",
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
    for batch in batches_from(segment, segment.offset_near(seq), segment.end):
        if batch.header.last_seq >= seq:
            return batch.header.crc
    raise KeyError(seq)


def _find_journal(folder: Path) -> str | None:
    found = sorted(path.name for path in folder.iterdir() if _ID.fullmatch(path.name))
    if len(found) > 1:
        raise JournalDamaged(folder, 0, f"it holds {len(found)} journals ({', '.join(found)}); move all but one away")
    return found[0] if found else None


def _begin_new_epoch_when_torn(
    place: Path, segments: list[Segment], scan: SegmentScan, disk: Disk
) -> tuple[Position, int]:
    """Cut a torn tail and go on in a new segment of a new epoch; also finishes a recovery that was interrupted."""
    last, position = segments[-1], scan.position
    if scan.is_torn:
        save_torn_tail(last, scan.torn_end, disk)
    copy = torn_copy(last)
    if copy.exists():
        header = SegmentHeader(
            journal_id=last.header.journal_id,
            epoch=position.epoch + 1,
            first_seq=position.next_seq,
            first_batch_no=position.next_batch_no,
            prev_chain=position.chain,
            host=last.header.host,
        )
        segments.append(create_segment(place, header, disk))
        return msgspec.structs.replace(position, epoch=header.epoch), copy.stat().st_size
    if len(segments) > 1 and last.end == SEGMENT_HEADER_BYTES and torn_copy(segments[-2]).exists():
        return position, torn_copy(segments[-2]).stat().st_size
    return position, 0


def _record_recovery(opened: Opened, clock: Clock) -> None:
    end, wall = opened.end, clock.wall_ns()
    position = end.position
    record = JournalRecord(
        kind="journal.recovered",
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
        end.sync(len(batch), after)
    except (NotWritten, Fenced) as error:
        end.close()
        opened.head.close()
        raise JournalWriteFailed(f"the recovery of the journal could not be recorded: {error}", fenced=True) from error
    opened.shared.publish((msgspec.structs.replace(record, seq=position.next_seq),), after, len(batch))
    opened.shared.next_seq = after.next_seq
