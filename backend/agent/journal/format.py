"""The journal's bytes: a checksummed file header, then batches of records. Pure; little-endian, 8-byte aligned.

Segment header (512 bytes, one sector)::

    magic 8s | version u16 | header_len u16 | checksum name 8s | journal id 16s | epoch u64 | first_seq u64
    | first_batch_no u64 | prev_chain u32 | host_len u16 | host … zeros … | crc u32 (the last four bytes)

Batch and record::

    batch  = magic u32 | payload_len u32 | count u32 | batch_no u64 | first_seq u64 | prev_chain u32 | crc u32
             | zero u32 | payload
    record = len u32 | type u16 | flags u16 | wall_ns i64 | mono_ns i64 | JSON, zeros up to 8 bytes

A batch's checksum covers all of it but the checksum itself, and is the ``prev_chain`` of the next batch. No magic is
zero, so a preallocated tail never reads as a batch.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import msgspec

VERSION = 1
CHECKSUM = b"crc32"
"""The checksum's name in the file header: zlib.crc32."""
SEGMENT_MAGIC = b"\x89RTJ\r\n\x1a\n"
BATCH_MAGIC = 0xB47C4A52
BATCH_MAGIC_BYTES = struct.pack("<I", BATCH_MAGIC)
MAX_PAYLOAD = 1 << 20
"""Most bytes of records in one batch."""
MAX_RECORD = 1 << 19
"""Longest JSON of one record: half a wire frame, because a record carries a whole plan of up to 512 ranks."""
MAX_COUNT = 4096
"""Most records in one batch."""
JSON_RECORD = 1
"""The one record type there is: the JSON of a ``JournalRecord``. Zero is no type."""

_SEGMENT = struct.Struct("<8sHH8s16sQQQIH")
_BATCH = struct.Struct("<IIIQQIII")
_BATCH_CRC_AT = 32
_RECORD = struct.Struct("<IHHqq")
_U32 = struct.Struct("<I")
_PADDING = tuple(bytes(count) for count in range(8))
SEGMENT_HEADER_BYTES = 512
BATCH_HEADER_BYTES = _BATCH.size
RECORD_HEADER_BYTES = _RECORD.size
MAX_BATCH = BATCH_HEADER_BYTES + MAX_PAYLOAD
MAX_HOST_BYTES = 255


class FormatError(ValueError):
    """Bytes that are not what they should be. ``offset`` counts from the start of what was decoded."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset
        self.what = what


class SegmentHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The first sector of a segment. ``prev_chain`` is the last chain value of the segment before it, 0 for none."""

    journal_id: str
    epoch: int
    first_seq: int
    first_batch_no: int
    prev_chain: int
    host: str


class BatchHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The head of one batch; ``crc`` is its chain value."""

    payload_len: int
    count: int
    batch_no: int
    first_seq: int
    prev_chain: int
    crc: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return BATCH_HEADER_BYTES + self.payload_len

    @property
    def last_seq(self) -> int:
        """Sequence number of its last record."""
        return self.first_seq + self.count - 1


def encode_segment_header(header: SegmentHeader) -> bytes:
    """The 512 bytes of a segment's header. Raises ValueError when the host id has more than 255 bytes."""
    host = header.host.encode()
    if len(host) > MAX_HOST_BYTES:
        raise ValueError(f"the host id has {len(host)} bytes, more than {MAX_HOST_BYTES}: shorten host in agent.toml")
    fixed = _SEGMENT.pack(
        SEGMENT_MAGIC,
        VERSION,
        SEGMENT_HEADER_BYTES,
        CHECKSUM,
        bytes.fromhex(header.journal_id),
        header.epoch,
        header.first_seq,
        header.first_batch_no,
        header.prev_chain,
        len(host),
    )
    covered = (fixed + host).ljust(SEGMENT_HEADER_BYTES - 4, b"\0")
    return covered + _U32.pack(zlib.crc32(covered))


def decode_segment_header(data: bytes) -> SegmentHeader:
    """Read a segment's header; raises FormatError for a damaged one and for another format version or checksum."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise FormatError(len(data), f"the file has {len(data)} bytes, less than its header of {SEGMENT_HEADER_BYTES}")
    magic, version, length, checksum, journal, epoch, seq, batch_no, chain, host_len = _SEGMENT.unpack_from(data)
    if magic != SEGMENT_MAGIC:
        raise FormatError(0, f"the file begins with {magic!r}, not {SEGMENT_MAGIC!r}")
    covered = data[: SEGMENT_HEADER_BYTES - 4]
    (stored,) = _U32.unpack_from(data, SEGMENT_HEADER_BYTES - 4)
    if (found := zlib.crc32(covered)) != stored:
        raise FormatError(0, f"the header's checksum is {stored:08x}, its bytes give {found:08x}")
    if version != VERSION or checksum.rstrip(b"\0") != CHECKSUM or length != SEGMENT_HEADER_BYTES:
        raise FormatError(
            8, f"format {version} with {checksum!r}; this agent reads format {VERSION} with {CHECKSUM!r}: use its agent"
        )
    host = data[_SEGMENT.size : _SEGMENT.size + host_len].decode()
    return SegmentHeader(
        journal_id=journal.hex(), epoch=epoch, first_seq=seq, first_batch_no=batch_no, prev_chain=chain, host=host
    )


def encode_record(body: bytes, *, wall_ns: int, mono_ns: int) -> bytes:
    """One framed record. Raises ValueError when its JSON is empty or longer than MAX_RECORD."""
    _check_record_size(len(body))
    return _RECORD.pack(len(body), JSON_RECORD, 0, wall_ns, mono_ns) + body + _PADDING[-len(body) % 8]


def encode_records(bodies: Sequence[bytes], *, wall_ns: int, mono_ns: int) -> bytes:
    """The same for many of one moment, one after the other. Raises ValueError as above.

    What is around a record depends on its length only, and lengths repeat: packed once each, 64 take half the time.
    """
    around: dict[int, tuple[bytes, bytes]] = {}
    for length in set(map(len, bodies)):
        _check_record_size(length)
        around[length] = _RECORD.pack(length, JSON_RECORD, 0, wall_ns, mono_ns), _PADDING[-length % 8]
    parts: list[bytes] = []
    for body in bodies:
        head, padding = around[len(body)]
        parts += (head, body, padding)
    return b"".join(parts)


def encode_batch(
    frames: Sequence[bytes], *, batch_no: int, first_seq: int, prev_chain: int, count: int | None = None
) -> bytes:
    """One whole batch of framed records: one in each of ``frames``, or ``count`` in all of them.

    Raises ValueError beyond MAX_COUNT records or MAX_PAYLOAD bytes.
    """
    payload = frames[0] if len(frames) == 1 else b"".join(frames)
    count = len(frames) if count is None else count
    check_batch_size(count, len(payload))
    blank = _BATCH.pack(BATCH_MAGIC, len(payload), count, batch_no, first_seq, prev_chain, 0, 0)
    crc = _checksum(blank, payload)
    return b"".join((blank[:_BATCH_CRC_AT], _U32.pack(crc), blank[_BATCH_CRC_AT + 4 :], payload))


def check_batch_size(count: int, payload: int) -> None:
    """Raise ValueError unless ``count`` records with ``payload`` bytes in all fit in one batch."""
    if not 0 < count <= MAX_COUNT:
        raise ValueError(f"a batch of {count} records, outside 1..{MAX_COUNT}: append them in smaller groups")
    if not 0 < payload <= MAX_PAYLOAD:
        raise ValueError(f"a batch of {payload} bytes, outside 1..{MAX_PAYLOAD}: append them in smaller groups")


def read_batch_header(data: bytes, offset: int) -> BatchHeader:
    """The batch header at ``offset``, its bounds checked and its checksum not. Raises FormatError."""
    if len(data) - offset < BATCH_HEADER_BYTES:
        raise FormatError(offset, f"{len(data) - offset} bytes are left, less than a batch header")
    magic, payload, count, batch_no, seq, prev_chain, crc, zero = _BATCH.unpack_from(data, offset)
    if magic != BATCH_MAGIC or zero != 0:
        raise FormatError(offset, f"no batch begins here (found {magic:08x})")
    if not 0 < payload <= MAX_PAYLOAD or payload % 8 or not 0 < count <= MAX_COUNT:
        raise FormatError(offset, f"the batch claims {payload} bytes and {count} records, outside its bounds")
    return BatchHeader(
        payload_len=payload, count=count, batch_no=batch_no, first_seq=seq, prev_chain=prev_chain, crc=crc
    )


def read_batch(data: bytes, offset: int) -> BatchHeader:
    """The header of the whole, valid batch at ``offset``. Raises FormatError when it is cut or does not check."""
    header = read_batch_header(data, offset)
    if len(data) - offset < header.size:
        raise FormatError(offset, f"the batch has {header.size} bytes, the file has {len(data) - offset} left")
    view = memoryview(data)[offset : offset + header.size]
    found = _checksum(view[:BATCH_HEADER_BYTES], view[BATCH_HEADER_BYTES:])
    if found != header.crc:
        raise FormatError(offset, f"the batch's checksum is {header.crc:08x}, its bytes give {found:08x}")
    return header


def read_bodies(data: bytes, offset: int, header: BatchHeader) -> list[bytes]:
    """The JSON of each record of the valid batch at ``offset``. Raises FormatError when they do not fill it exactly."""
    return [data[start:end] for start, end in _places(data, offset, header)]


def first_wall_of(data: bytes, offset: int) -> int:
    """The wall clock's reading of the first record of the batch at ``offset``, whose rest need not be there."""
    return int(_RECORD.unpack_from(data, offset + BATCH_HEADER_BYTES)[3])


def _places(data: bytes, offset: int, header: BatchHeader) -> list[tuple[int, int]]:
    """Start and end of the JSON of each record of a batch."""
    at = offset + BATCH_HEADER_BYTES
    end = offset + header.size
    found = []
    for _ in range(header.count):
        if end - at < RECORD_HEADER_BYTES:
            raise FormatError(at, f"batch {header.batch_no} ends inside a record")
        length, kind, flags, _, _ = _RECORD.unpack_from(data, at)
        if kind != JSON_RECORD or flags != 0:
            raise FormatError(at, f"record type {kind} with flags {flags}; this agent reads type {JSON_RECORD} only")
        at += RECORD_HEADER_BYTES
        if not 0 < length <= MAX_RECORD or length > end - at:
            raise FormatError(at, f"a record claims {length} bytes, {end - at} are left in batch {header.batch_no}")
        found.append((at, at + length))
        at += length + (-length % 8)
    if at != end:
        raise FormatError(at, f"batch {header.batch_no} has {end - at} bytes after its last record")
    return found


def _checksum(head: bytes | memoryview, payload: bytes | memoryview) -> int:
    crc = zlib.crc32(head[:_BATCH_CRC_AT])
    crc = zlib.crc32(head[_BATCH_CRC_AT + 4 :], crc)
    return zlib.crc32(payload, crc)


def _check_record_size(length: int) -> None:
    if not 0 < length <= MAX_RECORD:
        raise ValueError(f"a journal record has {length} bytes of JSON, outside 1..{MAX_RECORD}")
