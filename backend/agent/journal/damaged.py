"""A journal that cannot be trusted, or not be written: what of it can be read is shown, and nothing is accepted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from backend.agent.journal.disk import take_lock_to_read
from backend.agent.journal.errors import JournalDamaged, JournalWriteFailed
from backend.agent.journal.head import HEAD_NAME, Head, decode_head
from backend.agent.journal.limits import Limits
from backend.agent.journal.log import LOCK_NAME
from backend.agent.journal.opening import entities_of, journals_in
from backend.agent.journal.recovery import Damage, Position, walk_batches
from backend.agent.journal.sealing import read_seal
from backend.agent.journal.segments import Segment, check_belongs, is_base, read_bytes, segment_paths
from backend.agent.journal.shared import Notice, Shared
from backend.agent.journal.stored import StoredLog
from backend.contract.entities import Entities, JournalRecord

NO_ID = "0" * 32
_START = Position(epoch=1, next_batch_no=1, next_seq=1, chain=0)


class Salvaged(msgspec.Struct, frozen=True, kw_only=True):
    """What of a journal can be read: the segments up to the first damage, which ``words`` names.

    ``journal_id`` is empty when not even the journal is known; ``witness`` is the head file's, None when unreadable.
    """

    journal_id: str
    segments: list[Segment]
    position: Position
    entities: Entities
    witness: Head | None
    words: str
    is_whole: bool = False
    """``entities`` is everything that was durable, as the agent that wrote it knew: only history cannot be read."""

    @property
    def next_seq(self) -> int:
        """The first number that no record of this journal had, as far as anybody here knows."""
        return max(self.position.next_seq, self.witness.seq + 1 if self.witness is not None else 0)

    @property
    def epoch(self) -> int:
        """The highest epoch seen."""
        return max(self.position.epoch, self.witness.epoch if self.witness is not None else 0)


def salvage(folder: Path, *, host: str) -> Salvaged:
    """Read the longest valid prefix of the journal under ``folder``. Changes nothing and raises nothing."""
    try:
        found = journals_in(folder)
        if len(found) != 1:
            raise JournalDamaged(folder, 0, f"it holds {len(found)} journals")
        return _salvage(folder / found[0], host)
    except (OSError, JournalDamaged) as error:
        return Salvaged(
            journal_id="", segments=[], position=_START, entities=Entities(), witness=None, words=str(error)
        )


def _salvage(place: Path, host: str) -> Salvaged:
    segments: list[Segment] = []
    position, after, words = _START, None, ""
    for path in segment_paths(place):
        try:
            seal = read_seal(path)
            data = read_bytes(path)
            walked = walk_batches(data if seal is None else data[: seal.end], after=after)
            check_belongs(path, walked.header, journal_id=place.name, host=host)
        except Damage as damage:
            words = str(JournalDamaged(path, damage.offset, damage.what))
            break
        except (OSError, JournalDamaged) as error:
            words = str(error)
            break
        segment = Segment(path, walked.header, walked.end, list(walked.index), seal)
        segment.is_base = is_base(segment)
        segments.append(segment)
        position = after = walked.position
        if walked.misplaced or (walked.broken and data[walked.end :].strip(b"\0")):
            words = str(JournalDamaged(path, walked.end, walked.misplaced or walked.broken))
            break
    return Salvaged(
        journal_id=place.name,
        segments=segments,
        position=position,
        entities=entities_of(segments) if segments else Entities(),
        witness=_witness(place),
        words=words,
    )


def _witness(place: Path) -> Head | None:
    try:
        return decode_head(read_bytes(place / HEAD_NAME))
    except (OSError, JournalDamaged):
        return None  # a head file that cannot be read witnesses nothing; what opening said of it stands


class DamagedJournal(StoredLog):
    """The readable part of a journal, with the lock held. Nothing can be appended; ``health`` says file and offset."""

    is_new = False
    is_read_only = True
    last_sync_seconds = 0.0
    dropped_records = 0

    def __init__(
        self, folder: Path, *, host: str, words: str, lock: int | None = None, known: Entities | None = None
    ) -> None:
        """``words`` is why the journal cannot be written. Raises JournalLocked when another agent holds it.

        ``lock`` is the descriptor of a lock that is held already, ``known`` everything durable when that is known.
        """
        self._lock = take_lock_to_read(folder / LOCK_NAME) if lock is None else lock
        self.folder = folder
        self.salvaged = salvage(folder, host=host)
        if known is not None:
            self.salvaged = msgspec.structs.replace(self.salvaged, entities=known, is_whole=True)
        self.health = self.fenced = words
        found = self.salvaged
        shared = Shared(found.segments, found.position, Limits(ring_records=1), found.entities)
        super().__init__(found.journal_id or NO_ID, found.position.epoch, shared)

    def append(self, records: Sequence[JournalRecord]) -> NoReturn:
        """Raises JournalWriteFailed, always."""
        raise JournalWriteFailed(self.health, fenced=True)

    append_lazy = append

    def resume(self) -> bool:
        """Never by itself: a person looks first."""
        return False

    def take_notices(self) -> tuple[Notice, ...]:
        """None: nothing can be recorded."""
        return ()

    def hand_over_lock(self) -> int:
        """The lock's descriptor, for a journal that takes this one's place; ``take_back_lock`` when none does."""
        lock, self._lock = self._lock, -1
        return lock

    def take_back_lock(self, lock: int) -> None:
        """Hold the lock again."""
        self._lock = lock

    async def close(self) -> None:
        """Give the lock back. Again is harmless."""
        lock = self.hand_over_lock()
        if lock >= 0:
            os.close(lock)
