"""Fixtures of the end-to-end tests: fleets that are gone afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.e2e.fleet import CATALOG, Fleet
from tests.ports import claim_block


@pytest.fixture
def make_fleet() -> Iterator[Callable[..., Fleet]]:
    """Makes fleets whose agents are not started yet; every one is closed at the end."""
    fleets: list[Fleet] = []

    def make(catalog: str = CATALOG) -> Fleet:
        fleets.append(Fleet(claim_block(), catalog))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.close()


@pytest.fixture
def fleet(make_fleet: Callable[..., Fleet]) -> Fleet:
    """Two running agents."""
    made = make_fleet()
    made.start()
    return made
