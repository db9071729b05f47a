"""What people decided about replicas and models: the table of it, and what deciding it does, in words."""

from __future__ import annotations

from collections.abc import Sequence

from backend.api import FleetState, OperatorHold, ReplicaView, few_of, holds_in, no_such
from console.render.cells import Column, Line, Look, Row, Table, cell, line, wrapped
from console.render.values import clock, duration, plural
from console.render.words import ENDED

COLUMNS = (
    Column("HELD"),
    Column("", drop=1),
    Column("HOW"),
    Column("BY"),
    Column("UNTIL"),
    Column("WHY", flex=True, least=8),
)
UNTIL_RESUMED = "until somebody resumes it"


def until_words(held: OperatorHold, look: Look) -> str:
    """When it ends by itself."""
    return "it is resumed" if held.until_unix_ms is None else clock(held.until_unix_ms, look)


def holds_table(state: FleetState, look: Look) -> Table:
    """Everything that is held, by its name; the key is the subject."""
    rows = tuple(
        Row(
            held.subject,
            (
                cell(held.subject, "name"),
                cell(held.scope, "note"),
                cell(held.kind, "state.warn"),
                cell(held.by),
                cell(until_words(held, look)),
                cell(held.why, "note"),
            ),
        )
        for _, held in sorted(holds_in(state).items())
    )
    return Table(COLUMNS, rows, "Nothing is held: the keeper sees to every model that is on demand.")


def replicas_of(state: FleetState, subject: str) -> tuple[ReplicaView, ...]:
    """The replica of this name, else every replica of the model of this name or alias."""
    found = tuple(view for view in state.replicas.values() if view.id == subject)
    names = {subject, *(model.name for model in state.models.values() if subject in model.aliases)}
    return found or tuple(view for view in state.replicas.values() if view.model in names)


def scope_words(state: FleetState, subject: str) -> str:
    """What a name means: ``tiny-1``, or the model and what runs of it."""
    if any(view.id == subject for view in state.replicas.values()):
        return f"replica {subject}"
    running = len(replicas_of(state, subject))
    is_model = any(subject in (model.name, *model.aliases) for model in state.models.values())
    return f"model {subject}, {plural(running, 'replica')} of it" if is_model else subject


def unknown_words(state: FleetState, subject: str) -> str:
    """Why a name cannot be held, or nothing: a replica there or to come, or a model by its name or alias."""
    names = {name for model in state.models.values() for name in (model.name, *model.aliases)}
    prefix, _, number = subject.rpartition("-")
    if subject in names or (number.isdigit() and prefix in names) or replicas_of(state, subject):
        return ""
    return no_such("replica and no model", subject, (*state.replicas, *state.models))


def held_lines(state: FleetState, subject: str, look: Look, width: int) -> list[Line]:
    """What holds it already, if anything does."""
    held = next((each for each in holds_in(state).values() if each.subject == subject), None)
    if held is None:
        return []
    why = f": {held.why}" if held.why else ""
    words = f"It is {held.kind} already, by {held.by} until {until_words(held, look)}{why}. This replaces that."
    return wrapped(words, width, 1, "state.warn")


def lasts_words(seconds: float | None) -> str:
    """How long a hold will last."""
    return UNTIL_RESUMED if seconds is None else f"for {duration(seconds)}"


def pause_words(state: FleetState, subject: str, seconds: float | None) -> str:
    """What a pause does, and what it does not."""
    return (
        f"The keeper leaves {scope_words(state, subject)} alone {lasts_words(seconds)}: it neither loads, drains nor "
        "stops it. What serves goes on serving. People may still do all of that."
    )


def down_words(state: FleetState, subject: str, seconds: float | None) -> str:
    """What holding something down does now, and later."""
    views = replicas_of(state, subject)
    held = f"The keeper loads {scope_words(state, subject)} no more {lasts_words(seconds)}."
    return f"{held} {stop_words(views)}" + (" D drains instead." if any(is_running(view) for view in views) else "")


def is_running(view: ReplicaView) -> bool:
    """A process of it may be left."""
    return view.state.value not in ENDED


def stop_words(views: Sequence[ReplicaView]) -> str:
    """What stopping these replicas at once does: what is cut of those that run, and that the others are dismissed."""
    running = [view for view in views if is_running(view)]
    ended = [view.id for view in views if not is_running(view)]
    words = []
    if running:
        counts = [view.in_flight for view in running]
        known = sum(count for count in counts if count is not None)
        cut = "an unknown number of requests" if None in counts else plural(known, "request")
        words.append(f"Every rank of {few_of([view.id for view in running])} stops at once. This cuts {cut}.")
    if ended:
        words.append(f"What is left of {few_of(ended)} is dismissed.")
    return " ".join(words) or "Nothing of it runs now."


def resume_line(subject: str) -> Line:
    """What releasing it does."""
    return line(f" y releases {subject}: the keeper sees to it again at its next look.")
