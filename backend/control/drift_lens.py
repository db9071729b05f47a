"""What the drift lens looks through: one replica, everything known about it, and how a drift is made of two values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec

from backend.contract.entities import Shard
from backend.contract.plans import Plan, PlannedShard
from backend.contract.reports import HostFacts
from backend.contract.words import HostId, UnixMs
from backend.control.holdings import Part
from backend.control.views import Drift, ModelView, ReplicaView, ShardView

ENDED = ("stopped", "failed")


class Header(msgspec.Struct, frozen=True):
    """What was last read of a model file."""

    digest: str
    file_bytes: int
    read_unix_ms: UnixMs


def header_key(host: HostId, path: str) -> str:
    """One path may be another file at every host."""
    return f"{host}:{path}"


@dataclass(frozen=True, kw_only=True)
class Lens:
    """One replica and all that is known about it. ``headers`` are the newest reads of model files.

    ``is_changing``: an operation of it is open, so that a missing rank may only be on its way.
    """

    replica: ReplicaView
    parts: tuple[Part, ...] = ()
    models: dict[str, ModelView] = field(default_factory=dict)
    headers: dict[str, Header] = field(default_factory=dict)
    is_changing: bool = False

    @cached_property
    def live(self) -> list[ShardView]:
        """Its shards that have not ended, in rank order."""
        return [view for view in self.replica.shards if view.state not in ENDED]

    @property
    def plan(self) -> Plan | None:
        """The plan of its load record."""
        return self.replica.plan

    @cached_property
    def planned(self) -> dict[int, PlannedShard]:
        """The shards of its plan by rank."""
        return {shard.rank: shard for shard in self.plan.shards} if self.plan else {}

    @property
    def since(self) -> UnixMs:
        """When it was planned: what a shard was born with has differed since then. 0 when that is not known."""
        return self.plan.made_unix_ms if self.plan else UnixMs(0)

    def part(self, host: HostId) -> Part | None:
        """One host's part in it."""
        return self._by_host.get(host)

    @cached_property
    def heard(self) -> list[tuple[Shard, HostFacts]]:
        """Its live shards in rank order, each with the facts of its host; without those whose host told none."""
        facts = {part.host.host: part.host.facts for part in self.parts}
        return [(view.shard, here) for view in self.live if (here := facts.get(view.shard.host)) is not None]

    @cached_property
    def _by_host(self) -> dict[HostId, Part]:
        return {part.host.host: part for part in self.parts}


Rule = Callable[[Lens], Iterator[Drift]]


def make_drift(kind: str, subject: str, one: tuple[str, object], other: tuple[str, object], **fields: Any) -> Drift:
    """A drift from two (source, value) pairs. ``kind`` and ``subject`` make its id; ``what`` is ``kind`` if not given.

    Its version is both values, unless it is given: for what is measured and never the same twice.
    """
    values: dict[str, Any] = {"what": kind, "version": f"{one[1]} | {other[1]}", **fields}
    return Drift(
        id=f"{kind.replace(' ', '-')}:{subject}",
        subject=subject,
        one=str(one[1]),
        one_source=one[0],
        other=str(other[1]),
        other_source=other[0],
        **values,
    )
