"""Which segment may go: whole sealed ones, oldest first, and only what a later checkpoint has made needless. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from backend.agent.journal.limits import DAY_NS, Limits
from backend.agent.journal.segments import Segment


def base_of(segments: Sequence[Segment]) -> int:
    """The place of the newest segment from which on everything can be folded; 0 when none says so."""
    return max((n for n, segment in enumerate(segments) if segment.is_base), default=0)


def why_unlink_oldest(segments: Sequence[Segment], limits: Limits, wall_ns: int) -> str:
    """Why the oldest segment goes now, in words; empty when it stays."""
    if base_of(segments) == 0 or segments[0].seal is None:
        return ""
    size = sum(segment.size for segment in segments)
    if size > limits.keep_bytes:
        return f"the journal has {size} bytes, more than the {limits.keep_bytes} that keep_gib allows"
    age = (wall_ns - segments[0].seal.sealed_ns) / DAY_NS
    if age > limits.keep_days:
        return f"it was sealed {age:.1f} days ago, more than keep_days = {limits.keep_days:g}"
    return ""
