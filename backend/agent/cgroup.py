"""What the control group of a process says: its unit, its memory limit, and how often the kernel killed for memory."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

PROC = Path("/proc")


class GroupMemory(msgspec.Struct, frozen=True):
    """Limit and use of a memory group in bytes. ``used`` leaves out file pages that the kernel can drop at once."""

    limit: int
    used: int


def group_paths(pid: int | None = None, proc: Path = PROC) -> dict[str, str]:
    """The groups of a process by controller (``""`` is version 2, ``name=systemd`` that of systemd on version 1).

    Empty when the process is gone.
    """
    try:
        lines = (proc / _name(pid) / "cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    paths = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def oom_kills(pid: int | None = None, proc: Path = PROC) -> int | None:
    """How many processes of the memory group of ``pid`` (None: this process) the kernel has killed for want of memory.

    A count that grew explains an exit by signal 9 that nobody sent. None when the kernel does not say.
    """
    group = _memory_group(pid, proc)
    if group is None:
        return None
    for name in ("memory.events", "memory.oom_control"):
        count = _numbers(group / name).get("oom_kill")
        if count is not None:
            return count
    return None


def group_memory(pid: int | None = None, proc: Path = PROC) -> GroupMemory | None:
    """The memory limit that a unit or container sets, and what is used of it; None without a limit."""
    group = _memory_group(pid, proc)
    if group is None:
        return None
    stat = _numbers(group / "memory.stat")
    for limit_file, used_file, droppable in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _number(group / limit_file), _number(group / used_file)
        if limit is not None and used is not None:
            return GroupMemory(limit=limit, used=max(0, used - stat.get(droppable, 0)))
    return None


def _name(pid: int | None) -> str:
    return "self" if pid is None else str(pid)


def _memory_group(pid: int | None, proc: Path) -> Path | None:
    """The folder of the memory group: version 1's when ``memory`` is mounted as such, else version 2's."""
    paths = group_paths(pid, proc)
    for controller in ("memory", ""):
        path = paths.get(controller)
        folder = None if path is None else _known_folder(controller, path, proc)
        if folder is not None:
            return folder
    return None


@functools.lru_cache(maxsize=16)
def _mounted_folder(controller: str, path: str) -> Path | None:
    """Looked up once per group: the list of mounts takes ten times as long to read as what is looked for in it."""
    return _folder(controller, path, PROC)


def _known_folder(controller: str, path: str, proc: Path) -> Path | None:
    return _mounted_folder(controller, path) if proc == PROC else _folder(controller, path, proc)


def _folder(controller: str, path: str, proc: Path) -> Path | None:
    """Where a group is mounted. In a container the mount's root is the group itself, or a part of its path."""
    for line in (proc / "self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if controller:
            if kind != "cgroup" or controller not in options.split(" ")[-1].split(","):
                continue
        elif kind != "cgroup2":
            continue
        root, mounted = left.split(" ")[3:5]
        inner = path[len(root) :] if root != "/" and path.startswith(root) else path
        for folder in (Path(mounted) / inner.lstrip("/"), Path(mounted)):
            if folder.is_dir():
                return folder
    return None


def _numbers(file: Path) -> dict[str, int]:
    """Lines of ``name number``; empty when there is no such file."""
    try:
        pairs = (line.split() for line in file.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    except FileNotFoundError:
        return {}


def _number(file: Path) -> int | None:
    """A file of one number; None when it is absent or says ``max``."""
    try:
        text = file.read_text().strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdigit() else None
