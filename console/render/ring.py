"""A replica as the ring it is: its ranks in the order in which a token passes them, and where that breaks."""

from __future__ import annotations

from backend.api import FleetState, LinkSeen, ReplicaId, ReplicaView, ShardView
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.plan import layers_of
from console.render.replicas import hosts_of, replica_generation
from console.render.shards import last_words
from console.render.values import ago, duration, plural, size
from console.render.words import state_cell
from console.safe_text import width_of

_WHOLE = frozenset({"ready", "draining"})
_MOST_RANKS = 1024
"""Ranks that nobody reports are listed up to here: what a host says of its ring may be any number."""
_LONG_OWED_SECONDS, _BROKEN_SECONDS = 5.0, 10.0
"""How long a rank may owe an answer before that is said, and before the ring counts as broken at it."""


def _padded(text: str, width: int) -> str:
    return text + " " * max(0, width - width_of(text))


def _canary_lines(view: ReplicaView, look: Look, width: int) -> list[Line]:
    canary = view.canary
    if canary is None:
        return [line(cell(" no canary has run", "unknown"))]
    when = ago(canary.at_unix_ms, look)
    if canary.ok:
        return [line(cell(f" canary crossed every rank in {duration(canary.seconds)}, {when}", "note"))]
    why = "" if canary.words in view.words else f": {canary.words}"
    return wrapped(f"canary failed {when}{why}", width, 1, "alarm")


def ring_lines(state: FleetState, replica: str, look: Look, width: int) -> list[Line]:
    """The ring from client to last rank and back; a rank that does not serve breaks it, in words."""
    view = state.replicas.get(ReplicaId(replica))
    if view is None:
        return [line(f" {replica} is no longer there.")]
    out: list[Line] = [
        line(
            cell(f" {view.id}  ", "name"),
            state_cell(view.state.value),
            f"  generation {replica_generation(view, Look(wide=True)).text}"
            f"  {view.ranks_ready} of {view.world_size} ranks ready on {plural(hosts_of(view), 'host')}",
        ),
        *_canary_lines(view, look, width),
    ]
    if view.words:
        out += wrapped(view.words, width, 1, "state.warn")
    if view.endpoint:
        out.append(line(cell(f" {view.endpoint}", "note")))
    out.append(line(""))
    known = {each.shard.rank: each for each in view.shards}
    hosts = max([4, *(width_of(each.shard.host) for each in view.shards)])
    devices = max([4, *(width_of(each.shard.device) for each in view.shards)])
    links = {link.rank: link for link in view.links}
    broken = False
    for rank in sorted({*range(min(view.world_size, _MOST_RANKS)), *known}):
        shard = known.get(rank)
        link = links.get(rank)
        cause = _break_words(rank, shard, link, view)
        is_break = bool(cause)
        far = shard is not None and 0 in known and shard.shard.host != known[0].shard.host
        if is_break and not broken:
            out += _broken(cause, look, width)
        elif rank:
            out += _link(rank, link, look, is_far=far)
        out += _rank_lines(rank, shard, look, width, (hosts, devices))
        broken = broken or is_break
    if not broken:
        out.append(line(cell(f"             {look.glyphs.back} client", "state.ready")))
    return out


def _break_words(rank: int, shard: ShardView | None, link: LinkSeen | None, view: ReplicaView) -> str:
    """Why no token passes this rank, or nothing while it passes."""
    if shard is None:
        return f"no agent reports rank {rank}"
    if shard.state not in _WHOLE:
        return f"rank {rank} on {shard.shard.host} is {shard.state}"
    owed = link.owed_seconds if link is not None and link.owed_seconds is not None else 0.0
    if owed >= _BROKEN_SECONDS or (owed and view.canary is not None and not view.canary.ok):
        return f"rank {rank} on {shard.shard.host} has not answered for {duration(owed)}"
    return ""


def _broken(cause: str, look: Look, width: int) -> list[Line]:
    lead = line(cell(f"             {look.glyphs.broken}   ", "alarm"))
    first, *rest = wrapped(f"the ring is broken here: {cause}", width - 1, 17, "alarm")
    return [(*lead, *first[1:]), *rest]


def _link(rank: int, link: LinkSeen | None, look: Look, *, is_far: bool) -> list[Line]:
    """The way of the leader to a rank: how long a round trip takes, from where to where between hosts."""
    lead = cell(f"             {look.glyphs.down}", "rule")
    if link is None:
        return [line(lead, cell("   round trip ?", "unknown"))]
    took = duration(None if link.round_trip_us is None else link.round_trip_us / 1e6)
    pieces = [lead, cell(f"   {took}", "note")]
    if rank > 1:
        pieces.append(cell("  from rank 0", "note"))
    if is_far:
        pieces.append(cell(f"  {link.local} {look.glyphs.arrow} {link.remote}", "note"))
    if link.owed_seconds is None or link.owed_seconds < _LONG_OWED_SECONDS:
        return [tuple(pieces)]
    return [tuple(pieces), line(lead, cell(f"   no answer for {duration(link.owed_seconds)}", "state.warn"))]


def _rank_lines(rank: int, view: ShardView | None, look: Look, width: int, widths: tuple[int, int]) -> list[Line]:
    lead = f"   client {look.glyphs.arrow} " if rank == 0 else "             "
    if view is None:
        return [line(cell(lead, "rule"), cell(f"{rank}  ", "name"), cell("no agent reports this rank", "alarm"))]
    shard = view.shard
    memory = None if view.measurement is None else view.measurement.memory
    layers = "no layer" if shard.layers is None else f"layers {layers_of(shard.layers)}"
    out = [
        line(
            cell(lead, "rule"),
            cell(f"{rank}  {_padded(shard.host, widths[0])}  ", "name"),
            f"{_padded(shard.device, widths[1])}  {_padded(layers, 13)}  ",
            state_cell(view.state),
            f"  {size(memory) if view.state not in ('stopped', 'failed') else ''}",
        )
    ]
    words = last_words(view, look)
    if words and view.state not in _WHOLE:
        out += wrapped(words, width, 16, "state.warn")
    return out
