"""What is measured of an engine's own agent as a process on its host: the answer to ``resident.look``."""

from __future__ import annotations

import shlex

import msgspec

from backend.contract.reports import DeviceFacts, ResidentNode
from backend.contract.words import UnixMs

MARK = ".aside-"
"""What stands between the name of a journal folder and the moment for which it is moved aside."""


def move_by_hand(folder: str, aside: str) -> str:
    """How a person moves a journal folder aside and leaves an empty one of the same owner and mode."""
    source, target = shlex.quote(folder), shlex.quote(aside)
    return (
        f"mv -nT {source} {target} && mkdir {source} && chmod --reference={target} {source} && "
        f"chown --reference={target} {source}"
    )


class FolderCount(msgspec.Struct, frozen=True, kw_only=True):
    """A journal folder as counted. None is unknown. ``words`` says why it cannot be used, and is empty when it can.

    ``admissions`` are the files by which its agent refuses to start again.
    """

    folder: str = ""
    files: int | None = None
    bytes: int | None = None
    admissions: int | None = None
    words: str = ""

    @property
    def said(self) -> str:
        """How much is in it, in words."""
        if self.files is None or self.bytes is None:
            return self.words or "not counted"
        return f"{self.files} files, {self.bytes} bytes"


class StageProcess(msgspec.Struct, frozen=True):
    """A process that runs under the engine's own agent: its life (``pid:start ticks``) and its program."""

    life: str
    program: str

    @property
    def pid(self) -> str:
        """Its number on the host."""
        return self.life.partition(":")[0]


class Commands(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine's own agent is ended and begun, and the bridge restarted, as words of a shell.

    ``ours``: agent.toml gives the command, and our agent runs it; else it is what a person would type there.
    """

    end: str = ""
    begin: str = ""
    bridge: str = ""
    end_is_ours: bool = False
    begin_is_ours: bool = False
    bridge_is_ours: bool = False
    is_told: bool = False


class ResidentLook(msgspec.Struct, frozen=True, kw_only=True):
    """One look. ``pid`` None and ``life`` empty: no process of it is seen; ``is_listening``: its port is taken.

    ``alive`` are the lives asked about that still run. ``silence`` is why it did not answer, empty when it did.
    ``memory_available`` is the host's memory without page cache, in bytes. ``recorded`` is the generation in the record
    of whoever loads past ringtop.
    """

    engine: str
    address: str
    port: int
    looked_unix_ms: UnixMs
    pid: int | None = None
    life: str = ""
    user: str = ""
    is_listening: bool = False
    silence: str = ""
    nodes: tuple[ResidentNode, ...] = ()
    sockets: int | None = None
    unique: int | None = None
    hidden: int | None = None
    processes: tuple[StageProcess, ...] = ()
    alive: tuple[str, ...] = ()
    journal: FolderCount = FolderCount()
    aside: FolderCount | None = None
    restart: str = ""
    commands: Commands = Commands()
    recorded: int = 0
    devices: tuple[DeviceFacts, ...] = ()
    memory_available: int | None = None

    @property
    def is_running(self) -> bool:
        """A process of it is seen, or something holds its port."""
        return bool(self.life) or self.is_listening
