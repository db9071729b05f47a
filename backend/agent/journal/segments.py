"""The segments of one journal on disk: opened and judged once, then read by any thread and extended by one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from backend.agent.journal.disk import Disk, open_regular
from backend.agent.journal.errors import JournalDamaged
from backend.agent.journal.format import (
    BATCH_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    BatchHeader,
    FormatError,
    SegmentHeader,
    encode_segment_header,
    read_batch,
    read_batch_header,
    read_records,
)
from backend.agent.journal.recovery import Damage, IndexEntry, SegmentScan, scan_segment
from backend.contract.entities import JournalRecord

_NAME = re.compile(r"[0-9]{10}-[0-9]{20}\.rtj", re.ASCII)
_CHUNK = 256 * 1024
_RECORD = msgspec.json.Decoder(JournalRecord)


@dataclass(slots=True)
class Segment:
    """One segment file. Its durable bytes end at ``end``; ``index`` finds a batch near a record."""

    path: Path
    header: SegmentHeader
    end: int
    index: list[IndexEntry] = field(default_factory=list)

    def offset_near(self, seq: int) -> int:
        """Where to begin reading so as to meet record ``seq``: the start of a batch at or before it."""
        offset = SEGMENT_HEADER_BYTES
        low, high = 0, len(self.index)
        while low < high:
            middle = (low + high) // 2
            if self.index[middle].seq <= seq:
                offset = self.index[middle].offset
                low = middle + 1
            else:
                high = middle
        return offset


class StoredBatch(msgspec.Struct, frozen=True):
    """A batch as read back and checked."""

    header: BatchHeader
    records: tuple[JournalRecord, ...]


def segment_name(epoch: int, first_seq: int) -> str:
    """The file name of a segment; names sort in the order of the log."""
    return f"{epoch:010d}-{first_seq:020d}.rtj"


def create_segment(folder: Path, header: SegmentHeader, disk: Disk) -> Segment:
    """A new empty segment, durable with its name. Raises OSError."""
    path = folder / segment_name(header.epoch, header.first_seq)
    disk.create(path, encode_segment_header(header))
    return Segment(path, header, SEGMENT_HEADER_BYTES)


def load_segments(folder: Path, disk: Disk, *, journal_id: str, host: str) -> tuple[list[Segment], SegmentScan | None]:
    """Check every segment in order; returns them with the scan of the last. Raises JournalDamaged; writes nothing."""
    segments: list[Segment] = []
    scan: SegmentScan | None = None
    paths = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    for path in paths:
        after = scan.position if scan is not None else None
        try:
            scan = scan_segment(_read_whole(path, disk), after=after, is_last=path is paths[-1])
        except Damage as damage:
            raise JournalDamaged(path, damage.offset, damage.what) from damage
        header = scan.header
        if segment_name(header.epoch, header.first_seq) != path.name:
            raise JournalDamaged(path, 0, f"its header says {segment_name(header.epoch, header.first_seq)}")
        if header.journal_id != journal_id or header.host != host:
            raise JournalDamaged(
                path,
                0,
                f"it belongs to journal {header.journal_id} of host {header.host!r}; here are journal {journal_id} "
                f"and host {host!r}",
            )
        segments.append(Segment(path, header, scan.end, list(scan.index)))
    return segments, scan


def save_torn_tail(segment: Segment, torn_end: int, disk: Disk) -> Path:
    """Keep a copy of the torn tail, then cut it off, durably. Returns the copy's path. Raises OSError."""
    fd = open_regular(segment.path, os.O_RDWR)
    try:
        copy = torn_copy(segment)
        disk.create(copy, os.pread(fd, torn_end - segment.end, segment.end))
        disk.ftruncate(fd, segment.end)
        os.fsync(fd)
    finally:
        os.close(fd)
    return copy


def torn_copy(segment: Segment) -> Path:
    """Where the torn tail behind a segment's durable end is kept."""
    return segment.path.with_name(f"{segment.path.name}.{segment.end}.torn")


def batches_from(segment: Segment, offset: int, end: int) -> Iterator[StoredBatch]:
    """The batches between two batch boundaries, each checked again. Raises JournalDamaged."""
    fd = open_regular(segment.path, os.O_RDONLY)
    try:
        held, base = b"", offset
        while offset < end:
            wanted = _wanted(held, offset - base)
            if len(held) - (offset - base) < wanted:
                room = min(max(_CHUNK, wanted), end - offset)
                held, base = os.pread(fd, room, offset), offset
            try:
                header = read_batch(held, offset - base)
                records = tuple(_decoded(held, offset - base, header))
            except (FormatError, msgspec.MsgspecError) as error:
                raise JournalDamaged(segment.path, offset, str(error)) from error
            yield StoredBatch(header, records)
            offset += header.size
    finally:
        os.close(fd)


def _wanted(held: bytes, at: int) -> int:
    if len(held) - at < BATCH_HEADER_BYTES:
        return BATCH_HEADER_BYTES
    try:
        return read_batch_header(held, at).size
    except FormatError:
        return BATCH_HEADER_BYTES


def _decoded(data: bytes, offset: int, header: BatchHeader) -> Iterator[JournalRecord]:
    for seq, frame in enumerate(read_records(data, offset, header), header.first_seq):
        yield msgspec.structs.replace(_RECORD.decode(frame.body), seq=seq)


def _read_whole(path: Path, disk: Disk) -> bytes:
    fd = open_regular(path, os.O_RDWR)
    try:
        # What the last life wrote but did not sync is read back from memory: make it durable before it counts, and
        # drop the pages, so that a sync that failed then is seen now.
        disk.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with os.fdopen(os.dup(fd), "rb") as file:
            return file.read()
    finally:
        os.close(fd)
