"""A place in a journal that a console keeps: ``journal_id:journal_epoch:seq:chain``, opaque to people."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from backend.contract.numbers import check_u64

_SHAPE = re.compile(r"([0-9a-f]{32}):([0-9]{1,20}):([0-9]{1,20}):([0-9a-f]{8})", re.ASCII)


class Cursor(msgspec.Struct, frozen=True):
    """``seq`` is the last record seen, 0 for none; ``chain`` the checksum of the batch that holds it."""

    journal_id: str
    journal_epoch: int
    seq: int
    chain: int

    def __str__(self) -> str:
        return f"{self.journal_id}:{self.journal_epoch}:{self.seq}:{self.chain:08x}"


class CursorOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a journal says to a cursor.

    ``ok``: the holder has everything up to ``from_seq``; go on with ``read(after=from_seq, …)``. ``gone``:
    retention passed it; ``oldest`` is the first record still there. ``diverged``: the cursor is of another journal or
    of a history that this one does not have; ``journal_epoch`` is the one that stands, ``words`` says both sides.
    """

    outcome: Literal["ok", "gone", "diverged"]
    from_seq: int = 0
    oldest: int = 0
    journal_epoch: int = 0
    words: str = ""


def parse_cursor(text: str) -> Cursor:
    """Read a cursor; raises ValueError for a text that no journal made."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(f"the cursor {text[:80]!r} is not journal_id:journal_epoch:seq:chain")
    journal_id, epoch, seq, chain = match.groups()
    return Cursor(
        journal_id,
        check_u64("the cursor's journal_epoch", int(epoch)),
        check_u64("the cursor's seq", int(seq)),
        int(chain, 16),
    )
