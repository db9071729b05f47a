"""What a keeper decides, without any host: a fleet as it was heard, the time, and what it remembers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.contract.entities import (
    Drain,
    Entities,
    OpenOperation,
    OperatorHold,
    ProcessIdentity,
    Shard,
    operator_hold_key,
)
from backend.contract.plans import Profile
from backend.contract.reports import HostReport, Measurement
from backend.contract.words import AgentAddress, HostId, LoadGeneration, NodeId, OpId, ReplicaId, UnixMs
from backend.control.adoption import classify
from backend.control.fleet import LEASE_SECONDS, empty_fleet, fold_event
from backend.control.fleet_events import CatalogRead, OperationsRead, Ticked
from backend.control.fleet_facts import fleet_facts
from backend.control.keeper import after_refusal, decide, keeper_name
from backend.control.keeper_decisions import (
    AnyDecision,
    DismissReplica,
    DrainIdle,
    KeeperRules,
    LoadModel,
    Memory,
    Quarantine,
    ResumeOwn,
    StopStray,
)
from backend.control.link_events import LinkDown
from backend.control.views import FleetState, HostView, ModelView, OperationView
from tests.control.factories import GENERATION, A, B, a_leader, a_plan, a_shard, changed, entities_of, report_of, up

RULES = KeeperRules()
TINY = ModelView(
    name="tiny",
    aliases=("t",),
    engine="llamacpp",
    path="tiny.gguf",
    profiles={"two-host": Profile(ranks=3, hosts=(A, B))},
    mode="on_demand",
    idle_seconds=600,
    desired=1,
    scaling_profile="two-host",
)
HELD = {A: 1e9, B: 1e9}
PROCESS = ProcessIdentity(4711, 81_234, "boot-1", "nonce")


def fleet(
    *reports: HostReport, model: ModelView | None = TINY, silent: tuple[HostId, ...] = (), **fields: Any
) -> FleetState:
    """A fleet of two hosts that heard these reports; ``silent`` fell silent after its own."""
    hosts = fields.pop("hosts", (A, B))
    known = empty_fleet("test", "TEST", {host: AgentAddress(f"unix:/{host}") for host in hosts}, read_only=False)
    models = {} if model is None else {model.name: model}
    known, _ = fold_event(
        known, CatalogRead(at=0.5, unix_ms=UnixMs(1), models=models, words=fields.pop("catalog_words", ""))
    )
    for report in reports:
        known, _ = fold_event(known, up(report))
    for host in silent:
        known, _ = fold_event(known, LinkDown(host=host, at=2.0, unix_ms=UnixMs(2), words="the connection broke off"))
    if operations := fields.pop("operations", ()):
        read = {operation.id: operation for operation in operations}
        known, _ = fold_event(known, OperationsRead(at=2.0, unix_ms=UnixMs(2), operations=read))
    assert not fields
    return known.state


def ring(
    total: int | None = 7, in_flight: int | None = 0, leader: str = "ready", workers: str = "ready", **more: Any
) -> tuple[HostReport, HostReport]:
    """One replica over both hosts; ``more`` goes into the entities of host-a."""
    measured = Measurement(
        node_id=NodeId("tiny-1/0"), observed_unix_ms=UnixMs(1), tokens_total=total, in_flight=in_flight, queued=0
    )
    plan = a_plan()
    here = entities_of(a_leader(leader), a_shard(1, workers), plan=plan, **more)
    return report_of(A, here, measurements=(measured,)), report_of(B, entities_of(a_shard(2, workers), plan=plan))


def bare(**entities: Any) -> tuple[HostReport, HostReport]:
    return report_of(A, Entities(**entities)), report_of(B)


def held(kind: str = "down", scope: str = "replica", subject: str = "tiny-1") -> dict[str, OperatorHold]:
    hold = OperatorHold(subject=subject, scope=scope, kind=kind, by="alice", why="", at_unix_ms=UnixMs(1))
    return {operator_hold_key(scope, subject): hold}


def at(
    state: FleetState, now: float = 10.0, memory: Memory | None = None, leases: dict[HostId, float] | None = None
) -> tuple[Memory, tuple[AnyDecision, ...]]:
    return decide(state, HELD if leases is None else leases, memory or Memory(), now, RULES)


def over(state: FleetState, *times: float) -> tuple[AnyDecision, ...]:
    """The decisions at the last of these times, with the memory of those before."""
    memory = Memory()
    decisions: tuple[AnyDecision, ...] = ()
    for now in times:
        memory, decisions = at(state, now, memory)
    return decisions


def test_a_missing_replica_is_loaded_in_the_shape_that_the_catalog_names() -> None:
    (load,) = at(fleet(*bare()))[1]
    assert isinstance(load, LoadModel)
    assert (load.target, load.replica) == ("tiny:two-host", "tiny-1")
    assert load.why == "0 of 1 wanted replicas of tiny run"


def test_a_model_that_people_load_is_left_to_them() -> None:
    manual = msgspec.structs.replace(TINY, mode="manual")
    assert at(fleet(*bare(), model=manual))[1] == ()
    assert over(fleet(*ring(), model=manual), 10, 1e6) == ()


def test_a_replica_that_runs_comes_or_recovers_is_enough() -> None:
    for reports in (ring(), ring(leader="loading", workers="loading")):
        assert at(fleet(*reports))[1] == ()
    recovering = fleet(*ring(), silent=(B,))
    assert recovering.replicas[ReplicaId("tiny-1")].state.value == "recovering"
    assert decide(recovering, {A: 1e9, B: 1e9}, Memory(), 10.0, RULES)[1] == ()


def test_a_failed_replica_is_dismissed_and_then_loaded_again() -> None:
    (gone,) = at(fleet(*ring(leader="failed", workers="stopped")))[1]
    assert isinstance(gone, DismissReplica)
    assert (gone.replica, gone.generation) == ("tiny-1", GENERATION)
    memory, (load,) = at(fleet(*bare()), 20.0)
    assert isinstance(load, LoadModel)
    assert memory.attempts == {"tiny-1": (20.0,)}


def test_what_is_left_alive_of_a_failed_replica_is_stopped_only_when_every_host_is_heard() -> None:
    half = ring(leader="failed")
    (gone,) = at(fleet(*half))[1]
    assert isinstance(gone, DismissReplica)
    third = HostId("host-c")
    unheard = fleet(*half, report_of(third), hosts=(A, B, third), silent=(third,))
    assert decide(unheard, {A: 1e9, B: 1e9}, Memory(), 10.0, RULES)[1] == ()


@pytest.mark.adoption("28: three loads in ten minutes, then quarantined until a person clears it")
def test_r28_the_third_failed_load_quarantines_until_a_person_clears_it() -> None:
    memory = Memory()
    for now in (10.0, 70.0, 130.0):
        memory, (load,) = at(fleet(*bare()), now, memory)
        assert isinstance(load, LoadModel)
    memory, (verdict,) = at(fleet(*ring(leader="failed", workers="stopped")), 190.0, memory)
    assert isinstance(verdict, Quarantine)
    assert verdict.why == "tiny-1 was loaded 3 times within 10 min and does not stay"
    quarantined = bare(operator_holds=held("quarantined"))
    for now in (200.0, 210.0):
        memory, decisions = at(fleet(*quarantined), now, memory)
        assert decisions == ()
    (again,) = at(fleet(*bare()), 220.0, memory)[1]
    assert isinstance(again, LoadModel)


def test_attempts_older_than_the_budget_count_no_more() -> None:
    memory = Memory(attempts={ReplicaId("tiny-1"): (1.0, 2.0, 3.0)})
    assert isinstance(at(fleet(*bare()), 500.0, memory)[1][0], Quarantine)
    assert isinstance(at(fleet(*bare()), 603.5, memory)[1][0], LoadModel)


def test_a_refused_plan_uses_no_budget_up_and_is_tried_again_later() -> None:
    memory, (load,) = at(fleet(*bare()))
    assert isinstance(load, LoadModel)
    memory = after_refusal(memory, load, 10.0, RULES)
    assert memory.attempts == {"tiny-1": ()}
    assert at(fleet(*bare()), 60.0, memory)[1] == ()
    assert at(fleet(*bare()), 71.0, memory)[1] == (load,)


@pytest.mark.adoption("26: what a person decided is obeyed by the keeper")
@pytest.mark.parametrize("kind", ["down", "paused", "quarantined"])
@pytest.mark.parametrize(("scope", "subject"), [("replica", "tiny-1"), ("model", "tiny")])
def test_r26_what_is_held_is_neither_loaded_nor_stopped(kind: str, scope: str, subject: str) -> None:
    holds: dict[str, Any] = {"operator_holds": held(kind, scope, subject)}
    assert over(fleet(*bare(**holds)), 10, 20) == ()
    idle = msgspec.structs.replace(TINY, desired=0)
    assert over(fleet(*ring(**holds), model=idle), 10, 1e6) == ()
    assert isinstance(over(fleet(*ring(), model=idle), 10, 1e6)[0], DrainIdle)


def test_a_hold_that_only_a_silent_host_knows_is_obeyed() -> None:
    state = fleet(report_of(A), report_of(B, Entities(operator_holds=held())), silent=(B,))
    assert at(state)[1] == ()


@pytest.mark.adoption("13: an adopted replica gets a whole idle timeout from its adoption")
def test_r13_an_idle_replica_gets_its_whole_timeout_from_when_the_keeper_began() -> None:
    state = fleet(*ring(), model=msgspec.structs.replace(TINY, desired=0))
    memory, decisions = at(state, 1000.0)
    assert decisions == ()
    memory, decisions = at(state, 1599.0, memory)
    assert decisions == ()
    memory, (drain,) = at(state, 1600.0, memory)
    assert isinstance(drain, DrainIdle)
    assert (drain.replica, drain.generation) == ("tiny-1", GENERATION)
    assert "was not used for 10 min" in drain.why


@pytest.mark.adoption("13: a report that repeats, and a host that comes back, begin no timeout anew")
def test_r13_what_is_wanted_already_is_not_wanted_anew() -> None:
    idle = msgspec.structs.replace(TINY, desired=0)
    memory, _ = at(fleet(*ring(), model=idle), 10.0)
    since = memory.uses[ReplicaId("tiny-1")].since
    memory, _ = at(fleet(*ring(), *ring(), model=idle), 300.0, memory)
    assert memory.uses[ReplicaId("tiny-1")].since == since == 10.0
    assert at(fleet(*ring(), model=idle), 609.0, memory)[1] == ()
    (drain,) = at(fleet(*ring(), model=idle), 610.0, memory)[1]
    assert isinstance(drain, DrainIdle)


@pytest.mark.adoption("13: a new load generation begins its idle timeout anew")
def test_r13_a_new_generation_begins_anew() -> None:
    state = fleet(*ring(), model=msgspec.structs.replace(TINY, desired=0))
    old = msgspec.structs.replace(at(state, 0.0)[0].uses[ReplicaId("tiny-1")], generation=LoadGeneration(1))
    assert at(state, 1e6, Memory(uses={ReplicaId("tiny-1"): old}))[1] == ()


@pytest.mark.adoption("27: last use is the engine's own counters; unknown is not idle")
@pytest.mark.parametrize(
    ("words", "reports"),
    [
        ("the total moved", ring(total=8)),
        ("work is in flight", ring(in_flight=1)),
        ("the total is unknown", ring(total=None)),
        ("the work in flight is unknown", ring(in_flight=None)),
    ],
)
def test_r27_use_and_what_cannot_be_known_begin_the_timeout_anew(
    words: str, reports: tuple[HostReport, HostReport]
) -> None:
    idle = msgspec.structs.replace(TINY, desired=0)
    memory, _ = at(fleet(*ring(), model=idle), 0.0)
    memory, decisions = at(fleet(*reports, model=idle), 599.0, memory)
    assert decisions == ()
    memory, decisions = at(fleet(*reports, model=idle), 700.0, memory)
    assert decisions == (), words
    if words != "the total moved":
        assert at(fleet(*reports, model=idle), 1e6, memory)[1] == (), words
    assert memory.uses[ReplicaId("tiny-1")].since >= 599.0


def test_no_replica_is_emptied_below_the_desired_count() -> None:
    assert over(fleet(*ring()), 10, 1e6) == ()


@pytest.mark.adoption("17: an idle replica is emptied only with a fresh report from every host of the context")
def test_r17_an_idle_replica_is_emptied_only_when_every_host_is_heard() -> None:
    idle = msgspec.structs.replace(TINY, desired=0)
    third = HostId("host-c")
    heard = fleet(*ring(), report_of(third), model=idle, hosts=(A, B, third))
    unheard = fleet(*ring(), report_of(third), model=idle, hosts=(A, B, third), silent=(third,))
    assert over(unheard, 10, 1e6) == ()
    assert len(over(heard, 10, 1e6)) == 1


def stray_ring(**stray: Any) -> tuple[HostReport, HostReport]:
    """The ring of the newest generation serves, and an old worker is left on host-b beside it."""
    first, second = ring()
    fields = {"load_generation": LoadGeneration(GENERATION - 5), "host": B, "identity": PROCESS, **stray}
    left = a_shard(1, fields.pop("state", "ready"), **fields)
    shards = {**second.entities.shards, left.node_id: left}
    return first, msgspec.structs.replace(second, entities=msgspec.structs.replace(second.entities, shards=shards))


@pytest.mark.adoption("17: a stray is stopped by the keeper after its grace, with every host heard")
def test_r17_a_stray_is_stopped_after_its_grace_with_every_host_heard() -> None:
    state = fleet(*stray_ring())
    assert over(state, 10, 129) == ()
    (stop,) = over(state, 10, 130)
    assert isinstance(stop, StopStray)
    assert (stop.host, stop.node_id, stop.generation) == (B, "tiny-1/1", GENERATION - 5)
    assert f"generation {GENERATION - 5} is a stray, {GENERATION} stands" in stop.why


@pytest.mark.adoption("17: a stray stays where its load record names a host that this context does not have")
def test_r17_a_stray_is_left_alone_while_a_host_of_the_load_record_is_not_in_the_context() -> None:
    plan = a_plan()
    elsewhere = tuple(
        msgspec.structs.replace(shard, host=HostId("host-x") if shard.rank == 2 else shard.host)
        for shard in plan.shards
    )
    plan = msgspec.structs.replace(plan, shards=elsewhere)
    first, second = stray_ring()
    entities = msgspec.structs.replace(first.entities, loads=entities_of(plan=plan).loads)
    alone = msgspec.structs.replace(second.entities, loads={})
    reports = msgspec.structs.replace(first, entities=entities), msgspec.structs.replace(second, entities=alone)
    assert over(fleet(*reports), 10, 1e5) == ()


@pytest.mark.adoption("17: where two generations of one replica serve, a person decides: the keeper stops neither")
def test_r17_of_two_generations_that_both_serve_neither_is_stopped() -> None:
    first, second = ring()
    older = a_leader(host=B, load_generation=LoadGeneration(GENERATION - 5), identity=PROCESS)
    shards = {**second.entities.shards, older.node_id: older}
    second = msgspec.structs.replace(second, entities=msgspec.structs.replace(second.entities, shards=shards))
    state = fleet(first, second)
    assert state.replicas[ReplicaId("tiny-1")].load_generation == GENERATION
    assert over(state, 10, 1e5) == ()
    assert [each.kind for each in classify(state).stoppable] == ["stray"], "it is shown, and a person may stop it"


@pytest.mark.adoption("17: a shard that has no process yet cannot be read again, and is not stopped")
def test_r17_a_stray_without_a_process_is_not_stopped() -> None:
    assert over(fleet(*stray_ring(identity=None)), 10, 1e5) == ()


def lost_ring(*more: HostReport, back: bool = False) -> FleetState:
    """The ring whose host-b fell silent for its whole lease, with a third host that has ``more``; or it is back."""
    third = HostId("host-c")
    hosts = {host: AgentAddress(f"unix:/{host}") for host in (A, B, third)}
    known = empty_fleet("test", "TEST", hosts, read_only=False)
    known, _ = fold_event(known, CatalogRead(at=0.5, unix_ms=UnixMs(1), models={"tiny": TINY}, words=""))
    first, second = ring()
    for report in (first, second, *(more or (report_of(third),))):
        known, _ = fold_event(known, up(report))
    known, _ = fold_event(known, LinkDown(host=B, at=2.0, unix_ms=UnixMs(2), words="the connection broke off"))
    known, _ = fold_event(known, Ticked(at=2.0 + LEASE_SECONDS, unix_ms=UnixMs(3)))
    if back:
        known, _ = fold_event(known, up(second, at=200.0))
    return known.state


@pytest.mark.adoption("15: what is lost is replaced by the keeper, under another name; what is only unreachable is not")
def test_r15_a_lost_replica_is_replaced_and_an_unreachable_one_is_not() -> None:
    assert over(fleet(*ring(), silent=(B,)), 10, 1e5) == (), "unreachable says nothing"
    lost = lost_ring()
    assert lost.hosts[B].state.value == "lost"
    (load,) = over(lost, 10, 100)
    assert isinstance(load, LoadModel)
    assert (load.replica, load.target) == ("tiny-2", "tiny:two-host")
    reports = fleet_facts(lost).reports
    assert B not in {report.host for report in reports}, "a plan has only live hosts to choose from"


@pytest.mark.adoption(
    "15: what was lost and replaced is surplus when it comes back: shown, and left alone while in use"
)
def test_r15_what_comes_back_is_surplus_and_is_not_stopped() -> None:
    third = HostId("host-c")
    newer: dict[str, Any] = {
        "replica": ReplicaId("tiny-2"),
        "host": third,
        "load_generation": LoadGeneration(GENERATION + 9),
    }
    shards = [a_leader(node_id=NodeId("tiny-2/0"), **newer)]
    shards += [a_shard(rank, node_id=NodeId(f"tiny-2/{rank}"), **newer) for rank in (1, 2)]
    replaced = lost_ring(report_of(third, entities_of(*shards)), back=True)
    assert {name: view.state.value for name, view in replaced.replicas.items()} == {
        "tiny-1": "ready",
        "tiny-2": "ready",
    }
    assert over(replaced, 10, 200, 599) == ()
    assert classify(replaced).stoppable == ()


@pytest.mark.adoption("16: in a mass disconnect, and when any host is silent, nothing is stopped")
def test_r16_silence_anywhere_begins_the_grace_of_strays_anew() -> None:
    memory, _ = at(fleet(*stray_ring()), 10.0)
    memory, decisions = at(fleet(*stray_ring(), silent=(A,)), 130.0, memory)
    assert decisions == ()
    assert memory.strays == {}
    assert at(fleet(*stray_ring()), 131.0, memory)[1] == ()


@pytest.mark.parametrize(
    "busy",
    [
        {"operations": {OpId("x"): OpenOperation(op_id=OpId("x"), command="load", subject="tiny-1/1", by="bob",
                                                 payload_digest="", at_unix_ms=UnixMs(1))}},
        {"drains": {ReplicaId("tiny-1"): Drain(replica=ReplicaId("tiny-1"), load_generation=GENERATION,
                                               op_id=OpId("d"), by="bob", why="", left_ms=1, at_unix_ms=UnixMs(1),
                                               at_deadline="stop")}},
    ],
)  # fmt: skip
def test_what_somebody_is_busy_with_is_left_alone(busy: dict[str, Any]) -> None:
    first, second = stray_ring()
    first = msgspec.structs.replace(first, entities=msgspec.structs.replace(first.entities, **busy))
    assert over(fleet(first, second), 10, 130) == ()


def an_operation(by: str, state: str) -> OperationView:
    return OperationView(
        id=OpId("load-1"),
        kind="load",
        subject="tiny-2",
        by=by,
        state=state,
        words="",
        started_unix_ms=UnixMs(1),
        ended_unix_ms=None,
        load_generation=None,
        steps=(),
        context="test",
    )


@pytest.mark.parametrize("state", ["running", "ownerless"])
def test_an_operation_of_this_home_keeps_the_keeper_away_from_its_model(state: str) -> None:
    assert at(fleet(*bare(), operations=(an_operation("bob", state),)))[1] == ()


def test_a_keeper_resumes_what_a_keeper_began_and_lost_and_not_what_a_person_did() -> None:
    ours = an_operation(keeper_name("alice@ops-1"), "ownerless")
    state = fleet(*bare(), operations=(ours,))
    memory, (resume,) = at(state)
    assert isinstance(resume, ResumeOwn)
    assert resume.operation == "load-1"
    assert at(state, 60.0, memory)[1] == ()
    assert at(state, 71.0, memory)[1] == (resume,)
    for scope, subject in (("replica", "tiny-2"), ("model", "tiny")):
        down = bare(operator_holds=held("down", scope, subject))
        assert at(fleet(*down, operations=(ours,)))[1] == ()


@pytest.mark.adoption("9: a catalog that is missing or unreadable makes nothing unclaimed")
def test_r09_a_missing_or_unreadable_catalog_makes_nothing_unclaimed() -> None:
    worker = a_shard(1, "connecting", model="other", identity=PROCESS)
    reports = report_of(A, entities_of(worker)), report_of(B)
    assert over(fleet(*reports, model=None), 10, 1e6) == ()
    assert over(fleet(*reports, catalog_words="cannot be read"), 10, 1e6)[:1] != ()
    claimed = [d for d in over(fleet(*reports, catalog_words="cannot be read"), 10, 1e6) if isinstance(d, StopStray)]
    assert claimed == []
    unclaimed = [d for d in over(fleet(*reports), 10, 1e6) if isinstance(d, StopStray)]
    assert [stop.node_id for stop in unclaimed] == ["tiny-1/1"]


def test_a_host_that_never_reported_may_run_what_is_missed_for_the_time_of_a_lease() -> None:
    state = fleet(report_of(A), hosts=(A, B))
    assert over(state, 10, 99) == ()
    assert isinstance(over(state, 10, 100)[0], LoadModel)


@pytest.mark.adoption("25: in a minority the keeper stops acting")
@pytest.mark.parametrize("leases", [{}, {A: 1e9}, {A: 1e9, B: 9.0}, {A: 1e9, HostId("host-x"): 1e9}])
def test_r25_in_a_minority_nothing_is_decided(leases: dict[HostId, float]) -> None:
    memory, decisions = at(fleet(*bare()), 10.0, Memory(), leases)
    assert decisions == ()
    assert memory.began is None


class CountedHosts(dict[HostId, HostView]):
    """The hosts of a fleet, and how often somebody went through all of them."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def walks_over(replicas: int) -> int:
    shards = [
        changed(a_shard(1), replica=ReplicaId(f"tiny-{n}"), node_id=NodeId(f"tiny-{n}/1")) for n in range(replicas)
    ]
    state = fleet(report_of(A, entities_of(*shards)), report_of(B))
    assert len(state.replicas) == replicas
    hosts = CountedHosts(state.hosts)
    decide(msgspec.structs.replace(state, hosts=hosts), HELD, Memory(), 10.0, RULES)
    return hosts.walks


def test_a_look_goes_through_the_hosts_as_often_for_many_replicas_as_for_few() -> None:
    assert walks_over(60) == walks_over(3)


# --- every fleet --------------------------------------------------------------------------------------------------

STATES = st.sampled_from(
    ["ready", "ready", "ready", "draining", "spawning", "connecting", "loading", "warming", "stopping", "failed"]
)


@st.composite
def any_shard(draw: st.DrawFn) -> Shard:
    rank = draw(st.integers(0, 2))
    generation = LoadGeneration(GENERATION - draw(st.integers(0, 2)))
    replica = ReplicaId(draw(st.sampled_from(["tiny-1", "tiny-2", "other-1"])))
    maker = a_leader(draw(STATES)) if rank == 0 else a_shard(rank, draw(STATES))
    return msgspec.structs.replace(
        maker,
        host=draw(st.sampled_from([A, B])),
        replica=replica,
        node_id=NodeId(f"{replica}/{rank}"),
        model=replica.partition("-")[0],
        identity=draw(st.sampled_from([PROCESS, PROCESS, None])),
        load_generation=generation,
        node_generation=generation,
    )


@st.composite
def any_fleet(draw: st.DrawFn) -> FleetState:
    shards = draw(st.lists(any_shard(), max_size=8))
    totals = st.none() | st.integers(0, 3)
    reports = []
    for host in (A, B):
        own = [shard for shard in shards if shard.host == host]
        measured = tuple(
            Measurement(node_id=shard.node_id, observed_unix_ms=UnixMs(1), tokens_total=draw(totals), in_flight=0)
            for shard in own
            if shard.rank == 0
        )
        plan = a_plan() if draw(st.booleans()) else None
        reports.append(report_of(host, entities_of(*own, plan=plan), measurements=measured))
    model = msgspec.structs.replace(TINY, desired=draw(st.integers(0, 2)), idle_seconds=draw(st.integers(0, 100)))
    silent = tuple(draw(st.sets(st.sampled_from([A, B]), max_size=2)))
    return fleet(*reports, model=model, silent=silent)


FLEETS = any_fleet()
TIMES = st.lists(st.floats(0, 500), min_size=1, max_size=5).map(sorted)


@pytest.mark.adoption("25: no minority ever acts, on whatever fleet")
@settings(max_examples=60, deadline=None)
@given(FLEETS, st.lists(FLEETS, min_size=1, max_size=4), TIMES, st.sampled_from([{}, {A: 1e9}, {B: 1e9}, {A: 1.0}]))
def test_r25_no_minority_ever_acts(
    first: FleetState, later: list[FleetState], times: list[float], leases: dict[HostId, float]
) -> None:
    memory = Memory()
    for now, state in zip(times, [first, *later], strict=False):
        memory, decisions = decide(state, leases, memory, now, RULES)
        assert decisions == ()


@pytest.mark.adoption("17: the keeper stops no shard of a generation that serves, and nothing while a host is silent")
@settings(max_examples=120, deadline=None)
@given(st.lists(FLEETS, min_size=1, max_size=5), TIMES)
def test_r17_no_shard_of_a_generation_that_serves_is_stopped_and_no_stop_is_decided_with_a_silent_host(
    fleets: list[FleetState], times: list[float]
) -> None:
    memory = Memory()
    for now, state in zip(times, fleets, strict=False):
        memory, decisions = decide(state, HELD, memory, now, KeeperRules(grace_seconds=0.0, settle_seconds=0.0))
        every = [shard for view in state.hosts.values() for shard in view.entities.shards.values()]
        serving = {
            (shard.replica, shard.load_generation)
            for shard in every
            if shard.rank == 0 and shard.state in ("ready", "draining")
        }
        for decision in decisions:
            if isinstance(decision, StopStray):
                assert decision.identity is not None, "a stop names the process that is read again"
                replica = ReplicaId(decision.node_id.partition("/")[0])
                assert (replica, decision.generation) not in serving
            if isinstance(decision, StopStray | DrainIdle):
                assert all(view.state.value == "live" for view in state.hosts.values())
            if isinstance(decision, DrainIdle):
                assert state.replicas[decision.replica].state.value == "ready"
            if isinstance(decision, DismissReplica):
                assert state.replicas[decision.replica].state.value in ("failed", "stopped")


@pytest.mark.adoption("23: the keeper of a ring that serves decides nothing, however long that goes on")
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2), st.lists(st.floats(0, 1e6), min_size=1, max_size=20).map(sorted))
def test_r23_the_steady_state_is_silent(desired: int, times: list[float]) -> None:
    """A ring that serves and is used, or that is wanted: no decision, however long it goes on."""
    memory = Memory()
    model = msgspec.structs.replace(TINY, desired=min(desired, 1))
    for n, now in enumerate(times):
        total = 7 if model.desired else n
        memory, decisions = decide(fleet(*ring(total=total), model=model), HELD, memory, now, RULES)
        assert decisions == ()
