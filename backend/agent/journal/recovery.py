"""What a segment's bytes prove: a valid prefix, then nothing, a torn tail, or damage. Pure and read-only.

A torn tail may be cut because batch N+1 is never written before batch N's sync returned: what does not check at the
very end, with no valid batch behind it, was acknowledged to nobody. Everything else is damage and is refused.
"""

from __future__ import annotations

import msgspec

from backend.agent.journal.format import (
    BATCH_MAGIC_BYTES,
    MAX_BATCH,
    SEGMENT_HEADER_BYTES,
    FormatError,
    SegmentHeader,
    decode_segment_header,
    read_batch,
)

INDEX_RECORDS = 1024
INDEX_BYTES = 256 * 1024


class Damage(ValueError):
    """A segment that cannot be trusted, from byte ``offset`` on."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset
        self.what = what


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a log has got to: what the next batch must carry. ``chain`` is the last batch's checksum."""

    epoch: int
    next_batch_no: int
    next_seq: int
    chain: int


class IndexEntry(msgspec.Struct, frozen=True):
    """A batch that begins at ``offset`` with record ``seq``."""

    seq: int
    offset: int


class SegmentScan(msgspec.Struct, frozen=True, kw_only=True):
    """What one segment holds. The valid prefix ends at ``end``; ``torn_end`` is past it when a torn tail follows."""

    header: SegmentHeader
    end: int
    torn_end: int
    position: Position
    index: tuple[IndexEntry, ...]

    @property
    def is_torn(self) -> bool:
        """Bytes that do not check follow the valid prefix."""
        return self.torn_end > self.end


class Walked(msgspec.Struct, frozen=True, kw_only=True):
    """The valid batches of a segment; they end at ``end``, where ``broken`` says what follows does not check.

    ``misplaced`` says in what a batch at ``end`` that does check contradicts the one before it.
    """

    header: SegmentHeader
    end: int
    position: Position
    index: tuple[IndexEntry, ...]
    broken: str
    misplaced: str


def scan_segment(data: bytes, *, after: Position | None, is_last: bool) -> SegmentScan:
    """Check a whole segment, which must continue ``after`` (None for the oldest one kept). Raises Damage."""
    walked = walk_batches(data, after=after)
    if walked.misplaced:
        raise Damage(walked.end, walked.misplaced)
    torn_end = _judge_tail(data, walked.end, walked.broken, walked.position, is_last=is_last)
    return SegmentScan(
        header=walked.header, end=walked.end, torn_end=torn_end, position=walked.position, index=walked.index
    )


def walk_batches(data: bytes, *, after: Position | None) -> Walked:
    """The longest run of valid batches that continue one another. Raises Damage when the header does not check."""
    header = read_header(data, after)
    position = Position(
        epoch=header.epoch,
        next_batch_no=header.first_batch_no,
        next_seq=header.first_seq,
        chain=header.prev_chain,
    )
    offset = SEGMENT_HEADER_BYTES
    index: list[IndexEntry] = []
    broken = misplaced = ""
    while offset < len(data):
        try:
            batch = read_batch(data, offset)
        except FormatError as error:
            broken = error.what
            break
        if (batch.batch_no, batch.first_seq, batch.prev_chain) != (
            position.next_batch_no,
            position.next_seq,
            position.chain,
        ):
            misplaced = (
                f"batch {batch.batch_no} from record {batch.first_seq} after chain {batch.prev_chain:08x} stands where "
                f"batch {position.next_batch_no} from record {position.next_seq} after chain {position.chain:08x} "
                "should: batches are missing or were moved"
            )
            break
        if is_indexed(index, batch.first_seq, offset):
            index.append(IndexEntry(batch.first_seq, offset))
        position = Position(
            epoch=header.epoch, next_batch_no=batch.batch_no + 1, next_seq=batch.last_seq + 1, chain=batch.crc
        )
        offset += batch.size
    return Walked(header=header, end=offset, position=position, index=tuple(index), broken=broken, misplaced=misplaced)


def read_header(data: bytes, after: Position | None) -> SegmentHeader:
    """A segment's header, which must continue ``after`` (None for the oldest one kept). Raises Damage."""
    try:
        header = decode_segment_header(data)
    except FormatError as error:
        raise Damage(error.offset, error.what) from error
    _check_header(header, after)
    return header


def is_indexed(index: list[IndexEntry], seq: int, offset: int) -> bool:
    """Whether a batch at ``offset`` is far enough from the last entry to get one of its own."""
    return not index or seq - index[-1].seq >= INDEX_RECORDS or offset - index[-1].offset >= INDEX_BYTES


def _check_header(header: SegmentHeader, after: Position | None) -> None:
    if after is None:
        return
    found = (header.first_batch_no, header.first_seq, header.prev_chain)
    if found != (after.next_batch_no, after.next_seq, after.chain) or header.epoch < after.epoch:
        raise Damage(
            0,
            f"the segment continues epoch {header.epoch}, batch {found[0]}, record {found[1]}, chain {found[2]:08x}; "
            f"the one before it ends so that epoch {after.epoch}, batch {after.next_batch_no}, record "
            f"{after.next_seq}, chain {after.chain:08x} comes next: a segment or its end is missing",
        )


def _judge_tail(data: bytes, offset: int, broken: str, position: Position, *, is_last: bool) -> int:
    """The end of the torn tail that begins at ``offset``, or ``offset`` when only zeros follow. Raises Damage."""
    torn_end = offset + len(data[offset:].rstrip(b"\0"))
    if torn_end == offset:
        return offset
    if not is_last:
        raise Damage(offset, f"{broken}, and a later segment exists")
    if torn_end - offset > MAX_BATCH:
        raise Damage(offset, f"{broken}, and {torn_end - offset} bytes follow, more than one batch in flight")
    later = _valid_batch_behind(data, offset, position.next_batch_no)
    if later is not None:
        raise Damage(offset, f"{broken}, and a valid batch follows at byte {later}")
    return torn_end


def _valid_batch_behind(data: bytes, offset: int, least_batch_no: int) -> int | None:
    at = data.find(BATCH_MAGIC_BYTES, offset + 1)
    while at >= 0:
        if at % 8 == 0 and _is_valid(data, at, least_batch_no):
            return at
        at = data.find(BATCH_MAGIC_BYTES, at + 1)
    return None


def _is_valid(data: bytes, offset: int, least_batch_no: int) -> bool:
    try:
        return read_batch(data, offset).batch_no >= least_batch_no
    except FormatError:
        return False
