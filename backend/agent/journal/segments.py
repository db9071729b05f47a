"""The segments of one journal on disk: opened and judged once, then read by any thread and extended by one."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from backend.agent.journal.checkpoint import begins_with_checkpoint
from backend.agent.journal.disk import Disk, open_regular
from backend.agent.journal.errors import JournalDamaged
from backend.agent.journal.format import (
    BATCH_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    BatchHeader,
    FormatError,
    SegmentHeader,
    encode_segment_header,
    first_wall_of,
    read_batch,
    read_batch_header,
    read_bodies,
)
from backend.agent.journal.recovery import Damage, IndexEntry, Position, SegmentScan, read_header, scan_segment
from backend.agent.journal.sealing import Seal, digest_of, digest_words, encode_footer, read_seal
from backend.contract.entities import JournalRecord

if TYPE_CHECKING:
    from hashlib import _Hash

_NAME = re.compile(r"[0-9]{10}-[0-9]{20}\.rtj", re.ASCII)
CHUNK = 256 * 1024
_RECORD = msgspec.json.Decoder(JournalRecord)


@dataclass(slots=True)
class Segment:
    """One segment file. Its durable records end at ``end``; ``index`` finds a batch near a record.

    ``is_base``: it begins with a whole checkpoint, or nothing ever came before it.
    """

    path: Path
    header: SegmentHeader
    end: int
    index: list[IndexEntry] = field(default_factory=list)
    seal: Seal | None = None
    is_base: bool = False

    @property
    def size(self) -> int:
        """Bytes that count for retention."""
        return self.end if self.seal is None else self.seal.size

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
    """A batch as read back and checked; ``end`` is where the next one begins."""

    header: BatchHeader
    records: tuple[JournalRecord, ...]
    end: int


@dataclass(slots=True)
class Loaded:
    """Every segment, judged. ``torn_end`` is past the last one's end when a torn tail follows it there.

    ``digest`` has the bytes of the last one up to its end, when that is not sealed.
    """

    segments: list[Segment]
    position: Position
    torn_end: int
    digest: _Hash

    @property
    def is_torn(self) -> bool:
        """Bytes that do not check follow the last batch."""
        return self.torn_end > self.segments[-1].end


def segment_name(epoch: int, first_seq: int) -> str:
    """The file name of a segment; names sort in the order of the log."""
    return f"{epoch:010d}-{first_seq:020d}.rtj"


def create_segment(folder: Path, header: SegmentHeader, disk: Disk) -> Segment:
    """A new empty segment, durable with its name. Raises OSError."""
    path = folder / segment_name(header.epoch, header.first_seq)
    disk.create(path, encode_segment_header(header))
    return Segment(path, header, SEGMENT_HEADER_BYTES, is_base=header.first_seq == 1)


def segment_paths(folder: Path) -> list[Path]:
    """The segment files of a journal's folder, in the order of the log."""
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def load_segments(folder: Path, disk: Disk, *, journal_id: str, host: str, witnessed: int) -> Loaded | None:
    """Check the segments in order; None when there is none. Raises JournalDamaged; writes nothing.

    A sealed segment up to the record that the head file has ``witnessed`` is believed by its footer; every other one
    is read whole.
    """
    loaded: Loaded | None = None
    paths = segment_paths(folder)
    for path in paths:
        segments = loaded.segments if loaded is not None else []
        after = loaded.position if loaded is not None else None
        try:
            loaded = _judge(path, disk, segments, after, is_last=path is paths[-1], witnessed=witnessed)
        except Damage as damage:
            raise JournalDamaged(path, damage.offset, damage.what) from damage
        check_belongs(path, segments[-1].header, journal_id=journal_id, host=host)
    return loaded


def check_belongs(path: Path, header: SegmentHeader, *, journal_id: str, host: str) -> None:
    """Raise JournalDamaged for a segment under another's name, or of another journal or host."""
    if segment_name(header.epoch, header.first_seq) != path.name:
        raise JournalDamaged(path, 0, f"its header says {segment_name(header.epoch, header.first_seq)}")
    if header.journal_id != journal_id or header.host != host:
        raise JournalDamaged(
            path,
            0,
            f"it belongs to journal {header.journal_id} of host {header.host!r}; here are journal {journal_id} "
            f"and host {host!r}",
        )


def _judge(
    path: Path, disk: Disk, segments: list[Segment], after: Position | None, *, is_last: bool, witnessed: int
) -> Loaded:
    """Judge the next segment and add it to ``segments``."""
    seal = read_seal(path)
    if seal is not None and seal.position.next_seq - 1 <= witnessed:
        header = read_header(read_start(path), after)
        segments.append(_sealed(path, header, seal))
        return Loaded(segments, seal.position, seal.end, hashlib.sha256())
    data = _read_whole(path, disk)
    if seal is None:
        scan = scan_segment(data, after=after, is_last=is_last)
        segment = Segment(path, scan.header, scan.end, list(scan.index))
        segment.is_base = is_base(segment)
        segments.append(segment)
        return Loaded(segments, scan.position, scan.torn_end, hashlib.sha256(memoryview(data)[: scan.end]))
    scan = scan_segment(data[: seal.end], after=after, is_last=False)
    check_sealed(path, scan, seal)
    segments.append(_sealed(path, scan.header, seal))
    return Loaded(segments, seal.position, seal.end, hashlib.sha256())


def check_sealed(path: Path, scan: SegmentScan, seal: Seal) -> None:
    """Raise Damage when a sealed segment's batches or bytes are not what its footer says."""
    if (scan.position, scan.end) != (seal.position, seal.end):
        raise Damage(
            scan.end, f"its records end before {scan.position.next_seq}, its footer says {seal.position.next_seq}"
        )
    if (found := digest_of(path, seal)) != seal.digest:
        raise Damage(seal.end, digest_words(seal, found))


def _sealed(path: Path, header: SegmentHeader, seal: Seal) -> Segment:
    return Segment(path, header, seal.end, list(seal.index), seal, seal.is_base)


def is_base(segment: Segment) -> bool:
    """Whether everything can be folded from the start of this segment. Raises JournalDamaged."""
    if segment.header.first_seq == 1:
        return True
    batches = batches_from(segment, SEGMENT_HEADER_BYTES, segment.end)
    return begins_with_checkpoint(record for batch in batches for record in batch.records)


def seal_segment(segment: Segment, position: Position, digest: _Hash, sealed_ns: int, disk: Disk) -> None:
    """Write the footer behind the last record and end the file there, durably. Raises OSError."""
    footer = encode_footer(
        digest,
        end=segment.end,
        position=position,
        is_base=segment.is_base,
        sealed_ns=sealed_ns,
        index=segment.index,
    )
    fd = open_regular(segment.path, os.O_RDWR)
    try:
        disk.write_all(fd, footer, segment.end)
        disk.ftruncate(fd, segment.end + len(footer))
        disk.fdatasync(fd)
    finally:
        os.close(fd)
    segment.seal = read_seal(segment.path)


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


def batches_from(segment: Segment, offset: int, end: int, after: int = 0, chunk: int = CHUNK) -> Iterator[StoredBatch]:
    """The batches between two batch boundaries, each checked again. Raises JournalDamaged, FileNotFoundError.

    ``chunk`` is how many bytes are read at once; whoever wants few records says so.

    Batches without a record past ``after`` are checked and left out: a reader begins at an index entry, which may lie
    a thousand records before what it wants, and decoding those costs twenty times as much as their checksum.
    """
    fd = open_regular(segment.path, os.O_RDONLY)
    try:
        held, base = b"", offset
        while offset < end:
            # Read once for the header, which says how much the batch takes, and once more when that is not all here.
            for _ in range(2):
                wanted = _wanted(held, offset - base)
                if len(held) - (offset - base) < wanted:
                    held, base = os.pread(fd, min(max(chunk, wanted), end - offset), offset), offset
            try:
                header = read_batch(held, offset - base)
                is_wanted = header.last_seq > after
                records = _decoded(held, offset - base, header) if is_wanted else ()
            except (FormatError, msgspec.MsgspecError) as error:
                raise JournalDamaged(segment.path, offset, str(error)) from error
            offset += header.size
            if is_wanted:
                yield StoredBatch(header, records, offset)
    finally:
        os.close(fd)


def first_wall_ns(segment: Segment) -> int | None:
    """When the first record of a segment was appended; None when it has none. Raises JournalDamaged."""
    fd = open_regular(segment.path, os.O_RDONLY)
    try:
        data = os.pread(fd, min(CHUNK, segment.end - SEGMENT_HEADER_BYTES), SEGMENT_HEADER_BYTES)
    finally:
        os.close(fd)
    if not data:
        return None
    read_batch_header(data, 0)
    return first_wall_of(data, 0)


def read_bytes(path: Path) -> bytes:
    """All bytes of a plain file of ours. Raises OSError, JournalDamaged."""
    with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read()


def read_start(path: Path) -> bytes:
    """The first sector of a segment: its header. Raises OSError, JournalDamaged."""
    fd = open_regular(path, os.O_RDONLY)
    try:
        return os.pread(fd, SEGMENT_HEADER_BYTES, 0)
    finally:
        os.close(fd)


def _wanted(held: bytes, at: int) -> int:
    if len(held) - at < BATCH_HEADER_BYTES:
        return BATCH_HEADER_BYTES
    try:
        return read_batch_header(held, at).size
    except FormatError:
        return BATCH_HEADER_BYTES


def _decoded(data: bytes, offset: int, header: BatchHeader) -> tuple[JournalRecord, ...]:
    decode, number = _RECORD.decode, msgspec.structs.replace
    bodies = read_bodies(data, offset, header)
    return tuple([number(decode(body), seq=seq) for seq, body in enumerate(bodies, header.first_seq)])


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
