"""Which process is which: identities that a reused pid cannot forge, and everything that belongs to one run.

All of it is read from /proc. A zombie counts as gone: it holds neither memory, ports nor devices, and who reaps it and
when is not ours to say.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

from backend.contract.entities import ProcessIdentity

PROC = Path("/proc")
FORKED_NOT_EXECUTED = 0x40
"""PF_FORKNOEXEC of include/linux/sched.h, in field 9 of /proc/PID/stat: forked, and no exec since."""
TO_GROUP = 4
"""PIDFD_SIGNAL_PROCESS_GROUP of include/uapi/linux/pidfd.h; kernels before 6.9 answer EINVAL."""


class SeenProcess(msgspec.Struct, frozen=True):
    """One line of /proc/PID/stat: what it takes to know a process again, and to whom it belongs."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    flags: int
    threads: int
    start_ticks: int

    @property
    def is_gone(self) -> bool:
        """A zombie. A dead main thread shows Z too, while other threads still run: then it is not gone."""
        return self.state in "ZX" and self.threads <= 1

    @property
    def has_executed(self) -> bool:
        """It runs a program of its own, not a copy of its parent."""
        return not self.flags & FORKED_NOT_EXECUTED


@functools.cache
def boot_id() -> str:
    """The identity of this boot of the kernel."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def see_process(pid: int) -> SeenProcess | None:
    """One process as it is now; None when there is none of that pid."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        stat = os.read(fd, 4096)  # a file object costs thrice as much, and every process of the host is looked at
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    fields = stat.rpartition(b")")[2].split()  # the name in brackets may hold spaces and brackets
    return SeenProcess(
        pid=pid,
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        flags=int(fields[6]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
    )


def see_all() -> Iterator[SeenProcess]:
    """Every process that this user may see. About 15 µs each."""
    for name in os.listdir(PROC):
        if name.isdigit():
            seen = see_process(int(name))
            if seen is not None:
                yield seen


def is_alive(identity: ProcessIdentity) -> bool:
    """The very process still runs: same boot, pid and start, and no zombie."""
    seen = see_process(identity.pid) if identity.boot_id == boot_id() else None
    return seen is not None and seen.start_ticks == identity.start_ticks and not seen.is_gone


def open_pidfd(pid: int, start_ticks: int) -> int | None:
    """A descriptor of the process that started at ``start_ticks``; a zombie's too. None when it is not that one.

    Opened first and compared after, so that what is compared is what is held. The caller closes it.
    """
    if pid <= 0:
        return None
    try:
        pidfd = os.pidfd_open(pid)
    except (ProcessLookupError, FileNotFoundError):
        return None
    except OSError as refused:
        if refused.errno == errno.EINVAL:
            return None  # the number belongs to a thread of another process now
        raise  # out of descriptors, say: that tells nothing of the process
    seen = see_process(pid)
    if seen is None or seen.start_ticks != start_ticks:
        os.close(pidfd)
        return None
    return pidfd


def open_identity(identity: ProcessIdentity) -> int | None:
    """A pidfd of this very process, or None when it is gone or another one has its number."""
    if identity.boot_id != boot_id():
        return None
    return open_pidfd(identity.pid, identity.start_ticks)


def group_members(identity: ProcessIdentity) -> tuple[SeenProcess, ...]:
    """Every live process of a run: its session, its group, and what descends from them in sessions of their own.

    A session's number is not given out again while one member lives. So when the leader's pid shows another start,
    nothing of ours is left under that number; when it is absent, members that started after it are ours.
    """
    if identity.boot_id != boot_id():
        return ()
    seen = {process.pid: process for process in see_all()}
    leader = seen.get(identity.pid)
    if leader is not None and leader.start_ticks != identity.start_ticks:
        return ()
    ours = {
        process.pid
        for process in seen.values()
        if identity.pid in (process.pid, process.session, process.group) and process.start_ticks >= identity.start_ticks
    }
    grown = True
    while grown:
        children = {process.pid for process in seen.values() if process.parent in ours} - ours
        ours |= children
        grown = bool(children)
    ours -= {1, os.getpid()}
    return tuple(seen[pid] for pid in sorted(ours) if not seen[pid].is_gone)


def process_tree(identity: ProcessIdentity) -> tuple[SeenProcess, ...]:
    """The very process and what descends from it, alive; nothing else of its group or session. Empty when it is gone.

    What it started and left behind when it went has another parent by then: know those before.
    """
    seen = {process.pid: process for process in see_all()}
    first = seen.get(identity.pid)
    if identity.boot_id != boot_id() or first is None or first.start_ticks != identity.start_ticks:
        return ()
    ours = {identity.pid}
    while children := {process.pid for process in seen.values() if process.parent in ours} - ours:
        ours |= children
    return tuple(seen[pid] for pid in sorted(ours) if not seen[pid].is_gone)


def signal_one(process: SeenProcess, signum: int) -> bool:
    """Send a signal to exactly this process. False when it is gone or may not be signalled by us."""
    pidfd = open_pidfd(process.pid, process.start_ticks)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, signum)
    except (ProcessLookupError, PermissionError):
        return False  # what a person must know is which pids are left, and the proof of emptiness names them
    finally:
        os.close(pidfd)
    return True


def signal_group(identity: ProcessIdentity, signum: int) -> bool:
    """Send a signal to the whole group of a leader that is proven to be ours. False when the leader is gone."""
    pidfd = open_identity(identity)
    if pidfd is None:
        return False
    try:
        if not is_alive(identity):
            return False
        signal.pidfd_send_signal(pidfd, signum, None, TO_GROUP)
    except (ProcessLookupError, PermissionError):
        return False
    except OSError as refused:
        if refused.errno != errno.EINVAL:
            raise
        return _killpg(identity.pid, signum)  # the kernel is older than 6.9
    finally:
        os.close(pidfd)
    return True


def _killpg(group: int, signum: int) -> bool:
    try:
        os.killpg(group, signum)
    except (ProcessLookupError, PermissionError):
        return False
    return True
