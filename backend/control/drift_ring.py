"""What the drift lens compares for a ring as a whole: its ranks, its strays, and the load records of its hosts."""

from __future__ import annotations

from collections.abc import Iterator

from backend.contract.entities import Shard
from backend.contract.states import HostState
from backend.control.drift_lens import ENDED, Lens, make_drift
from backend.control.views import Drift

_LEAVING = ("placed", "stopping", "stopped", "rolling back", "draining")


def ranks(lens: Lens) -> Iterator[Drift]:
    """The ranks of the load record and those that are there: missing, twice, out of range, of another world size."""
    if not lens.live:
        return
    yield from _missing(lens)
    size = lens.replica.world_size
    seen: dict[int, Shard] = {}
    for shard in _standing(lens):
        if not 0 <= shard.rank < size:
            yield _rank_drift(
                lens, "rank range", shard, ("load record", f"ranks 0 to {size - 1}"), f"rank {shard.rank}"
            )
        elif shard.rank in seen:
            first = seen[shard.rank]
            yield _rank_drift(lens, "rank twice", shard, (f"rank {shard.rank} is on", first.host), f"also {shard.host}")
        else:
            seen[shard.rank] = shard
        if shard.world_size != size:
            yield _rank_drift(lens, "world size", shard, ("load record", size), str(shard.world_size))


def _standing(lens: Lens) -> list[Shard]:
    """Every live shard of the standing generation that any host reports, those that stand for a rank first."""
    chosen = [view.shard for view in lens.live]
    known = {(shard.host, shard.node_id) for shard in chosen}
    others = [
        shard
        for part in sorted(lens.parts, key=lambda part: part.host.host)
        for shard in part.holdings.shards
        if (shard.host, shard.node_id) not in known
        and shard.load_generation == lens.replica.load_generation
        and shard.state not in ENDED
    ]
    return [*chosen, *others]


def _rank_drift(lens: Lens, kind: str, shard: Shard, one: tuple[str, object], other: str) -> Drift:
    return make_drift(
        kind,
        f"{shard.node_id}@{shard.host}" if kind == "rank twice" else shard.node_id,
        one,
        (f"reported by {shard.host}", other),
        severity="alarm",
        since_unix_ms=lens.since,
        consequence="The ring is not the one that was planned: a rank waits for a peer that is not there, "
        "or two answer for one.",
        remedy=f"Unload {lens.replica.id} and load it again.",
    )


def _missing(lens: Lens) -> Iterator[Drift]:
    """A planned rank that its live host does not have. What a silent host has is unknown, and no drift."""
    if lens.is_changing or lens.replica.state.value in _LEAVING:
        return
    standing = lens.replica.load_generation
    there = {view.shard.rank for view in lens.replica.shards}
    for rank, planned in lens.planned.items():
        part = lens.part(planned.host)
        if rank in there or part is None or part.host.state is not HostState.LIVE:
            continue
        holdings = part.holdings
        is_coming = planned.node_id in holdings.intents or any(
            planned.node_id in reservation.node_ids for reservation in holdings.reservations
        )
        if not is_coming and lens.plan is not None and lens.plan.load_generation == standing:
            yield make_drift(
                "rank missing",
                planned.node_id,
                ("load record", f"rank {rank} on {planned.host}"),
                (f"reported by {planned.host}", "not there"),
                severity="alarm",
                consequence="The ring has a gap: no request can cross every rank.",
                remedy=f"Unload {lens.replica.id} and load it again.",
            )


def strays(lens: Lens) -> Iterator[Drift]:
    """Live shards of another generation than the one that stands."""
    standing = lens.replica.load_generation
    for part in lens.parts:
        for shard in part.holdings.shards:
            if shard.load_generation != standing and shard.state not in ENDED:
                yield make_drift(
                    "stray",
                    f"{shard.node_id}@{shard.load_generation}",
                    ("standing generation", standing),
                    (f"live at {shard.host}", shard.load_generation),
                    consequence="It keeps its device and ports, and belongs to nothing that serves.",
                    remedy="Look at what stands and what could be stopped, and stop it alone: ringtop adopt --plan.",
                )


def load_records(lens: Lens) -> Iterator[Drift]:
    """The plan of one load as different hosts keep it, and the fingerprint under which each shard runs."""
    standing = lens.replica.load_generation
    kept = [
        (part.host.host, plan)
        for part in sorted(lens.parts, key=lambda part: part.host.host)
        for plan in part.holdings.plans
        if plan.load_generation == standing
    ]
    for host, plan in kept[1:]:
        if plan.digest != kept[0][1].digest:
            yield make_drift(
                "load record",
                f"{lens.replica.id}@{host}",
                (f"kept at {kept[0][0]}", f"plan {kept[0][1].digest[:12]}"),
                (f"kept at {host}", f"plan {plan.digest[:12]}"),
                severity="alarm",
                since_unix_ms=lens.since,
                consequence="Two plans claim one generation: neither host can say what should run.",
                remedy=f"Unload {lens.replica.id} and load it again.",
            )
    for view in lens.live:
        shard, plan_or_none = view.shard, lens.plan
        if plan_or_none and shard.profile_fingerprint and shard.profile_fingerprint != plan_or_none.profile_fingerprint:
            yield make_drift(
                "fingerprint",
                shard.node_id,
                ("load record", plan_or_none.profile_fingerprint[:12]),
                (f"reported by {shard.host}", shard.profile_fingerprint[:12]),
                what="profile fingerprint",
                severity="alarm",
                since_unix_ms=lens.since,
                consequence="This rank was started in another shape than its load record says.",
                remedy=f"Unload {lens.replica.id} and load it again.",
            )
