"""What a guard looks at, and what a guard is."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from backend.contract.findings import Finding
from backend.contract.models import ModelFacts
from backend.contract.plans import Plan, PlannedShard
from backend.contract.reports import HostReport
from backend.contract.words import HostId
from backend.planning.engines.p4_reported import HeardCut
from backend.planning.engines.rules import EngineRules, Seat
from backend.planning.fleet import FleetFacts, machine_of


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """A plan without findings, beside the facts that it was made from. ``named`` are the hosts somebody asked for.

    ``version`` is that of the program that plans, or empty; ``catalog_stale`` why its catalog is not the file's;
    ``reported`` what loads of p4 said of their models' cuts.
    """

    plan: Plan
    fleet: FleetFacts
    rules: EngineRules
    seats: tuple[Seat, ...]
    named: tuple[str, ...]
    model: ModelFacts | None
    model_words: str
    now_unix_ms: int
    version: str = ""
    catalog_stale: str = ""
    reported: tuple[HeardCut, ...] = ()

    @property
    def reports(self) -> tuple[HostReport, ...]:
        """The reports of the plan's hosts that are live, rank 0's host first."""
        hosts = dict.fromkeys(shard.host for shard in self.plan.shards)
        return tuple(report for host in hosts if (report := self.fleet.report(host)) is not None)

    @property
    def machines(self) -> int:
        """On how many machines the plan's live hosts are."""
        return len({machine_of(report) for report in self.reports})

    @property
    def seated(self) -> tuple[tuple[PlannedShard, HostReport], ...]:
        """Every shard whose host is live, with that host's report."""
        pairs = ((shard, self.fleet.report(shard.host)) for shard in self.plan.shards)
        return tuple((shard, report) for shard, report in pairs if report is not None)

    def shards_on(self, host: HostId) -> tuple[PlannedShard, ...]:
        """The shards planned at one host."""
        return self.plan.on_host(host)

    def takes_device(self, shard: PlannedShard) -> bool:
        """Whether the shard computes on its device, rather than only living in its host's memory."""
        return any(seat.rank == shard.rank and seat.takes_device for seat in self.seats)


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is guarded, under the id that its findings carry.

    ``prevents`` is what would happen without it, and ``drift`` the one of the seven that it stands against, or empty.
    ``severity`` is refuse or warn; ``step`` the earliest at which it can know: ``plan``, ``recheck`` (before the
    first command leaves), ``check`` (at each agent), ``start`` (engines up, no weights yet) or ``load``. ``source`` is
    what it looks at. ``check`` is what runs at the plan; several guards may share one.
    """

    id: str
    prevents: str
    severity: str
    remedy: str
    source: str
    step: str = "plan"
    drift: str = ""
    check: Callable[[Situation], Iterable[Finding]] | None = None
