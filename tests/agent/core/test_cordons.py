"""A cordon as one agent keeps it: nothing new comes in, what runs runs on, and it outlives the agent."""

from __future__ import annotations

from backend.agent.core.state import Ticked
from backend.agent.journal.checkpoint import restating_records
from backend.contract.commands import CordonHost, Expect, UncordonHost
from backend.contract.cordons import Cordon
from backend.contract.entities import Entities, fold
from backend.contract.words import OpId, UnixMs
from tests.agent.core.world import World, spawns
from tests.factories import GENERATION, make_plan


def cordon(
    world: World,
    op: str = "c",
    *,
    by: str = "alice",
    seconds: float | None = None,
    expect: Expect | None = None,
    why: str = "fan",
) -> None:
    world.command(CordonHost(op_id=OpId(op), by=by, why=why, seconds=seconds, expect=expect or Expect()))


def uncordon(world: World, op: str = "u", *, by: str = "bob", expect: Expect | None = None) -> None:
    world.command(UncordonHost(op_id=OpId(op), by=by, expect=expect or Expect()))


def stands(world: World) -> Cordon:
    assert world.durable.cordon is not None
    return world.durable.cordon


def test_a_cordon_is_kept_with_who_why_and_since_and_moves_the_revision() -> None:
    world = World()
    before = world.state.revision
    cordon(world)
    assert world.answer("c").status == "succeeded"
    kept = stands(world)
    assert (kept.by, kept.why, kept.at_unix_ms, kept.until_unix_ms) == ("alice", "fan", world.wall, None)
    assert world.state.revision == before + 1
    assert [record.kind for record in world.records] == ["cordoned", "host.cordon.succeeded"]
    assert [record.replica for record in world.records] == ["", ""]
    uncordon(world)
    assert world.answer("u").resource_state == "absent"
    assert world.durable.cordon is None
    assert world.state.revision == before + 2
    assert world.is_quiet()


def test_what_runs_runs_on_under_a_cordon_and_can_be_stopped() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    cordon(world)
    assert {shard.state for shard in world.durable.shards.values()} == {"ready"}
    world.unload(plan, 0)
    assert world.durable.shards["tiny-1/0"].state == "stopping"  # type: ignore[index]  # a node id


def test_a_load_that_had_reserved_before_the_cordon_is_refused_and_releases() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    cordon(world)
    world.load(plan, 1)
    refused = world.answer("op-load-1")
    assert refused.first_error.startswith("E_CORDONED: host-a takes no new shards: cordoned by alice since 20")
    assert "ringtop uncordon host-a" in refused.first_error
    assert spawns(world) == []
    uncordon(world)
    world.load(plan, 1, op_id=OpId("again"))
    assert spawns(world) != []


def test_a_cordon_ends_by_its_time_and_says_so() -> None:
    world = World()
    cordon(world, seconds=120.0)
    world.pass_time(119.9)
    world.event(Ticked())
    assert stands(world).until_unix_ms == stands(world).at_unix_ms + 120_000
    world.pass_time(0.2)
    world.event(Ticked())
    assert world.durable.cordon is None
    assert world.records[-1].kind == "uncordoned"
    assert "the time that alice gave its cordon is over" in world.records[-1].words
    assert world.is_quiet()


def test_a_cordon_survives_the_agent_with_what_was_left_of_it() -> None:
    world = World()
    cordon(world, seconds=120.0)
    world.pass_time(100.0)
    world.restart()
    world.reserve(make_plan())
    assert "E_CORDONED" in world.answer("op-reserve").first_error
    world.pass_time(19.0)
    world.event(Ticked())
    assert world.durable.cordon is not None
    world.pass_time(2.0)
    world.event(Ticked())
    assert world.durable.cordon is None


def test_a_cordon_without_an_end_survives_a_checkpoint() -> None:
    world = World()
    cordon(world)
    entities = Entities()
    for record in restating_records(world.durable, UnixMs(world.wall)):
        entities = fold(entities, record)
    assert entities.cordon == world.durable.cordon


def test_whoever_set_a_cordon_may_change_it_and_nobody_else_before_it_is_taken_back() -> None:
    world = World()
    cordon(world, "one")
    cordon(world, "two", by="bob", why="other")
    refused = world.answer("two")
    assert refused.status == "rejected"
    assert "host-a is cordoned by alice since" in refused.first_error
    assert ": fan already" in refused.first_error
    assert stands(world).by == "alice"
    cordon(world, "three", seconds=60.0, why="fan, an hour")
    assert (stands(world).why, stands(world).left_ms) == ("fan, an hour", 60_000)


def test_the_same_cordon_command_twice_is_done_once() -> None:
    world = World()
    cordon(world)
    world.answer("c")
    count = len(world.records)
    world.effects = []
    cordon(world)
    assert world.answer("c").status == "succeeded"
    assert len(world.records) == count


def test_a_cordon_expects_the_revision_that_was_seen() -> None:
    world = World()
    seen = world.state.revision
    world.reserve(make_plan(generation=GENERATION))
    cordon(world, expect=Expect(revision=seen))
    refused = world.answer("c").first_error
    assert refused.startswith(
        f"E_FENCED: expected was revision {seen} of host-a, which is now {seen + 1}; the host is "
    )
    assert world.durable.cordon is None
    cordon(world, "old", expect=Expect(agent_epoch="another"))
    assert "the agent restarted" in world.answer("old").first_error
    cordon(world, "now", expect=Expect(agent_epoch="epoch", revision=world.state.revision))
    assert world.answer("now").status == "succeeded"
    uncordon(world, "stale", expect=Expect(revision=seen))
    assert "the host is cordoned by alice" in world.answer("stale").first_error


def test_uncordoning_a_host_that_is_not_cordoned_is_done_already() -> None:
    world = World()
    uncordon(world)
    assert (world.answer("u").status, world.answer("u").resource_state) == ("succeeded", "absent")
    assert [record.kind for record in world.records] == ["host.uncordon.succeeded"]
