"""The footer that seals a segment: where its records end, a sparse index, and a digest of the whole file.

Footer, behind the last batch::

    magic 8s | footer_len u32 | entries u32 | end u64 | next_seq u64 | next_batch_no u64 | epoch u64 | chain u32
    | flags u32 | sealed_ns i64 | (seq u64, offset u64) * entries | sha256 32s | crc u32 | footer_len u32 | magic 8s

The SHA-256 covers the file up to itself; the checksum covers the footer up to itself, so that a start can believe a
footer without reading the segment before it.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from backend.agent.journal.disk import open_regular
from backend.agent.journal.recovery import IndexEntry, Position

if TYPE_CHECKING:
    from hashlib import _Hash

_MAGIC = b"RTJSEAL\n"
_END_MAGIC = b"RTJDONE\n"
_HEAD = struct.Struct("<8sIIQQQQIIq")
_ENTRY = struct.Struct("<QQ")
_TAIL = struct.Struct("<II8s")
_DIGEST_BYTES = 32
_IS_BASE = 1
_MOST_FOOTER = 1 << 22
_CHUNK = 1 << 20


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """What a footer says. ``sealed_ns`` is wall time; ``is_base``: nothing before this segment is needed any more."""

    end: int
    footer_len: int
    position: Position
    is_base: bool
    sealed_ns: int
    index: tuple[IndexEntry, ...]
    digest: bytes

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.end + self.footer_len


def encode_footer(
    digest_so_far: _Hash, *, end: int, position: Position, is_base: bool, sealed_ns: int, index: Sequence[IndexEntry]
) -> bytes:
    """The footer of a segment whose bytes up to ``end`` went into ``digest_so_far``, which is left as it was."""
    length = _HEAD.size + _ENTRY.size * len(index) + _DIGEST_BYTES + _TAIL.size
    head = _HEAD.pack(
        _MAGIC,
        length,
        len(index),
        end,
        position.next_seq,
        position.next_batch_no,
        position.epoch,
        position.chain,
        _IS_BASE if is_base else 0,
        sealed_ns,
    )
    covered = head + b"".join(_ENTRY.pack(entry.seq, entry.offset) for entry in index)
    digest = digest_so_far.copy()
    digest.update(covered)
    covered += digest.digest()
    return covered + _TAIL.pack(zlib.crc32(covered), length, _END_MAGIC)


def read_seal(path: Path) -> Seal | None:
    """The seal of a segment file; None when it has none, or none that checks: then its batches must be read.

    Raises OSError, and JournalDamaged when it is no plain file.
    """
    fd = open_regular(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        tail = os.pread(fd, _TAIL.size, max(0, size - _TAIL.size))
        if len(tail) < _TAIL.size or not tail.endswith(_END_MAGIC):
            return None
        _, length, _ = _TAIL.unpack(tail)
        if not _HEAD.size + _DIGEST_BYTES + _TAIL.size <= length <= min(size, _MOST_FOOTER):
            return None
        return _decode(os.pread(fd, length, size - length), size - length)
    finally:
        os.close(fd)


def _decode(footer: bytes, at: int) -> Seal | None:
    covered = footer[: -_TAIL.size]
    crc, _, _ = _TAIL.unpack_from(footer, len(covered))
    magic, length, entries, end, seq, batch_no, epoch, chain, flags, sealed_ns = _HEAD.unpack_from(covered)
    if (magic, length, end) != (_MAGIC, len(footer), at) or zlib.crc32(covered) != crc:
        return None
    if len(covered) != _HEAD.size + _ENTRY.size * entries + _DIGEST_BYTES:
        return None
    return Seal(
        end=end,
        footer_len=length,
        position=Position(epoch=epoch, next_batch_no=batch_no, next_seq=seq, chain=chain),
        is_base=bool(flags & _IS_BASE),
        sealed_ns=sealed_ns,
        index=tuple(IndexEntry(*_ENTRY.unpack_from(covered, _HEAD.size + n * _ENTRY.size)) for n in range(entries)),
        digest=covered[-_DIGEST_BYTES:],
    )


def digest_of(path: Path, seal: Seal) -> bytes:
    """The SHA-256 of a sealed file as it is on the disk now. Raises OSError."""
    left = sealed_bytes(seal)
    digest = hashlib.sha256()
    fd = open_regular(path, os.O_RDONLY)
    try:
        while left and (chunk := os.read(fd, min(left, _CHUNK))):
            digest.update(chunk)
            left -= len(chunk)
    finally:
        os.close(fd)
    return digest.digest()


def sealed_bytes(seal: Seal) -> int:
    """How many bytes from the start of the file its digest covers."""
    return seal.size - _TAIL.size - _DIGEST_BYTES


def digest_words(seal: Seal, found: bytes) -> str:
    """What a person is told of a sealed file that changed."""
    return f"the sealed segment's SHA-256 is {found.hex()[:16]}…, it was sealed with {seal.digest.hex()[:16]}…"
