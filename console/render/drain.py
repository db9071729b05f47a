"""A drain in numbers: how much is in flight, how old the oldest is, how much time is left, and who counted."""

from __future__ import annotations

from backend.api import ReplicaView
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.replicas import hosts_of
from console.render.values import age_note, ago, countdown, duration, is_overdue, number, plural
from console.render.words import ENDED
from console.safe_text import safe_text, width_of


def at_deadline_words(choice: str) -> str:
    """What happens when the time is over and requests are still in flight."""
    return "stop it and cut what is in flight" if choice == "stop" else "give up and leave it serving"


def spread(view: ReplicaView) -> str:
    """How many ranks on how many hosts."""
    return f"{plural(view.world_size, 'rank')} on {plural(hosts_of(view), 'host')}"


def source_words(view: ReplicaView, look: Look, *, with_age: bool = False) -> str:
    """Where the counts come from and how old they are, if that is much or asked for; unknown is said, never 0."""
    if not view.source:
        return "nobody counts the requests of this replica"
    if is_overdue(view.measured_at, look):
        return f"from {view.source}, {age_note(view.measured_at, look)}"
    leader = next((each for each in view.shards if each.shard.rank == 0), None)
    words = leader.measurement.words if leader is not None and leader.measurement is not None else ""
    source = f"from {view.source}" + (f": {words}" if words else "")
    if with_age and view.measured_at:
        return f"{source}, {duration(round(max(0.0, look.now - view.measured_at)))} ago"
    return source


def counts_line(view: ReplicaView, look: Look) -> Line:
    """The two counts of what is in flight now."""
    style = "old" if is_overdue(view.measured_at, look) else "value"
    in_flight, oldest = number(view.in_flight), duration(view.oldest_seconds)
    if view.in_flight == 0:
        oldest = "-"
    return line(
        "  in flight ",
        cell(in_flight, "unknown" if in_flight == "?" else style),
        "   oldest ",
        cell(oldest, "unknown" if oldest == "?" else style),
        "   queue ",
        cell(number(view.queued), "unknown" if view.queued is None else style),
    )


def arrived_words(view: ReplicaView) -> str:
    """How many requests came since the drain began. The engine counts none, so what is known is a least number."""
    if view.arrived is None:
        return "arrived since the drain began: ?"
    return f"arrived since the drain began: {'at least ' if view.arrived else ''}{number(view.arrived)}"


def clients_words(view: ReplicaView) -> str:
    """Who is connected to the leader: its addresses with how many connections each has."""
    if view.clients is None:
        return "connections from ?"
    if not view.clients:
        return "no client is connected"
    named = ", ".join(f"{each.address} ({each.connections})" for each in view.clients)
    more = f" and {plural(view.clients_beyond, 'more address', 'more addresses')}" if view.clients_beyond else ""
    return f"connections from {named}{more}"


def _clients_lines(view: ReplicaView, width: int) -> list[Line]:
    return wrapped(clients_words(view), width, 2, "unknown" if view.clients is None else "plain")


def before_lines(view: ReplicaView, look: Look, width: int) -> list[Line]:
    """What a drain would start from."""
    out = [line(cell(f" {view.id}", "name"), f"   {spread(view)}"), counts_line(view, look)]
    return out + wrapped(source_words(view, look), width, 2, "note")


def live_lines(view: ReplicaView | None, replica: str, look: Look, width: int) -> list[Line]:
    """A drain under way, or how it ended."""
    if view is None:
        return [line(cell(f" {replica} is gone: every agent saw its exit.", "state.ready"))]
    drain = view.drain
    out = [line(cell(f" {view.id}", "name"), f"   {spread(view)}   ", cell(view.state.value, "state.busy"))]
    if drain is None:
        if view.state.value in ("stopped", "failed"):
            return [*out, *wrapped(view.words or f"The replica is {view.state.value}.", width, 2)]
        return [*out, counts_line(view, look), line(cell("  The drain has not reached an agent yet.", "unknown"))]
    if drain.outcome:
        style = "state.ready" if drain.outcome == "done" else "state.warn"
        out.append(line("  The drain ended: ", cell(drain.outcome, style)))
        return [*out, counts_line(view, look), *wrapped(source_words(view, look), width, 2, "note")]
    out.append((*counts_line(view, look), cell("   left "), cell(countdown(view.drain_left_ms), "value")))
    out += wrapped(source_words(view, look, with_age=True), width, 2, "note")
    out += wrapped(f"at the deadline: {at_deadline_words(drain.at_deadline)}", width, 2)
    gate = drain.admission_closed_by
    closed = f"admission is closed by {gate}" if gate else "admission is open: new requests may come"
    arrived = arrived_words(view)
    if width_of(arrived) + width_of(safe_text(closed)) + 6 < width:
        pieces = (cell(f"  {arrived}   ", "unknown" if view.arrived is None else "plain"),)
        out.append(line(*pieces, cell(closed, "plain" if gate else "state.warn")))
    else:
        out += wrapped(arrived, width, 2, "unknown" if view.arrived is None else "plain")
        out += wrapped(closed, width, 2, "plain" if gate else "state.warn")
    out += _clients_lines(view, width)
    reason = f", because {drain.why}" if drain.why else ""
    return out + wrapped(f"by {drain.by}{reason}, last changed {ago(drain.at_unix_ms, look)}", width, 2, "note")


def cuts_words(view: ReplicaView | None) -> str:
    """What a stop right now would cut."""
    if view is not None and view.state.value in ENDED:
        return "nothing: no process is left"
    if view is None or view.in_flight is None:
        return "an unknown number of requests"
    return plural(view.in_flight, "request")
