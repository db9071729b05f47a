"""The wall clock of this machine: for display and for generations, never for timeouts."""

from __future__ import annotations

import time

from backend.contract.words import UnixMs


def now_unix_ms() -> UnixMs:
    """Milliseconds since 1970."""
    return UnixMs(time.time_ns() // 1_000_000)
