"""The one error of the p4 codec."""

from __future__ import annotations

_LONGEST_REASON = 1000


class P4CodecError(ValueError):
    """Bytes or values that the p4 contract does not allow; the text says which rule and both values.

    It is cut at 1000 characters, since it may quote what a peer sent.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…")

    @property
    def reason(self) -> str:
        """Why it was refused, for a person."""
        return str(self.args[0])
