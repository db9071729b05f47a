"""How often things are looked at and how long they may take, in seconds; and how a start is refused."""

from __future__ import annotations

import msgspec

from backend.contract.findings import Finding, refuse
from backend.contract.plans import Plan


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals and deadlines of a drive, all in seconds. The defaults are for production."""

    log_look: float = 0.005  # weights begin 20 ms after the engine's plan is printed
    hello_deadline: float = 1.0
    hello_again: float = 0.05
    loading_look: float = 0.05
    ready_look: float = 0.25
    lasting: float = 0.3  # a leader opens a dozen short connections before the one that stays
    leader_grace: float = 60.0
    poll: float = 1.0
    poll_busy: float = 0.5
    poll_deadline: float = 3.0
    canary_every: float = 30.0
    canary_again: float = 5.0
    canary_deadline: float = 10.0
    stall: float = 10.0
    gone_again: float = 0.1


class StartRefused(Exception):
    """The start must end: the finding says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.words)
        self.finding = finding


def phase_limit(plan: Plan, phase: str) -> float:
    """The plan's bound of a phase in seconds. Raises StartRefused when it has none: nothing may wait for ever."""
    try:
        return plan.phase_seconds(phase)
    except KeyError:
        known = ", ".join(bound.phase for bound in plan.phases) or "none"
        raise StartRefused(
            refuse(
                "phase.unbounded",
                plan.replica,
                expected=f"a bound for the phase {phase}",
                found=f"bounds for: {known}",
                remedy="Plan the load again with this release of ringtop.",
            )
        ) from None


def overrun(plan: Plan, subject: str, phase: str, seconds: float, waited_for: str) -> StartRefused:
    """The refusal of a phase that took too long; ``waited_for`` says what did not come."""
    limit = phase_limit(plan, phase)
    formula = next(bound.formula for bound in plan.phases if bound.phase == phase)
    return StartRefused(
        refuse(
            "phase.overrun",
            subject,
            expected=f"phase {phase} within {limit:g} s ({formula})",
            found=f"{seconds:.1f} s, and still {waited_for}",
            remedy="Read the log of this rank and look at its host; load again when the cause is gone.",
        )
    )
