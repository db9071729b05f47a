"""The head file: a second witness of how far the journal had got, so that a log that went backwards is noticed.

Two slots of one sector each are written in turn, in place, so that a full disk cannot stop it and a crash leaves the
other slot whole. It may lag behind the log by about a second; it never runs ahead of it.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import msgspec

from backend.agent.journal.disk import Disk, open_regular
from backend.agent.journal.errors import JournalDamaged
from backend.failpoints import failpoint

HEAD_NAME = "head"
_SLOT = struct.Struct("<8s16sQQQI")
_CRC = struct.Struct("<I")
_MAGIC = b"RTJHEAD1"
_SLOT_BYTES = 512


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The last durable record with its chain value, and the oldest record kept."""

    journal_id: str
    epoch: int
    seq: int
    oldest: int
    chain: int


def encode_head(head: Head) -> bytes:
    """One slot, with its checksum."""
    body = _SLOT.pack(_MAGIC, bytes.fromhex(head.journal_id), head.epoch, head.seq, head.oldest, head.chain)
    return (body + _CRC.pack(zlib.crc32(body))).ljust(_SLOT_BYTES, b"\0")


def decode_head(data: bytes) -> Head | None:
    """The newest of the slots that check, None when none does."""
    found = [head for at in (0, _SLOT_BYTES) if (head := _slot(data[at : at + _SLOT_BYTES])) is not None]
    return max(found, key=lambda head: (head.epoch, head.seq, head.oldest), default=None)


def _slot(data: bytes) -> Head | None:
    if len(data) < _SLOT.size + 4:
        return None
    body = data[: _SLOT.size]
    magic, journal, epoch, seq, oldest, chain = _SLOT.unpack(body)
    if magic != _MAGIC or _CRC.unpack_from(data, _SLOT.size)[0] != zlib.crc32(body):
        return None
    return Head(journal_id=journal.hex(), epoch=epoch, seq=seq, oldest=oldest, chain=chain)


class HeadFile:
    """The open head file of a journal; ``last`` is what it holds. Used by one thread at a time."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path = path
        self._disk = disk
        self._fd = -1
        self._slot = 0
        self.last: Head | None = None

    def load(self) -> Head | None:
        """Open and read it; None when there is none. Raises JournalDamaged when no slot checks."""
        if not self._path.exists() and not self._path.is_symlink():
            return None
        self._fd = open_regular(self._path, os.O_RDWR)
        data = os.pread(self._fd, 2 * _SLOT_BYTES, 0)
        head = decode_head(data)
        if head is None:
            raise JournalDamaged(self._path, 0, "neither of its two slots checks")
        self._slot = 1 if _slot(data[:_SLOT_BYTES]) == head else 0
        self.last = head
        return head

    def create(self, head: Head) -> None:
        """Make the file, before there is any segment."""
        slot = encode_head(head)
        self._disk.create(self._path, slot + slot)
        self._fd = open_regular(self._path, os.O_RDWR)
        self.last = head

    def write(self, head: Head) -> None:
        """Replace the older slot, durably. Raises OSError."""
        failpoint("journal.before_head")
        self._disk.write_all(self._fd, encode_head(head), self._slot * _SLOT_BYTES)
        self._disk.fdatasync(self._fd)
        failpoint("journal.after_head")
        self._slot = 1 - self._slot
        self.last = head

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
