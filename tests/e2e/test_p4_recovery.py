"""A p4 agent is recovered by plan: each step with its stop condition, the journal moved aside and never deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.p4_recovery_fleet import RecoverableFleet
from tests.p4.ring import simulated_ring
from tests.ports import claim_block

pytestmark = [pytest.mark.e2e, pytest.mark.thorough]


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Any]:
    """Start fleets whose p4 agents can be ended and started; everything ends with the test."""
    with ExitStack() as stack:

        def start(**switches: Any) -> RecoverableFleet:
            ring = stack.enter_context(simulated_ring(tmp_path, 2, **{"n_layer": 4, **switches}))
            fleet = RecoverableFleet(claim_block(), ring, **switches)
            stack.callback(fleet.close)
            fleet.start()
            return fleet

        yield start


@pytest.mark.faults("a p4 agent that has served and cannot start again by its census is recovered, its journal whole")
def test_a_p4_agent_that_could_not_start_again_is_recovered(fleets: Any) -> None:
    fleet = fleets()
    before = fleet.load("step:ring")
    sim = fleet.sim("host-a")
    plan = fleet.plan("host-a", "--cut")
    done = fleet.run("p4", "recover", "host-a", "--apply", str(plan), "--move-journal", "--why", "census", "--yes", seconds=110)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
