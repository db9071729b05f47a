"""What ledger files tell: every operation as everybody sees it, followed as the files change."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from backend.contract.words import OpId, UnixMs
from backend.control.contexts import Context
from backend.control.ledger import ENDED, HALTED, SUFFIX, LedgerError, Operation, Step, has_owner, parse
from backend.control.views import OperationStep, OperationView

EVERY_OPERATION = 100_000
_OPEN = ("running", "ownerless")
_RELIST_SECONDS = 30.0
_SETTLED_NS = 2_000_000_000
_Stamp = tuple[int, int, int]
"""When a file was last changed (ns), its size and its inode: another one when it must be read again."""


def read_operation(path: Path) -> OperationView:
    """What a file tells. One that is damaged has that as its state, with the reason and what can be read of it."""
    try:
        parsed = parse(path, path.read_bytes())
        view = view_of(parsed.operation, parsed.steps, owned=lambda: has_owner(path))
    except (LedgerError, OSError) as error:
        return OperationView(
            id=OpId(path.name.removesuffix(SUFFIX)),
            kind="?",
            subject="",
            by="",
            state="damaged",
            words=f"set aside: {error}",
            started_unix_ms=UnixMs(0),
            ended_unix_ms=None,
            load_generation=None,
            steps=(),
        )
    if not parsed.damage:
        return view
    words = f"set aside: {parsed.damage}; what stands before it is shown"
    return msgspec.structs.replace(view, state="damaged", words=words, phase="", unknown_targets=0)


def view_of(operation: Operation, steps: tuple[Step, ...], owned: Callable[[], bool]) -> OperationView:
    """The operation as everybody sees it; ``owned`` is asked only while it has not ended."""
    end = steps[-1] if steps and steps[-1].what == ENDED else None
    halt = steps[-1] if steps and steps[-1].what in (ENDED, HALTED) else None
    code = halt.exit_code if halt is not None else None
    if end is None:
        state = "running" if owned() else "ownerless"
    else:
        state = {0: "succeeded", 2: "refused", 3: "unknown"}.get(code if code is not None else 3, "failed")
    unknown = [step.unknown for step in steps if step.unknown is not None]
    phases = [step.phase for step in steps if step.phase is not None]
    return OperationView(
        id=operation.op_id,
        kind=operation.kind,
        subject=operation.subject,
        by=operation.by,
        state=state,
        words=steps[-1].words if steps else "starting",
        started_unix_ms=operation.started_unix_ms,
        ended_unix_ms=end.at_unix_ms if end else None,
        load_generation=operation.load_generation,
        steps=tuple(OperationStep(step.at_unix_ms, step.target, step.what, step.words, step.lines) for step in steps),
        exit_code=code,
        phase="" if end or not phases else phases[-1],
        unknown_targets=unknown[-1] if unknown else 0,
        plan=operation.plan,
        context=operation.context,
        targets=operation.targets,
        options=operation.options,
    )


class LedgerReader:
    """Follows a ledger folder: a file is read again when it changed, its owner is looked for until it ends.

    The ``newest`` files are read, and those of older operations that were open when they were read last.
    """

    def __init__(self, folder: Path, newest: int = 200) -> None:
        self._path = folder
        self._folder = _Folder(folder)
        self._newest = newest
        self._seen: dict[str, tuple[_Stamp, OperationView]] = {}

    def read(self) -> dict[OpId, OperationView]:
        """The operations by id, oldest first. OSError for a folder that cannot be looked into."""
        stamps = self._folder.stamps()
        chosen = dict(stamps[-self._newest :])
        open_before = {name for name, (_, view) in self._seen.items() if view.state in _OPEN}
        if open_before - chosen.keys():
            chosen |= {name: stamp for name, stamp in stamps if name in open_before}
        self._seen = {name: self._read(name, stamp) for name, stamp in chosen.items()}
        views = sorted((view for _, view in self._seen.values()), key=lambda view: (view.started_unix_ms, view.id))
        return {view.id: view for view in views}

    def _read(self, name: str, stamp: _Stamp) -> tuple[_Stamp, OperationView]:
        known = self._seen.get(name)
        if known is not None and known[0] == stamp and known[1].state not in _OPEN:
            return known
        return stamp, read_operation(self._path / name)


class _Folder:
    """Lists the files of a ledger folder: again when a name in it came or went, and now and then in any case.

    Thousands of files would be looked at twice a second otherwise, for as long as a console is open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listed: list[tuple[str, _Stamp]] = []
        self._as_of: tuple[int, int] | None = None
        self._again_at = 0.0

    def stamps(self) -> list[tuple[str, _Stamp]]:
        """Every ledger file by its last change."""
        try:
            about = self._path.stat()
        except FileNotFoundError:
            return []  # nothing was ever written there
        now, as_of = time.monotonic(), (about.st_mtime_ns, about.st_ino)
        if as_of != self._as_of or now >= self._again_at:
            self._listed = self._list()
            # within one tick of the file system's clock a second name would leave the folder's time as it is
            is_settled = time.time_ns() - about.st_mtime_ns > _SETTLED_NS
            self._as_of, self._again_at = as_of if is_settled else None, now + _RELIST_SECONDS
        return self._listed

    def _list(self) -> list[tuple[str, _Stamp]]:
        found: list[tuple[str, _Stamp]] = []
        with os.scandir(self._path) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile, and hides no other
                        about = entry.stat()
                        found.append((entry.name, (about.st_mtime_ns, about.st_size, about.st_ino)))
        return sorted(found, key=lambda pair: pair[1])


def read_ledger(context: Context) -> dict[OpId, OperationView]:
    """Every operation of this home, of all its contexts, oldest first; no host is asked."""
    return LedgerReader(context.ledger_folder, newest=EVERY_OPERATION).read()
