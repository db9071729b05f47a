"""A tiny model, and rings over it that are ended by pid."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from backend.contract.plans import Plan
from backend.engines.llamacpp.pace import Pace
from backend.local.tiny_model import write_tiny_model
from tests.engines.llamacpp.ring import Ring

MakeRing = Callable[..., Ring]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 4 layers and 1.5 MB that the real engine loads."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_model(path)
    return path


@pytest.fixture
async def make_ring(tmp_path: Path) -> AsyncIterator[MakeRing]:
    """Makes rings; all of them are ended after the test."""
    rings: list[Ring] = []

    def make(plan: Plan, pace: Pace | None = None) -> Ring:
        ring = Ring(plan, tmp_path, pace or Pace())
        rings.append(ring)
        return ring

    yield make
    for ring in rings:
        await ring.close()
