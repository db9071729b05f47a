"""Reads sealed segments again in the background and compares them with their seals: what rots is found before it is
needed. Slowly, so that nothing else notices."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path

from backend.agent.descriptors import OUT_OF_DESCRIPTORS
from backend.agent.journal.disk import open_regular
from backend.agent.journal.errors import JournalDamaged
from backend.agent.journal.limits import Limits
from backend.agent.journal.sealing import Seal, digest_words, sealed_bytes
from backend.agent.journal.segments import Segment
from backend.agent.journal.shared import Shared

_CHUNK = 1 << 20
_UNREAD = (*OUT_OF_DESCRIPTORS, errno.ENOMEM)


class Scrubber(threading.Thread):
    """One pass over all sealed segments after another. Damage ends the journal's writing, as it would at a start."""

    def __init__(self, shared: Shared, limits: Limits) -> None:
        super().__init__(name="journal-scrub", daemon=True)
        self._shared = shared
        self._limits = limits
        self._stop = threading.Event()

    def stop(self) -> None:
        """End soon; a chunk under way is read to its end."""
        self._stop.set()

    def run(self) -> None:
        """Pass, rest, pass again, until stopped or damage is found."""
        while not self._stop.is_set():
            with self._shared.lock:
                sealed = [segment for segment in self._shared.segments if segment.seal is not None]
            for segment in sealed:
                words = self._scrub(segment)
                if words:
                    self._damaged(words)
                    return
            if self._stop.wait(self._limits.scrub_seconds):
                return

    def _scrub(self, segment: Segment) -> str:
        """What is wrong with a segment, in words; empty when it is as it was sealed, was retired, or was not read."""
        assert segment.seal is not None
        try:
            found = self._digest(segment.path, segment.seal)
        except FileNotFoundError:
            return "" if self._is_gone(segment) else str(JournalDamaged(segment.path, 0, "the file is gone"))
        except JournalDamaged as damaged:
            return str(damaged)
        except OSError as error:
            # Without a descriptor or memory nothing was read, which says nothing of the disk: the next pass does.
            return "" if error.errno in _UNREAD else str(JournalDamaged(segment.path, 0, str(error)))
        if found is None or found == segment.seal.digest:
            return ""
        return str(JournalDamaged(segment.path, segment.seal.end, digest_words(segment.seal, found)))

    def _digest(self, path: Path, seal: Seal) -> bytes | None:
        """The SHA-256 of the file as it is on the disk; None when stopped on the way."""
        left = sealed_bytes(seal)
        digest = hashlib.sha256()
        pause = _CHUNK / self._limits.scrub_bytes_per_second
        fd = open_regular(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            while left and (chunk := os.read(fd, min(left, _CHUNK))):
                digest.update(chunk)
                left -= len(chunk)
                if self._stop.wait(pause):
                    return None
        finally:
            os.close(fd)
        return digest.digest()

    def _is_gone(self, segment: Segment) -> bool:
        with self._shared.lock:
            return all(kept.path != segment.path for kept in self._shared.segments)

    def _damaged(self, words: str) -> None:
        with self._shared.lock:
            self._shared.damage = words
            self._shared.fenced = self._shared.fenced or words
