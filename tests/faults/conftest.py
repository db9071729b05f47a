"""Fixtures of the fault tests: fleets that can be armed and are gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.fleet import CATALOG
from tests.faults.stand import FaultFleet
from tests.ports import claim_block


@pytest.fixture
def make_fleet() -> Iterator[Callable[..., FaultFleet]]:
    """Makes fleets whose agents are not started yet; every one is closed at the end."""
    made: list[FaultFleet] = []

    def make(catalog: str = CATALOG) -> FaultFleet:
        made.append(FaultFleet(claim_block(), catalog))
        return made[-1]

    yield make
    for fleet in made:
        fleet.close()


@pytest.fixture
def fleet(make_fleet: Callable[..., FaultFleet]) -> FaultFleet:
    """A fleet whose agents are not started yet."""
    return make_fleet()
