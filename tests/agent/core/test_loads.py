"""Reservations and loads: refused early, durable before they act, once."""

from __future__ import annotations

import msgspec
import pytest

from backend.agent.core.state import Send, SpawnFailed, StopEngine, Ticked
from backend.agent.journal.format import MAX_RECORD
from backend.contract.commands import Expect, Release, Reserve
from backend.contract.events import Accepted, Refused
from backend.contract.findings import refuse
from backend.contract.plans import Plan, sealed
from backend.contract.reports import DeviceFacts
from backend.contract.states import ShardState
from backend.contract.words import LoadGeneration, NodeGeneration, NodeId, OpId, UnixMs
from backend.engines.driver import PhaseSeen, Unfit
from tests.agent.core.world import World, spawns
from tests.factories import GENERATION, make_plan


def test_nothing_is_spawned_or_answered_before_the_intent_is_durable() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.effects = []
    world.hold_sync = True
    world.load(plan, 1)
    assert world.effects == []
    world.hold_sync = False
    world.sync()
    assert [send.event for send in world.take(Send)] == [Accepted(op_id=OpId("op-load-1"), seq=0)]
    assert spawns(world) == ["tiny-1/1"]


def test_what_was_not_synced_never_happened_after_a_restart() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.hold_sync = True
    world.load(plan, 1)
    world.restart()
    assert world.state.entities.shards == {}
    assert world.state.entities.reservations.keys() == {"op-reserve"}


def test_a_worker_is_loaded_when_it_answers_and_a_leader_when_its_canary_crossed() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.load(plan, 1)
    world.spawned(plan, 1)
    world.saw(plan, 1, PhaseSeen(ShardState.CONNECTING, "answers HELLO 5.0.0"))
    assert world.answer("op-load-1").status == "succeeded"
    world.load(plan, 0)
    world.spawned(plan, 0)
    world.saw(plan, 0, PhaseSeen(ShardState.LOADING, "loading"))
    assert not [
        s
        for s in world.effects
        if isinstance(s, Send) and getattr(s.event, "op_id", "") == "op-load-0" and not isinstance(s.event, Accepted)
    ]
    world.prove(plan)
    assert world.answer("op-load-0").value == {"endpoint": "http://127.0.0.1:18000"}
    assert world.state.entities.reservations == {}
    assert world.is_quiet()


def test_the_second_of_two_loads_for_the_same_memory_is_refused_and_told_who_won() -> None:
    world = World(memory=3000)
    world.reserve(make_plan("tiny-1", memory=1200), op="first", by="alice")
    world.reserve(make_plan("tiny-2", GENERATION + 1, first_port=18_100, memory=1200), op="second", by="bob")
    result = world.answer("second-reserve")
    assert result.status == "rejected"
    for word in ("600 bytes left", "2400", "tiny-1", "alice", "first-reserve"):
        assert word in result.first_error
    assert world.state.entities.reservations.keys() == {"first-reserve"}


def on_device(plan: Plan, device: str) -> Plan:
    """The plan with everything on this device."""
    shards = tuple(msgspec.structs.replace(shard, device=device, device_uuid="") for shard in plan.shards)
    return sealed(msgspec.structs.replace(plan, shards=shards))


VULKAN = DeviceFacts(name="Vulkan0", uuid="", kind="vulkan", total=3000, free=3000, listed_by="llamacpp")


def test_memory_is_held_of_a_device_that_only_the_engines_list_names() -> None:
    world = World()
    world.gpus = (VULKAN,)
    world.reserve(on_device(make_plan("tiny-1", memory=1200), "Vulkan0"), op="first")
    assert world.answer("first-reserve").status == "succeeded"
    other = on_device(make_plan("tiny-2", GENERATION + 1, first_port=18_100, memory=1200), "Vulkan0")
    world.reserve(other, op="second")
    for word in ("E_CONFLICT: Vulkan0 of host-a has 600 bytes left", "2400", "tiny-1"):
        assert word in world.answer("second-reserve").first_error


def test_what_is_held_under_a_drivers_name_is_held_under_the_engines_name_too() -> None:
    world = World()
    card = DeviceFacts(name="CUDA0", uuid="GPU-1", kind="cuda", total=3000, free=3000)
    world.gpus = (card, msgspec.structs.replace(VULKAN, same_as="CUDA0"))
    world.reserve(on_device(make_plan("tiny-1", memory=1200), "CUDA0"), op="first")
    other = on_device(make_plan("tiny-2", GENERATION + 1, first_port=18_100, memory=1200), "Vulkan0")
    world.reserve(other, op="second")
    for word in ("E_CONFLICT: Vulkan0 of host-a has 600 bytes left", "2400", "tiny-1"):
        assert word in world.answer("second-reserve").first_error


@pytest.mark.parametrize(("device", "remedy"), [("Vulkan0", "`[devices.Vulkan0] memory"), ("CUDA0", "nvidia-smi")])
def test_nothing_is_held_of_a_device_whose_memory_nobody_knows(device: str, remedy: str) -> None:
    world = World()
    world.reserve(on_device(make_plan(), device))
    refusal = world.answer("op-reserve").first_error
    assert f"E_INVALID: host-a has no device {device} whose memory is known; it has CPU" in refusal
    assert remedy in refusal


def test_a_node_generation_other_than_the_load_generation_is_refused_with_both_numbers() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.load(plan, 1, node_generation=NodeGeneration(1))
    result = world.answer("op-load-1")
    assert result.status == "rejected"
    assert "node generation 1 differs from load generation 1764412800123" in result.first_error
    assert spawns(world) == []


def test_a_plan_whose_shards_carry_another_generation_is_refused() -> None:
    plan = make_plan()
    shards = (msgspec.structs.replace(plan.shards[0], node_generation=NodeGeneration(7)), *plan.shards[1:])
    world = World()
    world.reserve(sealed(msgspec.structs.replace(plan, shards=shards)))
    assert "E_GENERATION" in world.answer("op-reserve").first_error


def test_an_edited_plan_is_refused() -> None:
    world = World()
    world.reserve(msgspec.structs.replace(make_plan(), model_path="other.gguf"))
    assert "the plan was edited" in world.answer("op-reserve").first_error


@pytest.mark.parametrize(
    ("expect", "words"),
    [
        (Expect(agent_epoch="older"), "the agent restarted"),
        (Expect(revision=99), "revision 99 of host-a, which is now 0"),
    ],
)
def test_a_reservation_that_expects_another_state_is_fenced(expect: Expect, words: str) -> None:
    world = World()
    world.command(Reserve(op_id=OpId("op-reserve"), plan=make_plan(), by="alice", seconds=60.0, expect=expect))
    assert words in world.answer("op-reserve").first_error


def test_a_load_without_its_reservation_is_refused() -> None:
    world = World()
    world.load(make_plan(), 1)
    assert "E_NOT_RESERVED" in world.answer("op-load-1").first_error


def test_a_load_of_a_node_that_is_planned_elsewhere_is_refused_aloud() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.load(plan, 2)
    assert "E_UNKNOWN_NODE: tiny-1/2 is not planned on host-a" in world.answer("op-load-2").first_error


def test_the_same_command_twice_has_one_effect_and_the_same_result() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.load(plan, 1)
    world.load(plan, 1)
    assert spawns(world) == ["tiny-1/1"]
    world.spawned(plan, 1)
    world.effects = []
    world.saw(plan, 1, PhaseSeen(ShardState.CONNECTING, "answers"))
    world.load(plan, 1)
    answers = [s.event for s in world.take(Send)]
    assert len(answers) == 3  # both askers of the load, and the one that came after
    assert len({msgspec.json.encode(answer) for answer in answers}) == 1


def test_an_id_used_again_for_another_command_is_refused() -> None:
    world = World()
    world.reserve(make_plan())
    world.effects = []
    world.command(Release(op_id=OpId("op-reserve"), reservation=OpId("x"), by="bob"))
    (send,) = world.take(Send)
    assert isinstance(send.event, Refused)
    assert "was reserve of tiny-1 by alice" in send.event.words


def test_a_reservation_expires_and_frees_its_ports() -> None:
    world = World()
    world.reserve(make_plan())
    world.pass_time(61)
    assert not world.is_quiet()
    assert world.state.entities.reservations == {}
    world.reserve(make_plan("tiny-2", GENERATION + 1), op="next")
    assert world.answer("next-reserve").status == "succeeded"
    assert world.is_quiet()


def test_a_generation_that_is_not_above_the_stored_one_is_fenced() -> None:
    world = World()
    plan = make_plan()
    world.bring_up(plan)
    world.ended(plan, 1)
    world.gone(plan, 1)
    world.ended(plan, 0)
    world.gone(plan, 0)
    world.reserve(make_plan(generation=GENERATION - 1), op="old")
    assert "is not above" in world.answer("old-reserve").first_error


def test_a_start_that_does_not_fit_is_stopped_and_its_load_fails_with_the_finding() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.load(plan, 0)
    world.spawned(plan, 0)
    finding = refuse("memory.engine_plan", "tiny-1/1", expected="10 MiB", found="41678 MiB", remedy="Lower context.")
    world.saw(plan, 0, Unfit(finding))
    assert world.state_of(plan, 0) == "stopping"
    assert len(world.take(StopEngine)) == 1
    world.ended(plan, 0)
    assert world.state_of(plan, 0) == "failed"
    world.gone(plan, 0)
    result = world.answer("op-load-0")
    assert (result.status, result.resource_state) == ("failed", "absent")
    assert "41678 MiB" in result.first_error
    assert "10 MiB" in result.first_error


def test_a_spawn_that_failed_leaves_nothing_held() -> None:
    world = World()
    plan = make_plan()
    world.reserve(plan)
    world.load(plan, 1)
    world.event(SpawnFailed(NodeId("tiny-1/1"), LoadGeneration(GENERATION), "no such program"))
    assert world.answer("op-load-1").first_error == "no such program"
    assert world.state.entities.holds == {}
    assert world.is_quiet()


def test_a_repeated_command_is_not_answered_before_its_first_answer_is_durable() -> None:
    world, plan = World(), make_plan()
    world.hold_sync = True
    world.reserve(plan)
    world.reserve(plan)
    assert world.take(Send) == [], "a result was said that the journal may yet lose"
    world.hold_sync = False
    world.sync()
    answers = [sent.event for sent in world.take(Send)]
    assert [type(answer).__name__ for answer in answers] == ["Answered", "Answered"]


def test_ended_commands_are_forgotten_after_a_day_a_record_at_a_time() -> None:
    world = World()
    world.command(Release(op_id=OpId("young"), reservation=OpId("none"), by="alice"))
    (operation,) = world.state.entities.operations.values()
    old = {
        OpId(name): msgspec.structs.replace(operation, op_id=OpId(name), at_unix_ms=UnixMs(world.wall - 86_400_001))
        for name in (f"{n:0512}" for n in range(1200))
    }
    open_ = msgspec.structs.replace(next(iter(old.values())), op_id=OpId("open"), result=None)
    operations = {**world.state.entities.operations, **old, open_.op_id: open_}
    world.state = msgspec.structs.replace(
        world.state, entities=msgspec.structs.replace(world.state.entities, operations=operations)
    )
    for left in (702, 202, 2, 2):
        world.event(Ticked())
        assert len(world.state.entities.operations) == left
        assert len(msgspec.json.encode(world.records[-1])) < MAX_RECORD
    assert set(world.state.entities.operations) == {"young", "open"}
