"""``journal verify`` and ``stats``: every byte of a journal read again, and what there is of it, while it is in use."""

from __future__ import annotations

import hashlib
import time

import msgspec

from backend.agent.journal.errors import JournalDamaged
from backend.agent.journal.recovery import Damage, Position, scan_segment
from backend.agent.journal.sealing import digest_words, sealed_bytes
from backend.agent.journal.segments import Segment, read_bytes
from backend.agent.journal.stored import StoredLog


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole read found. ``file``, ``offset`` and ``words`` are of the first damage; empty when it is sound."""

    segments: int
    sealed: int
    records: int
    bytes: int
    seconds: float
    oldest_seq: int
    head_seq: int
    file: str = ""
    offset: int = 0
    words: str = ""


def verify(log: StoredLog) -> Verified:
    """Read everything that is durable now and check it: batches, their order, seals. Blocks; any thread may call it."""
    began = time.monotonic()
    segments = log.segments()
    after: Position | None = None
    records = size = checked = 0
    damage: JournalDamaged | None = None
    for segment in segments:
        try:
            data, after = _check(segment, after)
        except FileNotFoundError:
            if segment is segments[0] and log.oldest_seq > segment.header.first_seq:
                continue  # retention took it while this was on its way
            damage = JournalDamaged(segment.path, 0, "the file is gone")
            break
        except JournalDamaged as found:
            damage = found
            break
        checked += 1
        size += data
        records += after.next_seq - segment.header.first_seq
    return Verified(
        segments=checked,
        sealed=sum(segment.seal is not None for segment in segments[:checked]),
        records=records,
        bytes=size,
        seconds=time.monotonic() - began,
        oldest_seq=segments[0].header.first_seq if segments else 0,
        head_seq=log.head_seq,
        file=str(damage.file) if damage is not None else "",
        offset=damage.offset if damage is not None else 0,
        words=str(damage) if damage is not None else "",
    )


def _check(segment: Segment, after: Position | None) -> tuple[int, Position]:
    """Bytes read of one segment, and where the log has got to at its end. Raises JournalDamaged, OSError."""
    data = read_bytes(segment.path)
    try:
        scan = scan_segment(data[: segment.end], after=after, is_last=False)
        if scan.end != segment.end:
            raise Damage(scan.end, f"its records end here, those known as durable end at byte {segment.end}")
        seal = segment.seal
        if seal is not None:
            found = hashlib.sha256(memoryview(data)[: sealed_bytes(seal)]).digest()
            if len(data) != seal.size or found != seal.digest:
                raise Damage(seal.end, digest_words(seal, found))
    except Damage as error:
        raise JournalDamaged(segment.path, error.offset, error.what) from error
    return len(data), scan.position


def stats(log: StoredLog) -> dict[str, object]:
    """What there is of a journal: sizes in bytes, numbers of the oldest and newest record, and its segments."""
    segments = log.segments()
    return {
        "journal_id": log.journal_id,
        "journal_epoch": log.journal_epoch,
        "oldest_seq": log.oldest_seq,
        "head_seq": log.head_seq,
        "bytes": sum(segment.size for segment in segments),
        "segments": [
            {
                "file": segment.path.name,
                "first_seq": segment.header.first_seq,
                "bytes": segment.size,
                "sealed": segment.seal is not None,
                "sealed_unix_ms": segment.seal.sealed_ns // 1_000_000 if segment.seal is not None else None,
                "begins_with_checkpoint": segment.is_base,
            }
            for segment in segments
        ],
    }
