"""The agent's durable record of what happened on its host: an own segmented log, synced in groups."""

from backend.agent.journal.cursor import CursorOutcome
from backend.agent.journal.damaged import DamagedJournal
from backend.agent.journal.disk import Disk
from backend.agent.journal.errors import JournalDamaged, JournalLocked, JournalWriteFailed
from backend.agent.journal.forking import Forked, fork_journal
from backend.agent.journal.limits import Clock, Limits, SystemClock
from backend.agent.journal.log import Appended, Journal

__all__ = [
    "Appended",
    "Clock",
    "CursorOutcome",
    "DamagedJournal",
    "Disk",
    "Forked",
    "Journal",
    "JournalDamaged",
    "JournalLocked",
    "JournalWriteFailed",
    "Limits",
    "SystemClock",
    "fork_journal",
]
