"""Rehearses events: what the console would have shown, by the same fold and derivation, touching nothing.

Pure: lines of the event format in, what would have been shown out. Time is that of the lines; between two of them it
passes in steps of a second, as it does in a live console.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from backend.contract.events import AnyEvent, JournalBatch, JournalGap, Reported, UnknownEvent, Welcome
from backend.contract.words import AgentAddress, HostId, UnixMs
from backend.control.event_file import BadLine, EventLine, Head, Heard
from backend.control.fleet import Fleet, empty_fleet, fold_event
from backend.control.fleet_events import AnyFleetEvent, CatalogRead, Slept, Ticked
from backend.control.hearing import Moment, Sequence, joined, told
from backend.control.link_events import AnyLinkEvent, LinkDown, LinkRefused, LinkUp, Noted
from backend.control.opening import OPENING_SECONDS
from backend.control.views import Drift, FleetState, ModelView, ReplicaView

FIRST_AT = 1.0
"""The monotonic time of a file's beginning: 0 would mean that nothing was ever heard."""
TICK_SECONDS = 1.0
_MOST_TICKS = 3600
"""Ticks between two lines at most: in a longer silence they are further apart."""


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the console would have shown at a time.

    ``what`` is host, replica, drift or journal. A host or replica has the state ``before`` and ``after``, empty where
    there was none; a drift is ``open`` or gone. A journal line has ``kind`` and ``level``.
    """

    at: float
    unix_ms: UnixMs
    what: str
    subject: str
    words: str
    before: str = ""
    after: str = ""
    kind: str = ""
    level: str = "info"


class Rehearsed(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at the end, at which time, and what the file was like. ``end`` is empty for one that was cut."""

    state: FleetState
    at: float
    unix_ms: UnixMs
    events: int
    bad: tuple[BadLine, ...]
    end: str = ""


class _Ear:
    """One host's frames, turned into what a link would have told."""

    def __init__(self, host: HostId) -> None:
        self._host = host
        self._welcome: Welcome | None = None
        self._heard_up_to = Sequence()

    def hear(self, event: AnyEvent | UnknownEvent, at: float, unix_ms: UnixMs) -> AnyLinkEvent | str | None:
        """The link event of a frame; a text says what is wrong with it, None is nothing to show."""
        moment: Moment = {"host": self._host, "at": at, "unix_ms": unix_ms}
        match event:
            case Welcome():
                self._welcome = event
            case Reported():
                return self._reported(event, moment)
            case JournalBatch():
                if missing := self._heard_up_to.missing(event):
                    return f"records {missing[0]} to {missing[1]} of {self._host} are missing in front of it"
            case JournalGap():
                self._heard_up_to.skip(event)
        return told(event, moment)

    def _reported(self, event: Reported, moment: Moment) -> LinkUp | str:
        if event.report.host != self._host:
            return f"it is the report of host {event.report.host!r}, and its line says {self._host!r}"
        welcome = self._welcome
        if welcome is None:
            return f"a report of {self._host} without the welcome that comes before it"
        self._heard_up_to.begin(event.report)
        asked = welcome.asked_unix_ms
        return joined(welcome, event.report, asked, float(max(0, moment["unix_ms"] - asked)) if asked else 0.0, moment)


class Rehearsal:
    """One run through a file; ``show`` gets everything as it would have been shown, in order."""

    def __init__(
        self, head: Head, models: dict[str, ModelView], catalog_words: str, show: Callable[[Shown], None]
    ) -> None:
        hosts = {host: AgentAddress(address) for host, address in head.hosts.items()}
        self._fleet: Fleet = empty_fleet(head.context or "rehearsal", head.label, hosts, read_only=True)
        self._show = show
        self._ears = {host: _Ear(host) for host in hosts}
        self._began_ms = head.started_unix_ms
        self._now = FIRST_AT
        self._unix_ms = head.started_unix_ms
        self._bad: list[BadLine] = []
        self._events = 0
        self._end = ""
        self._fold(CatalogRead(at=self._now, unix_ms=self._unix_ms, models=models, words=catalog_words))

    def run(self, lines: Iterable[Heard | BadLine]) -> Rehearsed:
        """Go through all lines, then let the first second pass that holds journal lines back."""
        for each in lines:
            if isinstance(each, BadLine):
                self._bad.append(each)
            else:
                self._take(each)
        at, unix_ms = self._now, self._unix_ms
        if self._fleet.opening is not None:
            over = int(OPENING_SECONDS * 1000)
            self._fold(Ticked(at=self._now + OPENING_SECONDS, unix_ms=UnixMs(self._unix_ms + over)))
        return Rehearsed(
            state=self._fleet.state,
            at=at,
            unix_ms=unix_ms,
            events=self._events,
            bad=tuple(self._bad),
            end=self._end,
        )

    def _take(self, heard: Heard) -> None:
        line = heard.line
        if line.host and line.host not in self._ears:
            known = ", ".join(sorted(self._ears))
            self._bad.append(BadLine(heard.number, f"the host {line.host!r} is not in the head; it has {known}"))
            return
        at = FIRST_AT + line.at
        unix_ms = line.unix_ms or UnixMs(self._began_ms + round(line.at * 1000))
        self._pass_time(at, unix_ms)
        event = self._event(heard, at, unix_ms)
        if isinstance(event, str):
            self._bad.append(BadLine(heard.number, event))
            return
        self._events += 1
        self._end = line.end
        if event is not None:
            self._fold(event)

    def _event(self, heard: Heard, at: float, unix_ms: UnixMs) -> AnyFleetEvent | str | None:
        line: EventLine = heard.line
        if heard.event is not None:
            return self._ears[line.host].hear(heard.event, at, unix_ms)
        match line.link:
            case "down":
                return LinkDown(host=line.host, at=at, unix_ms=unix_ms, words=line.words)
            case "refused":
                return LinkRefused(host=line.host, at=at, unix_ms=unix_ms, words=line.words)
            case "note":
                kind = line.kind or "note"
                return Noted(host=line.host, at=at, unix_ms=unix_ms, kind=kind, words=line.words, level=line.level)
            case _:
                return Slept(at=at, unix_ms=unix_ms, seconds=line.slept) if line.slept else None

    def _pass_time(self, at: float, unix_ms: UnixMs) -> None:
        """The ticks of the time between two lines, which end leases and count drains down."""
        span, began, began_ms = at - self._now, self._now, self._unix_ms
        length = max(TICK_SECONDS, span / _MOST_TICKS)
        for number in range(1, int(span / length) + 1):
            passed = number * length
            now_ms = UnixMs(round(began_ms + passed / span * (unix_ms - began_ms)))
            self._fold(Ticked(at=began + passed, unix_ms=now_ms))
        self._now, self._unix_ms = at, unix_ms

    def _fold(self, event: AnyFleetEvent) -> None:
        before = self._fleet.state
        self._fleet, lines = fold_event(self._fleet, event)
        at = round(event.at - FIRST_AT, 6)
        for shown in changes(before, self._fleet.state, at, event.unix_ms):
            self._show(shown)
        for each in lines:
            record = each.record
            self._show(
                Shown(
                    at=at,
                    unix_ms=record.at_unix_ms,
                    what="journal",
                    subject=record.node_id or record.replica or each.host,
                    words=record.words,
                    kind=record.kind,
                    level=record.level,
                )
            )


def changes(before: FleetState, after: FleetState, at: float, unix_ms: UnixMs) -> Iterator[Shown]:
    """What one event changed of the states of hosts and replicas, and which drifts came and went."""
    if before is after:
        return
    for host, now in after.hosts.items():
        then = before.hosts[host]
        if now.state is not then.state:
            yield _changed(at, unix_ms, "host", host, (then.state.value, now.state.value), now.words)
    if before.replicas is not after.replicas:
        for name in sorted({*before.replicas, *after.replicas}):
            was, is_now = before.replicas.get(name), after.replicas.get(name)
            states = (_state_of(was), _state_of(is_now))
            if states[0] != states[1] or _generation(was) != _generation(is_now):
                yield _changed(at, unix_ms, "replica", name, states, _why(is_now))
    if before.drifts is not after.drifts:
        yield from _drift_changes(before.drifts, after.drifts, at, unix_ms)


def _drift_changes(before: tuple[Drift, ...], after: tuple[Drift, ...], at: float, unix_ms: UnixMs) -> Iterator[Shown]:
    was, now = {each.id: each for each in before}, {each.id: each for each in after}
    for name, drift in now.items():
        if name not in was or was[name].version != drift.version:
            words = f"{drift.one_source} {drift.one}, {drift.other_source} {drift.other}. {drift.consequence}"
            yield _changed(at, unix_ms, "drift", name, ("open" if name in was else "", "open"), words)
    for name in was.keys() - now.keys():
        yield _changed(at, unix_ms, "drift", name, ("open", ""), "both sides are equal again, or one is gone")


def _changed(at: float, unix_ms: UnixMs, what: str, subject: str, states: tuple[str, str], words: str) -> Shown:
    return Shown(at=at, unix_ms=unix_ms, what=what, subject=subject, before=states[0], after=states[1], words=words)


def _state_of(view: ReplicaView | None) -> str:
    return view.state.value if view is not None else ""


def _generation(view: ReplicaView | None) -> int:
    return view.load_generation if view is not None else 0


def _why(view: ReplicaView | None) -> str:
    if view is None:
        return "no host has anything of it any more"
    return view.words or f"generation {view.load_generation}, {view.ranks_ready} of {view.world_size} ranks ready"
