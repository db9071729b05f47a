"""The folder of one run: what the shim writes there, and how an agent reads it after its own restart."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from backend.agent.descriptors import OUT_OF_DESCRIPTORS
from backend.contract.entities import ProcessIdentity
from backend.contract.words import NodeId


class RunUnreadable(Exception):
    """A record of a run cannot be read, or contradicts what is known of the run. The message names both sides."""


class SpawnRecord(msgspec.Struct, frozen=True):
    """``spawn.json``, durable before the engine executes."""

    pid: int
    start_ticks: int
    boot_id: str
    nonce: str
    shim_pid: int
    shim_ticks: int

    @property
    def identity(self) -> ProcessIdentity:
        """The engine's."""
        return ProcessIdentity(self.pid, self.start_ticks, self.boot_id, self.nonce)


class ExitRecord(msgspec.Struct, frozen=True):
    """``exit.json``. ``exec_errno`` is set when nothing could be executed; then ``code`` is 127."""

    code: int | None
    signal: int | None
    exec_errno: int | None


Record = TypeVar("Record", SpawnRecord, ExitRecord)


class RunFolder:
    """The files of one run: the engine's output, who it is, how it ended, and what its shim complained of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "engine.log"
        self.old_log = path / "engine.log.1"
        self.log_base = path / "engine.log.base"
        self.spawn_record = path / "spawn.json"
        self.exit_record = path / "exit.json"
        self.shim_errors = path / "shim.err"

    def read_spawn(self) -> SpawnRecord | None:
        """The spawn record; None when there is none, and when the start was given up. Raises RunUnreadable."""
        return _read(self.spawn_record, SpawnRecord)

    def read_exit(self) -> ExitRecord | None:
        """The exit record; None while there is none. Raises RunUnreadable."""
        return _read(self.exit_record, ExitRecord)

    def give_up(self) -> None:
        """Make sure that a start which is not recorded by now never happens.

        The shim links its record to this name, which fails when the name is taken, and then executes nothing. So a
        record read after this call is the last word. Raises RunUnreadable when the name cannot be taken.
        """
        try:
            os.close(os.open(self.spawn_record, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except (FileNotFoundError, FileExistsError):
            return  # no folder, so no shim was ever started for it; or the shim was first: its record stands
        except OSError as error:
            _raise_unless_short(error)
            raise RunUnreadable(
                f"{self.spawn_record} cannot be made: {error.strerror}. Whether a start of it goes on is not known; "
                "look at the disk, then restart the agent."
            ) from error


def run_folder(runs: Path, node_id: NodeId, generation: int) -> Path:
    """The folder of one run: one slot, one generation, never used twice."""
    return runs / f"{node_id.replace('/', '_')}-{generation}"


def _raise_unless_short(error: OSError) -> None:
    """Without a descriptor nothing was learned, and whoever waits tries again."""
    if error.errno in OUT_OF_DESCRIPTORS:
        raise error


def _read(path: Path, kind: type[Record]) -> Record | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _raise_unless_short(error)
        raise RunUnreadable(
            f"{path} cannot be read: {error.strerror}. Nothing of this run is touched; look at the disk, and at the "
            "host's processes by hand."
        ) from error
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as wrong:
        raise RunUnreadable(
            f"{path} is damaged: {wrong}. Nothing of this run is touched; look at the host's processes by hand."
        ) from wrong
