"""What the drift lens compares with the world around a ring: releases, addresses, the catalog and the model file."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Iterator
from typing import Any

from backend.contract.entities import Shard
from backend.contract.plans import Profile
from backend.contract.reports import HostFacts
from backend.control.derive import find_model
from backend.control.drift_lens import Lens, header_key, make_drift
from backend.control.views import Drift


def _reported_releases(lens: Lens) -> Iterator[Drift]:
    """What engines said of themselves when they had loaded, where they say it: one release on every rank."""
    said = [view.shard for view in lens.live if view.shard.reported_release]
    for shard in said[1:]:
        if shard.reported_release != said[0].reported_release:
            yield make_drift(
                "loaded release",
                shard.node_id,
                (f"rank {said[0].rank} on {said[0].host}", said[0].reported_release),
                (f"rank {shard.rank} on {shard.host}", shard.reported_release),
                severity="alarm",
                since_unix_ms=lens.since,
                consequence="Ranks of different releases read each other's messages wrongly, or hang.",
                remedy=f"Install one release on {said[0].host} and {shard.host}, then load again.",
            )


def releases(lens: Lens) -> Iterator[Drift]:
    """One release on every rank, the one that was planned, and the one that is installed where it runs."""
    speaking = [view.shard for view in lens.live if view.shard.release]
    for shard in speaking[1:]:
        first = speaking[0]
        if shard.release != first.release:
            yield make_drift(
                "engine release",
                shard.node_id,
                (f"rank {first.rank} on {first.host}", first.release),
                (f"rank {shard.rank} on {shard.host}", shard.release),
                severity="alarm",
                since_unix_ms=lens.since,
                consequence="Ranks of different releases read each other's messages wrongly, or hang.",
                remedy=f"Install one release on {first.host} and {shard.host}, then load again.",
            )
    yield from _reported_releases(lens)
    for shard, facts in lens.heard:
        installed = _installed_release(facts, shard.engine)
        if shard.release and installed and installed != shard.release:
            yield make_drift(
                "installed release",
                shard.node_id,
                ("load record", shard.release),
                (f"installed at {shard.host}", installed),
                consequence="It runs on with the release that it was started from; the next load takes the other.",
                remedy=f"Install the release on every host of {lens.replica.id}, then load it again when it suits.",
            )


def _installed_release(facts: HostFacts, engine: str) -> str:
    for each in facts.engines:
        if each.engine == engine:
            return each.release
    return ""


def addresses(lens: Lens) -> Iterator[Drift]:
    """Where a rank's peers were told to dial, where its host says it is now, and whether that means another machine."""
    leader = next(((shard, facts) for shard, facts in lens.heard if shard.rank == 0), None)
    for shard, facts in lens.heard:
        if facts.advertise and shard.advertise and facts.advertise != shard.advertise:
            yield make_drift(
                "address now",
                shard.node_id,
                ("peers dial", shard.advertise),
                (f"{shard.host} advertises now", facts.advertise),
                what="advertised address",
                consequence="Whoever connects anew dials an address that the host no longer gives as its own.",
                remedy=f"Set advertise in {shard.host}'s agent.toml back, or load {lens.replica.id} again.",
            )
        if leader is not None and shard.host != leader[0].host and _dials_itself(leader[1], facts, shard):
            yield make_drift(
                "loopback",
                shard.node_id,
                ("rank 0 is on", leader[0].host),
                (f"{shard.host} advertises", shard.advertise),
                what="advertised address",
                severity="alarm",
                since_unix_ms=lens.since,
                consequence=f"{leader[0].host} dials itself instead of {shard.host}.",
                remedy=f"Set advertise in {shard.host}'s agent.toml to an address that {leader[0].host} can reach.",
            )


def _dials_itself(leader: HostFacts, facts: HostFacts, shard: Shard) -> bool:
    """A loopback or wildcard address on another machine than rank 0's. Agents of one machine reach it rightly."""
    is_apart = bool(leader.boot_id and facts.boot_id) and leader.boot_id != facts.boot_id
    return is_apart and _means_here(shard.advertise)


@functools.lru_cache(maxsize=4096)
def _means_here(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address == "localhost"
    return parsed.is_loopback or parsed.is_unspecified


def catalog(lens: Lens) -> Iterator[Drift]:
    """The catalog beside the load record. A catalog that is missing or empty says nothing."""
    plan = lens.plan
    if not lens.models or plan is None or not lens.live:
        return
    model = find_model(lens.models, lens.replica.model)
    profile = model.profiles.get(lens.replica.profile_name) if model else None
    name = f"{lens.replica.model}:{lens.replica.profile_name}"
    if model is None or profile is None:
        yield _catalog_drift(lens, "catalog", name, f"has no {name}", f"Restore {name} in catalog.toml, or unload")
        return
    if model.path != plan.model_path:
        yield _catalog_drift(
            lens, "model path", plan.model_path, model.path, "Correct the path in catalog.toml, or load"
        )
    if model.engine != plan.engine:
        yield _catalog_drift(lens, "catalog engine", plan.engine, model.engine, "Correct catalog.toml, or load")
    if plan.profile == profile:
        return
    ran, wanted = _fields(plan.profile), _fields(profile)
    for kind, names in (("profile changed", ran.keys() - {"options"}), ("options", {"options"})):
        one, other = _differing(ran, wanted, names)
        if one or other:
            yield _catalog_drift(lens, kind, one or "none", other or "none", f"Restore {name} in catalog.toml, or load")


def _catalog_drift(lens: Lens, kind: str, one: str, other: str, remedy: str) -> Drift:
    return make_drift(
        kind,
        str(lens.replica.id),
        ("load record", one),
        ("catalog", other),
        consequence="It runs in the shape it was loaded with; the next load takes the catalog's.",
        remedy=f"{remedy} {lens.replica.id}{'' if remedy.endswith('unload') else ' again'}.",
    )


def _fields(profile: Profile) -> dict[str, Any]:
    return {name: getattr(profile, name) for name in profile.__struct_fields__}


def _differing(ran: dict[str, Any], wanted: dict[str, Any], names: set[str]) -> tuple[str, str]:
    """The fields that differ, each with its value, of both sides; of options each key that differs."""
    if names == {"options"}:
        ran, wanted = ran["options"], wanted["options"]
        names = {*ran, *wanted}
    changed = sorted(name for name in names if ran.get(name) != wanted.get(name))
    sides = (", ".join(f"{name} {_value(side.get(name))}" for name in changed) for side in (ran, wanted))
    return next(sides), next(sides)


def _value(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, tuple):
        return "[" + " ".join(str(each) for each in value) + "]"
    return str(value) if value != "" else "any"


def model_file(lens: Lens) -> Iterator[Drift]:
    """The header of the model file as the load read it, and as somebody read it since."""
    plan = lens.plan
    facts = plan.model_facts if plan is not None else None
    if plan is None or facts is None or not lens.live:
        return
    leader = next((view.shard.host for view in lens.live if view.shard.rank == 0), None)
    now = lens.headers.get(header_key(leader, plan.model_path)) if leader is not None else None
    if now is None or now.read_unix_ms <= plan.made_unix_ms:
        return
    if (now.digest, now.file_bytes) != (facts.header_digest, facts.file_bytes):
        yield make_drift(
            "model file",
            str(lens.replica.id),
            ("load record", _file_words(facts.header_digest, facts.file_bytes)),
            (f"{plan.model_path} at {leader} now", _file_words(now.digest, now.file_bytes)),
            consequence="It serves the model that it loaded; after the next load it serves another under this name.",
            remedy=f"Put the file back, or load {lens.replica.id} again to serve the new one.",
        )


def _file_words(digest: str, size: int) -> str:
    return f"header {digest[:12]}, " + f"{size:,} bytes".replace(",", " ")
