"""Fixtures of the adoption tests: fleets that are gone afterwards, and places with short paths."""

from __future__ import annotations

from tests.control.conftest import place
from tests.faults.conftest import fleet, make_fleet

__all__ = ["fleet", "make_fleet", "place"]
