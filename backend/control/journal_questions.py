"""What is asked of an agent about its journal, and how long that may take."""

from __future__ import annotations

from backend.contract.commands import Command, ExportJournal, ForkJournal, JournalStats, VerifyJournal
from backend.contract.words import OpId
from backend.control.requests import AskJournal, ForkJournalRequest

QUICK_SECONDS = 15.0
FORK_SECONDS = 120.0
VERIFY_SECONDS = 900.0
"""A journal of many GiB is read whole, at the speed of its disk."""
PAGE_RECORDS = 256


def journal_question(op_id: OpId, request: AskJournal | ForkJournalRequest, who: str) -> tuple[Command, float]:
    """The command of a request about a journal, and the seconds that its answer may take."""
    if isinstance(request, ForkJournalRequest):
        return ForkJournal(op_id=op_id, by=who, accept_loss=request.accept_loss), FORK_SECONDS
    if request.question == "verify":
        return VerifyJournal(op_id=op_id), VERIFY_SECONDS
    if request.question == "stats":
        return JournalStats(op_id=op_id), QUICK_SECONDS
    return ExportJournal(op_id=op_id, after=request.after, limit=PAGE_RECORDS), QUICK_SECONDS
