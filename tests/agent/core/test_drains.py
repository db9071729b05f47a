"""Drains end without any console; unknown never reads as zero."""

from __future__ import annotations

from typing import Literal

import pytest

from backend.agent.core.state import StopEngine, Ticked
from backend.contract.commands import ChangeDrain, StartDrain
from backend.contract.words import LoadGeneration, OpId, ReplicaId
from tests.agent.core.world import World
from tests.factories import GENERATION, make_plan


def drain(world: World, seconds: float = 60, at_deadline: Literal["stop", "give-up"] = "give-up") -> None:
    world.command(
        StartDrain(
            op_id=OpId("dr"),
            replica=ReplicaId("tiny-1"),
            load_generation=LoadGeneration(GENERATION),
            by="alice",
            why="upgrade",
            deadline_seconds=seconds,
            at_deadline=at_deadline,
        )
    )


def change(world: World, action: Literal["extend", "force", "cancel"], op: str = "ch") -> None:
    world.command(ChangeDrain(op_id=OpId(op), replica=ReplicaId("tiny-1"), by="bob", action=action, extend_seconds=60))


@pytest.fixture
def world() -> World:
    world = World()
    world.bring_up(make_plan())
    return world


def test_three_empty_readings_in_a_row_stop_the_leader_and_then_the_workers_here(world: World) -> None:
    plan = make_plan()
    drain(world)
    assert world.state_of(plan, 0) == "draining"
    world.counted(plan, 0)
    world.counted(plan, 0)
    assert world.take(StopEngine) == []
    world.counted(plan, 0)
    assert [stop.node_id for stop in world.take(StopEngine)] == ["tiny-1/0"]
    world.ended(plan, 0, code=0, signal=None)
    world.gone(plan, 0)
    assert [stop.node_id for stop in world.take(StopEngine)] == ["tiny-1/1"]
    world.ended(plan, 1, signal=15)
    world.gone(plan, 1)
    assert world.state.entities.drains[ReplicaId("tiny-1")].outcome == "done"
    assert world.state_of(plan, 0) == world.state_of(plan, 1) == "stopped"
    assert world.is_quiet()


@pytest.mark.parametrize("reading", [(1, 0), (0, 1), (None, 0), (0, None)])
def test_work_or_an_unknown_count_in_between_starts_the_count_again(
    world: World, reading: tuple[int | None, int | None]
) -> None:
    plan = make_plan()
    drain(world)
    world.counted(plan, 0)
    world.counted(plan, 0)
    world.counted(plan, *reading)
    if None not in reading:
        world.counted(plan, 0)
        world.counted(plan, 0)
    assert world.take(StopEngine) == []
    world.counted(plan, 0)
    assert len(world.take(StopEngine)) == 1


def test_at_the_deadline_it_gives_up_and_serves_on(world: World) -> None:
    plan = make_plan()
    drain(world, seconds=10)
    world.counted(plan, 2)
    world.pass_time(11)
    world.event(Ticked())
    assert world.state_of(plan, 0) == "ready"
    assert world.state.entities.drains[ReplicaId("tiny-1")].outcome == "given up"
    assert world.take(StopEngine) == []
    assert world.is_quiet()


def test_at_the_deadline_it_stops_when_that_was_asked(world: World) -> None:
    drain(world, seconds=10, at_deadline="stop")
    world.pass_time(11)
    world.event(Ticked())
    assert [stop.node_id for stop in world.take(StopEngine)] == ["tiny-1/0"]


def test_force_stops_now_and_cancel_serves_on(world: World) -> None:
    drain(world)
    change(world, "cancel")
    assert world.state_of(make_plan(), 0) == "ready"
    change(world, "force", "late")
    assert "is not draining" in world.answer("late").first_error


def test_force_stops_the_leader(world: World) -> None:
    drain(world)
    change(world, "force")
    assert [stop.node_id for stop in world.take(StopEngine)] == ["tiny-1/0"]


def test_extend_moves_the_deadline(world: World) -> None:
    drain(world, seconds=10)
    change(world, "extend")
    world.pass_time(30)
    world.event(Ticked())
    assert world.state_of(make_plan(), 0) == "draining"


def test_a_drain_survives_a_restart_with_what_was_left_of_it(world: World) -> None:
    plan = make_plan()
    drain(world, seconds=60)
    world.pass_time(20)
    world.restart()
    world.pass_time(39)
    world.event(Ticked())
    assert world.state_of(plan, 0) == "draining"
    world.pass_time(2)
    world.event(Ticked())
    assert world.state_of(plan, 0) == "ready"


def test_a_second_drain_is_refused_and_names_the_first(world: World) -> None:
    drain(world)
    world.command(
        StartDrain(
            op_id=OpId("dr2"),
            replica=ReplicaId("tiny-1"),
            load_generation=LoadGeneration(GENERATION),
            by="bob",
            why="",
            deadline_seconds=1,
        )
    )
    assert "draining already, by alice (upgrade)" in world.answer("dr2").first_error
