"""The few system calls that make records durable, in one place that a test can make fail; and careful opening."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from backend.agent.journal.errors import JournalDamaged, JournalLocked

_ZEROS = bytes(256 * 1024)


class Disk:
    """The real disk. Every call may raise OSError."""

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        """Write at ``offset``; returns how many bytes were taken, which may be fewer."""
        return os.pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        """Return when the file's bytes are on the disk. A failure must never be tried again."""
        os.fdatasync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        """Cut the file."""
        os.ftruncate(fd, length)

    def allocate(self, fd: int, offset: int, length: int) -> None:
        """Reserve room that reads as zeros."""
        os.posix_fallocate(fd, offset, length)

    def lay_zeros(self, fd: int, offset: int, length: int) -> None:
        """Write zeros into reserved room, which read as zeros before: what is written there later syncs faster."""
        done = 0
        while done < length:
            taken = os.pwrite(fd, _ZEROS[: length - done], offset + done)
            if taken <= 0:
                raise OSError(errno.EIO, f"the disk took {done} of {length} bytes")
            done += taken

    def fsync_folder(self, folder: Path) -> None:
        """Make names in a folder durable: after creating, renaming, removing."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def write_all(self, fd: int, data: bytes, offset: int) -> None:
        """Write every byte, going on after short writes. Raises OSError with a part possibly written."""
        view = memoryview(data)
        while view:
            taken = self.pwrite(fd, view, offset)
            if taken <= 0:
                raise OSError(errno.EIO, f"the disk took {taken} of {len(view)} bytes")
            offset += taken
            view = view[taken:]

    def free_room(self, folder: Path) -> tuple[int, int]:
        """Bytes that may still be written on the folder's disk, and its size."""
        facts = os.statvfs(folder)
        return facts.f_bavail * facts.f_frsize, facts.f_blocks * facts.f_frsize

    def draft(self, path: Path, data: bytes, room: int = 0) -> Path:
        """A file of mode 0600 beside ``path`` with these bytes and at least ``room`` of them reserved, durable.

        Raises OSError, and then there is no such file.
        """
        draft = path.with_name(path.name + ".tmp")
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            if room:
                self.allocate(fd, 0, room)
            if data:
                self.write_all(fd, data, 0)
            self.fdatasync(fd)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return draft

    def publish(self, draft: Path, path: Path) -> None:
        """Give a draft its name, durably. Raises OSError."""
        os.rename(draft, path)
        self.fsync_folder(path.parent)

    def create(self, path: Path, data: bytes, room: int = 0) -> None:
        """A new file of mode 0600 with these bytes, durable with its name, or no file of that name at all."""
        self.publish(self.draft(path, data, room), path)


def own_folder(folder: Path) -> None:
    """Create the folder (0700), or take one that is ours and close it to others. Raises JournalDamaged."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        raise JournalDamaged(
            folder, 0, f"it is no folder of user {os.geteuid()} (owner {facts.st_uid}, mode {facts.st_mode:o})"
        )
    if facts.st_mode & 0o077:
        folder.chmod(0o700)


def open_regular(path: Path, flags: int) -> int:
    """Open a file of the journal, never through a link, never a FIFO or a device. Raises JournalDamaged."""
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise JournalDamaged(path, 0, "it is a link, a FIFO or a socket, not a plain file") from error
        raise
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
        os.close(fd)
        raise JournalDamaged(path, 0, f"it is no plain file of user {os.geteuid()} (mode {facts.st_mode:o})")
    return fd


def take_lock_to_read(path: Path) -> int:
    """The lock of a journal that is only read, also where nothing can be written. Raises JournalLocked, OSError."""
    try:
        return take_lock(path)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EIO, errno.EISDIR):
            raise
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise JournalLocked(path, None) from error
    return fd


def take_lock(path: Path) -> int:
    """Hold the lock file for as long as the descriptor is open; no child inherits it. Raises JournalLocked."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        words = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise JournalLocked(path, int(words) if words.isdecimal() else None) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd
