"""No event looks at the whole fleet, and reports are folded many at once: what comes of it is the same as without."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.contract.naming import by_number
from backend.contract.words import AgentAddress, HostId, LoadGeneration, NodeId, ReplicaId, UnixMs
from backend.control.drift_hosts import AHEAD_MS, derive_host_drifts
from backend.control.fleet import Fleet, empty_fleet, fold_event, fold_reports
from backend.control.fleet_events import AnyFleetEvent
from backend.control.link_events import LinkDown, LinkUp, RecordsHeard
from backend.control.views import Drift
from tests.control.factories import GENERATION, a_plan, a_record, a_shard, entities_of, report_of, up

HOSTS = tuple(HostId(f"host-{letter}") for letter in "abcde")
AHEAD = GENERATION + AHEAD_MS + 10


@st.composite
def events(draw: st.DrawFn) -> list[AnyFleetEvent]:
    """Reports and silences of five hosts, whose clocks and generations may be far off, of some of four replicas."""
    told: list[AnyFleetEvent] = []
    for host in draw(st.lists(st.sampled_from(HOSTS), max_size=16)):
        if draw(st.integers(0, 4)) == 0:
            told.append(LinkDown(host=host, at=2.0, unix_ms=UnixMs(GENERATION), words="timed out"))
            continue
        replica = ReplicaId(f"tiny-{draw(st.integers(9, 12))}")
        shard = a_shard(1, host=host, replica=replica, node_id=NodeId(f"{replica}/1"))
        plan = a_plan(replica=replica) if draw(st.booleans()) else None
        entities = entities_of(
            *([shard] if draw(st.booleans()) else []),
            plan=plan,
            highest_generation=draw(st.sampled_from([0, GENERATION, AHEAD])),
        )
        event = up(report_of(host, entities, seq=draw(st.integers(10, 12))))
        offset = draw(st.sampled_from([0, 0, 5, -2_500, 400_000]))
        told.append(msgspec.structs.replace(event, clock_offset_ms=offset, unix_ms=UnixMs(GENERATION)))
    return told


def folded(told: list[AnyFleetEvent]) -> Fleet:
    fleet = empty_fleet("test", "TEST", dict.fromkeys(HOSTS, AgentAddress("unix:/x")), read_only=False)
    for event in told:
        fleet, _ = fold_event(fleet, event)
    return fleet


@given(told=events())
@settings(max_examples=80, deadline=None)
def test_replicas_stay_in_order_and_every_planned_host_is_known(told: list[AnyFleetEvent]) -> None:
    fleet = folded(told)
    replicas = fleet.state.replicas
    assert list(replicas) == sorted(replicas, key=by_number)
    for host in HOSTS:
        planned = {name for name, view in replicas.items() if view.plan is not None and host in view.plan.hosts}
        assert fleet.planned_at.get(host, frozenset()) == planned


@given(told=events())
@settings(max_examples=80, deadline=None)
def test_after_a_report_the_hosts_drift_as_a_look_at_all_of_them_says(told: list[AnyFleetEvent]) -> None:
    last = up(report_of(HOSTS[0], seq=13))
    fleet = folded([*told, msgspec.structs.replace(last, unix_ms=UnixMs(GENERATION))])
    whole = derive_host_drifts(fleet.state.hosts, fleet.breaks, UnixMs(GENERATION))
    kept = [msgspec.structs.replace(drift, since_unix_ms=UnixMs(0)) for drift in fleet.host_drifts]
    assert kept == [msgspec.structs.replace(drift, since_unix_ms=UnixMs(0)) for drift in whole]


def test_a_generation_from_the_future_in_a_record_is_a_drift_at_once() -> None:
    fleet = folded([up(report_of(HOSTS[0]))])
    shard = a_shard(1, host=HOSTS[0], load_generation=LoadGeneration(AHEAD))
    heard = RecordsHeard(host=HOSTS[0], at=2.0, unix_ms=UnixMs(GENERATION), records=(a_record(11, shard),))
    fleet, _ = fold_event(fleet, heard)
    assert [drift.what for drift in fleet.host_drifts] == ["highest generation"]


@given(told=events(), cuts=st.lists(st.integers(1, 5)))
@settings(max_examples=200, deadline=None)
def test_reports_folded_together_leave_the_fleet_that_they_leave_one_after_the_other(
    told: list[AnyFleetEvent], cuts: list[int]
) -> None:
    together = folded([])
    for batch in batches(told, cuts):
        if isinstance(batch[0], LinkUp):
            together, _ = fold_reports(together, [event for event in batch if isinstance(event, LinkUp)])
        else:
            together, _ = fold_event(together, batch[0])
    together, apart = without_since(together), without_since(folded(told))
    assert together == msgspec.structs.replace(apart, opening=together.opening)
    assert list(together.state.hosts) == list(apart.state.hosts)
    assert list(together.state.replicas) == list(apart.state.replicas)


def without_since(fleet: Fleet) -> Fleet:
    """The fleet without the times of its drifts: what came and went within one batch was never seen."""

    def timeless(drifts: tuple[Drift, ...]) -> tuple[Drift, ...]:
        return tuple(msgspec.structs.replace(drift, since_unix_ms=UnixMs(0)) for drift in drifts)

    return msgspec.structs.replace(
        fleet,
        state=msgspec.structs.replace(fleet.state, drifts=timeless(fleet.state.drifts)),
        drifts={replica: timeless(drifts) for replica, drifts in fleet.drifts.items()},
        host_drifts=timeless(fleet.host_drifts),
    )


def batches(told: list[AnyFleetEvent], sizes: list[int]) -> list[list[AnyFleetEvent]]:
    """The events in their order, reports of different hosts in batches of at most these sizes in turn."""
    found: list[list[AnyFleetEvent]] = []
    room = 0
    for event in told:
        is_report = isinstance(event, LinkUp)
        hosts = {other.host for other in found[-1] if isinstance(other, LinkUp)} if found else set()
        if isinstance(event, LinkUp) and room > 0 and hosts and event.host not in hosts:
            found[-1].append(event)
            room -= 1
            continue
        found.append([event])
        room = sizes[len(found) % len(sizes)] - 1 if sizes and is_report else 0
    return found


def test_a_host_has_one_report_among_those_that_are_folded_together() -> None:
    twice = [up(report_of(HOSTS[0], seq=1)), up(report_of(HOSTS[0], seq=2))]
    with pytest.raises(ValueError, match="2 reports of 1 hosts"):
        fold_reports(folded([]), twice)
