"""A reload against stand-in agents: what is sent in which order, what stays when something fails, and a new owner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.contract.commands import ChangeDrain, Load, Reserve, StartDrain, Unload
from backend.contract.entities import Result
from backend.contract.plans import Plan, sealed
from backend.contract.words import LoadGeneration, NodeGeneration, NodeId, OpId, ReplicaId, UnixMs
from backend.control.ledger import ROLLING_BACK, LedgerWriter, Operation, Step, create, reopen
from backend.control.operations.conduct import Conduct
from backend.control.operations.load import targets_of
from backend.control.operations.stage import Stage
from tests.control.factories import GENERATION, REPLICA, a_plan
from tests.control.stand_in_agent import agents, failed
from tests.control.test_operations import OP, World

NEW_GENERATION = LoadGeneration(GENERATION + 5)
NEW = ReplicaId("tiny-2")


def a_plan_again(replica: ReplicaId) -> Plan:
    """The plan of the new load, under this name."""
    plan = a_plan(load_generation=NEW_GENERATION)
    shards = tuple(
        msgspec.structs.replace(
            shard, node_id=NodeId(f"{replica}/{shard.rank}"), node_generation=NodeGeneration(NEW_GENERATION)
        )
        for shard in plan.shards
    )
    return sealed(msgspec.structs.replace(plan, replica=replica, shards=shards))


class Reloading(World):
    """A replica that serves, agents that end drains by themselves, and the ledger of its reload."""

    def obeys(self) -> None:
        """Agents whose drain ends at once, as nothing is in flight, and who forget what they unloaded."""
        for agent in (self.a, self.b):
            obey = agent._obey

            async def obey_and_end(command: Any, agent: Any = agent, obey: Any = obey) -> Result | None:
                if isinstance(command, Unload):
                    await agent.record("gone", drop_shards=(command.node_id,))
                    return Result(status="succeeded", resource_state="absent")
                result: Result | None = await obey(command)
                if isinstance(command, StartDrain) and agent is self.a:
                    await agent.end_shard(NodeId(f"{command.replica}/0"), "stopped", "drained")
                return result

            agent._obey = obey_and_end  # type: ignore[method-assign]

    def write_reload(self, replica: ReplicaId, leave: str = "drain") -> None:
        operation = Operation(
            op_id=OP,
            kind="reload",
            subject=REPLICA,
            by="alice",
            context="test",
            load_generation=GENERATION,
            targets=targets_of(a_plan()),
            options={"leave": leave, "deadline_seconds": 60.0, "at_deadline": "give-up"},
            started_unix_ms=UnixMs(5),
            plan=a_plan_again(replica),
        )
        create(self.context.ledger_folder, operation).close()

    def order(self) -> list[str]:
        """What was asked of host-a that changes something, in order."""
        kinds = (Reserve, Load, StartDrain, Unload)
        return [type(command).__name__ for command in self.a.heard if isinstance(command, kinds)]

    def shards(self) -> dict[str, tuple[str, int]]:
        kept = {**self.a.entities.shards, **self.b.entities.shards}
        return {name: (shard.state, int(shard.load_generation)) for name, shard in kept.items()}


@pytest.fixture
async def world(place: Path) -> AsyncIterator[Reloading]:
    world = Reloading(place)
    async with agents(world.a, world.b):
        await world.serving()
        world.obeys()
        yield world


ALL_NEW = {f"{NEW}/{rank}": ("ready", NEW_GENERATION) for rank in (0, 1, 2)}
ALL_AGAIN = {f"{REPLICA}/{rank}": ("ready", NEW_GENERATION) for rank in (0, 1, 2)}


async def test_the_replacement_is_ready_before_the_old_one_begins_to_drain(world: Reloading) -> None:
    world.write_reload(NEW)
    assert await world.run() == 0
    assert world.order()[:4] == ["Reserve", "Load", "Load", "StartDrain"]
    assert world.shards() == ALL_NEW
    (reserve,) = world.a.commands(Reserve)
    assert (reserve.expect.agent_epoch, reserve.expect.revision) == ("epoch-host-a", 0)
    view = world.view()
    assert view.words.startswith("tiny-1 is replaced: tiny-2 is ready at generation")
    assert view.words.endswith("tiny-1 is drained and gone")
    assert await world.run() == 0, "an operation that has ended says the same again"


async def test_in_place_the_old_one_is_gone_before_the_new_one_is_reserved(world: Reloading) -> None:
    world.write_reload(REPLICA)
    assert await world.run() == 0
    order = world.order()
    assert order[0] == "StartDrain"
    assert order.index("Reserve") > max(i for i, name in enumerate(order) if name == "Unload")
    assert world.shards() == ALL_AGAIN
    (reserve,) = world.a.commands(Reserve)
    assert (reserve.expect.agent_epoch, reserve.expect.revision) == ("epoch-host-a", None), "our drain moved it"


async def test_a_replacement_that_does_not_come_up_leaves_the_old_one_as_it_was(world: Reloading) -> None:
    world.b.rules["load"] = lambda command: failed("signal 9 (out of memory)")
    world.write_reload(NEW)
    assert await world.run() == 5
    words = world.view().words
    assert words.startswith("tiny-1 is left as it was; tiny-2 did not come up: rank 2 on host-b: signal 9")
    assert not world.heard(StartDrain)
    assert {name: state for name, (state, _) in world.shards().items() if name.startswith("tiny-1")} == {
        f"tiny-1/{rank}": "ready" for rank in (0, 1, 2)
    }


async def test_what_does_not_come_up_in_place_is_said_to_be_down(world: Reloading) -> None:
    world.b.rules["load"] = lambda command: failed("signal 9 (out of memory)")
    world.write_reload(REPLICA)
    assert await world.run() == 5
    words = world.view().words
    assert words.startswith("tiny-1 is DOWN: it was drained, and it did not come up again: rank 2 on host-b")
    assert words.endswith("Load it with: ringtop load tiny:two-host")
    assert f"{OP}-unload-1-host-a" in {command.op_id for command in world.a.commands(Unload)}
    assert f"{OP}-old-unload-1-host-a" in {command.op_id for command in world.a.commands(Unload)}
    assert all(state != "ready" for state, _ in world.shards().values())


async def test_one_that_dies_while_it_drains_in_place_is_said_to_be_down(world: Reloading) -> None:
    world.write_reload(REPLICA)
    obey = world.a._obey

    async def dies(command: Any) -> Result | None:
        if isinstance(command, StartDrain):
            await world.a.record("draining", drain=None)
            await world.a.end_shard(NodeId("tiny-1/0"), "failed", "signal 9")
            return Result(status="succeeded", resource_state="present")
        return await obey(command)

    world.a._obey = dies  # type: ignore[method-assign]
    assert await world.run() == 5
    words = world.view().words
    assert words.startswith("tiny-1 is DOWN, and nothing was loaded: rank 0 failed while it drained: signal 9")
    assert words.endswith("Try again with: ringtop reload tiny-1")
    assert not world.heard(Load)


async def test_a_drain_that_is_given_up_ends_an_in_place_reload_with_nothing_loaded(world: Reloading) -> None:
    world.a.rules["drain.start"] = lambda command: Result(status="succeeded", resource_state="present")
    world.b.rules["drain.start"] = lambda command: Result(
        status="rejected", resource_state="present", first_error="E_CONFLICT: tiny-1 is draining already, by bob"
    )
    world.write_reload(REPLICA)
    assert await world.run() == 2
    assert "nothing was loaded; host-b did not begin to drain" in world.view().words
    assert not world.heard(Load)


async def test_an_old_one_that_does_not_go_is_named_with_what_to_do(world: Reloading) -> None:
    world.b.rules["drain.start"] = lambda command: Result(
        status="rejected", resource_state="present", first_error="E_CONFLICT: tiny-1 is draining already, by bob"
    )
    world.write_reload(NEW)
    assert await world.run() == 2
    words = world.view().words
    assert words.startswith("tiny-2 is ready at generation")
    assert "but tiny-1 did not go: host-b did not begin to drain" in words
    assert "end tiny-1 with ringtop drain tiny-1" in words


async def test_one_that_has_failed_is_dismissed_and_loaded_again(world: Reloading) -> None:
    for agent, rank in ((world.a, 0), (world.a, 1), (world.b, 2)):
        await agent.end_shard(NodeId(f"tiny-1/{rank}"), "failed", "signal 9")
    world.write_reload(REPLICA, leave="unload")
    assert await world.run() == 0
    assert not world.heard(StartDrain)
    assert world.shards() == ALL_AGAIN
    assert {command.op_id for command in world.a.commands(Unload)} == {f"{OP}-old-unload-{n}-host-a" for n in (0, 1)}


class Killed(BaseException):
    """The end of the operation's process, injected at a line of its ledger."""


def die_once_at(line: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends in front of this line, the first time that it is about to be written."""
    append = LedgerWriter.append
    written = 0

    def append_or_die(self: LedgerWriter, step: Step) -> None:
        nonlocal written
        written += 1
        if written == line:
            raise Killed
        append(self, step)

    monkeypatch.setattr(LedgerWriter, "append", append_or_die)


@pytest.mark.parametrize("line", range(1, 27))
@pytest.mark.parametrize("replica", [NEW, REPLICA], ids=["replacement first", "in place"])
async def test_a_new_owner_goes_on_from_every_line_of_the_ledger_and_does_nothing_twice(
    world: Reloading, replica: ReplicaId, line: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write_reload(replica)
    die_once_at(line, monkeypatch)
    with pytest.raises(BaseException) as died:  # noqa: PT011  # alone, or in the group of the links
        await world.run()
    assert "Killed" in repr(died.value)
    assert world.view().state == "ownerless"
    assert await world.run() == 0
    assert world.shards() == (ALL_NEW if replica == NEW else ALL_AGAIN)
    assert {command.op_id for command in world.heard(Load)} == {f"{OP}-load-{rank}" for rank in (0, 1, 2)}
    assert len({command.op_id for command in world.heard(StartDrain)}) == 2
    ends = [step.what for step in world.view().steps if step.what.endswith(" ended")]
    assert sorted(ends) == ["drain ended", "load ended"], "a stage that has ended is not run again"
    loaded = [record for record in world.a.journal if record.kind == "ready"]
    assert len(loaded) == 4, "two ranks served on host-a, and each of the new ones was loaded once"


def test_a_stage_sees_its_own_steps_only(place: Path) -> None:
    world = Reloading(place)
    world.write_reload(NEW)
    writer = reopen(world.context.ledger_folder, OpId(OP))
    try:
        whole = Conduct(writer, None)  # type: ignore[arg-type]  # nothing is sent
        load, drain = (Stage(whole, name, writer.operation) for name in ("load", "drain"))
        load.begin("the first")
        load.step("host-a", "reserve", "sent")
        load.end(0, "loaded")
        assert (load.ended, drain.ended, drain.has_begun) == ((0, "loaded"), None, False)
        drain.begin("the second")
        drain.step("host-a", "drain", "sent")
        drain.end(3, "given up")
        assert (load.has_step("reserve"), load.has_step("drain")) == (True, False)
        assert (drain.has_step("reserve"), drain.has_step("drain", "host-a")) == (False, True)
        assert (load.ended, drain.ended) == ((0, "loaded"), (3, "given up"))
    finally:
        writer.close()


async def test_one_that_was_taken_back_before_it_began_does_nothing(world: Reloading) -> None:
    world.write_reload(NEW)
    writer = reopen(world.context.ledger_folder, OpId(OP))
    writer.append(Step(at_unix_ms=UnixMs(6), target=REPLICA, what=ROLLING_BACK, words="bob asked to take it back"))
    writer.close()
    assert await world.run() == 5
    assert world.view().words == "tiny-1 is left as it was; tiny-2 did not come up: taken back before its load began"
    assert not world.heard(Reserve)
    assert not world.heard(ChangeDrain)
