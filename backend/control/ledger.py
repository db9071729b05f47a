"""The operator's durable record of operations: ``<home>/ledger/<op_id>.jsonl``, one file each.

The first line is the whole operation, each further one a step; each begins with the check sum of what follows in it, so
that a line that was damaged is told from one that a crash cut. The file appears whole (written beside, synced, then
renamed, then its directory synced) before the first command leaves; each step is synced before what follows it. The
operation's process holds a lock on the file for its life, so that everybody can see whether its owner lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
import zlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from backend.contract.plans import Plan
from backend.contract.words import LoadGeneration, OpId, UnixMs
from backend.control.durable import sync_folder, write_all
from backend.control.views import Target
from backend.control.wall_clock import now_unix_ms
from backend.failpoints import failpoint

FORMAT = 2
SUFFIX = ".jsonl"
_OP_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LOCK_TRIES = 40
_LOCK_PAUSE = 0.05

ENDED = "ended"
ROLLING_BACK = "rolling back"
HALTED = "halted"
"""The last step of an operation that stopped at a condition: its process ended, and it may be resumed."""


Read = TypeVar("Read")


class LedgerError(Exception):
    """A ledger file cannot be used; the message names it and says why."""


class OwnerLives(LedgerError):
    """The operation has a living owner and must not be run twice."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A whole operation, as it was decided: the first line of its file.

    ``kind`` is load, unload, drain, adopt, reload or recovery.
    """

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
    """One further line. ``phase`` and ``unknown`` hold from here on; ``exit_code`` is set by the last one, by
    the last one of a stage, and by one that halts."""

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
        failpoint("ledger.before_step")
        size = os.fstat(self._fd).st_size
        try:
            write_all(self._fd, _line(step))
            os.fsync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                os.ftruncate(self._fd, size)  # half a line would make damage of the next one
            raise
        self.steps.append(step)

    def halt(self, words: str, exit_code: int, lines: tuple[str, ...] = ()) -> None:
        """Say why it stops here, for somebody to resume. One that is resumed again and again says the same once."""
        step = Step(
            at_unix_ms=now_unix_ms(),
            target=self.operation.subject,
            what=HALTED,
            words=words,
            lines=lines,
            exit_code=exit_code,
        )
        last = self.steps[-1] if self.steps else None
        if last is None or msgspec.structs.replace(last, at_unix_ms=step.at_unix_ms) != step:
            self.append(step)

    def close(self) -> None:
        """End the ownership, unless another process inherited it."""
        os.close(self._fd)


def new_op_id(kind: str, unix_ms: int) -> OpId:
    """A fresh id that sorts by time: kind, wall-clock milliseconds, four random hex digits."""
    return OpId(f"{kind}-{unix_ms}-{os.urandom(2).hex()}")


def console_of(op_id: OpId) -> str:
    """The name under which the process of an operation is known at the agents."""
    return f"operation-{op_id}"


def create(folder: Path, operation: Operation) -> LedgerWriter:
    """Write a new operation's file, synced, locked and in place. FileExistsError when the id is taken."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = ledger_path(folder, operation.op_id)
    beside = folder / f".{operation.op_id}.new"
    fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        writer = LedgerWriter(operation, (), fd)
        failpoint("ledger.before_first_write")
        write_all(fd, _line(operation))
        os.fsync(fd)
        os.link(beside, path)  # a rename would replace an operation of the same id
        sync_folder(folder)
        failpoint("ledger.after_first_sync")
    except BaseException:
        os.close(fd)
        raise
    finally:
        beside.unlink()
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
        parsed = parse(path, data)
        if parsed.damage:
            raise LedgerError(f"{path}: {parsed.damage}. Settle it: ringtop op settle {op_id}")
        if parsed.whole < len(data):
            os.ftruncate(fd, parsed.whole)
            os.fsync(fd)
    except BaseException:
        os.close(fd)
        raise
    return LedgerWriter(parsed.operation, parsed.steps, fd)


def mend(folder: Path, op_id: OpId) -> Path:
    """Move a damaged file aside and put its readable beginning in its place; returns where the damaged one is.

    Raises LedgerError when nothing of it can be read, or when it is not damaged; OwnerLives when its process lives.
    """
    path = ledger_path(folder, op_id)
    if has_owner(path):
        raise OwnerLives(f"{path}: its process lives. Follow it, or end that process first.")
    parsed = parse(path, path.read_bytes())
    if not parsed.damage:
        raise LedgerError(f"{path}: is not damaged.")
    aside = set_aside(path)
    writer = create(folder, parsed.operation)
    try:
        for step in parsed.steps:
            writer.append(step)
        words = f"{parsed.damage}; the whole file is kept as {aside.name}"
        writer.append(Step(at_unix_ms=now_unix_ms(), target="", what="mended", words=words))
    finally:
        writer.close()
    return aside


def set_aside(path: Path) -> Path:
    """Give a file that cannot be used another name, which no reader takes for a ledger; returns that name."""
    aside = path.with_name(f"{path.name}.damaged")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    path.rename(aside)
    sync_folder(path.parent)
    return aside


def ledger_path(folder: Path, op_id: OpId) -> Path:
    """The file of an operation. Raises LedgerError for an id that is no file name."""
    if not _OP_ID.fullmatch(op_id):
        raise LedgerError(f"the operation id {op_id!r} is refused; expected 1 to 100 letters, digits, dots, _ and -.")
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


class Parsed(msgspec.Struct, frozen=True):
    """What a file holds: its whole lines take ``whole`` bytes. ``damage`` says which line cannot be read, and why."""

    operation: Operation
    steps: tuple[Step, ...]
    whole: int
    damage: str = ""


def parse(path: Path, data: bytes) -> Parsed:
    """The operation and its steps, up to the first line that is damaged. A last line that a crash cut is left out.

    Raises LedgerError when not even the first line can be read.
    """
    whole = data.rfind(b"\n") + 1
    lines = data[:whole].split(b"\n")[:-1]
    if lines and b"\0" in lines[-1]:  # a crash of the machine: the file had grown, and not all of it was written
        whole -= len(lines.pop()) + 1
    if not lines:
        raise LedgerError(f"{path}: it holds no operation, so nothing was ever sent for it.")
    operation = _decoded(lines[0], Operation)
    if isinstance(operation, str):
        raise LedgerError(
            f"{path}: line 1 is damaged: {operation}. Its load can be written anew from the agents' load records: "
            "ringtop ledger rebuild"
        )
    if operation.format != FORMAT:
        raise LedgerError(f"{path}: its format is {operation.format}; this ringtop reads {FORMAT}.")
    if f"{operation.op_id}{SUFFIX}" != path.name:
        raise LedgerError(f"{path}: it says that it is {operation.op_id}.")
    steps: list[Step] = []
    for number, line in enumerate(lines[1:], start=2):
        step = _decoded(line, Step)
        if isinstance(step, str):
            return Parsed(operation, tuple(steps), whole, f"line {number} is damaged: {step}")
        steps.append(step)
    return Parsed(operation, tuple(steps), whole)


_CRC = re.compile(rb'\{"crc":"([0-9a-f]{8})",')


def _line(value: Operation | Step) -> bytes:
    """One line: the object with the CRC-32 of its other fields, as they are written, in front of them."""
    body = msgspec.json.encode(value)
    return b'{"crc":"%08x",' % zlib.crc32(body) + body[1:] + b"\n"


def _decoded(line: bytes, kind: type[Read]) -> Read | str:
    """What a line says, or what is wrong with it."""
    said = _CRC.match(line)
    if said is None:
        return "it does not begin with its check sum"
    body = b"{" + line[said.end() :]
    if (found := zlib.crc32(body)) != int(said[1], 16):
        return f"its check sum is {found:08x} and it says {said[1].decode()}"
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, ValueError) as error:
        return str(error)


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
