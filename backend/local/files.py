"""The caretaker's lock and its logs."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import IO

_LONGEST_LOG = 4 << 20


def take_lock(path: Path, seconds: float = 0.0) -> IO[bytes] | None:
    """The locked file, to be kept open; None when another process has the lock for longer than ``seconds``."""
    file = path.open("ab")
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                file.close()
                return None
            time.sleep(0.02)
        else:
            return file


def open_log(path: Path) -> IO[bytes]:
    """A log to append to; one over 4 MiB is set aside first, in place of the one set aside before."""
    if path.exists() and path.stat().st_size > _LONGEST_LOG:
        path.replace(path.with_name(f"{path.name}.1"))
    return path.open("ab")
