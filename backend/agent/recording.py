"""Between the core and the journal: what the core decided is written, and what could not be written never happened.

After a refusal (a full disk) what engines did meanwhile is kept and told to the core again, once the journal takes
records and the core is back at what is durable. A fenced or damaged journal takes none until a person acts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backend.agent.core.state import (
    Adopted,
    Append,
    CommandArrived,
    CoreEvent,
    Disconnected,
    Discovered,
    EngineSaw,
    HealthSeen,
    JournalFailed,
    JournalResumed,
    Synced,
    Ticked,
)
from backend.agent.journal import Appended, DamagedJournal, Journal, JournalWriteFailed
from backend.contract.entities import JournalRecord, Resident
from backend.contract.reports import Measurement
from backend.engines.driver import CanarySeen, PhaseSeen


class NotStorable(ValueError):
    """Records that the journal can never take, such as one over its size. Nothing was queued. The message says why."""


MOST_HELD = 10_000
"""Events kept while the journal takes nothing. What only says the same again is kept once, so this is never met."""
_ALWAYS_HEARD = (
    CommandArrived | Ticked | Disconnected | Synced | JournalFailed | JournalResumed | HealthSeen | Discovered
)
"""What the core may hear while nothing can be written: it decides nothing then, or says so to who asked."""
_TOLD_AGAIN = CommandArrived | Ticked | Disconnected | HealthSeen | Discovered
"""What needs no keeping, as it comes again or was answered."""


class Recording:
    """One journal's records, in order. ``tell`` gives the core an event, ``written`` hears what became durable.

    ``announce`` is called when the core has acted on it.
    """

    def __init__(
        self,
        journal: Journal | DamagedJournal,
        tell: Callable[[CoreEvent], None],
        written: Callable[[tuple[JournalRecord, ...]], None],
        announce: Callable[[], None],
        broke: Callable[[BaseException], None],
    ) -> None:
        self._journal = journal
        self._tell = tell
        self._written = written
        self._announce = announce
        self._broke = broke
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: list[tuple[int, CoreEvent]] = []
        self._order = 0
        self.failed = journal.fenced if journal.is_read_only else ""
        self.is_over = journal.is_read_only

    def keeps(self, event: CoreEvent) -> bool:
        """Whether the core must not hear of this now, because nothing of it could be written; then it is kept."""
        self._order += 1
        if not self.failed or isinstance(event, _ALWAYS_HEARD):
            return False
        if isinstance(event, EngineSaw) and isinstance(event.seen, Measurement):
            return True
        self._hold(self._order, event)
        return True

    def held(self) -> list[CoreEvent]:
        """What was kept, in the order in which it happened; it is forgotten here."""
        held, self._held = self._held, []
        return [event for _, event in sorted(held, key=lambda each: each[0])]

    def append(self, effect: Append, cause: CoreEvent) -> None:
        """Write the records that ``cause`` led to; ``Synced`` follows. Raises NotStorable."""
        order = self._order
        try:
            write = self._journal.append_lazy if effect.lazy else self._journal.append
            appended = write(effect.records)
        except JournalWriteFailed as error:
            self._refused(error, order, cause)
            return
        except ValueError as error:
            raise NotStorable(str(error)) from error
        if appended is None:
            self._tell(Synced(effect.token))
            return
        task = asyncio.get_running_loop().create_task(self._when_durable(effect.token, appended, order, cause))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def resume(self) -> bool:
        """Go on after a refusal when the journal can: the core goes back to what is durable. True when it just did."""
        if not self.failed or self.is_over or self._tasks or not self._journal.resume():
            return False
        self.failed = ""
        durable = self._journal.snapshot()
        self._tell(JournalResumed(durable.entities, durable.revision))
        for event in self.held():
            self._tell(event)
        return True

    async def _when_durable(self, token: int, appended: Appended, order: int, cause: CoreEvent) -> None:
        try:
            await appended.durable
        except JournalWriteFailed as error:
            self._refused(error, order, cause)
            return
        self._written(appended.records)
        self._tell(Synced(token))
        # Last, and so after what the core has begun by now: an engine is not started later for the consoles' sake.
        self._announce()

    def _refused(self, error: JournalWriteFailed, order: int, cause: CoreEvent) -> None:
        is_first = not self.failed
        self.failed = str(error)
        self.is_over = self.is_over or error.fenced
        if not isinstance(cause, _TOLD_AGAIN):
            self._hold(order, cause)
        if is_first or error.fenced:
            self._tell(JournalFailed(self.failed, self.is_over))

    def _hold(self, order: int, event: CoreEvent) -> None:
        """A newer word of the same source replaces an older one that it says again."""
        source = _source_of(event)
        last = next((n for n in reversed(range(len(self._held))) if _source_of(self._held[n][1]) == source), None)
        if last is not None and _matter_of(self._held[last][1]) == _matter_of(event):
            del self._held[last]
        self._held.append((order, event))
        del self._held[:-MOST_HELD]

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broke(error)


def words_of(event: CoreEvent) -> str:
    """What a console is shown of an event that cannot be recorded; empty when there is nothing to show."""
    if isinstance(event, EngineSaw) and isinstance(event.seen, PhaseSeen):
        return f"{event.seen.state.value}: {event.seen.words}"
    if isinstance(event, Adopted):
        return event.identity.words if isinstance(event.identity, Resident) else f"pid {event.identity.pid} runs"
    return str(getattr(event, "words", ""))


def _source_of(event: CoreEvent) -> object:
    """Of whom an event tells: a shard of one generation, or else nobody but its own kind."""
    node_id = getattr(event, "node_id", None)
    return type(event) if node_id is None else (node_id, getattr(event, "generation", None))


def _matter_of(event: CoreEvent) -> object:
    """What of an event makes a difference afterwards: of progress and of canaries not each word of it."""
    if isinstance(event, EngineSaw) and isinstance(event.seen, PhaseSeen):
        return PhaseSeen, event.seen.state
    if isinstance(event, EngineSaw) and isinstance(event.seen, CanarySeen):
        return CanarySeen, event.seen.canary.ok
    return event
