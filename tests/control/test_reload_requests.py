"""A reload as it is asked for: what is refused before anything is written, and what the fleet says of it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.api import Backend, PlanReload, ReplicaId, StartReload
from backend.contract.commands import StartDrain
from backend.contract.entities import Drain
from backend.contract.plans import Plan
from backend.contract.states import HostState
from backend.contract.words import LoadGeneration, OpId, UnixMs
from backend.control.fleet import empty_fleet, fold_event
from backend.control.fleet_events import OperationsRead
from backend.control.open_operations import open_operations, touched_by
from backend.control.operations.load import targets_of
from backend.control.operations.settle import conclude
from backend.control.views import FleetState, OperationStep, OperationView
from tests.control.factories import (
    GENERATION,
    REPLICA,
    A,
    B,
    a_leader,
    a_plan,
    a_shard,
    changed,
    entities_of,
    report_of,
    up,
)
from tests.control.stand_in_agent import agents, wait_for
from tests.control.test_backend import CATALOG, QUICK, Console
from tests.control.test_operations import World
from tests.control.test_reload import NEW, NEW_GENERATION, a_plan_again


@pytest.fixture
async def world(place: Path) -> AsyncIterator[World]:
    world = World(place)
    world.context.catalog_path.write_text(CATALOG)
    async with agents(world.a, world.b):
        await world.serving()
        yield world


@pytest.fixture
async def console(world: World) -> AsyncIterator[Console]:
    backend = Backend(world.context, who="alice", settings=QUICK)
    backend.start()
    try:
        assert await asyncio.to_thread(backend.wait_settled, 20)
        yield Console(backend)
    finally:
        await asyncio.to_thread(backend.stop)
    assert backend.state().fault is None


def a_start(**fields: Any) -> StartReload:
    plan: Plan = fields.pop("plan", a_plan_again(NEW))
    values: dict[str, Any] = {"replica": REPLICA, "load_generation": GENERATION, "plan": plan, **fields}
    return StartReload(**{"confirmed": plan.digest, **values})


async def test_only_the_plan_that_was_confirmed_is_started(console: Console) -> None:
    answer = await console.answer(a_start(confirmed="0" * 64))
    assert answer.exit_code == 2
    assert "confirmed was 00000000" in answer.words
    assert console.backend.state().operations == {}


async def test_a_replica_that_somebody_loaded_meanwhile_is_refused_with_both_generations(console: Console) -> None:
    answer = await console.answer(a_start(load_generation=LoadGeneration(7)))
    assert answer.exit_code == 2
    assert f"tiny-1 has generation {GENERATION} by now, and the reload was planned for 7" in answer.words


async def test_one_that_drains_or_is_worked_on_is_refused_by_name(world: World, console: Console) -> None:
    drain = Drain(
        replica=REPLICA,
        load_generation=GENERATION,
        op_id=OpId("d"),
        by="bob",
        why="",
        left_ms=60_000,
        at_unix_ms=UnixMs(1),
        at_deadline="give-up",
    )
    await world.a.record("draining", drain=drain)
    await wait_for(lambda: console.backend.state().replicas[REPLICA].drain is not None)
    answer = await console.answer(a_start())
    assert (answer.exit_code, "draining already, by bob" in answer.words) == (2, True)
    world.write("unload", why="maintenance")
    await wait_for(lambda: console.backend.state().operations)
    answer = await console.answer(a_start())
    assert answer.exit_code == 2
    assert "unload load-1-ab of tiny-1 by alice is ownerless" in answer.words
    assert not world.heard(StartDrain)


async def test_without_a_load_record_the_last_plan_is_not_known_and_the_remedy_is_said(console: Console) -> None:
    answer = await console.answer(PlanReload(replica=REPLICA))
    assert answer.exit_code == 2
    assert "no host keeps the load record of tiny-1" in answer.words
    assert "--plan-of now" in answer.words
    answer = await console.answer(PlanReload(replica=ReplicaId("tiny-9")))
    assert "there is no replica 'tiny-9'; known: tiny-1" in answer.words


async def test_a_reload_that_finds_no_room_beside_is_planned_in_place_under_the_same_name(console: Console) -> None:
    answer = await console.answer(PlanReload(replica=REPLICA, plan_of="now"))
    assert answer.plan is not None
    assert answer.plan.replica == REPLICA
    assert answer.value["mode"] == "in place"
    assert answer.value["reason"].startswith("there is no room beside it: refuse")
    assert (answer.value["leave"], answer.value["load_generation"]) == ("drain", GENERATION)
    assert answer.plan.load_generation > GENERATION


# --- what the fleet says of it ------------------------------------------------------------------------------------


def an_operation(replica: ReplicaId = NEW, stage: str = "load", **fields: Any) -> OperationView:
    steps = (OperationStep(UnixMs(1), REPLICA, f"stage {stage}", ""),) if stage else ()
    values: dict[str, Any] = {
        "id": OpId("reload-1"),
        "kind": "reload",
        "subject": REPLICA,
        "by": "alice",
        "state": "running",
        "words": "",
        "started_unix_ms": UnixMs(1),
        "ended_unix_ms": None,
        "load_generation": GENERATION,
        "steps": steps,
        "plan": a_plan_again(replica),
        "targets": targets_of(a_plan()),
        **fields,
    }
    return OperationView(**values)


def test_what_a_reload_brings_up_sees_it_as_its_load_and_only_in_that_stage() -> None:
    operation = an_operation()
    assert touched_by(operation) == {REPLICA, NEW}
    (seen,) = open_operations(NEW, [operation])
    assert (seen.kind, seen.subject, seen.load_generation) == ("load", NEW, NEW_GENERATION)
    assert open_operations(REPLICA, [operation]) == [operation]
    assert open_operations(NEW, [an_operation(stage="drain")]) == []
    in_place = an_operation(REPLICA, "drain")
    assert open_operations(REPLICA, [in_place]) == [in_place]
    assert open_operations(REPLICA, [an_operation(REPLICA)])[0].kind == "load"
    assert open_operations(REPLICA, [an_operation(state="succeeded")]) == []


def test_a_replacement_is_placed_while_it_is_loaded_and_not_recovering() -> None:
    fleet = empty_fleet("c", "C", {A: "unix:a", B: "unix:b"}, read_only=False)  # type: ignore[dict-item]  # addresses
    for host, shards in ((A, (a_leader(), a_shard(1))), (B, (a_shard(2),))):
        fleet, _ = fold_event(fleet, up(report_of(host, entities_of(*shards, plan=a_plan()))))
    operations = {OpId("reload-1"): an_operation()}
    fleet, _ = fold_event(fleet, OperationsRead(at=2.0, unix_ms=UnixMs(2000), operations=operations))
    assert fleet.state.replicas[REPLICA].state.value == "ready"
    assert fleet.state.replicas[NEW].state.value == "placed"
    fleet, _ = fold_event(fleet, OperationsRead(at=3.0, unix_ms=UnixMs(3000), operations={}))
    assert NEW not in fleet.state.replicas


def a_state(*shards: Any) -> FleetState:
    fleet = empty_fleet("c", "C", {A: "unix:a", B: "unix:b"}, read_only=False)  # type: ignore[dict-item]  # addresses
    for host in (A, B):
        here = [shard for shard in shards if shard.host == host]
        fleet, _ = fold_event(fleet, up(report_of(host, entities_of(*here))))
    assert {view.state for view in fleet.state.hosts.values()} == {HostState.LIVE}
    return fleet.state


def of_new(*shards: Any) -> list[Any]:
    return [
        changed(
            shard,
            replica=NEW,
            node_id=shard.node_id.replace("tiny-1", "tiny-2"),
            load_generation=NEW_GENERATION,
            node_generation=NEW_GENERATION,
        )
        for shard in shards
    ]


def test_a_reload_without_an_owner_is_settled_by_what_runs() -> None:
    old, view = (a_leader(), a_shard(1), a_shard(2)), an_operation(state="ownerless")
    new = of_new(*old)
    assert conclude(view, a_state(*new)).code == 0
    both = conclude(view, a_state(*old, *new))
    assert (both.code, both.is_open) == (5, False)
    assert "rank 0, 1, 2 of tiny-1 and rank 0, 1, 2 of what was to replace it both run" in both.words
    assert "tiny-1 is as it was" in conclude(view, a_state(*old)).words
    assert "tiny-1 is DOWN" in conclude(view, a_state()).words
    assert conclude(view, a_state(*(msgspec.structs.replace(each, state="loading") for each in new))).is_open
