"""What engines print: one file per run, rotated in place, read by offsets that hold across a rotation.

An engine appends to ``engine.log`` by a descriptor of its own, so the file is copied and then cut, never renamed: what
it writes in the microseconds between is lost. ``engine.log.base`` has the number of bytes that were cut off in all.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Collection
from pathlib import Path

import msgspec

from backend.agent.process_identity import is_alive
from backend.agent.run_folder import RunFolder, RunUnreadable, run_folder
from backend.contract.words import NodeId

ROTATE_BYTES = 64 << 20
READ_LIMIT = 262_144
KEPT_GENERATIONS = 3
"""How many runs of a slot keep their folder, and with it their log."""
_CHUNK = 1 << 20
_SWITCHING = threading.Lock()
"""Held while a log changes its files, which is microseconds, and while one is read."""


class LogPiece(msgspec.Struct, frozen=True):
    """Bytes of a log. ``offset`` is that of their end, ``size`` the log's, both counted from its first byte ever.

    ``skipped`` bytes before this piece were asked for and are not kept any more.
    """

    data: bytes
    offset: int
    size: int
    skipped: int = 0


def rotate_log(run: RunFolder, limit: int = ROTATE_BYTES) -> bool:
    """Move a log that is longer than ``limit`` bytes to ``engine.log.1`` and cut it; whether it did.

    Without room for the copy the old output is given up rather than the disk. Raises OSError for anything else.
    """
    try:
        if run.log.stat().st_size <= limit:
            return False
    except FileNotFoundError:
        return False
    draft = run.path / "engine.log.tmp"
    with open(run.log, "rb") as log:
        try:
            with open(draft, "wb") as copy:
                shutil.copyfileobj(log, copy, _CHUNK)
                with _SWITCHING:
                    shutil.copyfileobj(log, copy, _CHUNK)  # what came meanwhile
                    copy.flush()
                    os.rename(draft, run.old_log)
                    _cut(run, log.tell())
        except OSError as error:
            draft.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            with _SWITCHING:
                run.old_log.unlink(missing_ok=True)
                _cut(run, run.log.stat().st_size)
    return True


def _cut(run: RunFolder, length: int) -> None:
    base = _base(run) + length
    with open(run.log_base, "a+") as file:  # in place: a disk without room takes the same block again
        file.truncate(0)
        file.write(f"{base}\n")
    os.truncate(run.log, 0)


def read_log(run: RunFolder, offset: int, limit: int) -> LogPiece:
    """At most ``limit`` bytes from ``offset``; a negative one counts from the end. Raises FileNotFoundError."""
    with _SWITCHING:
        base, length = _base(run), run.log.stat().st_size
        size = base + length
        oldest = base - (run.old_log.stat().st_size if run.old_log.exists() else 0)
        asked = max(oldest, size + offset) if offset < 0 else offset
        start = min(max(asked, oldest), size)
        data = b""
        wanted = max(0, min(limit, READ_LIMIT))
        if start < base:
            data = _piece(run.old_log, start - oldest, wanted)
        if start + len(data) >= base:
            data += _piece(run.log, max(0, start + len(data) - base), wanted - len(data))
    return LogPiece(data, start + len(data), size, max(0, start - asked))


def read_file(path: Path, offset: int, limit: int) -> LogPiece:
    """The same of a file that somebody else writes, rotates and owns. Raises OSError."""
    size = path.stat().st_size
    start = max(0, size + offset) if offset < 0 else min(offset, size)
    data = _piece(path, start, max(0, min(limit, READ_LIMIT)))
    return LogPiece(data, start + len(data), size)


def last_lines(run: RunFolder, lines: int, limit: int) -> tuple[str, ...]:
    """The last lines that an engine printed, of the last ``limit`` bytes; a line in words when there is no log."""
    try:
        text = read_log(run, -limit, limit).data.decode(errors="replace")
    except OSError as error:
        return (f"no log: {error.strerror}",)
    return tuple(line[:500] for line in text.splitlines() if line.strip())[-lines:]


def generations_of(runs: Path, node_id: NodeId) -> tuple[int, ...]:
    """The generations of a slot whose output is kept, oldest first."""
    slot = run_folder(runs, node_id, 0).name.removesuffix("-0")
    return tuple(sorted(generation for name, generation in _folders(runs) if name == slot))


def prune_runs(runs: Path, protected: Collection[Path], kept: int = KEPT_GENERATIONS) -> tuple[Path, ...]:
    """Remove the folders of runs that are over, beyond the newest ``kept`` of each slot. Returns what went.

    Nothing ``protected`` goes, nor a run whose process lives or whose record cannot be read.
    """
    by_slot: dict[str, list[int]] = {}
    for name, generation in _folders(runs):
        by_slot.setdefault(name, []).append(generation)
    gone = []
    for name, generations in by_slot.items():
        for generation in sorted(generations)[:-kept]:
            folder = runs / f"{name}-{generation}"
            if folder not in protected and _is_over(folder):
                shutil.rmtree(folder, ignore_errors=True)
                gone.append(folder)
    return tuple(gone)


def _folders(runs: Path) -> list[tuple[str, int]]:
    """Slot and generation of every run that has a folder."""
    try:
        names = os.listdir(runs)
    except FileNotFoundError:
        return []
    parts = [name.rpartition("-") for name in names]
    return [(slot, int(generation)) for slot, _, generation in parts if slot and generation.isdecimal()]


def _is_over(folder: Path) -> bool:
    try:
        record = RunFolder(folder).read_spawn()
    except RunUnreadable:
        return False
    return record is None or not is_alive(record.identity)


def _base(run: RunFolder) -> int:
    try:
        text = run.log_base.read_text().strip()
    except FileNotFoundError:
        return 0
    return int(text) if text.isdecimal() else 0


def _piece(path: Path, offset: int, limit: int) -> bytes:
    if limit <= 0:
        return b""
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(limit)
