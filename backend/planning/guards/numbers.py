"""Guards about generations and the clocks that they are minted from."""

from __future__ import annotations

from collections.abc import Iterator

from backend.contract.durations import duration
from backend.contract.findings import Finding, refuse, warn
from backend.contract.plans import Plan
from backend.contract.reports import HostReport
from backend.planning.fleet import DAY_MS, highest_generation
from backend.planning.guards.situation import Guard, Situation
from backend.planning.guards.table import GENERATION, refusing, warning

CLOCK_LIMIT_MS = 300_000
"""How far this clock may be off the agents' median before it may mint no generation."""
_OFFSET_SHOWN_MS = 2_000  # less is the noise of asking over a slow link


def differs(situation: Situation) -> Iterator[Finding]:
    """A node generation that is not the load generation."""
    yield from generation_differs(situation.plan)


def generation_differs(plan: Plan) -> Iterator[Finding]:
    """The same for a plan alone, as it is read back from a file."""
    for shard in plan.shards:
        if int(shard.node_generation) != int(plan.load_generation):
            yield refuse(
                "generation.differs",
                f"{shard.node_id} on {shard.host}",
                expected=f"load generation {plan.load_generation}",
                found=f"node generation {shard.node_generation}",
                remedy="The leader would stop at its first release. Plan again, with one number.",
            )


def not_above(situation: Situation) -> Iterator[Finding]:
    """A host of the plan has seen this generation or a later one."""
    for report in situation.reports:
        yield from generation_not_above(situation.plan, report)


def generation_not_above(plan: Plan, report: HostReport) -> Iterator[Finding]:
    """The same for one host."""
    seen = highest_generation(report)
    if plan.load_generation <= seen:
        yield refuse(
            "generation.not_above",
            report.host,
            expected=f"a load generation above {seen}, the highest that {report.host} has stored",
            found=f"{plan.load_generation}",
            remedy="Plan again. If the stored one lies in the future, a clock was wrong when it was minted: leave "
            "this host out until then.",
        )


def ahead(situation: Situation) -> Iterator[Finding]:
    """A stored generation over a day ahead comes from a broken clock. It is no floor for new ones."""
    for report in situation.fleet.reports:
        seen = highest_generation(report)
        if seen > situation.now_unix_ms + DAY_MS:
            yield warn(
                "generation.ahead",
                report.host,
                expected=f"generations up to now, {situation.now_unix_ms}",
                found=f"{seen}, {(seen - situation.now_unix_ms) / DAY_MS:.0f} days ahead",
                remedy="Somebody's clock was wrong when it was minted. New generations do not follow it.",
            )


def clock_off(situation: Situation) -> Iterator[Finding]:
    """This clock against the agents' median."""
    median = situation.fleet.clock_median_ms
    if abs(median) > CLOCK_LIMIT_MS:
        behind = "behind" if median > 0 else "ahead of"
        yield refuse(
            "clock.off",
            "this machine",
            expected=f"at most {CLOCK_LIMIT_MS // 60_000} minutes off the agents' median clock",
            found=f"{duration(abs(median) / 1000)} {behind} the median of "
            f"{len(situation.fleet.clock_offsets_ms)} agents",
            remedy="A load generation minted now would be wrong for everybody. Set this machine's clock.",
        )


def clock_offset(situation: Situation) -> Iterator[Finding]:
    """One agent's clock against the median of all."""
    median = situation.fleet.clock_median_ms
    for report in situation.reports:
        offset = situation.fleet.clock_offsets_ms.get(report.host)
        if offset is not None and abs(offset - median) > _OFFSET_SHOWN_MS:
            side = "ahead of" if offset > median else "behind"
            yield warn(
                "clock.offset",
                report.host,
                expected="a clock like the other agents'",
                found=f"{duration(abs(offset - median) / 1000)} {side} the agents' median",
                remedy="Times of its journal will not line up with the others'. Set its clock.",
            )


GUARDS: tuple[Guard, ...] = (
    refusing(
        "generation.differs",
        "a leader that stops at its first release, after one right answer",
        "Plan again, with one number.",
        "the plan",
        differs,
        drift=GENERATION,
    ),
    refusing(
        "generation.not_above",
        "a load that an agent takes for an older one",
        "Plan again.",
        "the generations stored at the plan's hosts",
        not_above,
        drift=GENERATION,
    ),
    warning(
        "generation.ahead",
        "a number from a broken clock that all later ones would follow",
        "Look at that host's clock.",
        "the generations stored anywhere",
        ahead,
        drift=GENERATION,
    ),
    refusing(
        "clock.off",
        "a generation that is wrong for everybody",
        "Set this machine's clock.",
        "the clock pairs of the hellos",
        clock_off,
        drift=GENERATION,
    ),
    warning("clock.offset", "journals that do not line up", "Set its clock.", "the clock pairs", clock_offset),
)
