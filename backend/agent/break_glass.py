"""Stopping engines past an agent that cannot write its journal: a person on the host, by what the runs' folders say.

Each process is compared with its record and signalled by pidfd. What was done goes to the system's log and into a note
under the agent's state, which the next start of the agent takes into its journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import logging
import logging.handlers
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from backend.agent import supervisor
from backend.agent.process_identity import PROC, group_members
from backend.agent.run_folder import RunFolder, RunUnreadable
from backend.contract.entities import ProcessIdentity
from backend.engines.driver import StopStep

GRACE_SECONDS = 10.0
SYSLOG = Path("/dev/log")
NOTES = "break-glass"
BEGUN = "begun"


class LiveRun(msgspec.Struct, frozen=True):
    """A run with a process that lives: its folder's name is its slot and generation."""

    folder: Path
    identity: ProcessIdentity
    program: str
    pids: tuple[int, ...]

    @property
    def name(self) -> str:
        """Slot and generation as people write them."""
        slot, _, generation = self.folder.name.rpartition("-")
        replica, _, rank = slot.rpartition("_")
        return f"{replica}/{rank} generation {generation}"

    def is_of(self, node: str) -> bool:
        """Whether it is a run of this slot."""
        return self.folder.name.rpartition("-")[0] == node.replace("/", "_")


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What was stopped past the agent, by whom and when. ``outcomes`` is by run; ``begun`` is not known yet."""

    by: str
    at_unix_ms: int
    pid: int
    outcomes: dict[str, str]

    @property
    def words(self) -> str:
        """For the journal and the system's log."""
        listed = "; ".join(f"{run}: {outcome}" for run, outcome in self.outcomes.items())
        return f"emergency stop past the agent by {self.by}: {listed}"


def live_runs(state: Path) -> tuple[tuple[LiveRun, ...], tuple[str, ...]]:
    """Every run under an agent's state that lives, and what was wrong with those that cannot be judged."""
    found, wrong = [], []
    for folder in sorted((state / "runs").glob("*-*")):
        try:
            record = RunFolder(folder).read_spawn()
        except RunUnreadable as error:
            wrong.append(str(error))
            continue
        members = () if record is None else group_members(record.identity)
        if record is not None and members:
            pids = tuple(member.pid for member in members)
            found.append(LiveRun(folder, record.identity, _program(pids), pids))
    return tuple(found), tuple(wrong)


def stop_runs(state: Path, runs: Sequence[LiveRun], grace: float = GRACE_SECONDS) -> tuple[Note, tuple[str, ...]]:
    """Stop these runs at once and all together. Returns the note, and what could not be written down, in words."""
    note = Note(
        by=_person(),
        at_unix_ms=time.time_ns() // 1_000_000,
        pid=os.getpid(),
        outcomes=dict.fromkeys((run.name for run in runs), BEGUN),
    )
    troubles = _leave(state, note)
    outcomes = asyncio.run(_stop_all(runs, grace))
    note = msgspec.structs.replace(note, outcomes=outcomes)
    troubles += _leave(state, note)
    troubles += _say_to_syslog(note.words)
    return note, tuple(dict.fromkeys(troubles))


def read_notes(state: Path) -> dict[str, Note]:
    """The notes that were left, by file name; one whose emergency stop still runs is left for the next start."""
    notes = {}
    for path in sorted((state / NOTES).glob("*.json")):
        try:
            note = msgspec.json.decode(path.read_bytes(), type=Note)
        except (OSError, msgspec.MsgspecError) as error:
            note = Note(by="unknown", at_unix_ms=0, pid=0, outcomes={path.name: f"the note cannot be read: {error}"})
        is_under_way = BEGUN in note.outcomes.values() and (PROC / str(note.pid)).exists()
        if not is_under_way:
            notes[path.name] = note
    return notes


def drop_note(state: Path, name: str) -> None:
    """Remove a note that is in the journal; one that cannot be removed is taken in again by the next start."""
    try:
        (state / NOTES / name).unlink(missing_ok=True)
    except OSError as error:
        sys.stderr.write(f"the note {name} is in the journal and cannot be removed: {error.strerror}\n")


async def _stop_all(runs: Sequence[LiveRun], grace: float) -> dict[str, str]:
    stops = (supervisor.stop(run.identity, run.folder, (StopStep(signal.SIGTERM, grace),)) for run in runs)
    ended = await asyncio.gather(*stops, return_exceptions=True)
    return {run.name: _outcome(run, outcome) for run, outcome in zip(runs, ended, strict=True)}


def _outcome(run: LiveRun, outcome: supervisor.StopOutcome | BaseException) -> str:
    if isinstance(outcome, RunUnreadable):
        return f"stopped; how it ended cannot be read: {outcome}"
    if isinstance(outcome, BaseException):
        raise outcome
    pids = ", ".join(str(pid) for pid in (outcome.stuck_pids or run.pids))
    return f"stopped (process {pids})" if outcome.stopped else f"not stopped: process {pids} survives KILL"


def _leave(state: Path, note: Note) -> list[str]:
    """Write the note durably, or say why not: on a full disk the stop matters more."""
    folder = state / NOTES
    path = folder / f"{note.at_unix_ms}-{note.pid}.json"
    draft = path.with_suffix(".tmp")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        with open(draft, "wb") as file:
            file.write(msgspec.json.encode(note))
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)
        holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(holder)
        finally:
            os.close(holder)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        return [f"no note for the journal could be left at {path}: {error.strerror}"]
    return []


def _say_to_syslog(words: str) -> list[str]:
    if not SYSLOG.exists():
        return [f"there is no {SYSLOG} on this host: the system's log was not told"]
    try:
        handler = logging.handlers.SysLogHandler(str(SYSLOG), logging.handlers.SysLogHandler.LOG_AUTH)
    except OSError as error:
        return [f"the system's log was not told: {error.strerror}"]
    handler.ident = "ringtop-agent: "
    handler.emit(logging.LogRecord("ringtop", logging.CRITICAL, "", 0, words, None, None))
    handler.close()
    return []


def _person() -> str:
    """Who is at the keyboard: behind sudo, the one who called it."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # as in a container: no name in the environment, and none for the number
        return f"uid-{os.getuid()}"


def _program(pids: Sequence[int]) -> str:
    for pid in pids:
        with contextlib.suppress(OSError):
            return os.path.basename(os.readlink(PROC / str(pid) / "exe"))
    return "?"
