"""The p4 agent's own process on this host, looked at from outside: its sockets, and the journal folder it was given.

Its snapshot reports neither connection slots nor its journal. Read-only: it is looked at, never signalled.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

from backend.engines.llamacpp.sockets import LISTEN, SocketDiag

PROC = Path("/proc")
JOURNAL_VARIABLE = "P4_EVENT_OUTBOUND_JOURNAL_DIR"
_TABLES = ("tcp", "tcp6", "udp", "udp6", "unix")
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Gauge(msgspec.Struct, frozen=True):
    """Descriptors of sockets, the sockets behind them, and those that the kernel lists in no table: lost slots."""

    sockets: int
    unique: int
    hidden: int


def find_listener(port: int, proc: Path = PROC) -> int | None:
    """The process that listens on a TCP port, or None: nobody does, or it is not for this user to know."""
    try:
        with SocketDiag() as kernel:
            inodes = {seen.inode for seen in kernel.dump(LISTEN, local_port=port) if seen.ends.local_port == port}
    except OSError:
        return None
    if not inodes:
        return None
    for name in os.listdir(proc):
        if name.isdigit() and inodes.intersection(_sockets(proc / name) or ()):
            return int(name)
    return None


def life_of(pid: int, proc: Path = PROC) -> str:
    """What names one run of a process: its pid and when it was started; empty when it is gone."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except OSError:
        return ""
    return f"{pid}:{stat.rpartition(')')[2].split()[19]}"


def gauge(pid: int, proc: Path = PROC) -> Gauge | None:
    """Its slots as the host sees them; None when it is gone, or another user's."""
    held = _sockets(proc / str(pid))
    if held is None:
        return None
    listed: set[int] = set()
    for table in _TABLES:
        try:
            lines = (proc / str(pid) / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        column = 6 if table == "unix" else 9
        words = (line.split() for line in lines)
        listed.update(int(fields[column]) for fields in words if len(fields) > column and fields[column].isdigit())
    again = _sockets(proc / str(pid))  # one that came or went between the looks is not hidden
    hidden = set(held).intersection(again or ()) - listed
    return Gauge(len(held), len(set(held)), len(hidden))


def journal_given(pid: int, proc: Path = PROC) -> str | None:
    """The journal folder in its environment, empty for none at all; None when that is not for this user to know."""
    try:
        pairs = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = f"{JOURNAL_VARIABLE}=".encode()
    return next((os.fsdecode(pair[len(prefix) :]) for pair in pairs if pair.startswith(prefix)), "")


def _sockets(process: Path) -> list[int] | None:
    found = []
    try:
        for name in os.listdir(process / "fd"):
            try:
                match = _SOCKET.fullmatch(os.readlink(process / "fd" / name))
            except OSError:
                continue  # closed meanwhile
            if match is not None:
                found.append(int(match[1]))
    except OSError:
        return None
    return found
