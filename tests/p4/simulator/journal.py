"""The operational journal: a flat directory, one file per record, held exclusively, where nothing is ever deleted.

The engine's own record bytes and most file names are unknown; here a record is a line of JSON. Known and kept: the
``.admission`` of an event that came directly, an inbound record for one that came by hop, outbound events and markers,
growth without end, the byte cap, and the census that refuses a start.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path

PREFILL = "prefill-v3"


class JournalRefused(Exception):
    """The journal is not to be had, or is full; the text says why."""


class Journal:
    """One agent's hold on its directory."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        folder.mkdir(parents=True, exist_ok=True)
        self._directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalRefused(f"outbound journal {folder} is held by another agent") from None
        self._census()
        held = [entry.stat().st_size for entry in os.scandir(folder) if entry.is_file()]
        self.files, self.bytes = len(held), sum(held)

    def _census(self) -> None:
        """Refuse to start over work that cannot be proven finished: requests, and submissions without their marker."""
        admitted = [path for path in self.folder.glob("*.admission") if PREFILL in path.read_text()]
        provisional = [path for path in admitted if not path.with_suffix(".settled").exists()]
        if admitted:
            raise JournalRefused(
                f"recovery census: request_incarnations={len(admitted)} provisional_submissions={len(provisional)}; "
                "request fence and native/KV proof required before restart"
            )

    def append(self, kind: str, identity: str, content_type: str, raw: bytes) -> None:
        """One more file. Raises JournalRefused at the byte cap."""
        digest = hashlib.sha256(raw).hexdigest()
        record = {"identity": identity, "content_type": content_type, "digest": digest, "bytes": len(raw)}
        text = json.dumps(record).encode() + b"\n"
        if self.bytes + len(text) > self.max_bytes:
            raise JournalRefused("outbound journal capacity exhausted")
        name = hashlib.sha256(f"{identity}".encode()).hexdigest()[:32]
        path = self.folder / f"{name}.{kind}"
        if path.exists():
            return
        path.write_bytes(text)
        self.files += 1
        self.bytes += len(text)

    def has(self, kind: str, identity: str) -> bool:
        """Whether such a record exists."""
        return (self.folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.{kind}").exists()
