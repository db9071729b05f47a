"""The p4 agent's own process on this host, looked at from outside: its sockets, and the journal folder it was given.

Its snapshot reports neither connection slots nor its journal. Read-only: what is done to it is in ``tending``.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import msgspec

from backend.engines.llamacpp.sockets import LISTEN, SocketDiag

PROC = Path("/proc")
JOURNAL_VARIABLE = "P4_EVENT_OUTBOUND_JOURNAL_DIR"
_TABLES = ("tcp", "tcp6", "udp", "udp6", "unix")
_LONGEST_LIFE = 40
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Gauge(msgspec.Struct, frozen=True):
    """Descriptors of sockets, the sockets behind them, and those that the kernel lists in no table: lost slots."""

    sockets: int
    unique: int
    hidden: int


def read_text(path: Path) -> str:
    """A file of /proc, in which names of threads and of sockets may be any bytes. Raises OSError."""
    return path.read_bytes().decode(errors="replace")


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


def listening(port: int) -> bool:
    """Whether anybody listens on a TCP port of this host."""
    with SocketDiag() as kernel:
        return any(seen.ends.local_port == port for seen in kernel.dump(LISTEN, local_port=port))


def unit_of(pid: int, proc: Path = PROC) -> str:
    """Its systemd unit as arguments of systemctl, ``UNIT p4.service`` or ``--user UNIT p4.service``; empty for none."""
    try:
        lines = read_text(proc / str(pid) / "cgroup").splitlines()
    except OSError:
        return ""
    for line in lines:
        parts = line.rpartition(":")[2].split("/")
        if parts[-1].endswith(".service") and not parts[-1].startswith("user@"):
            user = "--user " if any(part.startswith("user@") for part in parts) else ""
            return f"{user}UNIT {parts[-1]}"
    return ""


def command_of(pid: int, proc: Path = PROC) -> str:
    """How it was started, as a person would type it: p4's own variables and its command line; empty when not known."""
    try:
        words = [os.fsdecode(word) for word in (proc / str(pid) / "cmdline").read_bytes().split(b"\0") if word]
        pairs = [os.fsdecode(pair) for pair in (proc / str(pid) / "environ").read_bytes().split(b"\0")]
    except OSError:
        return ""
    settings = [
        f"{name}={shlex.quote(value)}" for name, _, value in (p.partition("=") for p in pairs if p[:3] == "P4_")
    ]
    return " ".join([*sorted(settings), shlex.join(words)]) if words else ""


def life_of(pid: int, proc: Path = PROC) -> str:
    """What names one run of a process: its pid and when it was started; empty when it is gone, a zombie too."""
    try:
        fields = read_text(proc / str(pid) / "stat").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else f"{pid}:{fields[19]}"


def still_runs(life: str, proc: Path = PROC) -> bool:
    """Whether this very run of a process goes on. Raises ValueError for a text that names no run."""
    pid, _, ticks = life.partition(":")
    if not (life.isascii() and pid.isdecimal() and ticks.isdecimal() and len(life) <= _LONGEST_LIFE):
        raise ValueError(f"{life[:_LONGEST_LIFE]!r} names no run of a process, which is pid:start ticks")
    return life_of(int(pid), proc) == life


def gauge(pid: int, proc: Path = PROC) -> Gauge | None:
    """Its slots as the host sees them; None when it is gone, or another user's."""
    held = _sockets(proc / str(pid))
    if held is None:
        return None
    listed: set[int] = set()
    for table in _TABLES:
        try:
            lines = read_text(proc / str(pid) / "net" / table).splitlines()[1:]
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
    return variable_given(pid, JOURNAL_VARIABLE, proc)


def variable_given(pid: int, name: str, proc: Path = PROC) -> str | None:
    """A variable in the environment that a process was started with, empty for none; None when it may not be read."""
    try:
        pairs = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    prefix = f"{name}=".encode()
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
