"""Files of this home that must be on disk before what follows them."""

from __future__ import annotations

import os
from pathlib import Path


def write_all(fd: int, data: bytes) -> None:
    """Write every byte. One call may take fewer, as on a disk that is nearly full: then the next says why. OSError."""
    written = 0
    while written < len(data):
        written += os.write(fd, data[written:])


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
