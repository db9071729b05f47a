"""Plans as files: saved for ``load --plan FILE``, and refused when they were edited since."""

from __future__ import annotations

from pathlib import Path

import msgspec

from backend.contract.plans import Plan, plan_digest


class PlanUnreadable(ValueError):
    """A saved plan cannot be used; the message names the file and the reason."""


def write_plan(plan: Plan, path: Path) -> None:
    """Save a plan as JSON, for ``load --plan FILE``."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n")


def read_plan(path: Path) -> Plan:
    """A plan that was saved. Raises PlanUnreadable, also for one that was edited since."""
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise PlanUnreadable(f"{path}: is no plan of ringtop: {error}.") from error
    if plan_digest(plan) != plan.digest:
        raise PlanUnreadable(
            f"{path}: its digest is {plan.digest[:8] or 'missing'} and its content gives {plan_digest(plan)[:8]}: "
            "it was edited. Make a new plan."
        )
    return plan
