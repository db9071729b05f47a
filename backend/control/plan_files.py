"""Plans as files: saved for ``load --plan FILE``, and refused when they were edited since."""

from __future__ import annotations

from pathlib import Path

from backend.contract.plans import Plan, plan_digest
from backend.control.sealed_files import SealedUnreadable, read_sealed, write_sealed


class PlanUnreadable(SealedUnreadable):
    """A saved plan cannot be used; the message names the file and the reason."""


def write_plan(plan: Plan, path: Path) -> None:
    """Save a plan as JSON, for ``load --plan FILE``."""
    write_sealed(plan, path)


def read_plan(path: Path) -> Plan:
    """A plan that was saved. Raises PlanUnreadable, also for one that was edited since."""
    return read_sealed(path, Plan, "plan", plan_digest, PlanUnreadable)
