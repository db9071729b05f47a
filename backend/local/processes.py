"""Processes by identity: a pid alone may have been given to someone else since."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process on this machine. ``start_ticks`` is field 22 of /proc/PID/stat, which no reuse of the pid repeats."""

    pid: int
    start_ticks: int


@dataclass(frozen=True)
class Record:
    """What a caretaker has started: itself and one agent per host; an agent is absent while none runs."""

    caretaker: Process
    agents: Mapping[str, Process]


def identify(pid: int) -> Process | None:
    """The identity of a process that runs now; None for one that does not, or has ended and is not reaped yet."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else Process(pid, int(fields[19]))


def is_alive(process: Process) -> bool:
    """Whether this very process still runs."""
    return identify(process.pid) == process


def open_handle(process: Process) -> int | None:
    """A pidfd of this very process, to be closed by the caller; None when it has ended."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if is_alive(process):
        return handle
    os.close(handle)
    return None


def send_signal(process: Process, number: signal.Signals) -> bool:
    """Send a signal to this very process, never to a later one of the same pid. False when it has ended."""
    handle = open_handle(process)
    if handle is None:
        return False
    try:
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def write_record(path: Path, record: Record) -> None:
    """Replace the record at ``path`` in one step."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(asdict(record)), encoding="utf-8")
    beside.replace(path)


def read_record(path: Path) -> Record | None:
    """The record at ``path``, or None where there is none. Raises ValueError for one that cannot be read."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return Record(
            Process(**tree["caretaker"]), {host: Process(**process) for host, process in tree["agents"].items()}
        )
    except FileNotFoundError:
        return None
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not what a caretaker writes ({error}). Move it away.") from error
