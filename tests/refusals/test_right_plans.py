"""Right loads that look wrong: every guard at the edge that must pass."""

from __future__ import annotations

import pytest

from backend.contract.words import HostId, Port
from backend.planning.fleet import DAY_MS
from backend.planning.plan import recheck
from tests.planning.worlds import (
    GIB,
    NOW,
    a_cordon,
    a_fleet,
    a_host,
    a_model,
    a_plan,
    a_reservation,
    a_shard,
    an_engine,
    holding,
)
from tests.refusals.rows import RightPlan, as_parameters, both, gpus, many, needy, pair
from tests.refusals.test_wrong_plans import PORTS, clocks, needed_on

pytestmark = pytest.mark.refusals

MAPPED = a_model().expected_bytes

ROWS = [
    RightPlan("the ordinary ring over two hosts", a_plan),
    RightPlan(
        "a ring beside a cordoned host that nobody named",
        lambda: a_plan(
            a_fleet(a_host("host-a"), a_host("host-b", entities=holding(cordon=a_cordon())), a_host("host-c")),
            profile={"hosts": (), "ranks_per_host": 1},
        ),
    ),
    RightPlan(
        "exactly enough memory at a worker's host", lambda: a_plan(pair(devices={"CPU": (needed_on("host-b"), 0)}))
    ),
    RightPlan(
        "exactly enough memory at the leader's host, though none for its mapped file",
        lambda: a_plan(pair("host-a", devices={"CPU": (needed_on("host-a"), 0)})),
        ("memory.mapped",),
    ),
    RightPlan(
        "exactly enough memory for the mapped file as well",
        lambda: a_plan(pair("host-a", devices={"CPU": (needed_on("host-a") + MAPPED, 0)})),
    ),
    RightPlan("the first port of the range", lambda: a_plan(profile={"port": 18_000})),
    RightPlan("the last port of the range", lambda: a_plan(profile={"port": 18_009})),
    RightPlan(
        "a range of just as many ports as ranks",
        lambda: a_plan(pair("host-a", ports=(Port(18_000), Port(18_001)))),
    ),
    RightPlan("the last free port of a host", lambda: a_plan(pair(ports_in_use=PORTS[:-1]))),
    RightPlan(
        "the port that a stopped replica had",
        lambda: a_plan(
            pair("host-a", entities=holding(a_shard("host-a", node="glm-2/0", ports=(18_005,), state="stopped"))),
            profile={"port": 18_005},
        ),
    ),
    RightPlan(
        "the leader's port taken on a worker's machine",
        lambda: a_plan(pair(ports_in_use=(Port(18_005),)), profile={"port": 18_005}),
    ),
    RightPlan("a context as long as the training", lambda: a_plan(profile={"context": 4_096})),
    RightPlan(
        "a context one token beyond the training", lambda: a_plan(profile={"context": 4_097}), ("context.training",)
    ),
    RightPlan("as many workers as layers", lambda: a_plan(profile={"ranks": 5})),
    RightPlan("a leader alone with every layer", lambda: a_plan(profile={"ranks": 1, "hosts": ("host-a",)})),
    RightPlan(
        "a leader alone that says how many layers it holds",
        lambda: a_plan(profile={"ranks": 1, "hosts": ("host-a",), "split": (4,)}),
    ),
    RightPlan("one worker", lambda: a_plan(profile={"ranks": 2, "hosts": ("host-a",)})),
    RightPlan("the most uneven split", lambda: a_plan(profile={"split": (3, 1)})),
    RightPlan("as many hosts as ranks", lambda: a_plan(many(3), hosts=("host-a", "host-b", "host-c"))),
    RightPlan("one host for every rank", lambda: a_plan(hosts=("host-b",))),
    RightPlan("hosts in another order", lambda: a_plan(hosts=("host-b", "host-a"))),
    RightPlan("a host named twice", lambda: a_plan(hosts=("host-a", "host-a"))),
    RightPlan("no host named", lambda: a_plan(profile={"hosts": ()})),
    RightPlan(
        "no host named, and one of them refuses loads",
        lambda: a_plan(pair(refuses_loads="KillMode=control-group"), profile={"hosts": ()}),
    ),
    RightPlan(
        "a host that is silent and not needed",
        lambda: a_plan(a_fleet(a_host("host-a"), a_host("host-b"), unreachable=((HostId("host-c"), "down"),))),
    ),
    RightPlan(
        "quantized weights on a processor with the instructions",
        lambda: a_plan(needy(cpu_flags=("avx_vnni",)), model=a_model(tensor_types=("f32", "q4_k"))),
    ),
    RightPlan(
        "quantized weights on GPUs of hosts with old processors",
        lambda: a_plan(
            needy(devices={"CPU": (20 * GIB, 0), "CUDA0": (20 * GIB, 0)}),
            model=a_model(tensor_types=("q4_k",)),
            profile={"device": "CUDA0"},
        ),
    ),
    RightPlan(
        "quantized weights with a build for any processor", lambda: a_plan(model=a_model(tensor_types=("q4_k",)))
    ),
    RightPlan("bf16 weights on an old processor", lambda: a_plan(needy(), model=a_model(tensor_types=("bf16", "f32")))),
    RightPlan(
        "a quantized V cache on an old processor",
        lambda: a_plan(needy(), profile={"options": {"cache_type_v": "q8_0"}}),
    ),
    RightPlan(
        "loopback between two agents of one machine",
        lambda: a_plan(both(advertise="127.0.0.1", boot_id="one machine")),
    ),
    RightPlan("loopback on one host", lambda: a_plan(pair("host-a", advertise="127.0.0.1"), hosts=("host-a",))),
    RightPlan("an address just outside loopback", lambda: a_plan(pair(advertise="128.0.0.1"))),
    RightPlan("an address just below link-local", lambda: a_plan(pair(advertise="169.253.255.255"))),
    RightPlan("an address just above link-local", lambda: a_plan(pair(advertise="169.255.0.0"))),
    RightPlan("a name for an address", lambda: a_plan(pair(advertise="gpu-b.example"))),
    RightPlan("another flavour of one release", lambda: a_plan(pair(engines=(an_engine("CPU", "CUDA0"),)))),
    RightPlan(
        "one build with exact_build, though only one host has a device for it",
        lambda: a_plan(
            a_fleet(
                a_host("host-a", engines=(an_engine("CPU", flavour="cpu rpc vulkan"),)),
                a_host("host-b", engines=(an_engine("CPU", "Vulkan0", flavour="cpu rpc vulkan"),)),
            ),
            profile={"exact_build": True},
        ),
    ),
    RightPlan(
        "two builds of one release without exact_build",
        lambda: a_plan(
            a_fleet(
                a_host("host-a", engines=(an_engine("CPU", flavour="cpu rpc"),)),
                a_host("host-b", engines=(an_engine("CPU", flavour="cpu rpc vulkan"),)),
            )
        ),
    ),
    RightPlan("one flavour with exact_build", lambda: a_plan(gpus(2), profile={"exact_build": True})),
    RightPlan(
        "another release on a host that is not used",
        lambda: a_plan(
            a_fleet(
                a_host("host-a"), a_host("host-b"), a_host("host-c", engines=(an_engine("CPU", release="1-aaaaaaa"),))
            )
        ),
    ),
    RightPlan("as many workers as GPUs", lambda: a_plan(gpus(2), profile={"device": "CUDA*", "ranks": 5})),
    RightPlan("GPUs by a list of names", lambda: a_plan(gpus(2), profile={"device": "CUDA1,CUDA0", "ranks": 4})),
    RightPlan(
        "a stored generation a day ahead, and not more",
        lambda: a_plan(pair(entities=holding(highest=NOW + DAY_MS))),
    ),
    RightPlan(
        "a broken clock's generation on a host that is not used",
        lambda: a_plan(pair(entities=holding(highest=NOW + 3 * DAY_MS)), hosts=("host-a",)),
        ("generation.ahead",),
    ),
    RightPlan("a clock five minutes off, and not more", lambda: a_plan(clocks(host_a=300_000, host_b=300_001))),
    RightPlan(
        "one agent's clock far off, as the median is not",
        lambda: a_plan(clocks(host_a=0, host_b=900_000)),
        ("clock.offset",),
    ),
    RightPlan("the largest prompt cache that fits", lambda: a_plan(profile={"options": {"cram": 19_456}})),
    RightPlan("flash attention off with an f16 cache", lambda: a_plan(profile={"options": {"flash_attn": "off"}})),
    RightPlan(
        "a quantized V cache with flash attention",
        lambda: a_plan(profile={"options": {"flash_attn": "on", "cache_type_v": "q4_0"}}),
    ),
    RightPlan("a file longer than its header promises", lambda: a_plan(model=a_model(file_bytes=MAPPED + 1))),
    RightPlan(
        "an architecture that was never tried",
        lambda: a_plan(model=a_model(architecture="gemma3")),
        ("model.architecture",),
    ),
    RightPlan(
        "the largest result that may be kept",
        lambda: a_plan(model=a_model(n_embd=2**20), profile={"n_ubatch": 63}),
    ),
    RightPlan(
        "a second replica beside the first",
        lambda: a_plan(
            a_fleet(
                a_host(
                    "host-a",
                    entities=holding(
                        a_shard("host-a", node="tiny-1/0", ports=(18_000,)),
                        a_shard("host-a", node="tiny-1/1", ports=(18_001,)),
                    ),
                ),
                a_host("host-b", entities=holding(a_shard("host-b", node="tiny-1/2", ports=(18_000,)))),
            )
        ),
    ),
    RightPlan(
        "memory that a reservation leaves",
        lambda: a_plan(pair(entities=holding(reservation=a_reservation(memory={"CPU": 19 * GIB})))),
    ),
    RightPlan(
        "memory that a ready replica has taken already",
        lambda: a_plan(pair(entities=holding(a_shard("host-b", node="glm-1/1", memory=20 * GIB)))),
    ),
    RightPlan(
        "n_ubatch above n_batch, which the engine cuts",
        lambda: a_plan(profile={"n_batch": 64, "n_ubatch": 512}),
        ("batch.order",),
    ),
]


@pytest.mark.parametrize("row", as_parameters(ROWS))
def test_right(row: RightPlan) -> None:
    """A right load is not refused, and told no more than it must be."""
    plan = row.make()
    assert [finding.words for finding in plan.findings if finding.is_refusal] == []
    assert {finding.id for finding in plan.findings} == set(row.warns)
    assert plan.shards
    assert all(shard.ports for shard in plan.shards)


def test_a_plan_that_was_saved_is_right_while_only_measurements_moved() -> None:
    """A saved plan stays right while only measurements moved."""
    moved = a_host("host-a", memory_free=19 * GIB, devices={"CPU": (19 * GIB, 0)})
    assert recheck(a_plan(), a_fleet(moved, a_host("host-b"))) == ()
