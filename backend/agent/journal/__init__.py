"""The agent's durable record of what happened on its host: an own segmented log, synced in groups."""

from backend.agent.journal.cursor import CursorOutcome
from backend.agent.journal.disk import Disk
from backend.agent.journal.errors import JournalDamaged, JournalLocked, JournalWriteFailed
from backend.agent.journal.log import Appended, Journal, SystemClock
from backend.agent.journal.writer import Clock, Limits

__all__ = [
    "Appended",
    "Clock",
    "CursorOutcome",
    "Disk",
    "Journal",
    "JournalDamaged",
    "JournalLocked",
    "JournalWriteFailed",
    "Limits",
    "SystemClock",
]
