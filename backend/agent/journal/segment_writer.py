"""The end of the log on disk: room made ahead, batches written and synced, a full segment sealed and followed."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from backend.agent.journal.disk import Disk, open_regular
from backend.agent.journal.format import SEGMENT_HEADER_BYTES, SegmentHeader, encode_segment_header
from backend.agent.journal.limits import Limits
from backend.agent.journal.recovery import Position
from backend.agent.journal.sealing import encode_footer, read_seal
from backend.agent.journal.segments import Segment, segment_name
from backend.failpoints import failpoint

if TYPE_CHECKING:
    from hashlib import _Hash


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class NotWritten(Exception):
    """A batch that is not in the file: nothing of it, or cut off again. ``is_full``: the disk had no room."""

    def __init__(self, words: str, *, is_full: bool) -> None:
        super().__init__(words)
        self.is_full = is_full


class NotRotated(Exception):
    """The next segment could not be begun; the old one stands as it was and goes on."""


class Fenced(Exception):
    """Nobody knows what is on the disk any more."""


class SegmentWriter:
    """The end of the log on disk. Used by the writer thread alone. ``digest`` has the segment's bytes up to its end."""

    def __init__(
        self, folder: Path, segment: Segment, position: Position, digest: _Hash, disk: Disk, limits: Limits
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._limits = limits
        self.segment = segment
        self.position = position
        self._digest = digest
        self._end = segment.end
        self._fd = open_regular(segment.path, os.O_RDWR)
        self._laid = self._end
        self._unread: list[bytes] = []

    def prepare(self, size: int) -> None:
        """Make room for a batch of ``size`` bytes, ahead and in large steps.

        Room that is only reserved has to be converted by the sync of what is written into it (ext4: a commit of the
        file system's own journal, half as long again as the sync of 64 events). So zeros are laid there first.
        """
        if self._end + size <= self._laid:
            return
        room = max(self._limits.allocate_bytes, self._end + size - self._laid)
        try:
            self._disk.allocate(self._fd, self._laid, room)
            self._disk.lay_zeros(self._fd, self._laid, room)
            self._laid += room
        except OSError:
            # Too full for a whole step. The batch itself may still fit: its write decides, and says why not.
            return

    def write(self, data: bytes) -> None:
        """Write one batch, not yet synced. Raises NotWritten with the file cut back, or Fenced."""
        try:
            failpoint("journal.before_write")
            self._disk.write_all(self._fd, data, self._end)
        except OSError as error:
            self._cut_back(error)
            raise NotWritten(
                f"the batch could not be written: {error_words(error)}", is_full=error.errno in _NO_ROOM
            ) from error

    def sync(self, data: bytes, position: Position) -> None:
        """Make the batch just written durable and move past it. Raises Fenced; never tries again."""
        try:
            failpoint("journal.after_write_before_sync")
            self._disk.fdatasync(self._fd)
        except OSError as error:
            raise Fenced(f"the sync of {self.segment.path.name} failed: {error_words(error)}") from error
        self._unread.append(data)
        self._end += len(data)
        self._laid = max(self._laid, self._end)
        self.position = position

    def settle(self) -> None:
        """After the acknowledgement, while nobody waits: what the seal will say of the batch, and room for the next."""
        for data in self._unread:
            self._digest.update(data)
        self._unread.clear()
        self.prepare(self._limits.allocate_bytes // 4)

    def rotate(self, sealed_ns: int) -> Segment:
        """Seal the segment and begin the next one, whose file is made first. Raises NotRotated and Fenced."""
        old, position = self.segment, self.position
        header = SegmentHeader(
            journal_id=old.header.journal_id,
            epoch=position.epoch,
            first_seq=position.next_seq,
            first_batch_no=position.next_batch_no,
            prev_chain=position.chain,
            host=old.header.host,
        )
        start = encode_segment_header(header)
        path = self._folder / segment_name(header.epoch, header.first_seq)
        try:
            failpoint("journal.before_rotation")
            draft = self._disk.draft(path, start, self._limits.allocate_bytes)
        except OSError as error:
            raise NotRotated(f"the next segment could not be made: {error_words(error)}") from error
        self._seal(sealed_ns, draft)
        try:
            self._disk.publish(draft, path)
            failpoint("journal.after_rotation")
            old.seal = read_seal(old.path)
            opened = open_regular(path, os.O_RDWR)
        except OSError as error:
            raise Fenced(f"the next segment {path.name} could not be begun: {error_words(error)}") from error
        os.close(self._fd)
        self.segment = Segment(path, header, SEGMENT_HEADER_BYTES)
        self._end = SEGMENT_HEADER_BYTES
        self._fd = opened
        self._laid = self._end
        self._digest = hashlib.sha256(start)
        return self.segment

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def _seal(self, sealed_ns: int, draft: Path) -> None:
        self.settle()
        footer = encode_footer(
            self._digest,
            end=self._end,
            position=self.position,
            is_base=self.segment.is_base,
            sealed_ns=sealed_ns,
            index=self.segment.index,
        )
        try:
            self._disk.write_all(self._fd, footer, self._end)
            self._disk.ftruncate(self._fd, self._end + len(footer))
        except OSError as error:
            self._cut_back(error)
            draft.unlink(missing_ok=True)
            raise NotRotated(f"{self.segment.path.name} could not be sealed: {error_words(error)}") from error
        try:
            self._disk.fdatasync(self._fd)
        except OSError as error:
            raise Fenced(f"the sync of {self.segment.path.name} failed: {error_words(error)}") from error

    def _cut_back(self, cause: OSError) -> None:
        try:
            self._disk.ftruncate(self._fd, self._end)
            self._disk.fdatasync(self._fd)
        except OSError as error:
            raise Fenced(
                f"a write failed ({error_words(cause)}) and its part could not be cut off again: {error_words(error)}"
            ) from error
        self._laid = self._end


def error_words(error: OSError) -> str:
    """What the system says of an error."""
    return error.strerror or str(error)
