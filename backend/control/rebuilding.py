"""A lost ledger, written anew from the load records that the agents keep. Pure, but for the files at the end."""

from __future__ import annotations

from pathlib import Path

import msgspec

from backend.contract.entities import LoadRecord
from backend.contract.naming import few_of
from backend.contract.states import HostState
from backend.contract.words import HostId, OpId, UnixMs
from backend.control.ledger import ENDED, Operation, Step, console_of, create, ledger_path, set_aside
from backend.control.ledger_views import read_operation, view_of
from backend.control.operations.load import targets_of
from backend.control.operations.settle import conclude
from backend.control.views import FleetState

_RESERVE = "-reserve-"
UNKNOWN_PARTS = (
    "unknown: when each step was taken, and what became of it",
    "unknown: whether survivors were to be kept on failure; a roll back stops them all",
    "unknown: warnings that were confirmed, and logs that were kept",
)


class Rebuilt(msgspec.Struct, frozen=True):
    """One entry that was written anew; ``state`` is succeeded, failed, unknown or ownerless."""

    op_id: OpId
    subject: str
    state: str
    words: str


class Restored(msgspec.Struct, frozen=True):
    """What a rebuild did: which hosts were not asked, and which loads have a living process elsewhere."""

    written: tuple[Rebuilt, ...]
    silent: tuple[HostId, ...]
    elsewhere: tuple[OpId, ...]

    @property
    def words(self) -> str:
        """In one line."""
        parts = [f"{len(self.written)} written anew"]
        if self.elsewhere:
            parts.append(f"left alone, as its process is connected from elsewhere: {few_of(self.elsewhere)}")
        elif not self.written:
            parts = ["nothing to do: every load record has its ledger"]
        if self.silent:
            parts.append(f"not asked: {few_of(self.silent)}")
        return "; ".join(parts)


class Lost(msgspec.Struct, frozen=True):
    """A load that agents keep a record of and the ledger lacks: the record, and at which hosts."""

    op_id: OpId
    record: LoadRecord
    hosts: tuple[HostId, ...]


def find_lost(state: FleetState, folder: Path) -> tuple[Lost, ...]:
    """Every load of a live or ended shard whose ledger file is not there, or cannot be read at all; oldest first."""
    records: dict[OpId, dict[HostId, LoadRecord]] = {}
    for name, view in state.hosts.items():
        adopted = {shard.op_id for shard in view.entities.shards.values() if shard.taken_over is not None}
        for record in view.entities.loads.values():
            if record.op_id in adopted:
                continue  # no operation of a ledger loaded it
            records.setdefault(operation_of(record), {})[name] = record
    lost = [
        Lost(op_id, min(kept.values(), key=lambda record: record.at_unix_ms), tuple(sorted(kept)))
        for op_id, kept in records.items()
        if _is_unreadable(ledger_path(folder, op_id))
    ]
    return tuple(sorted(lost, key=lambda each: (each.record.at_unix_ms, each.op_id)))


def is_run_elsewhere(lost: Lost, state: FleetState) -> bool:
    """Its process is connected to an agent: it has a ledger of its own in another home, and must not be run twice."""
    console = console_of(lost.op_id)
    return any(each.console == console for view in state.hosts.values() for each in view.present)


def operation_of(record: LoadRecord) -> OpId:
    """The operation that a load record belongs to: its own id is that of the reservation."""
    return OpId(record.op_id.rpartition(_RESERVE)[0] or record.op_id)


def rebuild(lost: Lost, state: FleetState, folder: Path) -> Rebuilt:
    """Write one entry: ended when the fleet says how it ended, else without an owner. OSError, LedgerError."""
    operation, steps = entry_of(lost, state)
    conclusion = conclude(view_of(operation, (), owned=lambda: False), state)
    if not conclusion.is_open:
        end = Step(
            at_unix_ms=_ended_at(operation, state),
            target=operation.subject,
            what=ENDED,
            words=f"{conclusion.words}; concluded from what the fleet says",
            lines=conclusion.lines,
            exit_code=conclusion.code,
        )
        steps = (*steps, end)
    path = ledger_path(folder, operation.op_id)
    if path.exists():
        set_aside(path)
    writer = create(folder, operation)
    try:
        for step in steps:
            writer.append(step)
    finally:
        writer.close()
    view = read_operation(path)
    words = view.words if not conclusion.is_open else f"open: {conclusion.words}"
    return Rebuilt(operation.op_id, operation.subject, view.state, words)


def _ended_at(operation: Operation, state: FleetState) -> UnixMs:
    """When the last of its ranks came into the state that it is in; when it was loaded, if none is there."""
    found = [operation.started_unix_ms]
    for target in operation.targets:
        shard = state.hosts[target.host].entities.shards.get(target.node_id) if target.host in state.hosts else None
        if shard is not None and shard.node_generation == target.node_generation:
            found.append(shard.since_unix_ms)
    return max(found)


def entry_of(lost: Lost, state: FleetState) -> tuple[Operation, tuple[Step, ...]]:
    """The operation and the steps that are certain: where it reserved, and which ranks were sent out."""
    plan, at = lost.record.plan, lost.record.at_unix_ms
    operation = Operation(
        op_id=lost.op_id,
        kind="load",
        subject=plan.replica,
        by=lost.record.by,
        context=state.context,
        load_generation=plan.load_generation,
        targets=targets_of(plan),
        options={"rebuilt": True},
        started_unix_ms=at,
        plan=plan,
    )
    silent = [host for host in plan.hosts if host not in state.hosts or state.hosts[host].state is not HostState.LIVE]
    unheard = tuple(f"unknown: what {host} kept of it, which does not answer" for host in silent)
    words = f"written anew from the load records at {', '.join(lost.hosts)}"
    steps = [Step(at_unix_ms=at, target=plan.replica, what="rebuilt", words=words, lines=(*UNKNOWN_PARTS, *unheard))]
    steps += [
        Step(at_unix_ms=at, target=host, what="reserve", words=f"a record of it is kept by {host}")
        for host in lost.hosts
    ]
    steps += [
        Step(at_unix_ms=at, target=shard.node_id, what="load", words=f"rank {shard.rank} may have been sent")
        for shard in plan.shards
    ]
    return operation, tuple(steps)


def _is_unreadable(path: Path) -> bool:
    """There is no such file, or not even its first line can be read."""
    if not path.exists():
        return True
    view = read_operation(path)
    return view.state == "damaged" and not view.targets
