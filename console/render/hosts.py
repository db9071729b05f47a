"""The hosts of the fleet as rows, and one host in full."""

from __future__ import annotations

from backend.api import Cordon, DeviceFacts, FleetState, ForeignProcess, Hold, HostFacts, HostId, HostView, Illness
from console.render.cells import Cell, Column, Line, Look, Row, Table, cell, folded, line, right
from console.render.residents import resident_lines
from console.render.values import age_note, ago, clock, duration, number, plural, size
from console.render.words import state_cell

COLUMNS = (
    Column("HOST", least=4),
    Column("STATE"),
    Column("SHARDS", "right", drop=3),
    Column("DEVICES", drop=1, flex=True, least=8),
    Column("FREE", "right", drop=2),
    Column("CLOCK", "right", drop=4),
    Column("", flex=True, least=6),
)
NO_HOST = "This context names no host."
ProcessKey = tuple[str, int]
"""A process of one machine: the id of its boot, and the pid."""
CLOCK_WARNING_MS = 1000
"""A clock that is further off than this is loud."""


def clock_cell(offset_ms: int | None) -> Cell:
    """How far the agent's clock is from ours: quiet within a second."""
    if offset_ms is None:
        return right("?", "unknown")
    if abs(offset_ms) < CLOCK_WARNING_MS:
        return right("=", "quiet")
    return right(f"{offset_ms / 1000:+.1f} s", "state.warn")


def room_on(device: DeviceFacts) -> int:
    """What a device can still take: what is free there now, within what its agent may promise of it."""
    return max(0, min(device.free, device.total - device.committed))


def _live_shards(view: HostView) -> int:
    ended = ("stopped", "failed", "reserved")
    return sum(1 for shard in view.entities.shards.values() if shard.state not in ended)


def of_the_fleet(state: FleetState) -> frozenset[ProcessKey]:
    """What an agent took for foreign and another one runs: several agents of one machine see each other's engines."""
    foreign = {
        (view.facts.boot_id, each.pid)
        for view in state.hosts.values()
        if view.facts is not None
        for each in view.facts.foreign
    }
    if not foreign:
        return frozenset()
    shards = (shard for view in state.hosts.values() for shard in view.entities.shards.values())
    known = {(shard.identity.boot_id, shard.identity.pid) for shard in shards if shard.identity is not None}
    return frozenset(foreign & known)


def _strangers(facts: HostFacts, ours: frozenset[ProcessKey]) -> list[ForeignProcess]:
    """The engines of a host that no agent of the fleet started."""
    return [each for each in facts.foreign if (facts.boot_id, each.pid) not in ours]


def host_words(
    view: HostView, look: Look, ours: frozenset[ProcessKey] = frozenset(), *, with_illnesses: bool = True
) -> str:
    """Why a host is not live, what it refuses, how long it has been silent; ``ours`` are no foreign engines."""
    notes = [view.words]
    notes.append(cordon_words(view.entities.cordon, look))
    if view.facts is not None:
        if view.facts.refuses_loads:
            notes.append(f"refuses loads: {view.facts.refuses_loads}")
        if with_illnesses:
            notes += [_illness_words(ill) for ill in view.facts.illnesses if ill.words not in view.facts.refuses_loads]
        if strangers := _strangers(view.facts, ours):
            notes.append(plural(len(strangers), "foreign engine"))
    if view.facts is not None:
        notes.append(age_note(view.heard_at, look))
    return "  ".join(note for note in notes if note)


def cordon_words(cordon: Cordon | None, look: Look) -> str:
    """Who keeps new shards away, since when and why, in the viewer's time; empty where nobody does."""
    if cordon is None:
        return ""
    until = "" if cordon.until_unix_ms is None else f", until {clock(cordon.until_unix_ms, look, seconds=False)}"
    why = f": {cordon.why}" if cordon.why else ""
    return f"cordoned by {cordon.by} {ago(cordon.at_unix_ms, look)}{until}{why}"


def host_state(view: HostView) -> str:
    """The word for a host: whether it is there and can write, then whether it takes new shards, or is being emptied."""
    if view.state.value != "live":
        return view.state.value
    if view.facts is not None and any(ill.kind == "journal damaged" for ill in view.facts.illnesses):
        return "damaged journal"
    if view.entities.cordon is None:
        return view.state.value
    drains = any(not drain.outcome for drain in view.entities.drains.values())
    return "draining" if drains else "cordoned"


def _illness_words(ill: Illness) -> str:
    """An illness in a table, with all of its words: what is cut stands whole below, where there is room."""
    return f"{ill.kind}: {ill.words}"


def host_cells(view: HostView, look: Look, ours: frozenset[ProcessKey] = frozenset()) -> Line:
    """One host: is it there, what it runs, what it has."""
    facts = view.facts
    if facts is None:
        shards, devices, free = right("?", "unknown"), cell("?", "unknown"), right("?", "unknown")
    else:
        style = "plain" if view.state.value == "live" else "old"
        shards = right(_live_shards(view), style)
        devices = cell(" ".join(device.name for device in facts.devices) or "none", style)
        free = right(size(sum(room_on(device) for device in facts.devices if not device.same_as)), style)
    return (
        cell(view.host, "name"),
        state_cell(host_state(view)),
        shards,
        devices,
        free,
        clock_cell(view.clock_ahead_ms),
        cell(host_words(view, look, ours), "state.warn" if _is_ill(view) else "note"),
    )


def _is_ill(view: HostView) -> bool:
    if host_state(view) != "live":
        return True
    return view.facts is not None and bool(view.facts.refuses_loads or view.facts.illnesses)


def host_table(state: FleetState, look: Look) -> Table:
    """All hosts, in the order of their names."""
    ours = of_the_fleet(state)
    rows = tuple(Row(view.host, host_cells(view, look, ours)) for view in state.hosts.values())
    return Table(COLUMNS, rows, NO_HOST)


def host_page(state: FleetState, host: str, look: Look, width: int | None = None) -> list[Line]:
    """Everything known of one host."""
    view = state.hosts.get(HostId(host))
    if view is None:
        return [line(f"{host} is no longer in this context.")]
    ours = of_the_fleet(state)
    lines = [
        line(cell(view.host, "name"), "  ", state_cell(host_state(view)), "  ", cell(view.address, "note")),
        line(host_words(view, look, ours, with_illnesses=False)),
        line(f"agent {view.agent_version or '?'}   epoch {view.agent_epoch or '?'}   revision {view.revision}"),
        line(f"journal {view.journal_id or '?'}   at record {number(view.head_seq)}"),
        line(
            f"round trip {duration(None if view.round_trip_ms is None else view.round_trip_ms / 1000)}   clock ",
            clock_cell(view.clock_ahead_ms),
        ),
    ]
    if view.facts is not None:
        lines += _illness_lines(view.facts, look)
    lines += _fact_lines(view, look)
    if view.facts is not None:
        lines += _foreign_lines(_strangers(view.facts, ours), look)
    lines += [
        line(cell("hold ", "state.warn"), f"{_held(hold)} of {hold.node_id}, until {hold.until or 'proven free'}")
        for hold in view.entities.holds.values()
    ]
    lines += _keeping_lines(view, look)
    lines += [
        line(f"also here: {other.who} ({other.console}), {ago(other.since_unix_ms, look)}") for other in view.present
    ]
    said = [each for each in lines if any(piece.text for piece in each)]
    return said if width is None else folded(said, width - 1, 4)


def _keeping_lines(view: HostView, look: Look) -> list[Line]:
    """Who keeps the fleet as this host knows it, and what people decided that the keeper obeys."""
    lines = []
    if lease := view.entities.keeper:
        how = f"lease {lease.ended}" if lease.ended else f"since {clock(lease.at_unix_ms, look)}"
        lines.append(line(f"kept by {lease.who}, keeper_epoch {lease.keeper_epoch}, {how}"))
    for _, held in sorted(view.entities.operator_holds.items()):
        until = "until it is resumed" if held.until_unix_ms is None else f"until {clock(held.until_unix_ms, look)}"
        why = f": {held.why}" if held.why else ""
        words = f"  {held.scope} {held.subject} by {held.by} {until}{why}"
        lines.append(line(cell(held.kind, "state.warn"), words))
    return lines


def _held(hold: Hold) -> str:
    """What is kept back: ports by number, memory by size; the kind alone for anything else."""
    if hold.ports:
        return plural(len(hold.ports), "port") + " " + ", ".join(str(port) for port in hold.ports)
    if hold.memory:
        return f"{size(hold.memory)} of {hold.device}"
    return f"{hold.kind} {hold.device}".rstrip()


def _illness_lines(facts: HostFacts, look: Look) -> list[Line]:
    return [
        line(
            cell(ill.kind, "alarm" if ill.refuses_loads else "state.warn"),
            f"  {ill.words}  {ago(ill.since_unix_ms, look)}{'  refuses loads' if ill.refuses_loads else ''}",
        )
        for ill in facts.illnesses
    ]


def _foreign_lines(strangers: list[ForeignProcess], look: Look) -> list[Line]:
    """Engines that somebody else started: nothing here touches them."""
    lines = []
    for process in strangers:
        ports = f"  port {', '.join(str(port) for port in process.ports)}" if process.ports else ""
        who = f"process {process.pid} of {process.user or '?'}, started {ago(process.started_unix_ms, look)}"
        held = f"{size(process.holds)}{' on ' + ', '.join(process.devices) if process.devices else ''}"
        words = f"  {who}{ports}  {held}  {process.model}".rstrip()
        lines.append(line(cell(f"foreign {process.program}", "state.warn"), words))
    return lines


def _fact_lines(view: HostView, look: Look) -> list[Line]:
    facts = view.facts
    if facts is None:
        return [line(cell("No facts yet: this host has not reported since the console started.", "unknown"))]
    low, high = facts.ports
    lines = [
        line(f"advertises {facts.advertise or '?'}   ports {low}-{high}, {len(facts.ports_in_use)} in use"),
        line(f"{facts.cpu_count} processors   memory {size(facts.memory_free)} free of {size(facts.memory_total)}"),
        line(f"models in {', '.join(facts.model_roots) or 'no folder'}   journal {facts.journal}"),
    ]
    for device in facts.devices:
        lines.append(
            line(
                cell(f"device {device.name}", "name"),
                f"  {device.kind}  room for {size(room_on(device))} of {size(device.total)}, "
                f"{size(device.committed)} promised, {size(device.free)} free now  {device.words}".rstrip()
                + (f" of {ago(device.listed_unix_ms, look)}" if device.listed_by else ""),
            )
        )
    for engine in facts.engines:
        lines.append(
            line(cell(f"engine {engine.engine}", "name"), f"  {engine.release}  {engine.folder}  {engine.words}")
        )
        if engine.resident is not None:
            lines += resident_lines(engine.resident)
    return lines
