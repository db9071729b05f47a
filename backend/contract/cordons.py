"""A cordon: no new shards on a host, who said so, why, and until when. What runs there runs on."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from backend.contract.words import UnixMs


class Cordon(msgspec.Struct, frozen=True, kw_only=True):
    """What a person decided about one host, kept by its agent until it ends or is taken back.

    ``left_ms`` is what remained at ``at_unix_ms``; None lasts until somebody uncordons the host.
    """

    by: str
    why: str
    at_unix_ms: UnixMs
    left_ms: int | None = None

    @property
    def until_unix_ms(self) -> UnixMs | None:
        """When it ends by itself, for display."""
        return None if self.left_ms is None else UnixMs(self.at_unix_ms + self.left_ms)

    @property
    def words(self) -> str:
        """The same words wherever a load is refused for it: who, since when, until when, why. Times are UTC."""
        until = "" if self.until_unix_ms is None else f" until {_moment(self.until_unix_ms)}"
        why = f": {self.why}" if self.why else ", no reason given"
        return f"cordoned by {self.by} since {_moment(self.at_unix_ms)}{until}{why}"


def cordon_remedy(host: str) -> str:
    """What to do about a cordon that is in the way."""
    return f"Load elsewhere, or take it back: ringtop uncordon {host}."


def _moment(unix_ms: int) -> str:
    """A moment in UTC to the minute; what no calendar has stays a number."""
    try:
        return datetime.fromtimestamp(unix_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return f"unix ms {unix_ms}"
