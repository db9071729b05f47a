"""The two clocks of this host, read at one moment."""

from __future__ import annotations

import time

from backend.agent.core.state import Now
from backend.contract.words import UnixMs


def now() -> Now:
    """This moment on both clocks.

    The second one goes on while the host is suspended: what was reserved or lent for ten minutes ends after ten, not
    after an hour's sleep and ten.
    """
    return Now(unix_ms=UnixMs(time.time_ns() // 1_000_000), mono=time.clock_gettime(time.CLOCK_BOOTTIME))
