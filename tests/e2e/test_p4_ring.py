"""A four-stage p4 ring over two hosts, from the plan to the unload, through the command line and real agents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.p4_fleet import HEAD_BOUND, SOUND, TAIL_BOUND, P4Fleet
from tests.p4.ring import simulated_ring
from tests.ports import claim_block

pytestmark = pytest.mark.e2e


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[P4Fleet]:
    with simulated_ring(tmp_path, 2, **SOUND) as ring:
        fleet = P4Fleet(claim_block(), ring)
        try:
            fleet.start()
            yield fleet
        finally:
            fleet.close()


def test_a_ring_is_planned_loaded_shown_and_unloaded(fleet: P4Fleet) -> None:
    plan = fleet.json("plan", "step:ring", code=1)
    bounds = [shard["bound"]["result"] for shard in plan["shards"]]
    assert bounds == [HEAD_BOUND, HEAD_BOUND, HEAD_BOUND, TAIL_BOUND]
    fleet.load("step:ring")
    nodes = {**fleet.ring[0].ask()["nodes"], **fleet.ring[1].ask()["nodes"]}
    assert sorted(nodes) == ["step-1/0", "step-1/1", "step-1/2", "step-1/3"]
