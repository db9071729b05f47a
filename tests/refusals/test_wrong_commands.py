"""Wrong commands that reach an agent all the same: its core refuses them by code, and nothing is started or held."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from backend.agent.core.state import CommandArrived, JournalFailed, Send, Ticked
from backend.contract.commands import Command, CordonHost, Expect, Release, Reserve
from backend.contract.envelopes import payload_digest
from backend.contract.events import Refused
from backend.contract.plans import Plan, sealed
from backend.contract.words import LoadGeneration, NodeGeneration, NodeId, OpId, Port
from tests.agent.core.world import World, spawns
from tests.factories import GENERATION, make_plan
from tests.refusals.rows import as_parameters

pytestmark = pytest.mark.refusals


class WrongCommand(NamedTuple):
    """What is done to a host; the last command of it, ``wrong``, must be refused by this code."""

    title: str
    code: str
    words: tuple[str, ...]
    ask: Callable[[World], None]


def reserve(world: World, plan: Plan, op: str = "wrong", **changes: Any) -> None:
    fields: dict[str, Any] = {"op_id": OpId(op), "plan": plan, "by": "bob", "seconds": 60.0, **changes}
    world.command(Reserve(**fields))


def load(world: World, plan: Plan, rank: int = 1, **changes: Any) -> None:
    """A LOAD under the id ``wrong``, of what ``op-reserve`` holds."""
    world.load(plan, rank, **{"op_id": OpId("wrong"), **changes})


def changed(plan: Plan, rank: int, **changes: Any) -> Plan:
    shards = tuple(msgspec.structs.replace(s, **changes) if s.rank == rank else s for s in plan.shards)
    return sealed(msgspec.structs.replace(plan, shards=shards))


def when_reserved(then: Callable[[World, Plan], None]) -> Callable[[World], None]:
    """After alice has reserved an ordinary plan."""

    def ask(world: World) -> None:
        plan = make_plan()
        world.reserve(plan)
        then(world, plan)

    return ask


def when_up(then: Callable[[World, Plan], None]) -> Callable[[World], None]:
    """After alice's replica is ready."""

    def ask(world: World) -> None:
        plan = make_plan()
        world.bring_up(plan)
        then(world, plan)

    return ask


def when_cordoned(then: Callable[[World], None], seconds: float | None = None) -> Callable[[World], None]:
    """After alice has cordoned the host."""

    def ask(world: World) -> None:
        world.command(CordonHost(op_id=OpId("cordon"), by="alice", why="fan", seconds=seconds))
        then(world)

    return ask


def later(world: World, seconds: float, plan: Plan) -> None:
    world.pass_time(seconds)
    world.event(Ticked())
    reserve(world, plan)


def cordon_then_load(world: World, plan: Plan) -> None:
    world.command(CordonHost(op_id=OpId("cordon"), by="alice", why="fan"))
    load(world, plan)


def load_too_late(world: World, plan: Plan) -> None:
    world.pass_time(61.0)
    world.event(Ticked())
    load(world, plan)


def command_on(world: World, command: Command, **capacity: Any) -> None:
    """A command that finds the host in another shape."""
    changed_capacity = msgspec.structs.replace(world.capacity(), **capacity)
    world.event(CommandArrived(1, command, payload_digest(command), changed_capacity))


def wrong_reserve(plan: Plan) -> Reserve:
    return Reserve(op_id=OpId("wrong"), plan=plan, by="bob", seconds=60.0)


LATER = GENERATION + 1


def demanding(replica: str = "tiny-1", generation: int = GENERATION, **demand: int) -> Plan:
    """A plan whose one computing rank here takes this of the host's budgets."""
    plan = make_plan(replica, generation, first_port=18_000 if replica == "tiny-1" else 18_100)
    return sealed(msgspec.structs.replace(plan, profile=msgspec.structs.replace(plan.profile, **demand)))


def after_reservation(world: World, first: Plan, second: Plan, **capacity: Any) -> None:
    world.reserve(first)
    command_on(world, wrong_reserve(second), **capacity)


def after_load(world: World, first: Plan, second: Plan, **capacity: Any) -> None:
    world.bring_up(first)
    command_on(world, wrong_reserve(second), **capacity)


RESERVES = [
    WrongCommand(
        "a plan that was edited on its way",
        "E_INVALID",
        ("the plan was edited", "digest"),
        lambda world: reserve(world, msgspec.structs.replace(make_plan(), model_path="other.gguf")),
    ),
    WrongCommand(
        "a node generation of 1 in a sealed plan",
        "E_GENERATION",
        ("node generation 1 ", str(GENERATION), "tiny-1/1"),
        lambda world: reserve(world, changed(make_plan(), 1, node_generation=NodeGeneration(1))),
    ),
    WrongCommand(
        "a plan made before the agent was restarted",
        "E_FENCED",
        ("agent_epoch older", "now epoch", "restarted"),
        lambda world: reserve(world, make_plan(), expect=Expect(agent_epoch="older")),
    ),
    WrongCommand(
        "a plan made one revision ago",
        "E_FENCED",
        ("revision 0 of host-a", "now 1"),
        when_reserved(lambda world, plan: reserve(world, make_plan("glm-1", LATER), expect=Expect(revision=0))),
    ),
    WrongCommand(
        "a plan without a shard here",
        "E_INVALID",
        ("no shard on host-a",),
        lambda world: reserve(world, make_plan(hosts=("host-b", "host-b"))),
    ),
    WrongCommand(
        "the same replica while another has reserved it",
        "E_CONFLICT",
        ("tiny-1/0 is reserved by alice", str(GENERATION)),
        when_reserved(lambda world, plan: reserve(world, make_plan(generation=LATER, first_port=18_100))),
    ),
    WrongCommand(
        "the same replica while it serves",
        "E_CONFLICT",
        ("tiny-1/0 is ready", "Unload tiny-1 first"),
        when_up(lambda world, plan: reserve(world, make_plan(generation=LATER, first_port=18_100))),
    ),
    WrongCommand(
        "a port that a replica uses",
        "E_CONFLICT",
        ("port 18000", "used by tiny-1/0"),
        when_up(lambda world, plan: reserve(world, make_plan("glm-1", LATER))),
    ),
    WrongCommand(
        "a port that another has reserved",
        "E_CONFLICT",
        ("port 18000", "reserved for tiny-1 by alice"),
        when_reserved(lambda world, plan: reserve(world, make_plan("glm-1", LATER))),
    ),
    WrongCommand(
        "a port one below the range",
        "E_INVALID",
        ("port 17999", "18000-18999"),
        lambda world: reserve(world, changed(make_plan(), 1, ports=(Port(17_999),))),
    ),
    WrongCommand(
        "a port one above the range",
        "E_INVALID",
        ("port 19000", "18000-18999"),
        lambda world: reserve(world, changed(make_plan(), 1, ports=(Port(19_000),))),
    ),
    WrongCommand(
        "a replica id that is a path",
        "E_INVALID",
        ("'../x-1' is no replica id",),
        lambda world: reserve(world, make_plan("../x-1")),
    ),
    WrongCommand(
        "a replica id of 81 characters",
        "E_INVALID",
        ("is no replica id", "at most 80"),
        lambda world: reserve(world, make_plan("x" * 81)),
    ),
    WrongCommand(
        "a node id that is another rank's",
        "E_INVALID",
        ("rank 1 of tiny-1", "'tiny-1/9'", "it must be tiny-1/1"),
        lambda world: reserve(world, changed(make_plan(), 1, node_id=NodeId("tiny-1/9"))),
    ),
    WrongCommand(
        "a device that the host does not have",
        "E_INVALID",
        ("no device CUDA0", "it has CPU"),
        lambda world: reserve(world, changed(make_plan(), 1, device="CUDA0")),
    ),
    WrongCommand(
        "one byte more than is left",
        "E_CONFLICT",
        ("10000 bytes left", "needs 10001"),
        lambda world: reserve(world, changed(make_plan(memory=5_000), 1, bound=bound_of(5_001))),
    ),
    WrongCommand(
        "one byte more than another reservation leaves",
        "E_CONFLICT",
        ("8000 bytes left", "needs 8002", "tiny-1", "alice"),
        when_reserved(lambda world, plan: reserve(world, make_plan("glm-1", LATER, first_port=18_100, memory=4_001))),
    ),
    WrongCommand(
        "a host whose own restart would kill engines",
        "E_REFUSED",
        ("host-a refuses loads", "KillMode=control-group"),
        lambda world: command_on(world, wrong_reserve(make_plan()), refuses_loads="KillMode=control-group"),
    ),
    WrongCommand(
        "one CPU core more than the host has",
        "E_CONFLICT",
        ("8 of 8 CPU cores left", "needs 9", "cores in its agent.toml"),
        lambda world: command_on(world, wrong_reserve(demanding(cpu_cores=9)), cores=8),
    ),
    WrongCommand(
        "one watt more than another reservation leaves",
        "E_CONFLICT",
        ("400 of 700 W left", "needs 401", "tiny-1 (reserved by alice) 300 W"),
        lambda world: after_reservation(world, demanding(power=300), demanding("glm-1", LATER, power=401), power=700),
    ),
    WrongCommand(
        "one watt more than a rank that serves leaves",
        "E_CONFLICT",
        ("400 of 700 W left", "tiny-1/1 (ready) 300 W"),
        lambda world: after_load(world, demanding(power=300), demanding("glm-1", LATER, power=401), power=700),
    ),
    WrongCommand(
        "a reservation on a cordoned host",
        "E_CORDONED",
        ("host-a takes no new shards", "cordoned by alice since", "fan", "ringtop uncordon host-a"),
        when_cordoned(lambda world: reserve(world, make_plan())),
    ),
    WrongCommand(
        "a reservation a second before a cordon ends",
        "E_CORDONED",
        ("until",),
        when_cordoned(lambda world: later(world, 59.0, make_plan()), seconds=60.0),
    ),
]


def bound_of(memory: int) -> Any:
    return make_plan(memory=memory).shards[1].bound


LOADS = [
    WrongCommand(
        "a load whose host was cordoned after it reserved",
        "E_CORDONED",
        ("host-a takes no new shards", "fan"),
        when_reserved(cordon_then_load),
    ),
    WrongCommand(
        "a load that nothing was reserved for",
        "E_NOT_RESERVED",
        ("tiny-1/1", "op-reserve"),
        lambda w: load(w, make_plan()),
    ),
    WrongCommand(
        "a load after its reservation expired",
        "E_NOT_RESERVED",
        ("it expired or was released",),
        when_reserved(load_too_late),
    ),
    WrongCommand(
        "a load to the node of another host",
        "E_UNKNOWN_NODE",
        ("tiny-1/2 is not planned on host-a",),
        when_reserved(lambda world, plan: load(world, plan, 2)),
    ),
    WrongCommand(
        "a load of a node that no plan has",
        "E_UNKNOWN_NODE",
        ("tiny-1/9",),
        when_reserved(lambda world, plan: load(world, plan, 1, node_id=NodeId("tiny-1/9"))),
    ),
    WrongCommand(
        "a node generation one below the load generation",
        "E_GENERATION",
        (f"node generation {GENERATION - 1}", f"load generation {GENERATION}"),
        when_reserved(lambda world, plan: load(world, plan, node_generation=NodeGeneration(GENERATION - 1))),
    ),
    WrongCommand(
        "a node generation of 1",
        "E_GENERATION",
        ("node generation 1 differs", "first release"),
        when_reserved(lambda world, plan: load(world, plan, node_generation=NodeGeneration(1))),
    ),
    WrongCommand(
        "a claim that does not exceed the slot's stored one",
        "E_FENCED",
        (f"claim {GENERATION}", f"stored {GENERATION}"),
        when_up(lambda world, plan: load(world, plan)),
    ),
    WrongCommand(
        "a plan of another generation than was reserved",
        "E_FENCED",
        (str(GENERATION), str(LATER)),
        when_reserved(lambda world, plan: load(world, make_plan(generation=LATER))),
    ),
    WrongCommand(
        "an edited plan under a good reservation",
        "E_INVALID",
        ("the plan was edited",),
        when_reserved(lambda world, plan: load(world, msgspec.structs.replace(plan, model_path="other.gguf"))),
    ),
]


@pytest.mark.parametrize("row", as_parameters([*RESERVES, *LOADS]))
def test_command(row: WrongCommand) -> None:
    """A wrong command is rejected by code, with both values; nothing is spawned and nothing new is held."""
    world = World()
    row.ask(world)
    result = world.answer("wrong")
    assert (result.status, result.resource_state) == ("rejected", "absent")
    assert result.first_error.startswith(f"{row.code}: "), result.first_error
    for word in row.words:
        assert word in result.first_error
    assert spawns(world) == []
    assert OpId("wrong") not in world.state.entities.reservations
    assert world.state.entities == world.durable


def refusals(world: World) -> list[Refused]:
    return [send.event for send in world.take(Send) if isinstance(send.event, Refused)]


def test_an_id_that_was_used_for_another_command() -> None:
    """An operation's id used again with another payload is refused, and the first one stands."""
    world = World()
    world.reserve(make_plan())
    world.effects = []
    world.command(Release(op_id=OpId("op-reserve"), reservation=OpId("x"), by="bob"))
    (refused,) = refusals(world)
    assert refused.code == "E_OP_REUSED"
    assert "by alice" in refused.words
    assert world.state.entities.reservations.keys() == {"op-reserve"}


def test_a_command_after_the_journal_failed() -> None:
    """No journal, no load: refused without a record, as none could be written."""
    world = World()
    world.event(JournalFailed("No space left on device"))
    world.command(wrong_reserve(make_plan()))
    (refused,) = refusals(world)
    assert refused.code == "E_JOURNAL"
    assert "No space left on device" in refused.words
    assert world.state.entities.reservations == {}


def test_a_reservation_of_all_that_is_left() -> None:
    """Exactly what is left may be reserved."""
    world = World()
    reserve(world, make_plan(memory=5_000))
    assert world.answer("wrong").status == "succeeded"


def test_a_reservation_of_every_core_and_watt_that_is_left() -> None:
    """Exactly what is left of both budgets may be reserved, beside a reservation and beside what it became."""
    for before in (after_reservation, after_load):
        world = World()
        first, second = demanding(cpu_cores=3, power=300), demanding("glm-1", LATER, cpu_cores=5, power=400)
        before(world, first, second, cores=8, power=700)
        assert world.answer("wrong").status == "succeeded"
        kept = world.state.entities.reservations[OpId("wrong")]
        assert (kept.cores, kept.power) == (5, 400)


def test_a_demand_on_a_host_without_budgets() -> None:
    """A host that says nothing of its budgets takes any demand; the plan warned of it."""
    world = World()
    reserve(world, demanding(cpu_cores=900, power=900_000))
    assert world.answer("wrong").status == "succeeded"


def test_ports_at_both_ends_of_the_range() -> None:
    """The first and the last port of the range may be reserved."""
    world = World()
    reserve(world, changed(make_plan(), 1, ports=(Port(18_999),)))
    assert world.answer("wrong").status == "succeeded"


def test_a_reservation_when_the_cordon_is_over() -> None:
    """A cordon's time is over: the next reservation is taken."""
    world = World()
    when_cordoned(lambda each: later(each, 60.0, make_plan()), seconds=60.0)(world)
    assert world.answer("wrong").status == "succeeded"


def test_a_second_replica_beside_the_first() -> None:
    """A second replica with ports and memory of its own may be reserved while the first serves."""
    world = World()
    world.bring_up(make_plan())
    reserve(world, make_plan("tiny-2", LATER, first_port=18_100))
    assert world.answer("wrong").status == "succeeded"


def test_the_same_replica_of_a_later_generation_once_it_is_gone() -> None:
    """A slot is free again once its old process is proven gone."""
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    for rank in (0, 1):
        world.unload(plan, rank)
        world.ended(plan, rank, code=0, signal=None)
        world.gone(plan, rank)
    reserve(world, make_plan(generation=LoadGeneration(LATER)))
    assert world.answer("wrong").status == "succeeded"
