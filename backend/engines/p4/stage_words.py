"""Where what stages say on standard error goes: kept in a file of their p4 agent, or lost, and what to set then.

A p4 agent throws its stages' standard error away, and with it the native reason of a failed load, unless it was started
with a variable set: then they write to its own.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import msgspec

from backend.engines.p4.own_agent import PROC, variable_given

INHERIT = "P4_STAGED_LLAMA_INHERIT_STDERR"
_TAIL_BYTES = 16_384
_COMPLAINT = re.compile(r"error|fail|cannot|unable|refused|not enough|out of memory|abort|unknown", re.IGNORECASE)
START = f"{INHERIT}=1 and its standard error in a file (2>>FILE)"
_WHEN = "that ends every stage it runs, so unload its rings first"


class StderrSeen(msgspec.Struct, frozen=True):
    """The file that has it, and how that is in words; without a file the words say what to set."""

    words: str
    file: str = ""


def look_at_stderr(pid: int | None, proc: Path = PROC) -> StderrSeen:
    """Where the stages of this p4 agent write. Opens nothing."""
    given = variable_given(pid, INHERIT, proc) if pid is not None else None
    if pid is None or given is None:
        return StderrSeen(
            f"unknown: the p4 agent's process cannot be read by this user. It is kept when that agent was started "
            f"with {START}; let the ringtop agent run as the same user to read it here"
        )
    if not given:
        return StderrSeen(
            f"thrown away: the p4 agent (pid {pid}) was started without {INHERIT}. Start it with {START}; {_WHEN}"
        )
    return _target(pid, proc / str(pid) / "fd" / "2")


def _target(pid: int, descriptor: Path) -> StderrSeen:
    try:
        path, mode = os.readlink(descriptor), os.stat(descriptor).st_mode
    except OSError as error:
        return StderrSeen(
            f"unknown: standard error of the p4 agent (pid {pid}) cannot be seen ({error.strerror}). Start it with "
            f"{START}; {_WHEN}"
        )
    if stat.S_ISREG(mode):
        if not os.access(path, os.R_OK):
            gone = not os.path.exists(path)
            why = "was removed since; start the p4 agent again" if gone else "cannot be read by this user; chmod it"
            return StderrSeen(f"written to {path}, which {why}")
        return StderrSeen(f"kept in {path}, with its agent's own words and every stage's", path)
    if path == os.devnull:
        return StderrSeen(f"thrown away: the p4 agent (pid {pid}) writes it to {path}. Start it with {START}; {_WHEN}")
    if stat.S_ISSOCK(mode):
        return StderrSeen(f"kept by the host's journal, if its p4 agent is a unit: journalctl _PID={pid} or its unit's")
    whither = "a pipe, whose other end keeps it or not" if stat.S_ISFIFO(mode) else path
    return StderrSeen(f"written to {whither}. To read it here start the p4 agent with {START}; {_WHEN}")


def begun(stderr: StderrSeen) -> int:
    """How long the file is now, in bytes: what is behind that was written later. 0 where there is none."""
    try:
        return os.stat(stderr.file).st_size if stderr.file else 0
    except OSError:
        return 0


def said_since(stderr: StderrSeen, offset: int) -> str:
    """The last lines that look like a complaint, else the last one, of what was written since; empty for nothing.

    All stages of a host write to one file: loads come one after the other, so that most of it is of this one.
    """
    try:
        with open(stderr.file or os.devnull, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(min(offset, size), size - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES).decode(errors="replace")
    except OSError as error:
        return f"{stderr.file} cannot be read: {error.strerror}"
    lines = [line.strip()[:300] for line in text.splitlines() if line.strip()]
    complaints = [line for line in lines if _COMPLAINT.search(line)]
    return "; ".join(complaints[-2:] or lines[-1:])
