"""Ports and device memory are held apart, each until its own proof, and a slot is free when both have come."""

from __future__ import annotations

import pytest

from backend.agent.core.state import Ended, Gone, ProveGone, Send, Spawn, Stuck
from backend.contract.events import Answered
from backend.contract.words import LoadGeneration, NodeId
from tests.agent.core.world import World, spawns
from tests.factories import GENERATION, make_plan

WORKER = NodeId("tiny-1/1")
AT = LoadGeneration(GENERATION)


def ended_worker(memory: int = 10_000) -> World:
    """A world whose worker has died, with nothing proven yet."""
    world = World(memory=memory)
    world.bring_up(make_plan())
    world.ended(make_plan(), 1)
    return world


def holds(world: World) -> set[str]:
    return {hold.kind for hold in world.state.entities.holds.values()}


def answered(world: World, op_id: str) -> bool:
    return any(isinstance(s, Send) and isinstance(s.event, Answered) and s.event.op_id == op_id for s in world.effects)


def test_an_exit_leaves_one_hold_for_the_ports_and_one_for_the_device() -> None:
    world = ended_worker()
    ports, device = (world.state.entities.holds[f"tiny-1/1@{GENERATION}/{kind}"] for kind in ("ports", "device"))
    assert (ports.ports, ports.device, ports.memory, ports.until) == ((18_001,), "", 0, "nothing listens on its ports")
    assert (device.ports, device.device, device.memory) == ((), "CPU", 1000)
    assert device.until == "its process group is empty"
    assert {effect.hold for effect in world.take(ProveGone)} == {ports, device}


def test_free_ports_can_be_taken_while_the_memory_is_still_held() -> None:
    world = ended_worker(memory=2500)
    world.gone(make_plan(), 1, "ports")
    assert holds(world) == {"device"}
    world.reserve(make_plan("tiny-2", GENERATION + 1, ("host-a",), first_port=18_001, memory=600), op="large")
    refusal = world.answer("large-reserve").first_error
    assert "CPU of host-a has 500 bytes left and the plan needs 600" in refusal
    assert "a hold after tiny-1/1" in refusal
    world.reserve(make_plan("tiny-2", GENERATION + 1, ("host-a",), first_port=18_001, memory=500), op="small")
    assert world.answer("small-reserve").status == "succeeded"


def test_free_memory_can_be_taken_while_the_ports_are_still_held() -> None:
    world = ended_worker(memory=2500)
    world.gone(make_plan(), 1, "device")
    assert holds(world) == {"ports"}
    world.reserve(make_plan("tiny-2", GENERATION + 1, ("host-a",), first_port=18_001, memory=1500), op="there")
    assert "port 18001 for tiny-2/0 on host-a is held after tiny-1/1 until nothing listens" in (
        world.answer("there-reserve").first_error
    )
    world.reserve(make_plan("tiny-2", GENERATION + 1, ("host-a",), first_port=18_005, memory=1500), op="elsewhere")
    assert world.answer("elsewhere-reserve").status == "succeeded"


@pytest.mark.parametrize(("first", "last"), [("ports", "device"), ("device", "ports")])
def test_an_unload_is_done_with_the_second_proof_whichever_comes_first(first: str, last: str) -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.unload(plan, 1)
    world.ended(plan, 1, signal=15)
    world.gone(plan, 1, first)
    assert not answered(world, "un-1")
    assert f"still held: {last}" in world.records[-1].words
    world.gone(plan, 1, last)
    assert (world.answer("un-1").status, world.answer("un-1").resource_state) == ("succeeded", "absent")
    assert WORKER not in world.state.entities.shards
    assert world.is_quiet()


def test_a_failed_load_is_answered_when_both_proofs_have_come() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.load(plan, 1)
    world.spawned(plan, 1)
    world.ended(plan, 1)
    world.gone(plan, 1, "device")
    assert not answered(world, "op-load-1")
    world.gone(plan, 1, "ports")
    assert (world.answer("op-load-1").status, world.answer("op-load-1").resource_state) == ("failed", "absent")


def test_holds_outlive_the_agent_and_go_on_waiting_for_their_own_proof() -> None:
    world = ended_worker()
    world.gone(make_plan(), 1, "ports")
    world.restart()
    assert holds(world) == {"device"}
    world.gone(make_plan(), 1, "ports")
    assert holds(world) == {"device"}
    world.gone(make_plan(), 1, "device")
    assert holds(world) == set()
    assert world.is_quiet()


def test_a_proof_that_comes_twice_changes_nothing() -> None:
    world = ended_worker()
    world.gone(make_plan(), 1)
    before = len(world.records)
    world.gone(make_plan(), 1)
    assert len(world.records) == before


@pytest.mark.parametrize("proven", [(), ("ports",), ("device",)])
def test_the_next_generation_is_not_spawned_before_this_one_is_proven_gone(proven: tuple[str, ...]) -> None:
    world = ended_worker()
    world.gone(make_plan(), 1, *proven) if proven else None
    again = make_plan(generation=GENERATION + 1, hosts=("host-b", "host-a", "host-b"), first_port=18_010)
    world.reserve(again, op="again")
    refusal = world.answer("again-reserve").first_error
    assert refusal.startswith(f"E_CONFLICT: tiny-1/1 is held after generation {GENERATION} until ")
    world.load(again, 1, op="again")
    assert spawns(world) == []
    world.gone(make_plan(), 1)
    world.reserve(again, op="then")
    world.load(again, 1, op="then")
    assert spawns(world) == ["tiny-1/1"]


def test_a_live_generation_keeps_the_next_one_out_and_is_named() -> None:
    world = World()
    world.bring_up(make_plan())
    again = make_plan(generation=GENERATION + 1, first_port=18_010)
    world.reserve(again, op="again", by="bob")
    refusal = world.answer("again-reserve").first_error
    assert f"E_CONFLICT: tiny-1/0 is ready at generation {GENERATION} (operation op-reserve)" in refusal
    assert world.take(Spawn) == []


def test_of_two_reservations_the_loser_is_told_the_winner() -> None:
    world = World()
    world.reserve(make_plan(), op="first", by="alice")
    world.reserve(make_plan(generation=GENERATION + 1, first_port=18_010), op="second", by="bob")
    refusal = world.answer("second-reserve").first_error
    assert f"reserved by alice for generation {GENERATION} (operation first-reserve)" in refusal


def test_an_injected_process_that_survives_kill_closes_its_device_to_new_loads_until_it_is_gone() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.unload(plan, 1)
    world.event(Stuck(WORKER, AT, "process 1001 is still there after KILL", (1001,)))
    assert (world.state_of(plan, 1), world.records[-1].level) == ("stopping", "alarm")
    other = make_plan("tiny-2", GENERATION + 1, ("host-a",), first_port=18_020, memory=10)
    world.reserve(other, op="other")
    assert "CPU takes no load until process 1001 of tiny-1/1 is gone" in world.answer("other-reserve").first_error
    (proof,) = world.take(ProveGone)
    assert proof.hold.kind == "stuck"
    before = len(world.records)
    world.event(Stuck(WORKER, AT, "process 1001 is still there after KILL", (1001,)))
    assert len(world.records) == before
    world.ended(plan, 1)
    world.event(Gone(WORKER, AT, "stuck"))
    world.gone(plan, 1)
    assert world.answer("un-1").status == "succeeded"
    world.reserve(other, op="later")
    assert world.answer("later-reserve").status == "succeeded"
    assert holds(world) == set()


def test_an_injected_child_that_outlives_its_engine_in_the_kernel_is_stuck_too() -> None:
    world = ended_worker()
    world.event(Stuck(WORKER, AT, "process 1005 is still there after KILL", (1005,)))
    assert holds(world) == {"ports", "device", "stuck"}
    world.gone(make_plan(), 1, "ports", "stuck")
    assert holds(world) == {"device"}
    world.gone(make_plan(), 1, "device")
    assert world.is_quiet()


def test_a_run_that_cannot_be_judged_is_said_and_closes_no_device() -> None:
    world = World()
    world.bring_up(make_plan())
    world.event(Stuck(WORKER, AT, "quarantined: spawn.json is damaged"))
    assert (world.records[-1].kind, world.records[-1].level) == ("stuck", "alarm")
    assert holds(world) == set()


def test_a_gpu_is_held_until_its_driver_says_so() -> None:
    import msgspec

    world = World()
    plan = make_plan()
    world.bring_up(plan)
    shard = world.state.entities.shards[WORKER]
    on_gpu = {**world.state.entities.shards, WORKER: msgspec.structs.replace(shard, device="CUDA0")}
    entities = msgspec.structs.replace(world.state.entities, shards=on_gpu)
    world.state = msgspec.structs.replace(world.state, entities=entities)
    world.event(Ended(WORKER, AT, 0, None, "exit code 0", ()))
    hold = world.state.entities.holds[f"tiny-1/1@{GENERATION}/device"]
    assert hold.until == "its process group is empty and CUDA0 lists no process of it"
