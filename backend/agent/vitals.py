"""Takes the measurements that ``illness`` judges: clocks, journal, disk, descriptors, the kernel's ports."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

from backend.agent.illness import Clocks, DiskRoom, Vitals
from backend.agent.ports import ephemeral_range

if TYPE_CHECKING:
    from backend.agent.config import AgentConfig
    from backend.agent.journal import DamagedJournal, Journal

PROC = Path("/proc")
DISK_EVERY_SECONDS = 4.0
"""How old a disk's reading may be: it is the dearest of them, as it is taken by a thread."""
DISK_SECONDS = 0.2
"""How long a look waits for the file system; one that hangs is asked once, and its silence is counted."""


class VitalSigns:
    """Looks at one agent and its host, again and again."""

    def __init__(self, config: AgentConfig, journal: Journal | DamagedJournal) -> None:
        self._config = config
        self._journal = journal
        self._disk = DiskRoom(config.state)
        self._asked: asyncio.Task[os.statvfs_result] | None = None
        self._asked_at = 0.0

    async def take(self) -> Vitals:
        """Everything at this moment. Never waits longer than ``DISK_SECONDS``."""
        return Vitals(
            clocks=read_clocks(),
            journal_health=self._journal.health,
            sync_seconds=self._journal.last_sync_seconds,
            disk=await self._disk_room(),
            descriptors=descriptors(),
            ports=self._config.ports,
            ephemeral=ephemeral_range(),
            kept=kept_ports(),
        )

    async def _disk_room(self) -> DiskRoom:
        path = self._config.state
        if self._asked is None and time.monotonic() - self._asked_at < DISK_EVERY_SECONDS and self._disk.total:
            return self._disk
        if self._asked is None:
            self._asked_at = time.monotonic()
            self._asked = asyncio.create_task(asyncio.to_thread(os.statvfs, path))
        asked = self._asked
        done, _ = await asyncio.wait({asked}, timeout=DISK_SECONDS)
        if not done:
            silent = time.monotonic() - self._asked_at
            return DiskRoom(path, self._disk.free, self._disk.total, silent)
        self._asked = None
        try:
            room = asked.result()
        except OSError:
            return DiskRoom(path)  # what the journal says of a folder that is gone is louder than this
        self._disk = DiskRoom(path, room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize)
        return self._disk


def read_clocks() -> Clocks:
    """This moment on three clocks."""
    return Clocks(time.time_ns() // 1_000_000, time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))


def descriptors() -> tuple[int, int] | None:
    """Descriptors of this process that are used, and how many it may have; None where the kernel does not say."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        return len(os.listdir("/proc/self/fd")) - 1, allowed
    except OSError as error:
        return (allowed, allowed) if error.errno in (errno.EMFILE, errno.ENFILE) else None


def kept_ports(proc: Path = PROC) -> tuple[tuple[int, int], ...]:
    """The ranges that the kernel never gives to outgoing connections by itself."""
    try:
        text = (proc / "sys/net/ipv4/ip_local_reserved_ports").read_text().strip()
    except OSError:
        return ()
    ranges = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        ranges.append((int(first), int(last or first)))
    return tuple(ranges)
