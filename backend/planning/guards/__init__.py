"""The guards of a plan, in one list. Each looks at one thing; none raises; all are heard out."""

from __future__ import annotations

from backend.contract.findings import Finding
from backend.planning.guards.registry import BY_ID, CHECKS, GUARDS
from backend.planning.guards.situation import Guard, Situation


def run_guards(situation: Situation) -> tuple[Finding, ...]:
    """What every guard has to say, refusals first; within a severity in the order of the list."""
    found = [finding for check in CHECKS for finding in check(situation)]
    return tuple(sorted(found, key=lambda finding: finding.severity != "refuse"))


__all__ = ["BY_ID", "GUARDS", "Guard", "Situation", "run_guards"]
