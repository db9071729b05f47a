"""What can go wrong with a journal, each with the words that a person on the host needs."""

from __future__ import annotations

from pathlib import Path


class JournalLocked(Exception):
    """Another process holds this journal. ``pid`` is the holder's, None when its lock file does not say."""

    def __init__(self, lock: Path, pid: int | None) -> None:
        holder = f"process {pid}" if pid is not None else "a process that did not leave its pid"
        super().__init__(
            f"the journal is held by {holder} (lock file {lock}). One agent runs per journal: stop that one first, "
            "or give this one a state folder of its own."
        )
        self.lock = lock
        self.pid = pid


class JournalDamaged(Exception):
    """The journal cannot be trusted. ``offset`` is a byte offset in ``file``; nothing was changed on disk."""

    def __init__(self, file: Path, offset: int, what: str) -> None:
        super().__init__(
            f"the journal is damaged: {file} at byte {offset}: {what}. Nothing was changed. Engines go on; no load and "
            "no unload until a person has looked: ringtop journal verify HOST says more. Put a whole copy of the "
            "folder back, or accept the loss: ringtop journal fork HOST --accept-loss begins a new journal_epoch."
        )
        self.file = file
        self.offset = offset
        self.what = what


class JournalWriteFailed(Exception):
    """Records were not made durable; nothing that depends on them may happen. ``fenced`` says it is for good."""

    def __init__(self, words: str, *, fenced: bool) -> None:
        super().__init__(words)
        self.fenced = fenced
