"""What the drift lens compares for each shard: its generation, place and bound, as planned, registered and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter

from backend.contract.entities import Shard
from backend.contract.plans import Bound, Plan, PlannedShard
from backend.contract.reports import HostFacts
from backend.control.derive import printed
from backend.control.drift_lens import Lens, make_drift
from backend.control.views import Drift


def generations(lens: Lens) -> Iterator[Drift]:
    """Load generation and node generation: they must be one number."""
    for view in lens.live:
        shard = view.shard
        if view.generation == "differs":
            yield make_drift(
                "generation",
                shard.node_id,
                ("load record", shard.load_generation),
                (f"registered at {shard.host}", shard.node_generation),
                severity="alarm",
                since_unix_ms=lens.since,
                consequence="The leader stops at its first release; every later session hangs.",
                remedy=f"Unload {lens.replica.id} and load it again with one generation.",
            )


def bounds(lens: Lens) -> Iterator[Drift]:
    """What a rank was planned to allocate, and what the engine says it did."""
    by_rank = lens.planned
    for view in lens.live:
        shard, reported = view.shard, view.reported
        if view.bound == "differs" and reported is not None:
            yield make_drift(
                "result bound",
                shard.node_id,
                ("derived", _sizes(shard.bound.weights, shard.bound.kv)),
                ("reported by rank 0", _sizes(reported.weights, reported.kv)),
                severity="alarm",
                since_unix_ms=lens.since,
                consequence=f"Rank {shard.rank} runs in another shape than was planned and checked; "
                "its memory may not fit under load.",
                remedy=f"Compare the profile with the log of {shard.node_id}, correct it, "
                f"load {lens.replica.id} again.",
            )
        if shard.reported_result not in (None, shard.bound.result) and shard.bound.result_derived:
            yield make_drift(
                "largest result",
                shard.node_id,
                ("derived", shard.bound.result),
                (f"reported at {shard.host}", shard.reported_result),
                severity="alarm",
                since_unix_ms=lens.since,
                consequence="A result may fit no store, and would never be admitted; nobody would say so.",
                remedy=f"Give the engine's numbers as geometry in the catalog, and load {lens.replica.id} again.",
            )
        planned = by_rank.get(shard.rank)
        if planned is None or planned.bound == shard.bound:
            continue
        if _compared(planned.bound) != _compared(shard.bound):
            yield make_drift(
                "planned bound",
                shard.node_id,
                ("load record", _sizes(planned.bound.weights, planned.bound.kv)),
                (f"registered at {shard.host}", _sizes(shard.bound.weights, shard.bound.kv)),
                since_unix_ms=lens.since,
                consequence="Report and plan are compared with different numbers, so that neither proves anything.",
                remedy=f"Load {lens.replica.id} again with one release of ringtop on every host.",
            )


def _sizes(weights: int, kv: int) -> str:
    return f"weights {weights:,} + kv {kv:,}".replace(",", " ")


def _compared(bound: Bound) -> tuple[str, str, bool]:
    return printed(bound.weights), printed(bound.kv), bound.derived


_PLACEMENT: tuple[tuple[str, Callable[[PlannedShard, Plan], object], Callable[[Shard], object], str], ...] = (
    ("host", lambda p, plan: p.host, lambda s: s.host, "It computes elsewhere than its memory was reserved."),
    ("device", lambda p, plan: p.device, lambda s: s.device, "It takes memory that was counted for another device."),
    ("device uuid", lambda p, plan: p.device_uuid, lambda s: s.device_uuid, "One name means two devices."),
    ("layers", lambda p, plan: p.layers, lambda s: s.layers, "Layers are computed twice, or by no rank."),
    ("ports", lambda p, plan: p.ports, lambda s: s.ports, "Its peers dial another port than it listens on."),
    ("advertised address", lambda p, plan: p.advertise, lambda s: s.advertise, "Its peers dial another address."),
    ("node id", lambda p, plan: p.node_id, lambda s: s.node_id, "Commands for this rank reach another slot."),
    ("role", lambda p, plan: p.role, lambda s: s.role, "Two ranks lead, or none does."),
    ("engine", lambda p, plan: plan.engine, lambda s: s.engine, "Its ranks do not speak one protocol."),
    ("model", lambda p, plan: plan.model, lambda s: s.model, "Its ranks hold parts of different models."),
)


_PLACE = attrgetter("host", "device", "device_uuid", "layers", "ports", "advertise", "node_id", "role")
"""What a planned shard and a reported one call by the same names: nearly always equal, and then nothing differs."""


def placement(lens: Lens) -> Iterator[Drift]:
    """Where and as what each rank was planned, and where and as what it is reported."""
    plan, by_rank = lens.plan, lens.planned
    for view in lens.live:
        shard = view.shard
        planned = by_rank.get(shard.rank)
        if plan is None or planned is None:
            continue
        if _PLACE(planned) == _PLACE(shard) and (plan.engine, plan.model) == (shard.engine, shard.model):
            continue
        for what, of_plan, of_shard, consequence in _PLACEMENT:
            one, other = of_plan(planned, plan), of_shard(shard)
            if one != other and one not in ("", None) and other not in ("", None):
                yield make_drift(
                    f"placement {what}",
                    shard.node_id,
                    ("planned", _words(one)),
                    (f"reported by {shard.host}", _words(other)),
                    what=what,
                    severity="alarm",
                    since_unix_ms=lens.since,
                    consequence=consequence,
                    remedy=f"Unload {lens.replica.id} and load it again from a new plan.",
                )


def device_names(lens: Lens) -> Iterator[Drift]:
    """The device that a shard runs on, by uuid, and the one that now has its name on that host."""
    for shard, facts in lens.heard:
        now = _uuid_now(facts, shard.device)
        if shard.device_uuid and now and now != shard.device_uuid:
            yield make_drift(
                "device name",
                shard.node_id,
                (f"{shard.device} when it was loaded", shard.device_uuid),
                (f"{shard.device} at {shard.host} now", now),
                consequence="Its memory is counted on another device than it takes it from.",
                remedy=f"Restart the agent of {shard.host} without changing its device order, "
                f"or load {lens.replica.id} again.",
            )


def _uuid_now(facts: HostFacts, device_name: str) -> str:
    for device in facts.devices:
        if device.name == device_name:
            return device.uuid
    return ""


def _words(value: object) -> str:
    if isinstance(value, tuple):
        return "-".join(str(each) for each in value) if len(value) == 2 else ", ".join(str(each) for each in value)
    return str(value)
