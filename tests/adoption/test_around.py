"""Rules 15 to 24 around the reports: silence, what may be stopped, what is learned, the document and its digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.contract.cordons import Cordon
from backend.contract.entities import Entities
from backend.contract.states import HostState, ReplicaState
from backend.contract.words import NodeId, OpId, UnixMs
from backend.control.adopting import chosen_shards
from backend.control.adoption import classify
from backend.control.adoption_document import (
    AdoptionDocument,
    AdoptionUnreadable,
    adoption_digest,
    read_adoption,
    what_moved,
    write_adoption,
)
from backend.control.cannot_answer import CannotAnswer
from backend.control.exit_codes import REFUSED, UNREACHABLE
from backend.control.fleet import LEASE_SECONDS, fold_event
from backend.control.fleet_events import AnyFleetEvent, Slept, Ticked
from backend.control.fleet_facts import fleet_facts
from backend.control.ledger import Operation, create, ledger_path
from backend.control.ledger_views import LedgerReader
from backend.control.recovering import GRACE_SECONDS
from backend.control.requests import StartAdopt
from backend.planning.fleet import highest_generation
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
    document_of,
    folded,
    ledger,
    process,
    running,
    says,
    silence,
)
from tests.agent.core.world import World
from tests.control.factories import GENERATION, REPLICA, A, B, a_plan, entities_of
from tests.factories import make_plan

THREE = (A, B, C)
STRAY = running(2, load_generation=NEWER, host=C)
EVERYTHING = (catalog(TINY), says(A, WHOLE_A), says(B, WHOLE_B), says(C, entities_of(STRAY)))


def tick(at: float) -> Ticked:
    return Ticked(at=at, unix_ms=UnixMs(int(at * 1000)))


@pytest.mark.adoption("a silent host's shards are unreachable, and lost only when its lease is over")
def test_r15_silence_says_nothing_until_the_lease_is_over() -> None:
    fleet = folded(*EVERYTHING, silence(B), fleet=a_fleet(THREE))
    view = fleet.state.replicas[REPLICA]
    assert (view.state, view.shards[2].state) == (ReplicaState.RECOVERING, "unreachable")
    fleet = folded(tick(5.0 + LEASE_SECONDS - 1), fleet=fleet)
    assert fleet.state.hosts[B].state is HostState.UNREACHABLE
    fleet = folded(tick(5.0 + LEASE_SECONDS), fleet=fleet)
    assert fleet.state.replicas[REPLICA].shards[2].state == "lost"


@pytest.mark.adoption("what was lost and replaced is shown when it comes back, and not stopped")
def test_r15_what_comes_back_is_surplus_and_only_shown() -> None:
    lost = (silence(B), tick(5.0 + LEASE_SECONDS), says(C, entities_of(plan=a_plan(load_generation=NEWER))))
    newer = [running(rank, load_generation=NEWER, host=C) for rank in range(3)]
    fleet = folded(
        catalog(TINY),
        says(A),
        says(B, entities_of(*(running(rank, host=B) for rank in range(3)), plan=a_plan())),
        *lost,
        says(C, entities_of(*newer, plan=a_plan(load_generation=NEWER))),
        fleet=a_fleet(THREE),
    )
    assert fleet.state.replicas[REPLICA].load_generation == NEWER
    found = document_of(says(B, entities_of(*(running(r, host=B) for r in range(3)), plan=a_plan())), fleet=fleet)
    assert len(found.stoppable) == 3
    assert len({each.load_generation for each in found.stoppable}) == 1


@pytest.mark.adoption("when all hosts, or half of them and at least 3, fall silent together, nobody is lost")
def test_r16_a_mass_disconnect_declares_nobody_lost() -> None:
    fleet = folded(*EVERYTHING, *(silence(host) for host in THREE), tick(500.0), fleet=a_fleet(THREE))
    assert {view.state for view in fleet.state.hosts.values()} == {HostState.UNREACHABLE}
    assert "3 of 3 hosts fell silent together" in fleet.state.hosts[A].words
    assert fleet.state.replicas[REPLICA].state is ReplicaState.RECOVERING
    assert classify(fleet.state).stoppable == (), "what cannot be read again is not stopped"


@pytest.mark.adoption("nothing stops by itself, and the document counts who was heard")
def test_r17_the_document_says_how_many_of_how_many_were_heard() -> None:
    fleet = folded(*EVERYTHING, silence(B), fleet=a_fleet(THREE))
    found = classify(fleet.state)
    assert found.heard_words == "2 of 3 hosts heard"
    assert found.silent[B] == "unreachable: ssh: connection timed out"
    request = StartAdopt(document=found, confirmed=found.digest)
    with pytest.raises(CannotAnswer, match="2 of 3 hosts heard, so that nobody knows what stands there") as refused:
        chosen_shards(request, found)
    assert refused.value.code == UNREACHABLE
    despite = msgspec.structs.replace(request, despite_silence=True)
    assert [each.id for each in chosen_shards(despite, found)] == ["tiny-1/2@host-c"]


@pytest.mark.adoption("a short but adopted replica is recovering: it keeps its route")
def test_r19_recovering_keeps_its_route() -> None:
    view = folded(catalog(TINY), says(A, WHOLE_A)).state.replicas[REPLICA]
    assert (view.state, view.endpoint) == (ReplicaState.RECOVERING, "http://127.0.0.1:18090")
    after = folded(catalog(TINY), says(A, WHOLE_A), says(B, WHOLE_B)).state.replicas[REPLICA]
    assert after.state is ReplicaState.READY


@pytest.mark.adoption(
    "recovering ends as failed, naming the missing ranks, when its grace is over; and ready if it is whole"
)
def test_r19_recovering_ends_after_its_grace() -> None:
    fleet = folded(*EVERYTHING, silence(B), tick(6.0), fleet=a_fleet(THREE))
    fleet = folded(tick(6.0 + GRACE_SECONDS - 1), fleet=fleet)
    assert fleet.state.replicas[REPLICA].state is ReplicaState.RECOVERING
    fleet = folded(tick(6.0 + GRACE_SECONDS), fleet=fleet)
    view = fleet.state.replicas[REPLICA]
    assert view.state is ReplicaState.FAILED
    assert view.words.startswith("rank 2 on host-b: lost; not whole again within its grace of 300 s")
    assert view.endpoint == "http://127.0.0.1:18090", "what serves there is still named"
    assert fold_event(fleet, tick(1000.0)) == (fleet, ()), "said once"
    back = folded(says(B, WHOLE_B), tick(1001.0), fleet=fleet)
    assert back.state.replicas[REPLICA].state is ReplicaState.READY
    assert (back.recovering, back.given_up) == ({}, {})
    again = folded(silence(B, 1002.0), tick(1003.0), fleet=back)
    assert again.state.replicas[REPLICA].state is ReplicaState.RECOVERING, "the next time it has its whole grace"


@pytest.mark.adoption(
    "a rank that no host ever reported ends the recovery too, and a newer load is not given up with it"
)
def test_r19_a_rank_that_never_comes_is_named_and_a_newer_load_is_another_one() -> None:
    fleet = folded(catalog(TINY), says(A, entities_of(running(0), running(1))), says(B), says(C), fleet=a_fleet(THREE))
    fleet = folded(tick(6.0), tick(6.0 + GRACE_SECONDS), fleet=fleet)
    view = fleet.state.replicas[REPLICA]
    assert (view.state, view.missing) == (ReplicaState.FAILED, {2: "rank 2: no host has reported it"})
    newer = [running(rank, load_generation=NEWER) for rank in (0, 1)]
    fleet = folded(says(A, entities_of(*newer)), fleet=fleet)
    assert fleet.state.replicas[REPLICA].state is ReplicaState.RECOVERING


@pytest.mark.adoption(
    "the brake holds the end of a recovery back as well, and a suspended machine begins the grace anew"
)
def test_r16_the_brake_holds_the_end_of_a_recovery_back() -> None:
    fleet = folded(*EVERYTHING, *(silence(host) for host in THREE), tick(6.0), tick(999.0), fleet=a_fleet(THREE))
    assert fleet.state.replicas[REPLICA].state is ReplicaState.RECOVERING
    slept = folded(*EVERYTHING, silence(B), tick(6.0), Slept(at=400.0, unix_ms=UnixMs(4), seconds=380.0), tick(401.0))
    assert slept.state.replicas[REPLICA].state is ReplicaState.RECOVERING


@pytest.mark.adoption("a record that cannot be read is set aside and shown, and all the others go on")
def test_r20_a_damaged_record_is_set_aside_and_the_others_go_on(place: Path) -> None:
    for name in ("load-1-aa", "load-2-bb"):
        create(
            place,
            Operation(
                op_id=OpId(name),
                kind="load",
                subject=REPLICA,
                by="alice",
                context="test",
                load_generation=GENERATION,
                targets=(),
                options={},
                started_unix_ms=UnixMs(5),
                plan=a_plan(),
            ),
        ).close()
    path = ledger_path(place, OpId("load-1-aa"))
    path.write_bytes(path.read_bytes().replace(b"alice", b"mallo"))
    states = {view.id: view.state for view in LedgerReader(place).read().values()}
    assert states == {"load-1-aa": "damaged", "load-2-bb": "ownerless"}


@pytest.mark.adoption("a control plane without memory learns the highest generation from the fleet")
def test_r21_the_highest_generation_is_learned_from_the_fleet() -> None:
    kept = entities_of(highest_generation=int(NEWER) + 5)
    reports = fleet_facts(folded(catalog(TINY), says(A, WHOLE_A), says(B, kept)).state).reports
    assert max(highest_generation(report) for report in reports) == NEWER + 5


@pytest.mark.adoption("a stop of what is gone succeeds as absent, and one that names another generation is refused")
def test_r22_a_stop_names_the_generation_that_it_saw() -> None:
    world, plan = World(), make_plan()
    world.unload(plan, 1, "early")
    gone = world.answer("early-1")
    assert (gone.status, gone.resource_state) == ("succeeded", "absent")
    world.bring_up(plan)
    world.unload(plan, 1, "late", generation=7)
    refused = world.answer("late-1")
    assert refused.status == "rejected"
    assert "E_FENCED" in refused.first_error
    assert "the unload names 7" in refused.first_error
    assert world.state_of(plan, 1) == "ready"
    assert world.is_quiet()


@pytest.mark.adoption("in the steady state nothing changes: ticks and repeated reports give the same object")
def test_r23_the_steady_state_is_silent() -> None:
    fleet = folded(*EVERYTHING, fleet=a_fleet(THREE))
    state = fleet.state
    for at in (10.0, 11.0, 12.0):
        fleet, lines = fold_event(fleet, tick(at))
        assert (fleet.state is state, lines) == (True, ())
    fleet, _ = fold_event(fleet, catalog(TINY))
    assert fleet.state is state
    assert classify(state, 1).digest == classify(fleet.state, 99_999).digest


# --- the document -------------------------------------------------------------------------------------------------


@pytest.fixture
def document() -> AdoptionDocument:
    return document_of(*EVERYTHING, fleet=a_fleet(THREE))


@pytest.mark.adoption("the document can be saved and read; one that was edited is refused")
def test_r24_the_document_is_saved_whole_and_an_edited_one_is_refused(place: Path, document: AdoptionDocument) -> None:
    path = place / "adopt.json"
    write_adoption(document, path)
    assert read_adoption(path) == document
    path.write_text(path.read_text().replace(str(STRAY.identity and STRAY.identity.pid), "1"))
    with pytest.raises(AdoptionUnreadable, match="it was edited"):
        read_adoption(path)
    with pytest.raises(AdoptionUnreadable, match="cannot be read: No such file"):
        read_adoption(place / "nowhere")
    path.write_text("{}")
    with pytest.raises(AdoptionUnreadable, match="is no adoption document"):
        read_adoption(path)


@pytest.mark.adoption("a document that still holds names exactly what is stopped; a moved fact refuses it and is named")
@pytest.mark.parametrize(
    ("event", "moved"),
    [
        pytest.param(
            says(C, entities_of(msgspec.structs.replace(STRAY, identity=process(3)))), "pid 4003", id="another process"
        ),
        pytest.param(says(C), "shard tiny-1/2@host-c was stray", id="the stray is gone"),
        pytest.param(silence(B), "host host-b was not there, and is silent", id="a host fell silent"),
        pytest.param(says(B, entities_of(plan=a_plan())), "rank 2 missing", id="the ring that stands has lost a rank"),
        pytest.param(
            says(
                A,
                entities_of(running(0), running(1), running(1, replica="x-1", node_id=NodeId("x-1/1")), plan=a_plan()),
            ),
            "replica x-1 was not there",
            id="another replica",
        ),
    ],
)
def test_r24_what_moved_refuses_the_document_and_is_named(
    document: AdoptionDocument, event: AnyFleetEvent, moved: str
) -> None:
    request = StartAdopt(document=document, confirmed=document.digest)
    assert [each.id for each in chosen_shards(request, document)] == ["tiny-1/2@host-c"]
    now = document_of(*EVERYTHING, event, fleet=a_fleet(THREE))
    with pytest.raises(CannotAnswer) as refused:
        chosen_shards(request, now)
    assert refused.value.code == REFUSED
    assert "the document no longer holds" in str(refused.value)
    assert moved in str(refused.value)
    assert "Nothing was stopped" in str(refused.value)


@pytest.mark.adoption("a measurement, the time and a loading rank do not make it another document")
def test_r24_what_does_not_matter_does_not_move_the_document(document: AdoptionDocument) -> None:
    loading = entities_of(running(0), running(1, "loading"), plan=a_plan())
    now = document_of(*EVERYTHING, says(A, loading), fleet=a_fleet(THREE))
    assert what_moved(document, now) == ()
    assert document.digest == now.digest == adoption_digest(document)


@pytest.mark.adoption("what a person confirms is the digest that they saw")
def test_r24_another_digest_is_refused(document: AdoptionDocument) -> None:
    with pytest.raises(CannotAnswer, match="confirmed was nothing"):
        chosen_shards(StartAdopt(document=document, confirmed=""), document)
    elsewhere = msgspec.structs.replace(document, context="prod")
    elsewhere = msgspec.structs.replace(elsewhere, digest=adoption_digest(elsewhere))
    with pytest.raises(CannotAnswer, match="is of context prod, this is test"):
        chosen_shards(StartAdopt(document=elsewhere, confirmed=elsewhere.digest), document)


@pytest.mark.adoption("one shard of the document can be stopped alone, as long as it is the same one")
def test_r24_one_stray_is_chosen_though_other_facts_moved(document: AdoptionDocument) -> None:
    request = StartAdopt(document=document, confirmed=document.digest, only="tiny-1/2@host-c")
    elsewhere = document_of(
        *EVERYTHING,
        says(A, entities_of(running(0), running(1), running(1, replica="x-1", node_id=NodeId("x-1/1")), plan=a_plan())),
        fleet=a_fleet(THREE),
    )
    assert [each.id for each in chosen_shards(request, elsewhere)] == ["tiny-1/2@host-c"]
    another = msgspec.structs.replace(STRAY, identity=process(3))
    moved = document_of(*EVERYTHING, says(C, entities_of(another)), fleet=a_fleet(THREE))
    with pytest.raises(CannotAnswer, match="pid 4003"):
        chosen_shards(request, moved)
    with pytest.raises(CannotAnswer, match="is no longer a stray"):
        chosen_shards(request, document_of(*EVERYTHING, says(C), fleet=a_fleet(THREE)))
    unknown = msgspec.structs.replace(request, only="tiny-1/0@host-a")
    with pytest.raises(CannotAnswer, match="names no shard"):
        chosen_shards(unknown, document)


@pytest.mark.adoption("strays of one slot on two hosts are told in the same order, whichever host spoke first")
def test_r06_the_same_slot_on_two_hosts_is_told_in_one_order() -> None:
    strays = [
        says(host, entities_of(running(2, host=host, load_generation=OLDER), *more))
        for host, more in ((A, (running(0),)), (C, (running(1, host=C, load_generation=OLDER),)))
    ]
    orders = [(*strays, says(B, WHOLE_B)), (says(B, WHOLE_B), *reversed(strays))]
    first, second = (document_of(catalog(TINY), *order, fleet=a_fleet(THREE)) for order in orders)
    assert first == second
    assert [each.id for each in first.stoppable] == ["tiny-1/1@host-c", "tiny-1/2@host-a", "tiny-1/2@host-c"]


# --- any order, any repetition ------------------------------------------------------------------------------------

_STATES = st.sampled_from(["loading", "ready", "draining", "stopping", "stopped", "failed"])


@st.composite
def worlds(draw: st.DrawFn) -> list[AnyFleetEvent]:
    """A report of each of three hosts, with shards of up to three generations, and a catalog that may not know them."""
    events: list[AnyFleetEvent] = [catalog(draw(st.sampled_from([TINY, OTHER])))]
    for host in THREE:
        shards = [
            running(rank, draw(_STATES), host=host, load_generation=draw(st.sampled_from([OLDER, GENERATION, NEWER])))
            for rank in draw(st.sets(st.integers(0, 2)))
        ]
        plan = draw(st.sampled_from([None, a_plan(), a_plan(load_generation=NEWER)]))
        events.append(says(host, entities_of(*shards, plan=plan)))
    return events


@pytest.mark.adoption("any order and repetition of the reports of one fleet gives the same state and the same document")
@given(world=worlds(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_r06_any_order_and_repetition_gives_the_same_document(world: list[AnyFleetEvent], data: Any) -> None:
    order = data.draw(st.lists(st.sampled_from(range(len(world))), max_size=8)) + data.draw(
        st.permutations(range(len(world)))
    )
    fleets = folded(*world, fleet=a_fleet(THREE)), folded(*(world[n] for n in order), fleet=a_fleet(THREE))
    assert fleets[0].state.replicas == fleets[1].state.replicas
    assert list(fleets[0].state.replicas) == list(fleets[1].state.replicas)
    told = [[msgspec.structs.replace(drift, since_unix_ms=UnixMs(0)) for drift in f.state.drifts] for f in fleets]
    assert told[0] == told[1], "but for since when each is known"
    assert (fleets[0].where, fleets[0].planned_at) == (fleets[1].where, fleets[1].planned_at)
    straight, mixed = (classify(fleet.state, 9) for fleet in fleets)
    names = straight.__struct_fields__
    differing = [(name, getattr(straight, name), getattr(mixed, name)) for name in names]
    assert [each for each in differing if each[1] != each[2]] == []


@pytest.mark.adoption(
    "no decision stops a shard of the generation that serves, and all that could be stopped has a reason"
)
@given(world=worlds())
@settings(max_examples=100, deadline=None)
def test_r17_no_decision_stops_a_shard_of_the_generation_that_serves(world: list[AnyFleetEvent]) -> None:
    fleet = folded(*world, fleet=a_fleet(THREE))
    found = classify(fleet.state)
    reasons = {(each.what, each.subject, each.host) for each in found.decisions}
    for each in found.stoppable:
        stands = fleet.state.replicas[each.replica]
        assert (each.kind, each.node_id, each.host) in reasons
        if each.kind == "stray":
            assert each.load_generation != stands.load_generation
        else:
            assert next(r.claim for r in found.replicas if r.id == each.replica) == "unclaimed"
        serving = [s for s in stands.shards if s.shard.rank == 0 and s.state in ("ready", "draining")]
        if serving and each.kind == "stray":
            assert int(each.load_generation) != int(serving[0].shard.load_generation)


@pytest.mark.adoption("an operation of this console takes part in no other replica's classification")
def test_r02_an_operation_of_another_replica_changes_nothing(document: AdoptionDocument) -> None:
    other = an_operation(subject="glm-1", plan=None, kind="drain")
    assert document_of(*EVERYTHING, ledger(other), fleet=a_fleet(THREE)).digest == document.digest


def test_r16_a_cordon_changes_nothing_about_who_runs_what() -> None:
    """A cordoned host's ranks are adopted, its strays named as before, and no drift comes of it."""

    def cordoned(entities: Entities) -> Entities:
        return msgspec.structs.replace(entities, cordon=Cordon(by="bob", why="fan", at_unix_ms=UnixMs(1)))

    plain = document_of(*EVERYTHING, fleet=a_fleet(THREE))
    with_cordons = (
        catalog(TINY),
        says(A, cordoned(WHOLE_A)),
        says(B, cordoned(WHOLE_B)),
        says(C, cordoned(entities_of(STRAY))),
    )
    document = document_of(*with_cordons, fleet=a_fleet(THREE))
    assert document == plain
    drifts = folded(*with_cordons, fleet=a_fleet(THREE)).state.drifts
    assert drifts == folded(*EVERYTHING, fleet=a_fleet(THREE)).state.drifts
