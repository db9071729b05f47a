"""How often things are looked at and how long they may take, in seconds; and how a start is refused."""

from __future__ import annotations

import asyncio

import msgspec

from backend.contract.findings import Finding, refuse
from backend.contract.plans import Plan


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Intervals and deadlines of a drive, all in seconds. The defaults are for production.

    While something starts, ``log_look``, ``hello_again`` and ``loading_look`` are the longest pauses between two looks;
    ``next_look`` makes the first ones shorter.
    """

    log_look: float = 0.005  # weights begin 20 ms after the engine's plan is printed
    hello_deadline: float = 1.0
    hello_again: float = 0.05
    loading_look: float = 0.05
    ready_look: float = 0.25  # a leader's sockets to its workers
    worker_look: float = 1.0  # a worker's leader, whose absence counts after leader_grace only
    worker_look_unwatched: float = 4.0  # less than the 5 s after which a console calls a measurement old
    lasting: float = 0.3  # a leader opens a dozen short connections before the one that stays
    leader_grace: float = 60.0
    poll: float = 1.0
    poll_unwatched: float = 4.0  # of an idle leader; one that works is polled as poll_busy says, whoever watches
    poll_busy: float = 0.5
    poll_deadline: float = 3.0
    canary_every: float = 30.0
    canary_again: float = 5.0
    canary_deadline: float = 10.0
    stall: float = 10.0
    gone_again: float = 0.1
    follow_again: float = 5.0  # what the kernel did not let be looked at


SOONEST_LOOK = 0.002


def next_look(waited: float, ceiling: float) -> float:
    """The pause before the next look at something that was awaited for ``waited`` seconds so far, in seconds.

    A sixteenth of the wait, from 2 ms to ``ceiling``: what comes soon is seen soon, and a long wait costs few looks.
    """
    return min(max(SOONEST_LOOK, waited / 16), ceiling)


async def beat(period: float) -> None:
    """Sleep to the next multiple of ``period`` seconds of the loop's clock.

    Every look of an agent that comes as often comes at the same moment then: an idle host is woken once for all of
    them, and being woken costs more than to look.
    """
    now = asyncio.get_running_loop().time()
    await asyncio.sleep(period - now % period)


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
