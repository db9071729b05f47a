"""The keeper's lease and what people decided, as one agent keeps them."""

from __future__ import annotations

from typing import Literal

import pytest

from backend.agent.core.state import Send, Ticked
from backend.agent.journal.checkpoint import restating_records
from backend.contract.commands import (
    BeginResident,
    ClaimKeeper,
    EndOperatorHold,
    Expect,
    ResignKeeper,
    SetOperatorHold,
)
from backend.contract.entities import Entities, KeeperLease, fold
from backend.contract.events import Answered
from backend.contract.words import OpId, UnixMs
from tests.agent.core.world import World


def claim(world: World, op: str, epoch: int = 1, console: str = "keeper-a", who: str = "alice@ops-1") -> None:
    world.command(ClaimKeeper(op_id=OpId(op), keeper_epoch=epoch, who=who, console=console, seconds=30.0))


def resign(world: World, op: str, epoch: int = 1, console: str = "keeper-a") -> None:
    world.command(ResignKeeper(op_id=OpId(op), keeper_epoch=epoch, console=console, by="alice"))


def hold(
    world: World,
    op: str,
    kind: Literal["down", "paused", "quarantined"] = "down",
    seconds: float | None = None,
    subject: str = "tiny-1",
) -> None:
    world.command(
        SetOperatorHold(
            op_id=OpId(op), subject=subject, scope="replica", kind=kind, by="alice", why="bad weights", seconds=seconds
        )
    )


def pass_time(world: World, seconds: float) -> None:
    world.pass_time(seconds)
    world.event(Ticked())


def lease(world: World) -> KeeperLease:
    assert world.durable.keeper is not None
    return world.durable.keeper


@pytest.mark.adoption("25: one keeper by lease; a second is refused with the first one's name")
def test_r25_a_second_keeper_is_refused_with_the_name_of_the_first() -> None:
    world = World()
    claim(world, "a")
    assert world.answer("a").status == "succeeded"
    pass_time(world, 10)
    claim(world, "b", epoch=2, console="keeper-b", who="bob@ops-2")
    refused = world.answer("b")
    assert refused.status == "rejected"
    assert "alice@ops-1 keeps this fleet with keeper_epoch 1" in refused.first_error
    assert "ends in 20 s" in refused.first_error
    assert lease(world).who == "alice@ops-1"
    assert world.is_quiet()


@pytest.mark.adoption("25: a keeper takes over when the lease ends, under a higher keeper_epoch")
def test_r25_a_keeper_takes_over_when_the_lease_ends() -> None:
    world = World()
    claim(world, "a", epoch=7)
    pass_time(world, 31)
    assert lease(world).ended == "over"
    claim(world, "low", epoch=7, console="keeper-b")
    assert "keeper_epoch 7 is not above 7" in world.answer("low").first_error
    claim(world, "high", epoch=8, console="keeper-b", who="bob@ops-2")
    assert world.answer("high").status == "succeeded"
    assert (lease(world).who, lease(world).keeper_epoch, lease(world).ended) == ("bob@ops-2", 8, "")
    assert world.is_quiet()


def test_a_renewal_moves_the_end_of_the_lease_and_is_not_written() -> None:
    world = World()
    claim(world, "a")
    before = len(world.records)
    for turn in range(5):
        pass_time(world, 20)
        claim(world, f"renewal-{turn}")
        assert world.answer(f"renewal-{turn}").status == "succeeded"
    assert len(world.records) == before
    assert lease(world).ended == ""
    assert world.state.asked == {}
    pass_time(world, 31)
    assert lease(world).ended == "over"


def test_a_renewal_after_the_end_is_refused_so_that_a_keeper_knows_it_was_none() -> None:
    world = World()
    claim(world, "a")
    pass_time(world, 31)
    claim(world, "late")
    assert "is not above 1" in world.answer("late").first_error


def test_the_same_keeper_may_claim_a_higher_epoch_while_its_lease_lasts() -> None:
    world = World()
    claim(world, "a")
    claim(world, "again", epoch=5)
    assert world.answer("again").status == "succeeded"
    assert lease(world).keeper_epoch == 5


def test_a_keeper_that_resigns_makes_room_at_once_and_nobody_resigns_for_another() -> None:
    world = World()
    claim(world, "a")
    resign(world, "other", console="keeper-b")
    assert "Only its own keeper gives it back" in world.answer("other").first_error
    resign(world, "own")
    assert world.answer("own").resource_state == "absent"
    resign(world, "twice")
    assert world.answer("twice").status == "succeeded"
    claim(world, "b", epoch=2, console="keeper-b")
    assert world.answer("b").status == "succeeded"


def test_a_restarted_agent_gives_the_lease_its_whole_length_again() -> None:
    world = World()
    claim(world, "a")
    pass_time(world, 29)
    world.restart()
    pass_time(world, 29)
    assert lease(world).ended == ""
    claim(world, "b", epoch=2, console="keeper-b")
    assert "alice@ops-1 keeps this fleet" in world.answer("b").first_error
    pass_time(world, 2)
    assert lease(world).ended == "over"


def test_a_claim_is_answered_only_once_it_is_durable() -> None:
    world = World()
    world.hold_sync = True
    claim(world, "a")
    assert [s for s in world.effects if isinstance(s, Send) and isinstance(s.event, Answered)] == []
    world.sync()
    assert world.answer("a").status == "succeeded"


@pytest.mark.adoption("26: what a person decided stands at the agents, with who and until")
def test_r26_an_operator_hold_stands_until_its_time_is_over_and_over_a_restart() -> None:
    world = World()
    hold(world, "h", seconds=60.0)
    (held,) = world.durable.operator_holds.values()
    assert (held.subject, held.kind, held.by, held.why) == ("tiny-1", "down", "alice", "bad weights")
    assert held.until_unix_ms == held.at_unix_ms + 60_000
    pass_time(world, 40)
    world.restart()
    pass_time(world, 15)
    assert world.durable.operator_holds
    pass_time(world, 6)
    assert world.durable.operator_holds == {}
    assert "the time that alice gave is over" in world.records[-1].words
    assert world.is_quiet()


def test_a_hold_without_an_end_lasts_until_it_is_released_and_a_new_one_replaces_it() -> None:
    world = World()
    hold(world, "h", seconds=60.0)
    hold(world, "p", kind="paused")
    pass_time(world, 10_000)
    (held,) = world.durable.operator_holds.values()
    assert held.kind == "paused"
    for op in ("r", "again"):
        world.command(EndOperatorHold(op_id=OpId(op), subject="tiny-1", scope="replica", by="bob"))
        assert (world.answer(op).status, world.answer(op).resource_state) == ("succeeded", "absent")
    assert world.durable.operator_holds == {}
    assert world.is_quiet()


def test_a_replica_and_a_model_of_one_name_are_held_apart() -> None:
    world = World()
    hold(world, "h")
    world.command(SetOperatorHold(op_id=OpId("m"), subject="tiny-1", scope="model", kind="paused", by="alice"))
    assert set(world.durable.operator_holds) == {"replica:tiny-1", "model:tiny-1"}


def test_a_hold_moves_no_revision_so_that_no_plan_is_refused_for_it() -> None:
    world = World()
    before = world.state.revision
    hold(world, "h")
    claim(world, "a")
    assert world.state.revision == before


def test_a_checkpoint_restates_holds_and_the_lease() -> None:
    world = World()
    hold(world, "h", seconds=60.0)
    claim(world, "a", epoch=9)
    entities = Entities()
    for record in restating_records(world.durable, UnixMs(1)):
        entities = fold(entities, record)
    assert entities == world.durable


def test_a_record_names_a_replica_only_where_the_command_was_about_one() -> None:
    world = World()
    claim(world, "a", console="keeper-a/1")
    hold(world, "down")
    world.command(
        SetOperatorHold(op_id=OpId("model"), subject="tiny", scope="model", kind="down", by="alice", why="licence")
    )
    world.command(BeginResident(op_id=OpId("tend"), engine="p4", by="alice", expect=Expect(agent_epoch="another")))
    named = {record.kind: record.replica for record in world.records if record.change and record.change.operation}
    assert named == {
        "keeper.claim.succeeded": "",
        "operator.hold.succeeded": "",
        "resident.begin.rejected": "",
    }
    assert [record.replica for record in world.records if record.kind == "operator.hold.succeeded"] == ["tiny-1", ""]
