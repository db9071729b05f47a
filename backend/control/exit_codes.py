"""How a request or an operation ends, in the numbers of the command line."""

from __future__ import annotations

DONE = 0
"""Done, or nothing to do."""
REFUSED = 2
"""Refused, or asked wrongly."""
UNKNOWN = 3
"""No answer in time: what came of it is not known."""
UNREACHABLE = 4
"""Nobody could be asked."""
FAILED = 5
"""It ran, and failed."""
BUG = 70
"""A bug of ringtop."""
