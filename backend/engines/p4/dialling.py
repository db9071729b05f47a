"""When a p4 agent may be dialled again. Pure: the monotonic clock comes in."""

from __future__ import annotations

_REFUSED_FIRST, _REFUSED_MOST = 0.5, 30.0
"""Nobody listened: no slot was touched, and the p4 agent may be starting."""
_LOST_FIRST, _LOST_MOST = 5.0, 1800.0
"""A connection ended that we had not left: its slot may be gone."""
_PROVEN_SECONDS = 60.0
"""A connection that lived for so long was no failure of dialling."""


class DialPace:
    """Back-off of one kind of connection: doubling, by what the last dial may have cost."""

    def __init__(self) -> None:
        self._refused = 0
        self._lost = 0
        self._not_before = 0.0

    def wait(self, now: float) -> float:
        """Seconds until a dial is allowed; 0 when it is."""
        return max(0.0, self._not_before - now)

    def refused(self, now: float) -> None:
        """The dial found nobody."""
        self._not_before = now + min(_REFUSED_FIRST * 2**self._refused, _REFUSED_MOST)
        self._refused = min(self._refused + 1, 16)

    def lost(self, now: float, lived: float) -> None:
        """A connection that had lived for ``lived`` seconds ended, and not by us."""
        if lived >= _PROVEN_SECONDS:
            self._lost = 0
        self._refused = 0
        self._not_before = now + min(_LOST_FIRST * 2**self._lost, _LOST_MOST)
        self._lost = min(self._lost + 1, 16)

    def left(self) -> None:
        """We left a connection, and the p4 agent said so too."""
        self._refused = self._lost = 0
        self._not_before = 0.0
