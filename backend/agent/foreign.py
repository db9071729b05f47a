"""Engines on this host that this agent did not start: listed, counted as memory that is taken, never touched."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from backend.agent.process_identity import PROC, SeenProcess, boot_id, see_process
from backend.agent.run_folder import run_folder
from backend.contract.entities import Entities
from backend.contract.reports import ForeignProcess
from backend.contract.words import Port, UnixMs
from backend.engines.llamacpp.sockets import LISTEN, SocketDiag, socket_inodes

PROGRAMS = ("llama-server", "ggml-rpc-server")
"""By the kernel's name of a process, which is its program's, cut at 15 characters."""
YOUNG_SECONDS = 2.0
"""Younger ones may be a question about a version, or be on the way into a record."""
_MODEL_OPTIONS = ("-m", "--model")
_PORT_OPTIONS = ("-p", "--port")
_TICKS = os.sysconf("SC_CLK_TCK")


class ForeignFound(msgspec.Struct, frozen=True):
    """The foreign engines, and bytes of files that they have mapped: free by the kernel's count, and yet in use."""

    processes: tuple[ForeignProcess, ...] = ()
    mapped: int = 0


def find_foreign(entities: Entities, runs: Path, agent_pid: int | None = None) -> ForeignFound:
    """Every engine's process here that no shard of the journal accounts for. Reads /proc; takes milliseconds.

    What the agent itself (``agent_pid``; None: this process) started and waits for is a question of its own.
    """
    agent = os.getpid() if agent_pid is None else agent_pid
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    engines = [int(name) for name in os.listdir(PROC) if name.isdigit() and _program(int(name)) in PROGRAMS]
    found = [seen for pid in engines if (seen := see_process(pid)) is not None and not seen.is_gone]
    strangers = [
        seen
        for seen in found
        if seen.parent != agent
        and uptime - seen.start_ticks / _TICKS >= YOUNG_SECONDS
        and not _is_known(seen, entities, runs)
    ]
    if not strangers:
        return ForeignFound()
    listening = _listening_inodes()
    described = [_describe(seen, listening) for seen in strangers]
    mapped: dict[str, int] = {}
    for process in described:
        key = process.model or str(process.pid)
        mapped[key] = max(mapped.get(key, 0), _status_bytes(process.pid).get("RssFile", 0))
    return ForeignFound(tuple(sorted(described, key=lambda each: each.pid)), sum(mapped.values()))


def _is_known(seen: SeenProcess, entities: Entities, runs: Path) -> bool:
    """A shard's process or a part of its session; before its pid is recorded, the folder that it runs in tells."""
    folders = set()
    for shard in entities.shards.values():
        identity = shard.identity
        if identity is not None and identity.boot_id == boot_id():
            if seen.pid == identity.pid and seen.start_ticks == identity.start_ticks:
                return True
            if seen.session == identity.pid and seen.start_ticks >= identity.start_ticks:
                return True
        folders.add(str(run_folder(runs, shard.node_id, shard.load_generation)))
    try:
        return os.readlink(PROC / str(seen.pid) / "cwd") in folders
    except OSError:
        return False  # another user's, or gone by now


def _describe(seen: SeenProcess, listening: dict[int, Port]) -> ForeignProcess:
    arguments = _arguments(seen.pid)
    inodes = socket_inodes(seen.pid)
    if inodes is None:
        said = _option(arguments, _PORT_OPTIONS)
        ports = tuple(Port(int(word)) for word in (said,) if word.isdecimal() and 0 < int(word) < 65_536)
    else:
        ports = tuple(sorted({listening[inode] for inode in inodes if inode in listening}))
    started = int(psutil.boot_time() + seen.start_ticks / _TICKS) * 1000
    return ForeignProcess(
        pid=seen.pid,
        program=_program(seen.pid),
        started_unix_ms=UnixMs(started),
        user=_user(seen.pid),
        ports=ports,
        model=_option(arguments, _MODEL_OPTIONS),
        memory=_status_bytes(seen.pid).get("VmRSS"),
    )


def _listening_inodes() -> dict[int, Port]:
    """Who listens where, by socket; empty where the kernel refuses to say."""
    try:
        with SocketDiag() as kernel:
            return {seen.inode: Port(seen.ends.local_port) for seen in kernel.dump(LISTEN)}
    except OSError:
        return {}


def _program(pid: int) -> str:
    return _text(pid, "comm").strip()


def _arguments(pid: int) -> list[str]:
    return _text(pid, "cmdline").split("\0")


def _option(arguments: Sequence[str], names: Sequence[str]) -> str:
    """The value of an option, written with a blank or ``=``; empty when it is not there."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            return value if equals else next(iter(arguments[index + 1 : index + 2]), "")
    return ""


def _status_bytes(pid: int) -> dict[str, int]:
    """The lines of /proc/PID/status that are sizes, in bytes; empty when the process is gone."""
    fields = (line.split() for line in _text(pid, "status").splitlines())
    return {f[0].rstrip(":"): int(f[1]) * 1024 for f in fields if len(f) == 3 and f[2] == "kB"}


def _user(pid: int) -> str:
    try:
        uid = os.stat(PROC / str(pid)).st_uid
        return pwd.getpwuid(uid).pw_name
    except OSError:
        return ""
    except KeyError:
        return str(uid)


def _text(pid: int, name: str) -> str:
    """A file of /proc; empty when the process is gone or the kernel will not show it."""
    try:
        return (PROC / str(pid) / name).read_text(errors="replace")
    except OSError:
        return ""
