"""The connection slots of one p4 agent that we may have cost it, on disk.

A p4 agent has 256 slots and gives one back when a connection says FINISH. One that does not, because *this* process was
killed for instance, costs it a slot until it is started again, which ends every stage it runs. So each dial is written
down and synced before it is made, and what was open when we died counts as gone. After-images: the file is replaced
whole at each change.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from backend.contract.findings import Finding, refuse, warn
from backend.engines.p4.files import replace_file

SLOTS = 256
"""Connections that a p4 agent can hold in its life, ours and everybody else's together."""
WARN_AT = 128
CRITICAL_AT = 192
"""From here on nothing is dialled: the rest is for the agent's peers and for whoever clears this up."""

Mode = Literal["direct", "hop"]

_FORMAT = 1


class SlotsUnreadable(Exception):
    """The count cannot be read, written or locked; the message names the file and says what to do."""


class SlotsSpent(Exception):
    """A dial is refused, since it could be one of the last that the p4 agent accepts. Carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.words)
        self.finding = finding


class _Count(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``open`` maps the channel of each connection that was not left yet to its mode."""

    format: int
    life: str | None
    spent: int
    open: dict[str, Mode]


class SlotCount:
    """The count of one p4 agent life. Its methods write to the disk and may be called from any thread.

    ``seen_on_host`` is the host's own gauge, when there is one: how many sockets the p4 agent's process holds. The
    greater of the two decides. It is called from any thread too.
    """

    def __init__(self, path: Path, life: str | None, seen_on_host: Callable[[], int | None] = lambda: None) -> None:
        """Read the count of ``life`` (what names one run of the p4 agent's process), or begin it.

        None is a life that cannot be seen now: the count on disk goes on, whichever it was of. What a life before left
        is forgotten with it; connections that this life had open when we ended are spent, but those in hop mode, which
        cost nothing. Raises SlotsUnreadable, also when another process holds the file.
        """
        self._path = path
        self._seen_on_host = seen_on_host
        self._guard = threading.Lock()
        self._is_closed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SlotsUnreadable(f"the slot count {path} cannot be kept: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._count = self._taken_up(life)
            self._write()
        except BlockingIOError as error:
            os.close(self._lock)
            raise SlotsUnreadable(
                f"another process dials the p4 agent of {path} and keeps its slot count; end it first"
            ) from error
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let another process keep the count. What ends after this is not written, and so stays counted as open."""
        with self._guard:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._lock)

    @property
    def spent(self) -> int:
        """Slots of this life that we may have cost for good."""
        return self._count.spent

    @property
    def open(self) -> int:
        """Connections that we hold now."""
        return len(self._count.open)

    @property
    def life(self) -> str | None:
        """The life that is counted; None when it was never seen."""
        return self._count.life

    def begin_life(self, life: str) -> None:
        """This is the p4 agent's life now: when it is another than was counted, all its slots are there.

        A count whose life was never seen goes on under this one, which it may well have been.
        """
        with self._guard:
            count = self._count
            if count.life is None:
                self._keep(msgspec.structs.replace(count, life=life))
            elif life != count.life:
                self._keep(_Count(_FORMAT, life, 0, {}))

    def begin(self, channel: str, mode: Mode) -> None:
        """Write down a connection before it is dialled. Raises SlotsSpent, SlotsUnreadable: then nothing is dialled."""
        with self._guard:
            finding = self._finding()
            if finding is not None and finding.is_refusal:
                raise SlotsSpent(finding)
            count = self._count
            self._keep(_Count(_FORMAT, count.life, count.spent, {**count.open, channel: mode}))

    def end(self, channel: str, *, returned: bool) -> None:
        """The connection is over. ``returned``: its slot is known to be free again.

        A channel of a life before is no longer counted, and nothing happens. Raises SlotsUnreadable.
        """
        with self._guard:
            count = self._count
            if channel in count.open:
                left = {name: mode for name, mode in count.open.items() if name != channel}
                self._keep(_Count(_FORMAT, count.life, count.spent + (not returned), left))

    def finding(self) -> Finding | None:
        """What the count says: nothing, a warning from 128, a refusal from 192."""
        with self._guard:
            return self._finding()

    def _finding(self) -> Finding | None:
        ours = self._count.spent + len(self._count.open)
        seen = self._seen_on_host()
        used = max(ours, seen or 0)
        if used < WARN_AT:
            return None
        make, limit = (warn, WARN_AT) if used < CRITICAL_AT else (refuse, CRITICAL_AT)
        gauge = "not measured" if seen is None else str(seen)
        return make(
            "p4.slots",
            "p4 agent",
            expected=f"fewer than {limit} of its {SLOTS} connection slots in use",
            found=f"{used}: {self._count.spent} spent for good and {len(self._count.open)} open by our own count, "
            f"sockets of its process {gauge}",
            remedy="Start the p4 agent again at a time of your choice: its stages end with it and the rings on them "
            f"are loaded anew. At {SLOTS} it accepts nobody and says nothing"
            + (", so nothing is dialled from here on." if make is refuse else "."),
        )

    def _taken_up(self, life: str | None) -> _Count:
        try:
            count = msgspec.json.decode(self._path.read_bytes(), type=_Count)
        except FileNotFoundError:
            return _Count(_FORMAT, life, 0, {})
        except OSError as error:
            raise SlotsUnreadable(f"the slot count {self._path} cannot be read: {error.strerror}") from error
        except msgspec.MsgspecError as error:
            raise self._damaged(str(error)) from error
        if count.format != _FORMAT or count.spent < 0:
            raise self._damaged(f"it has format {count.format} and counts {count.spent}")
        if None not in (life, count.life) and count.life != life:
            return _Count(_FORMAT, life, 0, {})
        gone = sum(mode == "direct" for mode in count.open.values())
        return _Count(_FORMAT, life if count.life is None else count.life, count.spent + gone, {})

    def _damaged(self, why: str) -> SlotsUnreadable:
        return SlotsUnreadable(
            f"the slot count {self._path} cannot be read: {why}. It is not known how many slots the p4 agent has lost. "
            "Look at the sockets of its process, and remove the file when there are few."
        )

    def _keep(self, count: _Count) -> None:
        if self._is_closed:
            raise SlotsUnreadable(f"the slot count {self._path} is kept by this process no more")
        before, self._count = self._count, count
        try:
            self._write()
        except SlotsUnreadable:
            self._count = before
            raise

    def _write(self) -> None:
        try:
            replace_file(self._path, msgspec.json.encode(self._count), self._path.with_suffix(".new"), 0o600)
        except OSError as error:
            raise SlotsUnreadable(f"the slot count {self._path} cannot be written: {error.strerror}") from error
