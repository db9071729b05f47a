"""Plans that were changed and sealed again, so that no digest tells: refused by recheck or by the agents themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from backend.contract.plans import Plan, PlannedShard, sealed
from backend.contract.words import Bytes, HostId, NodeGeneration, NodeId, Port, ReplicaId
from tests.e2e.fleet import Fleet
from tests.refusals.rows import as_parameters
from tests.refusals.test_wrong_loads import assert_refused

pytestmark = [pytest.mark.refusals, pytest.mark.e2e, pytest.mark.xdist_group("refusals-sealed")]


class SealedPlan(NamedTuple):
    """What is changed in a good plan before it is sealed again."""

    title: str
    id: str
    words: tuple[str, ...]
    change: Callable[[Plan], Plan]


def with_profile(**changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: msgspec.structs.replace(plan, profile=msgspec.structs.replace(plan.profile, **changes))


def with_plan(**changes: Any) -> Callable[[Plan], Plan]:
    return lambda plan: msgspec.structs.replace(plan, **changes)


def with_shard(of: int, /, **changes: Any) -> Callable[[Plan], Plan]:
    def change(shard: PlannedShard) -> PlannedShard:
        return msgspec.structs.replace(shard, **changes) if shard.rank == of else shard

    return lambda plan: msgspec.structs.replace(plan, shards=tuple(change(shard) for shard in plan.shards))


def without_bounds(plan: Plan) -> Plan:
    nothing = {"weights": Bytes(0), "kv": Bytes(0), "compute": Bytes(0)}
    shards = (
        msgspec.structs.replace(shard, bound=msgspec.structs.replace(shard.bound, **nothing)) for shard in plan.shards
    )
    return msgspec.structs.replace(plan, shards=tuple(shards))


ROWS = [
    SealedPlan(
        "-ngl 0 among the options",
        "options.refused",
        ("n_gpu_layers = 0", "offloads every layer"),
        with_profile(options={"n_gpu_layers": 0}),
    ),
    SealedPlan(
        "a flag of the engine's own in an option's value",
        "options.value",
        ("'on --rpc 10.0.0.9:1'", "auto, on, off"),
        with_profile(options={"flash_attn": "on --rpc 10.0.0.9:1"}),
    ),
    SealedPlan(
        "a context far beyond what was derived",
        "bound.guessed",
        ("1572864 in the plan", "7680000000000 of KV"),
        with_profile(context=10_000_000_000),
    ),
    SealedPlan(
        "bounds of nothing, so that nothing would be reserved",
        "bound.guessed",
        ("0 and 0 in the plan", "140032 bytes of weights"),
        without_bounds,
    ),
    SealedPlan(
        "a model outside the model roots",
        "model.unreadable",
        ("/etc/passwd", "model roots"),
        with_plan(model_path="/etc/passwd"),
    ),
    SealedPlan("port 22", "E_INVALID", ("port 22", "outside the range"), with_shard(1, ports=(Port(22),))),
    SealedPlan(
        "an address of another host",
        "port.taken",
        ("203.0.113.7 is no address of this host",),
        with_shard(2, advertise="203.0.113.7"),
    ),
    SealedPlan(
        "a node generation one below", "generation.differs", ("node generation 1",), with_shard(2, node_generation=1)
    ),
    SealedPlan("no shard at all", "plan.incomplete", ("expected 3 shards",), with_plan(shards=())),
    SealedPlan(
        "no rank 0",
        "ranks.order",
        ("0 is missing",),
        lambda plan: msgspec.structs.replace(plan, shards=plan.shards[1:]),
    ),
    SealedPlan(
        "a rank twice",
        "ranks.order",
        ("ranks 0, 1, 1",),
        with_shard(2, rank=1),
    ),
    SealedPlan("layers that overlap", "layers.window", ("layers 0 to 4",), with_shard(2, layers=(0, 4))),
    SealedPlan("a layer that nobody has", "layers.window", ("4 layers",), with_shard(2, layers=(3, 3))),
    SealedPlan(
        "two ranks on one port",
        "port.clash",
        ("which tiny-1/1 has as well",),
        lambda plan: with_shard(2, ports=plan.shards[1].ports)(plan),
    ),
    SealedPlan("two leaders", "plan.role", ("role worker", "role leader"), with_shard(1, role="leader")),
    SealedPlan(
        "a worker without a port", "plan.unsound", ("tiny-1/2 on host-b has no address",), with_shard(2, ports=())
    ),
    SealedPlan("no bound for any phase", "phase.unbounded", ("connecting",), with_plan(phases=())),
    SealedPlan("no facts that could move", "plan.incomplete", ("none about host-a",), with_plan(facts=())),
    SealedPlan(
        "a host that nobody looked at", "plan.incomplete", ("none about host-z",), with_shard(2, host=HostId("host-z"))
    ),
    SealedPlan("a replica id that is a path", "E_INVALID", ("'../../x-1'",), with_plan(replica=ReplicaId("../../x-1"))),
    SealedPlan(
        "a node id that is a path",
        "E_INVALID",
        ("../../../tmp/evil", "it must be tiny-1/1"),
        with_shard(1, node_id=NodeId("../../../tmp/evil")),
    ),
    SealedPlan(
        "a device of another backend", "device.index", ("no such device", "ROCm0"), with_shard(2, device="ROCm0")
    ),
]


@pytest.mark.parametrize("row", as_parameters(ROWS))
def test_sealed(row: SealedPlan, shared: Fleet) -> None:
    """A plan that was changed and sealed again is refused before anything starts."""
    path = shared.home / "sealed.json"
    planned = shared.run("plan", "tiny:two-host", "-o", str(path))
    assert planned.returncode == 1, planned.stdout + planned.stderr
    good = msgspec.json.decode(path.read_bytes(), type=Plan)
    path.write_bytes(msgspec.json.encode(sealed(row.change(good))))
    assert_refused(shared, ("load", "--plan", str(path), "--yes"), (row.id, *row.words))


def test_the_plan_of_these_rows_loads_unchanged(fleet: Fleet) -> None:
    """The same plan, sealed again without a change, is right."""
    path = fleet.home / "sealed.json"
    fleet.run("plan", "tiny:two-host", "-o", str(path))
    good = msgspec.json.decode(path.read_bytes(), type=Plan)
    assert {int(shard.node_generation) for shard in good.shards} == {int(NodeGeneration(good.load_generation))}
    path.write_bytes(msgspec.json.encode(sealed(good)))
    done = fleet.run("load", "--plan", str(path), "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
