"""One shard in full: what was planned, what its agent says, what its engine reported, how it ended."""

from __future__ import annotations

from backend.api import Exit, FleetState, Shard, ShardView, TakenOver
from console.render.cells import Line, Look, cell, line, wrapped
from console.render.plan import layers_of
from console.render.shards import last_words
from console.render.values import ago, clock, duration, number, size
from console.render.words import state_cell

_GENERATION_STYLES = {"equal": "plain", "differs": "alarm", "unknown": "unknown"}


def find_shard(state: FleetState, node_id: str) -> ShardView | None:
    """The shard in this slot, if any agent reports one."""
    for view in state.replicas.values():
        for each in view.shards:
            if each.shard.node_id == node_id:
                return each
    return None


def shard_page(state: FleetState, node_id: str, look: Look, width: int) -> list[Line]:
    """Everything known of one shard."""
    view = find_shard(state, node_id)
    if view is None:
        return [line(f" {node_id} is no longer there.")]
    shard = view.shard
    out = [
        line(cell(f" {node_id}  ", "name"), state_cell(view.state), f"  {ago(shard.since_unix_ms, look)}"),
        line(f" {shard.role} on {shard.host}, device {shard.device}, layers {layers_of(shard.layers)}"),
        line(f" {shard.engine} {shard.release}   {shard.model}:{shard.profile_name}"),
        line(
            f" load generation {shard.load_generation}   node generation ",
            cell(str(shard.node_generation), _GENERATION_STYLES[view.generation]),
            "" if shard.taken_over is None else "   (of the adoption: its engine knows of none)",
        ),
        line(f" ports {', '.join(map(str, shard.ports)) or 'none'}   advertises {shard.advertise or '?'}"),
        line(f" operation {shard.op_id}"),
    ]
    if shard.identity is not None:
        out.append(line(f" process {shard.identity.pid}, started at tick {shard.identity.start_ticks}"))
    if shard.resident is not None:
        out.append(line(f" {shard.resident.words}, which its own agent runs"))
    if shard.taken_over is not None:
        out += wrapped(_adopted_words(shard.taken_over, look), width, 1, "state.warn")
    out += _memory_lines(view, shard)
    if shard.exit is None:
        out += wrapped(last_words(view, look), width, 1) if last_words(view, look) else []
        return out
    return out + _exit_lines(shard.exit, look, width)


def _adopted_words(taken: TakenOver, look: Look) -> str:
    """Who took it over, and whose it was."""
    why = f", because {taken.why}" if taken.why else ""
    started = clock(taken.started_unix_ms, look) if taken.started_unix_ms else "?"
    return (
        f"adopted by {taken.by} at {clock(taken.at_unix_ms, look)}{why}: {taken.program} of "
        f"{taken.started_by or '?'}, started {started}, which no agent started"
    )


def _memory_lines(view: ShardView, shard: Shard) -> list[Line]:
    bound = shard.bound
    if shard.taken_over is not None:
        held = size(shard.taken_over.memory)
        return [line(f" bound ?: nobody derived one; it held {held} when it was adopted"), *_measured_lines(view)]
    kind = "derived" if bound.derived else "estimated, and compared with nothing"
    out = [
        line(
            f" weights {number(bound.weights)}   KV {number(bound.kv)}   ({kind})"
            f"   compute {size(bound.compute)}, an estimate"
        )
    ]
    if view.reported is not None:
        style = "alarm" if view.bound == "differs" else "plain"
        out.append(
            line(
                " engine reported: weights ",
                cell(number(view.reported.weights), style),
                "   KV ",
                cell(number(view.reported.kv), style),
                f"   compute {size(view.reported.compute)}",
            )
        )
    if shard.reported_result is not None:
        style = "plain" if shard.reported_result == bound.result else "alarm"
        out.append(
            line(
                f" largest result {number(bound.result)}   engine reported ",
                cell(number(shard.reported_result), style),
                f"   of at most {number(bound.result_limit)}",
            )
        )
    if shard.reported_release:
        out.append(line(f" engine said it is {shard.reported_release}"))
    return out + _measured_lines(view)


def _measured_lines(view: ShardView) -> list[Line]:
    measured = view.measurement
    if measured is None:
        return []
    oldest = duration(measured.oldest_seconds)
    return [
        line(f" measured: memory {size(measured.memory)}   in flight {number(measured.in_flight)}   oldest {oldest}")
    ]


def _exit_lines(end: Exit, look: Look, width: int) -> list[Line]:
    known = [f"{name} {value}" for name, value in (("code", end.code), ("signal", end.signal)) if value is not None]
    how = "   ".join(known) or "how is not known"
    out = [line(cell(f" ended {clock(end.at_unix_ms, look)}: {end.words}", "alarm"), f"   {how}")]
    if end.log_tail:
        out.append(line(cell(" its last lines", "head")))
    for text in end.log_tail:
        out += wrapped(text, width, 2)
    return out


def log_lines(text: str, width: int) -> list[Line]:
    """Engine output as lines that fit, control characters made visible."""
    return [each for row in text.splitlines() for each in wrapped(row, width, 1)]
