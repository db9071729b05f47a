"""What a replica is, from what the hosts say. Rule numbers are those of the adoption rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.contract.entities import Buffers, Canary, Drain, Entities, Hold, Reservation
from backend.contract.events import Measured
from backend.contract.plans import Profile
from backend.contract.reports import Measurement, vitals_of
from backend.contract.states import HostState, ReplicaState
from backend.contract.words import AgentAddress, HostId, LoadGeneration, NodeGeneration, NodeId, OpId, Port, UnixMs
from backend.control import fleet as fleet_module
from backend.control.fleet import Fleet, empty_fleet, fold_event
from backend.control.fleet_events import AnyFleetEvent, CatalogRead, OperationsRead, Slept, Ticked
from backend.control.link_events import BeatHeard, LinkDown, LinkRefused, MeasuredHeard, RecordsHeard
from backend.control.views import ModelView, OperationView, ReplicaView
from tests.control.factories import (
    GENERATION,
    MIB,
    REPLICA,
    A,
    B,
    a_leader,
    a_plan,
    a_record,
    a_shard,
    changed,
    entities_of,
    facts_of,
    killed,
    report_of,
    up,
)

OLDER = LoadGeneration(GENERATION - 1000)


def an_empty_fleet(hosts: Sequence[HostId] = (A, B)) -> Fleet:
    return empty_fleet("test", "TEST", {host: AgentAddress(f"unix:/{host}") for host in hosts}, read_only=False)


def folded(*events: AnyFleetEvent, fleet: Fleet | None = None) -> Fleet:
    fleet = fleet or an_empty_fleet()
    for event in events:
        fleet, _ = fold_event(fleet, event)
    return fleet


def replica_of(*events: AnyFleetEvent, fleet: Fleet | None = None) -> ReplicaView:
    return folded(*events, fleet=fleet).state.replicas[REPLICA]


def reports(at_a: Entities, at_b: Entities) -> tuple[AnyFleetEvent, ...]:
    return up(report_of(A, at_a)), up(report_of(B, at_b))


def silent(host: HostId, at: float = 5.0) -> LinkDown:
    return LinkDown(host=host, at=at, unix_ms=UnixMs(1), words="ssh: connection timed out; next try 12:04:34")


def an_operation(kind: str = "load", **fields: Any) -> OperationView:
    values: dict[str, Any] = {
        "id": OpId("load-1"),
        "kind": kind,
        "subject": REPLICA,
        "by": "alice",
        "state": "running",
        "words": "",
        "started_unix_ms": UnixMs(1),
        "ended_unix_ms": None,
        "load_generation": GENERATION,
        "steps": (),
        "plan": a_plan() if kind == "load" else None,
        **fields,
    }
    return OperationView(**values)


def operations(*views: OperationView) -> OperationsRead:
    return OperationsRead(at=3.0, unix_ms=UnixMs(3), operations={view.id: view for view in views})


WHOLE = reports(entities_of(a_leader(), a_shard(1), plan=a_plan()), entities_of(a_shard(2), plan=a_plan()))


def test_a_whole_replica_is_ready_and_its_endpoint_is_rank_0s() -> None:
    view = replica_of(*WHOLE)
    assert view.state is ReplicaState.READY
    assert (view.ranks_ready, view.world_size, view.words) == (3, 3, "")
    assert view.endpoint == "http://127.0.0.1:18090"
    assert [shard.shard.rank for shard in view.shards] == [0, 1, 2]
    assert view.bound == "equal"


@pytest.mark.parametrize(
    ("shards", "state", "words"),
    [
        pytest.param((a_leader(), a_shard(1), a_shard(2)), ReplicaState.READY, "", id="ready"),
        pytest.param(
            (a_leader("draining"), a_shard(1), a_shard(2, "failed", exit=killed())),
            ReplicaState.FAILED,
            "rank 2 on host-b: signal 9 (killed)",
            id="a failed rank beats everything its own hosts say",
        ),
        pytest.param(
            (a_leader("stopping", ends_as="failed", words="rank 2 of its generation is gone"), a_shard(1), a_shard(2)),
            ReplicaState.FAILED,
            "rank 0 on host-a: rank 2 of its generation is gone",
            id="on its way out because it had to be ended",
        ),
        pytest.param((a_leader("stopping"), a_shard(1), a_shard(2)), ReplicaState.STOPPING, "", id="stopping as asked"),
        pytest.param(
            (a_leader("stopped"), a_shard(1, "stopped"), a_shard(2)), ReplicaState.STOPPING, "", id="partly stopped"
        ),
        pytest.param(
            (a_leader("stopped"), a_shard(1, "stopped"), a_shard(2, "stopped")),
            ReplicaState.STOPPED,
            "",
            id="stopped",
        ),
        pytest.param(
            (a_leader("loading", canary=None), a_shard(1), a_shard(2)),
            ReplicaState.LOADING,
            "rank 0 on host-a: loading",
            id="loading",
        ),
        pytest.param(
            (a_leader(canary=None), a_shard(1), a_shard(2)),
            ReplicaState.LOADING,
            "rank 0 says ready, and no canary has crossed every rank yet",
            id="no canary, no ready",
        ),
        pytest.param(
            (a_leader(canary=Canary(False, 30.0, UnixMs(1), "no answer in 30 s")), a_shard(1), a_shard(2)),
            ReplicaState.READY,
            "unresponsive: no answer in 30 s",
            id="unresponsive is not dead",
        ),
        pytest.param(
            (a_leader("hibernating", canary=None), a_shard(1), a_shard(2)),
            ReplicaState.LOADING,
            "rank 0 on host-a: unknown(hibernating)",
            id="a newer agent's word stays readable",
        ),
    ],
)
def test_the_state_of_a_replica_is_derived(shards: tuple[Any, ...], state: ReplicaState, words: str) -> None:
    at_a = entities_of(*(shard for shard in shards if shard.host == A), plan=a_plan())
    at_b = entities_of(*(shard for shard in shards if shard.host == B), plan=a_plan())
    view = replica_of(*reports(at_a, at_b))
    assert (view.state, view.words) == (state, words)


def test_the_cause_of_a_failure_is_named_before_what_fell_with_it_while_rank_0_looks_ready() -> None:
    fell = a_shard(1, "failed", ends_as="failed", words="its leader is gone", exit=killed(15))
    view = replica_of(
        *reports(entities_of(a_leader(), fell, plan=a_plan()), entities_of(a_shard(2, "failed", exit=killed())))
    )
    assert (
        view.words == "rank 2 on host-b: signal 9 (killed); rank 1 on host-a: its leader is gone (signal 15 (killed))"
    )


# --- the rules ----------------------------------------------------------------------------------------------------


def test_r01_the_world_size_is_the_load_records_and_never_a_count() -> None:
    view = replica_of(up(report_of(A, entities_of(a_leader(), a_shard(1), plan=a_plan()))))
    assert view.world_size == 3
    assert view.state is ReplicaState.RECOVERING
    assert view.words == "rank 2 on host-b: connecting"


def test_r01_without_a_load_record_the_catalog_says_it_and_then_the_shard_itself() -> None:
    models = {"tiny-llama": ModelView("tiny-llama", ("tiny",), "llamacpp", "t.gguf", {"two-host": Profile(ranks=2)})}
    catalog = CatalogRead(at=1.0, unix_ms=UnixMs(1), models=models, words="")
    heard = up(report_of(A, entities_of(a_leader(), a_shard(1))))
    assert replica_of(catalog, heard).world_size == 2
    assert replica_of(catalog, heard).model == "tiny-llama"
    assert replica_of(heard).world_size == 3


def test_r01_a_rank_twice_and_one_out_of_range_are_said() -> None:
    twice = changed(a_shard(1), host=B)
    beyond = changed(a_shard(2), rank=7, node_id=NodeId(f"{REPLICA}/7"))
    view = replica_of(
        *reports(entities_of(a_leader(), a_shard(1), plan=a_plan()), entities_of(a_shard(2), twice, beyond))
    )
    assert "rank 1 is on host-a and again on host-b" in view.words
    assert "rank 7 on host-b is outside the 3 of its load" in view.words
    assert len(view.shards) == 3


def test_r02_while_its_load_is_open_a_short_replica_is_loading() -> None:
    loading = reports(entities_of(a_shard(1, "connecting"), plan=a_plan()), Entities())
    reserved = Reservation(
        op_id=OpId("load-1-reserve-host-b"),
        by="alice",
        replica=REPLICA,
        load_generation=GENERATION,
        node_ids=(NodeId(f"{REPLICA}/2"),),
        ports=(),
        memory={},
        made_unix_ms=UnixMs(1),
        expires_unix_ms=UnixMs(2),
    )
    waiting = Entities(reservations={reserved.op_id: reserved})
    host_a = msgspec.structs.replace(reserved, op_id=OpId("load-1-reserve-host-a"), node_ids=(NodeId(f"{REPLICA}/0"),))
    at_a = entities_of(a_shard(1, "connecting"), plan=a_plan(), reservations={host_a.op_id: host_a})
    view = replica_of(operations(an_operation()), *reports(at_a, waiting))
    assert view.state is ReplicaState.LOADING
    assert "rank 0 on host-a: reserved" in view.words
    assert replica_of(*loading).state is ReplicaState.FAILED, "without a reservation the live hosts deny the ranks"


def test_r03_generations_are_never_merged_and_the_one_that_serves_stands() -> None:
    newer = changed(
        a_shard(2, "loading"), load_generation=GENERATION + 5, node_generation=NodeGeneration(GENERATION + 5)
    )
    view = replica_of(*reports(entities_of(a_leader(), a_shard(1), plan=a_plan()), entities_of(newer)))
    assert view.load_generation == GENERATION
    assert [shard.shard.rank for shard in view.shards] == [0, 1]
    assert f"stray: rank 2 on host-b of generation {GENERATION + 5} (loading)" in view.words


def test_r03_where_none_serves_the_newest_complete_one_stands_else_the_newest() -> None:
    old = [a_shard(rank, "loading", load_generation=OLDER) for rank in (0, 1)]
    late = a_shard(2, "loading", load_generation=OLDER)
    new = changed(a_shard(0, "loading"), host=B)
    view = replica_of(*reports(entities_of(*old), entities_of(late, new)))
    assert view.load_generation == OLDER, "complete beats newer"
    view = replica_of(*reports(entities_of(*old), entities_of(new)))
    assert view.load_generation == GENERATION, "where none is complete, the newest"


def test_r03_what_ended_long_ago_does_not_stand_before_what_lives() -> None:
    ended = a_shard(2, "failed", load_generation=LoadGeneration(GENERATION + 9), exit=killed())
    view = replica_of(*reports(entities_of(a_leader(), a_shard(1), plan=a_plan()), entities_of(ended)))
    assert view.load_generation == GENERATION
    assert "stray" not in view.words
    starting = a_shard(1, "loading")
    view = replica_of(*reports(entities_of(starting, plan=a_plan()), entities_of(ended)))
    assert view.load_generation == GENERATION


def test_r04_an_unknown_replica_is_adopted_with_what_its_host_reports() -> None:
    assert replica_of(up(report_of(A, entities_of(a_leader(), a_shard(1), plan=a_plan())))).id == REPLICA


@given(st.permutations([0, 1, 2, 3, 4]))
@settings(max_examples=60, deadline=None)
def test_r05_the_order_of_reports_does_not_matter(order: list[int]) -> None:
    models = {"tiny": ModelView("tiny", (), "llamacpp", "tiny.gguf", {"two-host": a_plan().profile})}
    events: list[AnyFleetEvent] = [
        *WHOLE,
        operations(an_operation(state="succeeded", exit_code=0)),
        CatalogRead(at=1.0, unix_ms=UnixMs(1), models=models, words=""),
        BeatHeard(host=A, at=1.0, unix_ms=UnixMs(1), head_seq=10),
    ]
    straight, shuffled = folded(*events), folded(*(events[n] for n in order))
    assert shuffled.state.replicas == straight.state.replicas
    assert shuffled.state.drifts == straight.state.drifts == ()


@given(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=12))
@settings(max_examples=100, deadline=None)
def test_r05_repeated_reports_and_reconnects_end_where_the_last_ones_say(order: list[int]) -> None:
    events = [*WHOLE, silent(A), silent(B)]
    fleet = folded(*(events[n] for n in order), *WHOLE)
    assert fleet.state.replicas[REPLICA] == replica_of(*WHOLE)


def test_r05_the_other_half_merges_a_moment_later() -> None:
    fleet = folded(WHOLE[1])
    assert fleet.state.replicas[REPLICA].state is ReplicaState.RECOVERING
    assert replica_of(WHOLE[0], fleet=fleet).state is ReplicaState.READY


def test_r11_a_replicas_state_follows_rank_0_wherever_it_is_reported_from() -> None:
    view = replica_of(
        *reports(entities_of(a_shard(1), plan=a_plan()), entities_of(changed(a_leader(), host=B), a_shard(2)))
    )
    assert view.endpoint == "http://127.0.0.1:18090"
    assert view.state is ReplicaState.READY


def test_r14_what_a_live_agent_no_longer_reports_has_failed_and_what_a_silent_one_does_not_say_has_not() -> None:
    fleet = folded(*WHOLE)
    gone = replica_of(up(report_of(B, Entities())), fleet=fleet)
    assert gone.state is ReplicaState.FAILED
    assert gone.words == "rank 2 on host-b: the agent reports it is not running"
    unsaid = replica_of(silent(B), fleet=fleet)
    assert unsaid.state is ReplicaState.RECOVERING
    assert unsaid.words == "rank 2 on host-b: unreachable"
    assert unsaid.shards[2].state == "unreachable"


def test_r15_a_silent_host_is_lost_only_when_its_lease_is_over() -> None:
    fleet = folded(*WHOLE, silent(B, at=5.0))
    before = folded(Ticked(at=94.9, unix_ms=UnixMs(9)), fleet=fleet)
    assert before.state.hosts[B].state is HostState.UNREACHABLE
    after, lines = fold_event(before, Ticked(at=95.1, unix_ms=UnixMs(9)))
    assert after.state.hosts[B].state is HostState.LOST
    assert after.state.replicas[REPLICA].words == "rank 2 on host-b: lost"
    assert [line.record.kind for line in lines] == ["link.lost"]
    still = folded(silent(B, at=99.0), fleet=after)
    assert still.state.hosts[B].state is HostState.LOST, "another failed try does not renew the lease"
    assert replica_of(WHOLE[1], fleet=still).state is ReplicaState.READY


def test_r15_a_second_silence_has_a_lease_of_its_own() -> None:
    fleet = folded(*WHOLE, silent(B, at=5.0), up(report_of(B, entities_of(a_shard(2))), at=60.0), silent(B, at=90.0))
    before = folded(Ticked(at=179.9, unix_ms=UnixMs(9)), fleet=fleet)
    assert before.state.hosts[B].state is HostState.UNREACHABLE
    assert folded(Ticked(at=180.1, unix_ms=UnixMs(9)), fleet=before).state.hosts[B].state is HostState.LOST


def test_r15_what_ended_before_the_silence_stays_ended() -> None:
    failed = entities_of(a_shard(2, "failed", exit=killed()), plan=a_plan())
    view = replica_of(WHOLE[0], up(report_of(B, failed)), silent(B))
    assert view.state is ReplicaState.FAILED
    assert view.shards[2].state == "failed"


def test_r16_when_all_hosts_fall_silent_together_nobody_is_lost() -> None:
    fleet = folded(*WHOLE, silent(A, at=5.0), silent(B, at=30.0), Ticked(at=500.0, unix_ms=UnixMs(9)))
    assert {host.state for host in fleet.state.hosts.values()} == {HostState.UNREACHABLE}
    assert "2 of 2 hosts fell silent together" in fleet.state.hosts[A].words


def test_r16_after_this_machine_slept_every_lease_begins_anew() -> None:
    slept = Slept(at=100.0, unix_ms=UnixMs(9), seconds=3600.0)
    fleet = folded(*WHOLE, silent(B, at=5.0), slept, Ticked(at=180.0, unix_ms=UnixMs(9)))
    assert fleet.state.hosts[B].state is HostState.UNREACHABLE


def test_a_report_that_says_nothing_else_brings_new_measurements() -> None:
    seen = Measurement(node_id=NodeId("tiny-1/0"), observed_unix_ms=UnixMs(5), in_flight=3)
    at_a = entities_of(a_leader(), a_shard(1), plan=a_plan())
    again = replica_of(up(report_of(A, at_a, measurements=(seen,)), at=7.0), fleet=folded(*WHOLE))
    assert (again.state, again.in_flight, again.measured_at) == (ReplicaState.READY, 3, 7.0)


@pytest.mark.parametrize(
    ("offset", "round_trip", "ahead"),
    [(1500, 3.0, 1498), (-1500, 3.0, -1498), (1500, 3000.0, 0), (-2600, 5000.0, -100), (0, 0.0, 0), (None, None, None)],
)
def test_a_slow_answer_proves_no_clock_wrong(offset: int | None, round_trip: float | None, ahead: int | None) -> None:
    host = folded(*WHOLE).state.hosts[A]
    host = msgspec.structs.replace(host, clock_offset_ms=offset, round_trip_ms=round_trip)
    assert host.clock_ahead_ms == ahead


def test_a_console_that_was_slow_to_hear_a_host_calls_its_clock_neither_wrong_nor_right() -> None:
    slow = msgspec.structs.replace(WHOLE[0], clock_offset_ms=2_600, round_trip_ms=5_100.0)
    quick = msgspec.structs.replace(WHOLE[1], clock_offset_ms=2_600, round_trip_ms=90.0)
    assert [drift.subject for drift in folded(slow, quick).state.drifts] == [B]


@pytest.mark.parametrize("size", [2**40, 2**64 - 1])
def test_a_world_size_gone_wrong_holds_no_console_up(size: int) -> None:
    wild = a_shard(1, world_size=size, model="nobody-knows")
    view = replica_of(up(report_of(A, entities_of(wild))))
    assert (view.world_size, view.ranks_ready, len(view.missing)) == (512, 1, 511)
    assert view.words == "ranks 0, 2-511: no host has reported it"


# --- operations, drains, bounds, drifts ---------------------------------------------------------------------------


def test_an_open_load_without_a_shard_is_placed() -> None:
    view = replica_of(operations(an_operation()))
    assert (view.state, view.world_size, view.model) == (ReplicaState.PLACED, 3, "tiny")
    assert REPLICA not in folded(operations(an_operation(state="refused", exit_code=2))).state.replicas


def test_a_roll_back_counts_what_is_unknown_and_names_a_dead_owner() -> None:
    view = replica_of(operations(an_operation(state="ownerless", phase="rolling back", unknown_targets=2)), *WHOLE)
    assert view.state is ReplicaState.ROLLING_BACK
    assert view.unknown_targets == 2
    assert view.words == "2 unknown; load load-1 by alice has no owner"


def test_a_drain_counts_down_between_reports_and_an_ended_one_does_not_drain() -> None:
    drain = Drain(
        replica=REPLICA,
        load_generation=GENERATION,
        op_id=OpId("d"),
        by="alice",
        why="",
        left_ms=60_000,
        at_unix_ms=UnixMs(1000),
        at_deadline="stop",
    )
    at_a = entities_of(a_leader("draining"), a_shard(1), plan=a_plan(), drains={REPLICA: drain})
    fleet = folded(*reports(at_a, entities_of(a_shard(2))))
    assert fleet.state.replicas[REPLICA].state is ReplicaState.DRAINING
    assert fleet.state.replicas[REPLICA].drain_left_ms == 60_000
    later = folded(Ticked(at=2.0, unix_ms=UnixMs(21_000)), fleet=fleet)
    assert later.state.replicas[REPLICA].drain_left_ms == 40_000
    ended = msgspec.structs.replace(drain, outcome="given up", left_ms=0)
    at_a = entities_of(a_leader(), a_shard(1), plan=a_plan(), drains={REPLICA: ended})
    view = replica_of(up(report_of(A, at_a)), fleet=later)
    assert (view.state, view.drain_left_ms) == (ReplicaState.READY, None)
    assert view.drain == ended


@pytest.mark.parametrize(
    ("reported", "word"),
    [
        (Buffers(2, 10 * MIB + 5000, 2 * MIB, 0), "equal"),
        (Buffers(2, 10 * MIB + 6000, 2 * MIB, 0), "differs"),
        (Buffers(2, 10 * MIB, 2 * MIB + 6000, 0), "differs"),
        (Buffers(2, 10 * MIB - 10_000, 2 * MIB, 0, parts=2), "equal"),
        (Buffers(2, 10 * MIB - 11_000, 2 * MIB, 0, parts=2), "differs"),
    ],
)
def test_a_bound_is_equal_at_the_resolution_that_the_engine_prints(reported: Buffers, word: str) -> None:
    leader = a_leader(buffers=(Buffers(1, 10 * MIB, 2 * MIB, 5), reported))
    fleet = folded(*reports(entities_of(leader, a_shard(1), plan=a_plan()), entities_of(a_shard(2))))
    view = fleet.state.replicas[REPLICA]
    assert (view.shards[2].bound, view.bound) == (word, word)
    drifts = [(drift.subject, drift.what) for drift in fleet.state.drifts]
    assert drifts == ([("tiny-1/2", "result bound")] if word == "differs" else [])


def test_an_estimate_is_never_compared_and_a_silent_engine_is_unknown() -> None:
    estimate = a_shard(2, bound=msgspec.structs.replace(a_shard(2).bound, derived=False))
    view = replica_of(*reports(entities_of(a_leader(), a_shard(1), plan=a_plan()), entities_of(estimate)))
    assert view.bound == "unknown"
    view = replica_of(*reports(entities_of(a_leader(buffers=()), a_shard(1), plan=a_plan()), entities_of(a_shard(2))))
    assert {shard.bound for shard in view.shards} == {"unknown"}


def test_drifts_name_both_values_what_follows_and_what_to_do() -> None:
    shard = a_shard(2, node_generation=NodeGeneration(1), release="build 2, commit fffffff")
    at_b = report_of(B, entities_of(shard), facts=facts_of(B, "boot-2"))
    fleet = folded(up(report_of(A, entities_of(a_leader(), a_shard(1), plan=a_plan()))), up(at_b))
    drifts = {drift.what: drift for drift in fleet.state.drifts}
    assert set(drifts) == {"generation", "engine release", "advertised address"}
    generation = drifts["generation"]
    assert (generation.one_source, generation.one) == ("load record", str(GENERATION))
    assert (generation.other_source, generation.other) == ("registered at host-b", "1")
    assert generation.consequence.startswith("The leader stops at its first release")
    assert fleet.state.replicas[REPLICA].shards[2].generation == "differs"
    assert "host-a dials itself" in drifts["advertised address"].consequence


def test_a_profile_that_changed_is_drift_and_an_empty_catalog_says_nothing() -> None:
    fleet = folded(*WHOLE)
    assert fleet.state.drifts == ()
    other = ModelView("tiny", (), "llamacpp", "tiny.gguf", {"two-host": Profile(ranks=3, context=1)})
    changed_catalog = CatalogRead(at=1.0, unix_ms=UnixMs(1), models={"tiny": other}, words="")
    assert [drift.what for drift in folded(changed_catalog, fleet=fleet).state.drifts] == ["profile changed"]
    other = ModelView("else", (), "llamacpp", "t", {})
    without = CatalogRead(at=1.0, unix_ms=UnixMs(1), models={"else": other}, words="")
    assert [drift.what for drift in folded(without, fleet=fleet).state.drifts] == ["catalog"]


# --- the fold -----------------------------------------------------------------------------------------------------


def test_records_up_to_the_report_are_shown_and_only_those_after_it_are_folded() -> None:
    fleet = folded(*WHOLE)
    stale = a_record(10, a_shard(2, "failed", exit=killed()))
    fresh = a_record(11, a_shard(2, "failed", exit=killed()))
    heard = RecordsHeard(host=B, at=2.0, unix_ms=UnixMs(2), records=(stale,))
    fleet, lines = fold_event(fleet, heard)
    assert [(line.index, line.record.seq) for line in lines] == [(1, 10)]
    assert fleet.state.replicas[REPLICA].state is ReplicaState.READY
    fleet, lines = fold_event(fleet, RecordsHeard(host=B, at=2.0, unix_ms=UnixMs(2), records=(fresh,)))
    assert [line.index for line in lines] == [2]
    assert fleet.state.replicas[REPLICA].state is ReplicaState.FAILED
    again, _ = fold_event(fleet, RecordsHeard(host=B, at=2.0, unix_ms=UnixMs(2), records=(fresh,)))
    assert again.state.replicas is fleet.state.replicas, "a record that was folded is not folded twice"


def test_a_decision_moves_the_revision_and_a_state_does_not() -> None:
    hold = Hold(node_id=NodeId("tiny-1/2"), load_generation=GENERATION, kind="process", ports=(Port(1),))
    from backend.contract.entities import Change

    fleet = folded(*WHOLE)
    records = (a_record(11, change=Change(hold=hold)), a_record(12, a_shard(2, "draining")))
    fleet = folded(RecordsHeard(host=B, at=2.0, unix_ms=UnixMs(2), records=records), fleet=fleet)
    assert fleet.state.hosts[B].revision == 1


def test_nothing_changed_is_the_same_object() -> None:
    fleet = folded(*WHOLE, operations(an_operation(state="succeeded", exit_code=0)))
    for event in (
        Ticked(at=50.0, unix_ms=UnixMs(50)),
        operations(an_operation(state="succeeded", exit_code=0)),
        CatalogRead(at=9.0, unix_ms=UnixMs(9), models={}, words=""),
    ):
        assert folded(event, fleet=fleet).state is fleet.state
    beat = folded(BeatHeard(host=A, at=9.0, unix_ms=UnixMs(9), head_seq=10), fleet=fleet)
    assert beat.state.replicas is fleet.state.replicas
    assert beat.state.hosts[B] is fleet.state.hosts[B]


def test_a_measurement_changes_its_own_replica_only() -> None:
    seen = Measurement(node_id=NodeId("tiny-1/0"), observed_unix_ms=UnixMs(5), in_flight=3, tokens_per_second=28.1)
    event = MeasuredHeard(host=A, at=7.0, unix_ms=UnixMs(7), measured=Measured(measurements=(seen,)))
    fleet = folded(*WHOLE)
    after = folded(event, fleet=fleet)
    view = after.state.replicas[REPLICA]
    assert (view.in_flight, view.queued, view.measured_at) == (3, None, 7.0)
    assert view.shards[2] == fleet.state.replicas[REPLICA].shards[2]


def test_vitals_move_the_facts_that_a_host_reported_and_leave_the_rest_of_them() -> None:
    fleet = folded(*WHOLE)
    known = fleet.state.hosts[A].facts
    assert known is not None
    moved = msgspec.structs.replace(known, memory_free=7, refuses_loads="its disk is full")
    event = MeasuredHeard(host=A, at=7.0, unix_ms=UnixMs(7), measured=Measured(vitals=vitals_of(moved)))
    after = folded(event, fleet=fleet)
    assert after.state.hosts[A].facts == moved
    assert after.state.hosts[B].facts == fleet.state.hosts[B].facts


def test_another_host_at_the_address_is_refused_and_what_was_known_stays_as_unreachable() -> None:
    refused = LinkRefused(host=B, at=5.0, unix_ms=UnixMs(5), words="the agent there is of host 'x'")
    fleet = folded(*WHOLE, refused)
    assert fleet.state.hosts[B].state is HostState.REFUSED
    assert fleet.state.replicas[REPLICA].shards[2].state == "unreachable"


def test_the_lease_is_the_documented_one() -> None:
    assert fleet_module.LEASE_SECONDS == 90.0
