"""The adoption document for people: who reported what, what could be stopped, what is held, and every reason."""

from __future__ import annotations

from backend.api import AdoptionDocument, HeldBack, ReplicaFound, Stoppable, said_by
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.foreign import foreign_lines
from console.render.values import clock, generation, plural, size

_CLAIM_STYLES = {"adopted": "state.ready", "unclaimed": "state.warn"}


def adoption_lines(document: AdoptionDocument, look: Look, width: int, chosen: str | None = None) -> list[Line]:
    """The whole document; ``chosen`` is the id of the shard or foreign engine under the cursor."""
    out = [*heard_lines(document, width), line("")]
    for each in document.stoppable:
        out += stoppable_lines(each, look, width, is_chosen=each.id == chosen)
    for found in document.foreign:
        out += foreign_lines(found, look, width, is_chosen=found.id == chosen)
    return [*out, *rest_lines(document, look, width)]


def rest_lines(document: AdoptionDocument, look: Look, width: int) -> list[Line]:
    """Everything but what could be stopped or adopted: first what is not as it should be, then what is, and why."""
    out: list[Line] = []
    for replica in document.replicas:
        if not _is_whole(replica):
            out += _replica_lines(replica, look, width)
    out += _section("held", [_held_words(each, look) for each in document.held], width)
    out += _section(
        "orphans",
        [f"{e.subject} on {e.host}, {generation(e.generation, look)}: {e.why}" for e in document.orphans],
        width,
    )
    out += _section(
        "ghosts",
        [f"{e.subject} on {e.host}, {generation(e.generation, look)}: {e.why}" for e in document.ghosts],
        width,
    )
    drifts = [f"{plural(len(document.drifts), 'drift')} open: ringtop drift"] if document.drifts else []
    out += _section("drift", drifts, width)
    for replica in document.replicas:
        if _is_whole(replica):
            out += _replica_lines(replica, look, width)
    decisions = [f"{each.what} {each.subject}: {each.reason} (rule {each.rule})" for each in document.decisions]
    return [*out, *_section("decisions", decisions, width)]


def heard_lines(document: AdoptionDocument, width: int) -> list[Line]:
    """How many hosts answered, how much could be stopped, and the digest that is confirmed."""
    style = "state.ready" if not document.silent else "state.warn"
    stop = plural(len(document.stoppable), "shard")
    out: list[Line] = [
        line(
            cell(f" {document.heard_words}", style),
            cell(f"   {stop} could be stopped", "alarm" if document.stoppable else "plain"),
            cell(f"   document {document.digest[:8]}", "note"),
        )
    ]
    if document.silent:
        out += wrapped(f"{said_by(document.silent)}. What runs there is as last heard.", width, 1, "state.warn")
    if document.catalog_words:
        words = f"{document.catalog_words} Nothing counts as unclaimed until the catalog is read whole."
        out += wrapped(words, width, 1, "state.warn")
    return out


def stoppable_lines(each: Stoppable, look: Look, width: int, *, is_chosen: bool = False) -> list[Line]:
    """One stray or unclaimed shard: where and who it is, and why it is unwanted."""
    mark = look.glyphs.cursor if is_chosen else " "
    head = line(
        cell(f"{mark}{each.kind} ", "alarm"), cell(each.node_id, "name"), cell(f" on {each.host}  {each.state}")
    )
    return [head, *wrapped(who_words(each, look), width, 5, "value"), *wrapped(each.why, width, 5), line("")]


def who_words(each: Stoppable, look: Look) -> str:
    """Pid, start time, generation and bytes held: what a person confirms before a stop.

    Of what an engine's own agent runs: its node, address and generation there.
    """
    started = f"started {clock(each.started_unix_ms, look)}" if each.started_unix_ms else "start time unknown"
    resident = f", {size(each.resident)} measured" if each.resident is not None else ""
    ports = f", port {' '.join(map(str, each.ports))}" if each.ports else ""
    if each.address:
        held = f"{size(each.memory)} of {each.device}" if each.memory else "an unknown amount"
        return (
            f"node {each.node} at {each.address}, {started}, generation {each.node_generation}, holds {held}"
            f"{resident}{ports}"
        )
    return (
        f"pid {each.pid}, {started} (ticks {each.start_ticks}), generation {each.load_generation}, holds "
        f"{size(each.memory)} of {each.device}{resident}{ports}"
    )


def _is_whole(replica: ReplicaFound) -> bool:
    return replica.claim == "adopted" and replica.state == "ready"


def _replica_lines(replica: ReplicaFound, look: Look, width: int) -> list[Line]:
    head = line(
        cell(f" {replica.id}", "name"),
        cell(f"  {replica.claim}", _CLAIM_STYLES.get(replica.claim, "plain")),
        cell(f"  {replica.state}  {replica.model}:{replica.profile_name}"),
        cell(f"  generation {generation(replica.generation, look)}, {plural(replica.world_size, 'rank')}"),
    )
    out: list[Line] = [head]
    for each in replica.reporters:
        other = "" if each.generation == replica.generation else f", generation {generation(each.generation, look)}"
        pid = f"pid {each.pid}" if each.pid is not None else f"at {each.asked_at}" if each.asked_at else "no process"
        out.append(line(cell(f"     rank {each.rank} reported by {each.host}: {each.state}, {pid}{other}")))
    for words in replica.missing.values():
        out += wrapped(f"missing: {words}", width, 5, "state.warn")
    return [*out, line("")]


def _held_words(each: HeldBack, look: Look) -> str:
    what = f"ports {' '.join(map(str, each.ports))}" if each.ports else f"{size(each.memory)} of {each.device}"
    return (
        f"{each.node_id} on {each.host}, {generation(each.generation, look)}: {each.kind}, {what}, until {each.until}"
    )


def _section(title: str, texts: list[str], width: int) -> list[Line]:
    if not texts:
        return []
    return [line(cell(f" {title}", "head")), *(each for text in texts for each in wrapped(text, width, 3)), line("")]
