"""A fork: a person accepts what is lost, and a new journal_epoch begins. The old files are kept as they are.

The new epoch is written whole into ``ID.fork`` beside the old folder; then the old one becomes
``ID.forked-EPOCH`` and the new one ``ID``. A power cut between the two renames is ended by the next opening.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from backend.agent.journal.checkpoint import FORKED, restating_records
from backend.agent.journal.damaged import Salvaged
from backend.agent.journal.disk import Disk
from backend.agent.journal.errors import JournalWriteFailed
from backend.agent.journal.format import (
    SegmentHeader,
    encode_batch,
    encode_record,
    encode_segment_header,
)
from backend.agent.journal.head import HEAD_NAME, Head, encode_head
from backend.agent.journal.limits import Clock, Limits
from backend.agent.journal.opening import FORK_SUFFIX
from backend.agent.journal.segment_writer import error_words
from backend.agent.journal.segments import segment_name
from backend.agent.journal.writer import batch_chain
from backend.contract.entities import JournalRecord
from backend.contract.words import UnixMs


class Forked(msgspec.Struct, frozen=True):
    """A fork that was made: the epoch that begins, where the old files are, and the words of its first record."""

    journal_epoch: int
    kept: Path
    words: str


def fork_journal(
    folder: Path,
    salvaged: Salvaged,
    *,
    host: str,
    by: str,
    why: str,
    discovered: str,
    clock: Clock,
    disk: Disk | None = None,
    limits: Limits | None = None,
) -> Forked:
    """Begin a new epoch in place of the journal, whose lock the caller holds; open it afterwards.

    ``why`` is what was wrong with the old one, ``discovered`` what runs on the host that it does not know, in words.
    Raises JournalWriteFailed; the old journal is then as it was.
    """
    disk, limits = disk or Disk(), limits or Limits()
    if not salvaged.journal_id:
        raise JournalWriteFailed(f"there is no one journal to fork under {folder}: {salvaged.words}", fenced=True)
    place, epoch = folder / salvaged.journal_id, salvaged.epoch + 1
    draft, kept = folder / f"{place.name}{FORK_SUFFIX}", folder / f"{place.name}.forked-{salvaged.epoch}"
    wall = clock.wall_ns()
    first = _first_record(salvaged, by, why, discovered, kept, UnixMs(wall // 1_000_000))
    records = (first, *restating_records(salvaged.entities, first.at_unix_ms))
    header = SegmentHeader(
        journal_id=place.name,
        epoch=epoch,
        first_seq=salvaged.next_seq,
        first_batch_no=1,
        prev_chain=0,
        host=host,
    )
    batches, head = _encode(records, header, wall, clock.mono_ns(), limits)
    try:
        if draft.exists():
            shutil.rmtree(draft)
        draft.mkdir(mode=0o700)
        disk.create(draft / segment_name(epoch, header.first_seq), encode_segment_header(header) + b"".join(batches))
        slot = encode_head(head)
        disk.create(draft / HEAD_NAME, slot + slot)
        disk.publish(place, kept)
        disk.publish(draft, place)
    except OSError as error:
        raise JournalWriteFailed(
            f"the journal could not be forked: {error_words(error)} ({error.filename or folder}). Free some space, "
            "look at the disk, then fork again.",
            fenced=True,
        ) from error
    return Forked(epoch, kept, first.words)


def _first_record(
    salvaged: Salvaged, by: str, why: str, discovered: str, kept: Path, at_unix_ms: UnixMs
) -> JournalRecord:
    read = salvaged.position.next_seq - 1
    lost = (
        f"records {read + 1} to {salvaged.next_seq - 1} are lost" if salvaged.next_seq - 1 > read else "none is known"
    )
    state = "what they made true is known and goes on; " if salvaged.is_whole else ""
    return JournalRecord(
        kind=FORKED,
        words=(
            f"{by} accepted the loss of what could not be read: {why} Readable were the records up to {read}, "
            f"{lost} behind it; {state}the old files are in {kept}.{f' {discovered}' if discovered else ''}"
        ),
        at_unix_ms=at_unix_ms,
        level="alarm",
        by=by,
    )


def _encode(
    records: Sequence[JournalRecord], header: SegmentHeader, wall_ns: int, mono_ns: int, limits: Limits
) -> tuple[list[bytes], Head]:
    """The batches of a new epoch, and the head that witnesses them."""
    frames = [encode_record(msgspec.json.encode(record), wall_ns=wall_ns, mono_ns=mono_ns) for record in records]
    batches: list[bytes] = []
    seq, chain = header.first_seq, 0
    while frames:
        count = size = 0
        while count < min(len(frames), limits.group_records) and (
            not count or size + len(frames[count]) <= limits.group_bytes
        ):
            size += len(frames[count])
            count += 1
        batch = encode_batch(frames[:count], batch_no=len(batches) + 1, first_seq=seq, prev_chain=chain)
        batches.append(batch)
        seq, chain, frames = seq + count, batch_chain(batch), frames[count:]
    head = Head(journal_id=header.journal_id, epoch=header.epoch, seq=seq - 1, oldest=header.first_seq, chain=chain)
    return batches, head
