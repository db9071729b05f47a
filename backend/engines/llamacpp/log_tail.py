"""Reads what was appended to a log since the last look."""

from __future__ import annotations

from pathlib import Path

_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 16
"""Of a line that has not ended yet no more is kept: an engine that prints dots, or rubbish, ends none."""


class LogTail:
    """Follows one file that another process appends to. A log that was cut short is read again from its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Whole lines that came since the last call, at most a MiB at once; none while the file is not there yet."""
        try:
            with self._path.open("rb") as log:
                size = log.seek(0, 2)
                if size < self._offset:
                    self._offset, self._rest = 0, b""
                log.seek(self._offset)
                data = log.read(_CHUNK)
        except FileNotFoundError:
            return []
        self._offset += len(data)
        whole, newline, rest = (self._rest + data).rpartition(b"\n")
        self._rest = (rest if newline else self._rest + data)[-_LONGEST_LINE:]
        return whole.decode(errors="replace").splitlines() if newline else []
