"""Which drifts are known to somebody: ``<home>/acknowledgements.json``, by context, replaced whole at each change."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from backend.contract.words import UnixMs
from backend.control.durable import sync_folder, write_all
from backend.control.views import Acknowledgement

FILE = "acknowledgements.json"
FORMAT = 1
Known = dict[str, Acknowledgement]


class AcknowledgementsUnreadable(ValueError):
    """The file cannot be used; the message names it and says why and what to do."""


class _Whole(msgspec.Struct, kw_only=True):
    format: int = FORMAT
    contexts: dict[str, list[Acknowledgement]] = {}


def read_acknowledgements(home: Path, context: str) -> Known:
    """What is acknowledged in a context, by drift id; expired ones too. Raises AcknowledgementsUnreadable."""
    return {each.drift: each for each in _read(home / FILE).contexts.get(context, [])}


def acknowledge(home: Path, context: str, made: Acknowledgement) -> None:
    """Keep an acknowledgement; it replaces an earlier one of the same drift. OSError when it cannot be written."""

    def put(known: Known) -> None:
        known[made.drift] = made

    _change(home, context, put, made.at_unix_ms)


def withdraw(home: Path, context: str, drift: str, unix_ms: UnixMs) -> bool:
    """Take an acknowledgement back; whether there was one."""
    there: list[bool] = []

    def take(known: Known) -> None:
        there.append(known.pop(drift, None) is not None)

    _change(home, context, take, unix_ms)
    return there[0]


class AcknowledgementReader:
    """Follows the file: it is read again when it changed."""

    def __init__(self, home: Path, context: str) -> None:
        self._home = home
        self._context = context
        self._stamp: tuple[int, int, int] | None = None
        self._last: tuple[Known, str] = ({}, "")

    def read(self) -> tuple[Known, str]:
        """What is acknowledged, and why nothing of it can be read."""
        try:
            about = (self._home / FILE).stat()
        except OSError:  # never written: nothing is acknowledged
            self._stamp, self._last = None, ({}, "")
            return self._last
        stamp = (about.st_mtime_ns, about.st_size, about.st_ino)
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._last = (read_acknowledgements(self._home, self._context), "")
            except AcknowledgementsUnreadable as error:
                self._last = ({}, str(error))
        return self._last


def _read(path: Path) -> _Whole:
    try:
        whole = msgspec.json.decode(path.read_bytes(), type=_Whole)
    except FileNotFoundError:
        return _Whole()
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise AcknowledgementsUnreadable(
            f"{path}: cannot be read, so that every drift counts as open: {error}. Move it away to begin anew."
        ) from error
    if whole.format != FORMAT:
        raise AcknowledgementsUnreadable(f"{path}: its format is {whole.format}; this ringtop reads {FORMAT}.")
    return whole


def _change(home: Path, context: str, change: Callable[[Known], None], unix_ms: UnixMs) -> None:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(home):
        whole = _read(home / FILE)
        known = {each.drift: each for each in whole.contexts.get(context, []) if each.until_unix_ms > unix_ms}
        change(known)
        whole.contexts[context] = [known[drift] for drift in sorted(known)]
        _replace(home, msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n")


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One change at a time, over all consoles of this home."""
    fd = os.open(home / f".{FILE}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _replace(home: Path, data: bytes) -> None:
    """Written beside, synced, renamed, and the folder synced: a reader finds the old file or the new one."""
    beside = home / f".{FILE}.new"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    beside.replace(home / FILE)
    sync_folder(home)
