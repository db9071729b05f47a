"""The agent's journal as a whole: opened for writing or, when it cannot be, for reading; and forked by a person."""

from __future__ import annotations

import asyncio
from pathlib import Path

from backend.agent.break_glass import live_runs
from backend.agent.config import AgentConfig
from backend.agent.journal import (
    DamagedJournal,
    Forked,
    Journal,
    JournalDamaged,
    JournalWriteFailed,
    Limits,
    SystemClock,
    fork_journal,
)
from backend.agent.run_folder import run_folder
from backend.contract.entities import Entities

ACCEPTED = "accepted"
"""A file in the folder of a run that the journal does not know, and that a person accepted as it is."""


class NoJournal(Exception):
    """There is nothing to hold: neither a journal nor the folder for one can be had. The message says why."""


def limits_of(config: AgentConfig) -> Limits:
    """The journal's limits with what agent.toml says of them."""
    return Limits(keep_days=config.journal.keep_days, keep_bytes=int(config.journal.keep_gib * (1 << 30)))


def journal_folder(config: AgentConfig) -> Path:
    """Where the journal is."""
    return Path(config.state) / "journal"


def open_journal(config: AgentConfig) -> Journal | DamagedJournal:
    """The journal, or what of it can be read. Raises JournalLocked and NoJournal."""
    folder = journal_folder(config)
    try:
        return Journal.open(folder, host=config.host, clock=SystemClock(), limits=limits_of(config))
    except (JournalDamaged, JournalWriteFailed) as error:
        words = str(error)
    try:
        return DamagedJournal(folder, host=config.host, words=words)
    except OSError as error:
        raise NoJournal(
            f"the state folder {config.state} can be neither written nor read: {error.strerror} ({error.filename}). "
            "Look at its disk and owner, or name another one as state in agent.toml."
        ) from error


async def set_aside(config: AgentConfig, journal: Journal) -> DamagedJournal:
    """End a journal in which the scrub found damage, and hold what of it can be read: it can be forked then.

    The lock is held throughout, and everything that was durable is known.
    """
    words, known, lock = journal.damage, journal.entities, await journal.hand_over()
    return await asyncio.to_thread(
        DamagedJournal, journal_folder(config), host=config.host, words=words, lock=lock, known=known
    )


def fork_damaged(config: AgentConfig, journal: DamagedJournal, by: str) -> tuple[Forked, Journal]:
    """Begin a new epoch and open it. Raises JournalWriteFailed; the damaged one then stands as it was."""
    folder, lock = journal_folder(config), journal.hand_over_lock()
    try:
        forked = fork_journal(
            folder,
            journal.salvaged,
            host=config.host,
            by=by,
            why=journal.health,
            discovered=unknown_runs(config, journal.entities),
            clock=SystemClock(),
            limits=limits_of(config),
        )
        opened = Journal.open(folder, host=config.host, clock=SystemClock(), limits=limits_of(config), lock=lock)
    except JournalDamaged as error:
        journal.take_back_lock(lock)
        raise JournalWriteFailed(str(error), fenced=True) from error
    except BaseException:
        journal.take_back_lock(lock)
        raise
    return forked, opened


def unknown_runs(config: AgentConfig, entities: Entities) -> str:
    """The engines that this agent's folders say it started and its journal does not know, in words; empty for none."""
    runs = Path(config.state) / "runs"
    known = {run_folder(runs, shard.node_id, shard.load_generation) for shard in entities.shards.values()}
    found, _ = live_runs(Path(config.state))
    unknown = [run for run in found if run.folder not in known and not (run.folder / ACCEPTED).exists()]
    if not unknown:
        return ""
    listed = ", ".join(f"{run.name} (process {run.identity.pid})" for run in unknown)
    return f"{listed} still run, started by this agent, and its journal does not know them."


def why_unknown_refuse(config: AgentConfig, entities: Entities) -> str:
    """Why no load may begin while such engines run; empty when none does."""
    words = unknown_runs(config, entities)
    if not words:
        return ""
    return (
        f"{words} The journal was removed or is another one: they are foreign now and left alone. Put the right "
        f"journal back, stop them on the host (ringtop-agent stop --break-glass), or accept it: "
        f"ringtop journal fork {config.host} --accept-loss."
    )


def accept_unknown(config: AgentConfig, entities: Entities, by: str) -> None:
    """Remember at each such run that a person accepted it. Raises OSError."""
    runs = Path(config.state) / "runs"
    known = {run_folder(runs, shard.node_id, shard.load_generation) for shard in entities.shards.values()}
    for run in live_runs(Path(config.state))[0]:
        if run.folder not in known:
            (run.folder / ACCEPTED).write_text(f"{by}\n")
