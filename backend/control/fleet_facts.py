"""The fleet state as plans and operations need it: the live hosts' reports, and shards as targets."""

from __future__ import annotations

from collections.abc import Iterable

from backend.contract.reports import HostReport
from backend.contract.states import HostState
from backend.contract.words import HostId, NodeGeneration, NodeId
from backend.control.views import FleetState, HostView, OperationView, Target
from backend.planning.fleet import FleetFacts


def fleet_facts(state: FleetState) -> FleetFacts:
    """The live hosts' reports as a plan needs them, and why the others are silent."""
    live = [view for view in state.hosts.values() if _is_live(view)]
    return FleetFacts(
        reports=tuple(_report(view) for view in live),
        unreachable=tuple((view.host, view.words) for view in state.hosts.values() if not _is_live(view)),
        clock_offsets_ms={view.host: ahead for view in live if (ahead := view.clock_ahead_ms) is not None},
    )


def _is_live(view: HostView) -> bool:
    return view.state is HostState.LIVE and view.facts is not None


def highest_planned(operations: Iterable[OperationView]) -> int:
    """The highest generation that any operation of a ledger is about, or was to bring up."""
    numbers = ((view.load_generation or 0, view.plan.load_generation if view.plan else 0) for view in operations)
    return max((max(pair) for pair in numbers), default=0)


def target_of(host: HostId, node_id: NodeId, rank: int, generation: int, engine: str) -> Target:
    """One shard as the target of an operation."""
    return Target(
        host=host, node_id=node_id, rank=rank, node_generation=NodeGeneration(generation), adapter_kind=engine
    )


def _report(view: HostView) -> HostReport:
    assert view.facts is not None
    return HostReport(
        host=view.host,
        agent_epoch=view.agent_epoch,
        journal_id=view.journal_id,
        journal_epoch=0,
        seq=view.head_seq,
        oldest_seq=0,
        revision=view.revision,
        facts=view.facts,
        entities=view.entities,
        measurements=tuple(view.measurements.values()),
        present=view.present,
    )
