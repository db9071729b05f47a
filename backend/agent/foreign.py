"""Engines on this host that this agent did not start: found, described, counted as memory that is taken, never touched.

They are found by the process table and the sockets that they listen on; what their ports answer is asked elsewhere.
"""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from backend.agent.devices import GpuReading
from backend.agent.process_identity import PROC, SeenProcess, boot_id, see_all, see_process
from backend.agent.run_folder import run_folder
from backend.contract.entities import Entities
from backend.contract.reports import ForeignProcess
from backend.contract.words import Port, UnixMs
from backend.engines.llamacpp.sockets import LISTEN, SocketDiag, socket_inodes
from backend.engines.recognise import Recognised, may_be_engine, recognise

YOUNG_SECONDS = 2.0
"""Younger ones may be a question about a version, or be on the way into a record."""
_TICKS = os.sysconf("SC_CLK_TCK")
_LONGEST_PATH = 4096
"""PATH_MAX of Linux: a longer one names no file, and anybody's process may have any command line."""
_ANYWHERE = ("0.0.0.0", "::")
_Listening = Mapping[int, tuple[str, Port]]
"""Address and port by the inode of the socket that listens there."""


class ForeignFound(msgspec.Struct, frozen=True):
    """The foreign engines, and bytes of files that they have mapped: free by the kernel's count, and yet in use."""

    processes: tuple[ForeignProcess, ...] = ()
    mapped: int = 0


class _Stranger(msgspec.Struct, frozen=True):
    """A foreign engine's first process, and every process that descends from it."""

    seen: SeenProcess
    engine: Recognised
    tree: tuple[int, ...]


def find_foreign(
    entities: Entities,
    runs: Path,
    agent_pid: int | None = None,
    *,
    model_roots: Sequence[str] = (),
    gpus: GpuReading | None = None,
) -> ForeignFound:
    """Every engine's process here that no shard of the journal accounts for. Reads /proc; takes milliseconds.

    What the agent itself (``agent_pid``; None: this process) started and waits for is a question of its own. What an
    engine started belongs to it and is not named again. ``gpus`` is what the drivers said last.
    """
    agent = os.getpid() if agent_pid is None else agent_pid
    uptime = time.clock_gettime(time.CLOCK_BOOTTIME)
    engines = dict(_engines())
    grown_up = {
        pid: engine
        for pid, (seen, engine) in engines.items()
        if seen.parent != agent
        and uptime - seen.start_ticks / _TICKS >= YOUNG_SECONDS
        and not _is_known(seen, entities, runs)
    }
    if not grown_up:
        return ForeignFound()
    table = {seen.pid: seen for seen in see_all() if not seen.is_gone}
    children = _children(table)
    owned = {*grown_up, *_shard_pids(entities)}
    strangers = [
        _Stranger(table[pid], engine, _tree(pid, children))
        for pid, engine in grown_up.items()
        if pid in table and not _ancestors(pid, table) & owned
    ]
    listening = _listening_inodes()
    described = [_describe(stranger, listening, model_roots, gpus or GpuReading()) for stranger in strangers]
    mapped: dict[str, int] = {}
    for process in described:
        key = process.model or str(process.pid)
        mapped[key] = max(mapped.get(key, 0), _status_bytes(process.pid).get("RssFile", 0))
    return ForeignFound(tuple(sorted(described, key=lambda each: each.pid)), sum(mapped.values()))


def _engines() -> Iterator[tuple[int, tuple[SeenProcess, Recognised]]]:
    """Every process that its name and command line show to be an engine."""
    for word in os.listdir(PROC):
        if not word.isdigit():
            continue
        pid = int(word)
        name = _text(pid, "comm").strip()
        if not may_be_engine(name) or (engine := recognise(name, _arguments(pid))) is None:
            continue
        seen = see_process(pid)
        if seen is not None and not seen.is_gone:
            yield pid, (seen, engine)


def _is_known(seen: SeenProcess, entities: Entities, runs: Path) -> bool:
    """A shard's process or a part of its session; before its pid is recorded, the folder that it runs in tells."""
    folders = set()
    for shard in entities.shards.values():
        identity = shard.identity
        if identity is not None and identity.boot_id == boot_id():
            if seen.pid == identity.pid and seen.start_ticks == identity.start_ticks:
                return True
            in_session = seen.session == identity.pid and seen.start_ticks >= identity.start_ticks
            if in_session and shard.taken_over is None:
                return True  # a session of its own is what a shim gives; a foreign engine may lead anybody's
        folders.add(str(run_folder(runs, shard.node_id, shard.load_generation)))
    try:
        return os.readlink(PROC / str(seen.pid) / "cwd") in folders
    except OSError:
        return False  # another user's, or gone by now


def _shard_pids(entities: Entities) -> set[int]:
    """The processes of shards of this boot: what descends from them is theirs."""
    identities = [shard.identity for shard in entities.shards.values() if shard.identity is not None]
    return {each.pid for each in identities if each.boot_id == boot_id() and _is_this(each.pid, each.start_ticks)}


def _is_this(pid: int, start_ticks: int) -> bool:
    seen = see_process(pid)
    return seen is not None and seen.start_ticks == start_ticks


def _ancestors(pid: int, table: Mapping[int, SeenProcess]) -> set[int]:
    above: set[int] = set()
    parent = table[pid].parent
    while parent in table and parent not in above:
        above.add(parent)
        parent = table[parent].parent
    return above


def _children(table: Mapping[int, SeenProcess]) -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for seen in table.values():
        children.setdefault(seen.parent, []).append(seen.pid)
    return children


def _tree(pid: int, children: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """A process and all that descends from it."""
    tree = [pid]
    for each in tree:
        tree += children.get(each, ())
    return tuple(tree)


def _describe(
    stranger: _Stranger, listening: _Listening, model_roots: Sequence[str], gpus: GpuReading
) -> ForeignProcess:
    seen, engine = stranger.seen, stranger.engine
    addresses = _addresses(stranger, listening)
    ports = tuple(addresses)
    devices, device_memory = _devices(stranger.tree, gpus)
    sizes = [size for pid in stranger.tree if (size := _status_bytes(pid).get("VmRSS")) is not None]
    return ForeignProcess(
        pid=seen.pid,
        program=_text(seen.pid, "comm").strip(),
        started_unix_ms=UnixMs(int(psutil.boot_time() + seen.start_ticks / _TICKS) * 1000),
        user=_user(seen.pid),
        ports=ports,
        model=_file_of(seen.pid, engine.model, model_roots),
        memory=sum(sizes) if sizes else None,
        start_ticks=seen.start_ticks,
        boot_id=boot_id(),
        engine=engine.engine,
        role=engine.role,
        ranks=engine.ranks,
        devices=devices,
        device_memory=device_memory,
        address=addresses[ports[0]] if ports else "",
        can_signal=_can_signal(seen.pid),
    )


def _can_signal(pid: int) -> bool | None:
    """Whether this user may signal a process; None when it is gone. Signal 0 asks and sends none."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        return None
    return True


def _addresses(stranger: _Stranger, listening: _Listening) -> dict[Port, str]:
    """Where it listens, by port; the port that it was told comes first, for that one serves.

    Of a process whose sockets the kernel does not show, it is what its command line says.
    """
    told = stranger.engine.ports
    own = socket_inodes(stranger.seen.pid)
    if own is None:
        return dict.fromkeys(told if stranger.engine.is_told else (), "127.0.0.1")
    found = {listening[inode][1]: _dialled(listening[inode][0]) for inode in own if inode in listening}
    for pid in stranger.tree[1:]:  # a wrapper, whose child serves
        for inode in socket_inodes(pid) or ():
            if inode in listening and listening[inode][1] in told:
                found[listening[inode][1]] = _dialled(listening[inode][0])
    return {port: found[port] for port in sorted(found, key=lambda port: (port not in told, port))}


def _dialled(address: str) -> str:
    """The address to dial for one that is listened on."""
    return "127.0.0.1" if address in _ANYWHERE else address


def _listening_inodes() -> dict[int, tuple[str, Port]]:
    """Who listens where, by socket; empty where the kernel refuses to say."""
    try:
        with SocketDiag() as kernel:
            return {seen.inode: (seen.ends.local, Port(seen.ends.local_port)) for seen in kernel.dump(LISTEN)}
    except OSError:
        return {}


def _devices(tree: Sequence[int], gpus: GpuReading) -> tuple[tuple[str, ...], int | None]:
    """The devices that drivers list these processes on, with the bytes there; empty where a driver names no owners."""
    names, held, is_counted = [], 0, True
    for device in gpus.devices:
        owners = gpus.owners.get(device.uuid, {})
        mine = [owners[pid] for pid in tree if pid in owners]
        if mine:
            names.append(device.name)
            is_counted = is_counted and min(mine) >= 0
            held += sum(mine)
    if names:
        return tuple(names), held if is_counted else None
    is_told = all(device.uuid in gpus.owners for device in gpus.devices)
    return (("CPU",) if is_told else ()), None


def _file_of(pid: int, model: str, model_roots: Sequence[str]) -> str:
    """A model under the name that the catalog may have for it: by a model root, else whole, else as it was given."""
    if not model or len(model) > _LONGEST_PATH:
        return model[:_LONGEST_PATH]
    # A folder may have a name that is no text, which no frame carries.
    return os.fsencode(_found_file(pid, model, model_roots)).decode(errors="replace")


def _found_file(pid: int, model: str, model_roots: Sequence[str]) -> str:
    try:
        path = os.path.join(os.readlink(PROC / str(pid) / "cwd"), model)
    except OSError:
        path = model  # another user's: a relative name stays one
    real = os.path.realpath(path)
    for root in model_roots:
        inside = os.path.relpath(real, os.path.realpath(root))
        if not inside.startswith(os.pardir):
            return os.path.join(root, inside)
    return os.path.normpath(path) if os.path.exists(path) else model


def _arguments(pid: int) -> list[str]:
    return _text(pid, "cmdline").rstrip("\0").split("\0")


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
