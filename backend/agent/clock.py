"""The two clocks of this host, read at one moment."""

from __future__ import annotations

import time

from backend.agent.core.state import Now
from backend.contract.words import UnixMs


def now() -> Now:
    """This moment on both clocks."""
    return Now(unix_ms=UnixMs(time.time_ns() // 1_000_000), mono=time.monotonic())
