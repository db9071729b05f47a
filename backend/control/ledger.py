"""The operator's durable record of operations: ``<home>/ledger/<op_id>.jsonl``, one file each.

The first line is the whole operation, each further one a step. The file appears whole (written beside, synced, then
renamed, then its directory synced) before the first command leaves; each step is synced before what follows it. The
operation's process holds a lock on the file for its life, so that everybody can see whether its owner lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from backend.contract.plans import Plan
from backend.contract.words import HostId, LoadGeneration, NodeGeneration, NodeId, OpId, UnixMs
from backend.control.views import OperationStep, OperationView

FORMAT = 1
SUFFIX = ".jsonl"
_OP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOCK_TRIES = 40
_LOCK_PAUSE = 0.05

ENDED = "ended"
ROLLING_BACK = "rolling back"


class LedgerError(Exception):
    """A ledger file cannot be used; the message names it and says why."""


class OwnerLives(LedgerError):
    """The operation has a living owner and must not be run twice."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One shard that an operation acts on."""

    host: HostId
    node_id: NodeId
    rank: int
    node_generation: NodeGeneration
    adapter_kind: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A whole operation, as it was decided: the first line of its file. ``kind`` is load, unload or drain."""

    op_id: OpId
    kind: str
    subject: str
    by: str
    context: str
    load_generation: LoadGeneration | None
    targets: tuple[Target, ...]
    options: dict[str, Any]
    started_unix_ms: UnixMs
    plan: Plan | None = None
    format: int = FORMAT


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One further line. ``phase`` and ``unknown`` hold from here on; ``exit_code`` is set by the last one only."""

    at_unix_ms: UnixMs
    target: str
    what: str
    words: str
    lines: tuple[str, ...] = ()
    phase: str | None = None
    unknown: int | None = None
    exit_code: int | None = None


class LedgerWriter:
    """One operation's file, locked for this process and appended to line by line, each line synced."""

    def __init__(self, operation: Operation, steps: tuple[Step, ...], fd: int) -> None:
        self.operation = operation
        self.steps = list(steps)
        self._fd = fd

    @property
    def fd(self) -> int:
        """The locked descriptor; a process that inherits it inherits the ownership."""
        return self._fd

    def append(self, step: Step) -> None:
        """Add one line; returns once it is on disk. OSError when it cannot be."""
        data = msgspec.json.encode(step) + b"\n"
        written = 0
        while written < len(data):
            written += os.write(self._fd, data[written:])
        os.fsync(self._fd)
        self.steps.append(step)

    def close(self) -> None:
        """End the ownership, unless another process inherited it."""
        os.close(self._fd)


def new_op_id(kind: str, unix_ms: int) -> OpId:
    """A fresh id that sorts by time: kind, wall-clock milliseconds, four random hex digits."""
    return OpId(f"{kind}-{unix_ms}-{os.urandom(2).hex()}")


def create(folder: Path, operation: Operation) -> LedgerWriter:
    """Write a new operation's file, synced, locked and in place. FileExistsError when the id is taken."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = ledger_path(folder, operation.op_id)
    beside = folder / f".{operation.op_id}.new"
    fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        writer = LedgerWriter(operation, (), fd)
        os.write(fd, msgspec.json.encode(operation) + b"\n")
        os.fsync(fd)
        os.link(beside, path)  # a rename would replace an operation of the same id
    except BaseException:
        os.close(fd)
        raise
    finally:
        beside.unlink()
    _sync_folder(folder)
    return writer


def reopen(folder: Path, op_id: OpId, inherited: int | None = None) -> LedgerWriter:
    """Own an operation that exists: by the lock that was inherited, or by taking it.

    A last line that was cut by a crash is removed. Raises OwnerLives, or LedgerError for a file that is missing or
    damaged.
    """
    path = ledger_path(folder, op_id)
    try:
        fd = inherited if inherited is not None else os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise LedgerError(f"{path}: there is no such operation.") from error
    try:
        os.set_inheritable(fd, False)
        if inherited is None:
            _lock(fd, path)
        data = path.read_bytes()
        operation, steps, whole = _parse(path, data)
        if whole < len(data):
            os.ftruncate(fd, whole)
            os.fsync(fd)
    except BaseException:
        os.close(fd)
        raise
    return LedgerWriter(operation, steps, fd)


def ledger_path(folder: Path, op_id: OpId) -> Path:
    """The file of an operation. Raises LedgerError for an id that is no file name."""
    if not _OP_ID.fullmatch(op_id):
        raise LedgerError(f"the operation id {op_id!r} is refused; expected letters, digits, dot, _ and -.")
    return folder / f"{op_id}{SUFFIX}"


def has_owner(path: Path) -> bool:
    """Whether a living process owns the operation of this file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def read_operation(path: Path) -> OperationView:
    """What a file tells. One that is damaged comes back as ``unknown`` with the reason, so that others go on."""
    try:
        operation, steps, _ = _parse(path, path.read_bytes())
    except (LedgerError, OSError) as error:
        return OperationView(
            id=OpId(path.name.removesuffix(SUFFIX)),
            kind="damaged",
            subject="",
            by="",
            state="unknown",
            words=f"set aside: {error}",
            started_unix_ms=UnixMs(0),
            ended_unix_ms=None,
            load_generation=None,
            steps=(),
        )
    return view_of(operation, steps, owned=lambda: has_owner(path))


def view_of(operation: Operation, steps: tuple[Step, ...], owned: Callable[[], bool]) -> OperationView:
    """The operation as everybody sees it; ``owned`` is asked only while it has not ended."""
    end = steps[-1] if steps and steps[-1].what == ENDED else None
    code = end.exit_code if end is not None else None
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
    )


class LedgerReader:
    """Follows a ledger folder: a file is read again when it changed, its owner is looked for until it ends."""

    def __init__(self, folder: Path, newest: int = 200) -> None:
        self._folder = folder
        self._newest = newest
        self._seen: dict[str, tuple[tuple[int, int, int], OperationView]] = {}

    def read(self) -> dict[OpId, OperationView]:
        """The newest operations by id, oldest first."""
        names = dict(self._stamps())
        for name in self._seen.keys() - names.keys():
            del self._seen[name]
        for name, stamp in names.items():
            known = self._seen.get(name)
            if known is None or known[0] != stamp or known[1].state in ("running", "ownerless"):
                self._seen[name] = (stamp, read_operation(self._folder / name))
        views = sorted((view for _, view in self._seen.values()), key=lambda view: (view.started_unix_ms, view.id))
        return {view.id: view for view in views}

    def _stamps(self) -> list[tuple[str, tuple[int, int, int]]]:
        found = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(SUFFIX) and not entry.name.startswith("."):
                    about = entry.stat()
                    found.append((entry.name, (about.st_mtime_ns, about.st_size, about.st_ino)))
        return sorted(found, key=lambda pair: pair[1])[-self._newest :]


def _parse(path: Path, data: bytes) -> tuple[Operation, tuple[Step, ...], int]:
    """The operation, its steps, and how many bytes of the file are whole lines. A cut last line is left out."""
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].split(b"\n")[:-1]
    if not lines:
        raise LedgerError(f"{path}: it holds no operation, so nothing was ever sent for it.")
    try:
        operation = msgspec.json.decode(lines[0], type=Operation)
        if operation.format != FORMAT:
            raise LedgerError(f"{path}: its format is {operation.format}; this ringtop reads {FORMAT}.")
        if f"{operation.op_id}{SUFFIX}" != path.name:
            raise LedgerError(f"{path}: it says that it is {operation.op_id}.")
    except (msgspec.DecodeError, ValueError) as error:
        raise LedgerError(f"{path}: line 1 is damaged: {error}.") from error
    steps = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            steps.append(msgspec.json.decode(line, type=Step))
        except (msgspec.DecodeError, ValueError) as error:
            raise LedgerError(f"{path}: line {number} is damaged: {error}.") from error
    return operation, tuple(steps), whole


def _lock(fd: int, path: Path) -> None:
    """Take the lock; readers who look for an owner hold it for microseconds, so a refusal is tried again."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE)
        else:
            return
    raise OwnerLives(f"{path}: its process lives. Follow it, or end that process first.")


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
