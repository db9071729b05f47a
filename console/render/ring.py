"""A replica as the ring it is: its ranks in the order in which a token passes them, and where that breaks."""

from __future__ import annotations

from backend.api import FleetState, ReplicaView, ShardView
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.plan import layers_of
from console.render.replicas import replica_generation
from console.render.shards import last_words
from console.render.values import ago, duration, size
from console.render.words import state_cell
from console.safe_text import width_of

_WHOLE = frozenset({"ready", "draining"})


def _padded(text: str, width: int) -> str:
    return text + " " * max(0, width - width_of(text))


def _canary_words(view: ReplicaView, look: Look) -> Line:
    canary = view.canary
    if canary is None:
        return line(cell(" no canary has run", "unknown"))
    if canary.ok:
        return line(
            cell(f" canary crossed every rank in {duration(canary.seconds)}, {ago(canary.at_unix_ms, look)}", "note")
        )
    return line(cell(f" canary failed {ago(canary.at_unix_ms, look)}: {canary.words}", "alarm"))


def ring_lines(state: FleetState, replica: str, look: Look, width: int) -> list[Line]:
    """The ring from client to last rank and back; a rank that does not serve breaks it, in words."""
    view = next((each for each in state.replicas.values() if each.id == replica), None)
    if view is None:
        return [line(f" {replica} is no longer there.")]
    out: list[Line] = [
        line(
            cell(f" {view.id}  ", "name"),
            state_cell(view.state.value),
            f"  generation {replica_generation(view, Look(wide=True)).text}"
            f"  {view.ranks_ready} of {view.world_size} ranks ready",
        ),
        _canary_words(view, look),
    ]
    if view.words:
        out += wrapped(view.words, width, 1, "state.warn")
    if view.endpoint:
        out.append(line(cell(f" {view.endpoint}", "note")))
    out.append(line(""))
    known = {each.shard.rank: each for each in view.shards}
    hosts = max([4, *(width_of(each.shard.host) for each in view.shards)])
    devices = max([4, *(width_of(each.shard.device) for each in view.shards)])
    broken = False
    for rank in range(max(view.world_size, *(r + 1 for r in known)) if known else view.world_size):
        shard = known.get(rank)
        is_break = shard is None or shard.state not in _WHOLE
        if rank:
            out.append(_link(look, is_break=is_break and not broken))
        out += _rank_lines(rank, shard, look, width, (hosts, devices))
        broken = broken or is_break
    if not broken:
        out.append(line(cell(f"             {look.glyphs.back} client", "state.ready")))
    return out


def _link(look: Look, *, is_break: bool) -> Line:
    if is_break:
        return line(
            cell(f"             {look.glyphs.broken}", "alarm"),
            cell("   the ring is broken here", "alarm"),
        )
    return line(cell(f"             {look.glyphs.down}", "rule"))


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
