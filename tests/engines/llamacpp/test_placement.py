"""What the engine prints is compared with the plan, place by place."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from backend.contract.entities import Buffers
from backend.contract.plans import Plan
from backend.contract.words import HostId, Port
from backend.engines.llamacpp.logs import MIB, LoadPicture, read_picture
from backend.engines.llamacpp.placement import buffers_by_rank, judge_bounds, judge_engine_plan, judge_placement
from tests.engines.llamacpp.lines import ALONE, RING, TOO_BIG
from tests.engines.llamacpp.ring import ring_plan, with_bound

PLENTY = 1 << 40
# Bytes of the model that was loaded when the lines were captured: a vocabulary of 555, 4 layers of 128.
EMBEDDING, LAYER, OUTPUT = 142_080, 295_936, 142_592


@pytest.fixture
def plan(tiny: Path) -> Plan:
    """The plan under which the captured ring ran: two workers of two layers each."""
    made = ring_plan(tiny, split=[2, 2], context=2048, n_ubatch=512)
    ports = (Port(19180), Port(19152), Port(19153))
    shards = tuple(msgspec.structs.replace(shard, ports=(ports[shard.rank],)) for shard in made.shards)
    made = msgspec.structs.replace(made, shards=shards)
    for rank, weights in enumerate((EMBEDDING, 2 * LAYER, 2 * LAYER + OUTPUT)):
        made = with_bound(made, rank, weights=weights)
    return made


def picture(*changes: tuple[str, str], lines: list[str] = RING) -> LoadPicture:
    """A captured start, with some words exchanged."""
    text = "\n".join(lines)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return read_picture(text.splitlines())


def test_a_captured_ring_is_what_was_planned(plan: Plan) -> None:
    seen = picture()
    assert judge_engine_plan(seen, plan, PLENTY) is None
    assert judge_placement(seen, plan) is None
    assert judge_bounds(seen, plan) is None


def test_buffers_are_bytes_per_rank_and_rank_0_has_its_mapped_part(plan: Plan) -> None:
    hundredth = MIB / 100
    assert buffers_by_rank(picture(), plan) == (
        Buffers(0, round(14 * hundredth), 0, round(252 * hundredth)),
        Buffers(1, round(56 * hundredth), MIB, round(427 * hundredth)),
        Buffers(2, round(70 * hundredth), MIB, round(427 * hundredth)),
    )


def test_the_sizes_of_a_leader_that_holds_layers_on_its_gpu_are_added_up_and_counted(tiny: Path) -> None:
    alone = ring_plan(tiny, ranks=1, context=2048, n_ubatch=512)
    lines = [
        "0.00.042.272 I load_tensors:   CPU_Mapped model buffer size =     0.13 MiB",
        "0.00.042.272 I load_tensors:      Vulkan0 model buffer size =     1.26 MiB",
        "0.00.046.269 I llama_kv_cache:    Vulkan0 KV buffer size =     2.00 MiB",
    ]
    assert buffers_by_rank(picture(lines=lines), alone) == (Buffers(0, round(1.39 * MIB), 2 * MIB, 0, parts=2),)


def test_a_replica_of_one_rank_is_compared_with_the_host(tiny: Path) -> None:
    plan = ring_plan(tiny, ranks=1, context=2048, n_ubatch=512)
    plan = with_bound(plan, 0, weights=EMBEDDING + 4 * LAYER + OUTPUT)
    seen = picture(lines=ALONE)
    assert judge_engine_plan(seen, plan, PLENTY) is None
    assert judge_placement(seen, plan) is None
    assert judge_bounds(seen, plan) is None


def test_the_engines_own_refusal_names_the_rank_that_is_short(plan: Plan) -> None:
    found = judge_engine_plan(picture(lines=TOO_BIG), plan, PLENTY)
    assert found is not None
    assert (found.id, found.subject) == ("memory.engine_plan", "rank 1 on host-b (CPU)")
    assert found.found.startswith("19899 MiB too much")


def test_a_spare_gigabyte_that_the_engine_wishes_for_is_no_reason_to_refuse(plan: Plan) -> None:
    wish = "failed to fit params to free device memory: n_gpu_layers already set by user to 999, abort"
    seen = picture(("24099 free", "500 free"), ("successfully fit params to free device memory", wish))
    assert judge_engine_plan(seen, plan, PLENTY) is None


def test_more_than_the_plans_promise_is_refused_before_the_weights(plan: Plan) -> None:
    seen = picture(("(   5 =     0 +       1 +       4)", "( 905 =     0 +       1 +     904)"))
    found = judge_engine_plan(seen, plan, PLENTY)
    assert found is not None
    assert found.id == "memory.engine_plan"
    assert "905 MiB" in found.found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("offloaded 5/5", "offloaded 4/5"), "4 of 5"),
        (("RPC0[127.0.0.1:19153] model", "RPC0[127.0.0.1:19152] model"), "2 there"),
        (("RPC0[127.0.0.1:19153] model buffer size =     0.70", "CPU model buffer size = 0.70"), "0 there"),
        (("  CPU_Mapped model", "RPC0[127.0.0.1:19199] model"), "one at 127.0.0.1:19199"),
        (("AMX is not ready to be used!", "0.00.012.000 E Failed to connect to 127.0.0.1:1"), "Failed to connect"),
        (("load_tensors: offloaded 5/5 layers", "load_tensors: nothing of layers"), "none in the leader's log"),
    ],
)
@pytest.mark.refusals("refused as placement.differs, with both values")
def test_another_placement_is_refused_in_words(plan: Plan, change: tuple[str, str], words: str) -> None:
    found = judge_placement(picture(change), plan)
    assert found is not None
    assert found.id == "placement.differs"
    assert words in found.found


@pytest.mark.parametrize(("rank", "field"), [(1, "weights"), (2, "kv"), (0, "weights")])
def test_a_derived_bound_that_differs_by_a_hundredth_of_a_mib_is_refused(plan: Plan, rank: int, field: str) -> None:
    derived = getattr(plan.shards[rank].bound, field)
    found = judge_bounds(picture(), with_bound(plan, rank, **{field: derived + MIB // 50}))
    assert found is not None
    assert found.id == "bound.differs"
    assert found.subject.startswith(f"rank {rank} ")


def test_what_was_not_derived_is_not_compared(plan: Plan) -> None:
    assert judge_bounds(picture(), with_bound(plan, 1, weights=1, derived=False)) is None


@pytest.mark.parametrize(
    ("host", "device", "is_here"),
    [("host-a", "CPU", True), ("host-a", "CUDA0", False), ("elsewhere", "CPU", False)],
)
def test_a_workers_memory_counts_where_it_is_on_the_leaders_own_device(
    plan: Plan, host: str, device: str, is_here: bool
) -> None:
    """What is free was looked at on that device, before the engines of this load took any."""
    assert plan.shards[0].host == "host-a"
    elsewhere = [msgspec.structs.replace(shard, host=HostId("elsewhere")) for shard in plan.shards[1:]]
    moved = msgspec.structs.replace(elsewhere[0], host=HostId(host), device=device)
    made = msgspec.structs.replace(plan, shards=(plan.shards[0], moved, *elsewhere[1:]))
    seen = picture()
    leader = seen.plans["Host"].taken * MIB
    both = leader + seen.plans[f"{moved.advertise}:{moved.ports[0]}"].taken * MIB
    assert judge_engine_plan(seen, made, both) is None
    short = judge_engine_plan(seen, made, both - 1)
    assert (short is not None) == is_here
    assert judge_engine_plan(seen, made, leader - 1) is not None, "the leader's own always counts"
