"""Rules 1 to 14: what follows from a report. Driven through the fold and the classification only."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from backend.contract.entities import Change, Hold, JournalRecord, OpenOperation, Reservation
from backend.contract.plans import Profile
from backend.contract.reports import DeviceFacts, ForeignProcess
from backend.contract.states import HostState, ReplicaState
from backend.contract.words import NodeGeneration, NodeId, OpId, Port, UnixMs
from backend.control.adoption import classify
from backend.control.fleet_facts import fleet_facts
from backend.control.link_events import RecordsHeard
from backend.control.views import Target
from backend.planning.fleet import available_memory, committed_budget, device_users, taken_ports
from tests.adoption.world import (
    NEWER,
    OLDER,
    OTHER,
    TINY,
    WHOLE_A,
    WHOLE_B,
    C,
    a_fleet,
    an_operation,
    catalog,
    decisions,
    document_of,
    folded,
    ledger,
    reason,
    running,
    says,
    silence,
)
from tests.control.factories import GENERATION, REPLICA, A, B, a_plan, a_shard, entities_of, facts_of, killed

WHOLE = (catalog(TINY), says(A, WHOLE_A), says(B, WHOLE_B))


@pytest.mark.adoption("the world size is the load record's, else the catalog's; ranks short, twice or outside are said")
def test_r01_the_world_size_is_never_a_count_of_what_was_reported() -> None:
    recorded = document_of(catalog(OTHER), says(A, WHOLE_A)).replicas[0]
    assert (recorded.world_size, sorted(recorded.missing)) == (3, [2])
    listed = document_of(catalog(TINY), says(A, entities_of(running(0, world_size=2)))).replicas[0]
    assert (listed.world_size, sorted(listed.missing)) == (3, [1, 2])
    ranks = (running(0), running(1), running(2, host=A))
    twice = document_of(catalog(TINY), says(A, entities_of(*ranks, plan=a_plan())), says(B, WHOLE_B))
    assert [each.reason for each in decisions(twice, "warn")] == [
        "rank 2 is on host-a and again on host-b; it is not counted"
    ]
    assert twice.stoppable == (), "a finding is not a reason to stop what serves"
    outside = msgspec.structs.replace(running(1), rank=7, node_id=NodeId("tiny-1/7"))
    found = document_of(catalog(TINY), says(A, entities_of(running(0), running(1), outside, plan=a_plan())))
    assert "rank 7 on host-a is outside the 3 of its load; it is not counted" in [
        each.reason for each in decisions(found, "warn")
    ]


@pytest.mark.adoption("models resolve through aliases, and the canonical name is kept")
def test_r01_a_model_is_known_by_its_alias_and_shown_by_its_name() -> None:
    found = document_of(catalog(TINY), says(A, entities_of(running(0, model="t"), running(1, model="t"))))
    assert (found.replicas[0].model, found.replicas[0].claim) == ("tiny", "adopted")


@pytest.mark.adoption("a group with the generation of our own open operation is ours: nothing else happens")
def test_r02_what_our_own_operation_loads_is_ours_and_no_stray() -> None:
    loading = entities_of(running(0), running(1, load_generation=NEWER), plan=a_plan())
    whole = (catalog(TINY), says(A, loading), says(B, WHOLE_B))
    opened = an_operation(load_generation=NEWER, plan=a_plan(load_generation=NEWER))
    assert [each.id for each in document_of(*whole).stoppable] == ["tiny-1/1@host-a"]
    found = document_of(*whole, ledger(opened))
    assert (found.replicas[0].claim, found.stoppable) == ("adopted", ())
    ours = document_of(*WHOLE, ledger(an_operation()))
    assert ours.replicas[0].claim == "ours"
    assert decisions(ours, "adopt") == []


@pytest.mark.adoption("what another console is loading now is no stray either")
def test_r02_what_anybody_loads_now_is_no_stray() -> None:
    younger = running(1, "loading", load_generation=NEWER)
    asked = OpenOperation(
        op_id=OpId("load-9-load-1"),
        command="load",
        subject="tiny-1/1",
        by="bob",
        payload_digest="",
        at_unix_ms=UnixMs(1),
        generation=NEWER,
    )
    busy = entities_of(running(0), younger, plan=a_plan(), operations={asked.op_id: asked})
    assert document_of(catalog(TINY), says(A, busy), says(B, WHOLE_B)).stoppable == ()
    reserved = Reservation(
        op_id=OpId("load-9-reserve"),
        by="bob",
        replica=REPLICA,
        load_generation=NEWER,
        node_ids=(NodeId("tiny-1/0"),),
        ports=(),
        memory={},
        made_unix_ms=UnixMs(1),
        expires_unix_ms=UnixMs(2),
    )
    kept = entities_of(running(0), younger, plan=a_plan(), reservations={reserved.op_id: reserved})
    assert document_of(catalog(TINY), says(A, kept), says(B, WHOLE_B)).stoppable == ()
    first = entities_of(younger, reservations={reserved.op_id: reserved})
    found = document_of(catalog(OTHER), says(A, first))
    assert (found.replicas[0].claim, found.stoppable) == ("adopted", ()), "its load record is on its way"


@pytest.mark.adoption(
    "generations are never merged: the serving one stands, the others are strays, ports and memory held"
)
def test_r03_the_generation_that_serves_stands_and_the_others_are_strays() -> None:
    stray = running(2, load_generation=NEWER, host=C)
    found = document_of(*WHOLE, says(C, entities_of(stray)))
    assert found.replicas[0].generation == GENERATION
    (only,) = found.stoppable
    assert (only.kind, only.id, only.load_generation) == ("stray", "tiny-1/2@host-c", NEWER)
    assert (only.pid, only.start_ticks, only.nonce) == (
        stray.identity and stray.identity.pid,
        stray.identity and stray.identity.start_ticks,
        stray.identity and stray.identity.nonce,
    )
    assert only.memory == stray.bound.memory > 0
    assert reason(found, "stray") == (
        f"rank 2 on host-c is of generation {NEWER}, and generation {GENERATION} stands (3 of 3 ranks serve)"
    )


@pytest.mark.adoption("where none serves, the newest complete generation stands, else the newest")
def test_r03_without_one_that_serves_the_newest_complete_one_stands() -> None:
    old = entities_of(running(0, "loading", canary=None), running(1), plan=a_plan())
    newer_part = entities_of(running(2, load_generation=NEWER, host=C))
    found = document_of(catalog(TINY), says(A, old), says(B, WHOLE_B), says(C, newer_part))
    assert (found.replicas[0].generation, [each.host for each in found.stoppable]) == (GENERATION, [C])
    parts = document_of(
        catalog(TINY), says(A, entities_of(running(1, load_generation=OLDER))), says(B, entities_of(running(2)))
    )
    assert (parts.replicas[0].generation, [each.id for each in parts.stoppable]) == (GENERATION, ["tiny-1/1@host-a"])


@pytest.mark.adoption("an unknown replica is adopted with its shards as soon as it is reported")
def test_r04_an_unknown_replica_is_adopted_at_the_report() -> None:
    found = document_of(*WHOLE)
    assert found.replicas[0].claim == "adopted"
    assert [(each.rank, each.host) for each in found.replicas[0].reporters] == [(0, A), (1, A), (2, B)]
    assert reason(found, "adopt") == (
        f"3 of 3 ranks of generation {GENERATION} are reported by host-a, host-b; tiny:two-host is in the catalog"
    )
    assert (found.stoppable, found.is_pending) == ((), False)


@pytest.mark.adoption("the other half of an adopted replica that registers later is merged, and nothing is a stray")
def test_r05_the_half_that_registers_later_is_merged() -> None:
    first = folded(catalog(TINY), says(A, WHOLE_A))
    short = classify(first.state)
    assert first.state.replicas[REPLICA].state is ReplicaState.RECOVERING
    assert "still short: rank 2 on host-b" in reason(short, "merge")
    assert short.stoppable == ()
    later = classify(folded(says(B, WHOLE_B), fleet=first).state)
    assert (
        reason(later, "merge") == f"2 ranks of host-a and 1 rank of host-b are one replica of generation {GENERATION}"
    )
    assert (later.replicas[0].state, later.stoppable) == ("ready", ())


@pytest.mark.adoption("a reconnecting agent repeats what it runs: the same state, not even a new object")
def test_r06_a_report_that_repeats_changes_nothing() -> None:
    first = folded(*WHOLE)
    again = folded(says(A, WHOLE_A), says(B, WHOLE_B), fleet=first)
    assert again.state.replicas[REPLICA] is first.state.replicas[REPLICA]
    assert classify(again.state, 9) == classify(first.state, 9)


@pytest.mark.adoption("a replica that was merely placed gives way to what is reported, and its endpoint is named")
def test_r07_the_report_replaces_what_was_merely_placed() -> None:
    placed = an_operation(load_generation=NEWER, plan=a_plan(load_generation=NEWER))
    before = folded(catalog(TINY), ledger(placed))
    assert before.state.replicas[REPLICA].state is ReplicaState.PLACED
    assert classify(before.state).replicas[0].claim == "placed"
    after = classify(folded(says(A, WHOLE_A), says(B, WHOLE_B), fleet=before).state)
    assert after.replicas[0].generation == GENERATION
    assert f"generation {NEWER} was only placed, at 127.0.0.1:18000" in reason(after, "replace")
    assert "the placed endpoint 127.0.0.1:18000 serves nothing; use http://127.0.0.1:18090" in reason(after, "warn")


@pytest.mark.adoption("a replica whose ranks have all failed gives way to a report of live ones")
def test_r07_what_failed_everywhere_gives_way_to_what_lives() -> None:
    dead = entities_of(*(a_shard(rank, "failed", exit=killed(), load_generation=OLDER) for rank in (0, 1)))
    before = folded(catalog(TINY), says(A, dead))
    assert before.state.replicas[REPLICA].state is ReplicaState.FAILED
    after = folded(says(A, WHOLE_A), says(B, WHOLE_B), fleet=before)
    assert after.state.replicas[REPLICA].load_generation == GENERATION
    assert after.state.replicas[REPLICA].state is ReplicaState.READY


@pytest.mark.adoption("a terminal shard that is reported running again is revived, and nothing is counted twice")
def test_r08_reported_facts_replace_ours_and_the_dead_are_revived() -> None:
    gone = entities_of(a_shard(2, "failed", exit=killed()), plan=a_plan())
    fleet = folded(catalog(TINY), says(A, WHOLE_A), says(B, gone))
    assert fleet.state.replicas[REPLICA].state is ReplicaState.FAILED
    fleet = folded(says(B, WHOLE_B), fleet=fleet)
    assert fleet.state.replicas[REPLICA].state is ReplicaState.READY
    assert len(classify(fleet.state).replicas[0].reporters) == 3
    target = Target(
        host=B,
        node_id=NodeId("tiny-1/2"),
        rank=2,
        node_generation=NodeGeneration(GENERATION),
        adapter_kind="llamacpp",
    )
    ended = an_operation("unload", state="succeeded", ended_unix_ms=UnixMs(2), targets=(target,))
    told = reason(document_of(ledger(ended), fleet=fleet), "revive")
    assert (
        told
        == f"unload-1 by alice had stopped it, and host-b reports generation {GENERATION} ready: it is counted again"
    )


@pytest.mark.adoption(
    "what is revived has its device, memory, ports, cores and power again; what failed has none of it"
)
def test_r08_what_is_revived_reclaims_its_allocation() -> None:
    plan = a_plan(profile=Profile(ranks=3, hosts=(A, B), cpu_cores=2, power=150))
    fields: dict[str, Any] = {"device": "CUDA0", "ports": (Port(18_002), Port(18_003))}
    gpu = DeviceFacts(name="CUDA0", uuid="u", kind="cuda", total=10**9, free=10**9)
    facts = msgspec.structs.replace(facts_of(B), devices=(gpu,))
    dead = entities_of(a_shard(2, "failed", exit=killed(), **fields), plan=plan)
    whole_a = entities_of(running(0), running(1), plan=plan)
    fleet = folded(catalog(TINY), says(A, whole_a), says(B, dead, facts=facts))
    (_, before) = fleet_facts(fleet.state).reports
    assert (device_users(before), committed_budget(before)) == ({}, (0, 0))
    assert taken_ports(before, ended=False) == {}
    assert available_memory(before, "CUDA0") == 10**9
    live = running(2, "loading", **fields)
    fleet = folded(says(B, entities_of(live, plan=plan), facts=facts), fleet=fleet)
    (_, after) = fleet_facts(fleet.state).reports
    assert device_users(after) == {"CUDA0": "used by tiny-1/2 (loading)"}
    assert set(taken_ports(after, ended=False)) == {18_002, 18_003}
    assert committed_budget(after) == (2, 150)
    assert available_memory(after, "CUDA0") == 10**9 - live.bound.memory


@pytest.mark.adoption("a stray keeps the memory of its device as well as its ports until its process has exited")
def test_r12_a_stray_keeps_the_memory_of_its_device() -> None:
    stray = running(2, load_generation=NEWER, host=C, device="CUDA0")
    fleet = folded(*WHOLE, says(C, entities_of(stray)), fleet=a_fleet((A, B, C)))
    report = next(each for each in fleet_facts(fleet.state).reports if each.host == C)
    assert device_users(report) == {"CUDA0": "used by tiny-1/2 (ready)"}
    told = reason(document_of(fleet=fleet), "hold_device")
    assert told == f"{stray.bound.memory} bytes of CUDA0 until its process has exited"


@pytest.mark.adoption("neither in the catalog nor in a load record is unclaimed")
def test_r09_what_neither_catalog_nor_load_record_knows_is_unclaimed() -> None:
    unknown = (says(A, entities_of(running(0), running(1))), says(B, entities_of(running(2))))
    found = document_of(catalog(OTHER), *unknown)
    assert [(each.kind, each.id) for each in found.stoppable] == [
        ("unclaimed", "tiny-1/0@host-a"),
        ("unclaimed", "tiny-1/1@host-a"),
        ("unclaimed", "tiny-1/2@host-b"),
    ]
    assert found.replicas[0].claim == "unclaimed"
    assert {each.reason for each in decisions(found, "unclaimed")} == {
        "tiny:two-host is neither in the catalog (other) nor in a load record"
    }
    assert decisions(found, "adopt") == []
    without_profile = msgspec.structs.replace(TINY, profiles={"alone": Profile(ranks=1)})
    assert len(document_of(catalog(without_profile), *unknown).stoppable) == 3


@pytest.mark.adoption("a catalog that is missing, empty or unreadable makes nothing unclaimed")
@pytest.mark.parametrize(
    ("models", "words"),
    [((), ""), ((), "catalog.toml: there is no such file."), ((OTHER,), "catalog.toml: line 3 cannot be read.")],
    ids=["empty", "missing", "unreadable"],
)
def test_r09_without_a_whole_catalog_nothing_is_unclaimed(models: tuple[object, ...], words: str) -> None:
    unknown = (says(A, entities_of(running(0), running(1))), says(B, entities_of(running(2))))
    found = document_of(catalog(*models, words=words), *unknown)  # type: ignore[arg-type]  # models of the rows above
    assert (found.stoppable, found.replicas[0].claim) == ((), "adopted")


@pytest.mark.adoption(
    "what only the load record knows is catalog drift, and a changed profile is drift `profile changed`"
)
def test_r09_a_model_that_only_the_load_record_knows_is_drift() -> None:
    found = document_of(catalog(OTHER), says(A, WHOLE_A), says(B, WHOLE_B))
    assert found.stoppable == ()
    assert "catalog has no tiny:two-host" in reason(found, "warn")
    changed = msgspec.structs.replace(TINY, profiles={"two-host": Profile(ranks=2, hosts=(A, B))})
    fleet = folded(catalog(changed), says(A, WHOLE_A), says(B, WHOLE_B))
    assert any("ranks 3" in words and "ranks 2" in words for words in _warnings(fleet.state))
    assert fleet.state.replicas[REPLICA].world_size == 3, "its ranks come from the load record"
    assert classify(fleet.state).is_pending


def _warnings(state: object) -> list[str]:
    return [each.reason for each in decisions(classify(state), "warn")]  # type: ignore[arg-type]


@pytest.mark.adoption("what is folded in takes its devices, memory, cores and power: none is handed out twice")
def test_r10_an_adopted_shard_takes_its_devices_cores_and_power() -> None:
    plan = a_plan(profile=Profile(ranks=3, hosts=(A, B), cpu_cores=2, power=150))
    held = entities_of(running(0), running(1, device="CUDA0"), plan=plan)
    (report, _) = fleet_facts(folded(catalog(TINY), says(A, held), says(B)).state).reports
    assert device_users(report)["CUDA0"] == "used by tiny-1/1 (ready)"
    assert committed_budget(report) == (2, 150)


@pytest.mark.adoption("the endpoint is rank 0's, whichever host reports it, and shards are kept in rank order")
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_r11_the_endpoint_comes_from_rank_0_whoever_speaks_first(order: tuple[int, ...]) -> None:
    events = [
        says(A, entities_of(running(2, host=A), plan=a_plan())),
        says(B, entities_of(running(0, host=B), plan=a_plan())),
        says(C, entities_of(running(1, host=C), plan=a_plan())),
    ]
    view = folded(catalog(TINY), *(events[n] for n in order), fleet=a_fleet((A, B, C))).state.replicas[REPLICA]
    assert view.endpoint == "http://127.0.0.1:18090"
    assert [each.shard.rank for each in view.shards] == [0, 1, 2]
    assert view.state is ReplicaState.READY


@pytest.mark.adoption("the ports of strays and of unclaimed shards are held at once, the whole band, until they exited")
def test_r12_ports_of_strays_and_unclaimed_shards_are_not_handed_out() -> None:
    band = tuple(Port(18_100 + n) for n in range(4))
    stray = running(2, load_generation=NEWER, host=C, ports=band)
    fleet = folded(*WHOLE, says(C, entities_of(stray)), fleet=a_fleet((A, B, C)))
    report = next(each for each in fleet_facts(fleet.state).reports if each.host == C)
    assert set(band) <= taken_ports(report).keys()
    words = reason(document_of(fleet=fleet), "hold_port")
    assert words == "4 ports 18100, 18101, 18102, 18103 until its process has exited and nothing listens there"
    unclaimed = document_of(catalog(OTHER), says(A, entities_of(running(1, ports=band))))
    assert len(decisions(unclaimed, "hold_port")) == 1


@pytest.mark.adoption("a hold of an agent is shown with what it keeps and the proof that ends it")
def test_r12_holds_are_shown_until_their_proof() -> None:
    until = "nothing listens on its ports"
    hold = Hold(node_id=NodeId("tiny-1/1"), load_generation=OLDER, kind="ports", ports=(Port(18_001),), until=until)
    found = document_of(catalog(TINY), says(A, entities_of(holds={"h": hold})))
    assert [(each.ports, each.until) for each in found.held] == [((Port(18_001),), until)]
    assert reason(found, "hold_port") == f"1 port 18001 until {until}"


@pytest.mark.adoption("an adopted replica of an on-demand model is wanted from now, for a whole idle timeout")
def test_r13_an_on_demand_model_is_wanted_from_its_adoption() -> None:
    on_demand = msgspec.structs.replace(TINY, mode="on_demand", idle_seconds=600)
    found = document_of(catalog(on_demand), *WHOLE[1:])
    assert "a whole idle timeout of 10 min" in reason(found, "want")
    assert decisions(document_of(*WHOLE), "want") == []


@pytest.mark.adoption("a rank that its live agent denies has failed, and its replica with it")
def test_r14_what_a_live_agent_does_not_report_has_failed() -> None:
    empty = entities_of(plan=a_plan())
    fleet = folded(catalog(TINY), says(A, WHOLE_A), says(B, WHOLE_B), says(B, empty))
    found = classify(fleet.state)
    assert fleet.state.replicas[REPLICA].state is ReplicaState.FAILED
    assert reason(found, "fail_shard") == "rank 2 on host-b: the agent reports it is not running"


@pytest.mark.adoption("an engine that ended becomes a hold that only its agent's proof ends")
def test_r14_the_allocation_of_a_failed_shard_is_held_until_the_proof() -> None:
    hold = Hold(
        node_id=NodeId("tiny-1/2"),
        load_generation=GENERATION,
        kind="device",
        device="CUDA0",
        memory=5,
        until="the device lists no owner",
    )
    dead = entities_of(a_shard(2, "failed", exit=killed()), plan=a_plan(), holds={"h": hold})
    fleet = folded(catalog(TINY), says(A, WHOLE_A), says(B, dead))
    (_, report) = fleet_facts(fleet.state).reports
    assert "held after tiny-1/2" in device_users(report)["CUDA0"]
    assert reason(classify(fleet.state), "hold_device") == "5 bytes of CUDA0 until the device lists no owner"


@pytest.mark.adoption("an open intent or a reservation is no absence, and neither is a silent host")
def test_r14_what_is_asked_for_and_what_nobody_can_say_has_not_failed() -> None:
    asked = OpenOperation(
        op_id=OpId("x"), command="load", subject="tiny-1/2", by="bob", payload_digest="", at_unix_ms=UnixMs(1)
    )
    intent = entities_of(plan=a_plan(), operations={asked.op_id: asked})
    assert decisions(document_of(catalog(TINY), says(A, WHOLE_A), says(B, intent)), "fail_shard") == []
    fleet = folded(catalog(TINY), says(A, WHOLE_A), says(B, WHOLE_B), silence(B))
    assert decisions(classify(fleet.state), "fail_shard") == []
    assert fleet.state.hosts[B].state is HostState.UNREACHABLE


@pytest.mark.adoption("workers whose leader died are orphans; a record without a process is a ghost")
def test_r24_orphans_and_ghosts_are_named() -> None:
    headless = entities_of(a_shard(0, "failed", exit=killed()), running(1), plan=a_plan())
    found = document_of(catalog(TINY), says(A, headless), says(B, WHOLE_B))
    assert [(each.subject, each.host) for each in found.orphans] == [("tiny-1/1", A), ("tiny-1/2", B)]
    assert "its leader on host-a is failed" in found.orphans[0].why
    assert found.stoppable == (), "their own agents end them"
    ghost = document_of(catalog(TINY), says(A, entities_of(plan=a_plan())))
    assert [(each.subject, each.host) for each in ghost.ghosts] == [(REPLICA, A)]


@pytest.mark.adoption("engines that no agent started are foreign, each once, and never what could be stopped")
def test_r24_foreign_engines_are_named_once_and_never_stopped() -> None:
    ours = running(1)
    assert ours.identity is not None
    seen = (
        ForeignProcess(pid=99, program="llama-server", model="big.gguf", memory=7),
        ForeignProcess(pid=ours.identity.pid, program="ggml-rpc-server"),
    )
    facts = [msgspec.structs.replace(facts_of(host), foreign=seen) for host in (A, B)]
    found = document_of(
        catalog(OTHER), says(A, entities_of(running(0), ours, plan=a_plan()), facts=facts[0]), says(B, facts=facts[1])
    )
    assert [(each.host, each.pid, each.model) for each in found.foreign] == [(A, 99, "big.gguf")]
    assert found.stoppable == ()


def test_a_record_that_carries_a_change_is_as_good_as_a_report() -> None:
    fleet = folded(catalog(TINY), says(A, WHOLE_A), says(B, entities_of(plan=a_plan())))
    record = JournalRecord(
        kind="ready", words="", at_unix_ms=UnixMs(5), seq=11, change=Change(shard=running(2), load=None)
    )
    heard = RecordsHeard(host=B, at=3.0, unix_ms=UnixMs(5), records=(record,))
    assert classify(folded(heard, fleet=fleet).state).replicas == document_of(*WHOLE).replicas
