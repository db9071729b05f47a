"""``plan``: a request, a catalog and the fleet's facts in; everything that a load would do out. Pure."""

from __future__ import annotations

from typing import Protocol

import msgspec

from backend.contract.findings import Finding, has_refusal, refuse
from backend.contract.models import ModelFacts
from backend.contract.plans import Bound, Fact, Plan, Profile, plan_digest, sealed
from backend.contract.reports import EngineFacts, HostReport
from backend.contract.words import HostId, ReplicaId, UnixMs
from backend.planning.catalog import Catalog, fingerprint, with_geometry
from backend.planning.engines import EngineRules, Seat, rules
from backend.planning.engines.p4_reported import HeardCut, heard_at
from backend.planning.engines.rules import NOTHING_KNOWN, demanded, unknown_bounds
from backend.planning.fleet import FleetFacts, build_of, engine_of
from backend.planning.guards import Situation, run_guards
from backend.planning.guards.devices import device_moved
from backend.planning.guards.hosts import host_cordoned
from backend.planning.guards.numbers import generation_differs, generation_not_above
from backend.planning.guards.replicas import replica_known
from backend.planning.guards.shape import endpoints_of, layers_of, ranks_of
from backend.planning.placement import Placement, choose_hosts, mint_generation, next_replica_id, seat_shards


class PlanRequest(Protocol):
    """What is asked for: ``MODEL[:PROFILE]``, and hosts that narrow the choice (leader's first)."""

    @property
    def target(self) -> str:
        """``MODEL[:PROFILE]``."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts in rank order, or none for the profile's."""


def model_hosts(catalog: Catalog, fleet: FleetFacts, request: PlanRequest) -> tuple[HostId, ...]:
    """Where the model's header should be read, best first: the host that will lead. Raises UnknownModel.

    Empty for an engine that reads none.
    """
    entry, _, profile = catalog.resolve(request.target)
    if not rules(entry.engine).reads_header:
        return ()
    named = request.hosts or profile.hosts
    if named:
        return tuple(HostId(host) for host in named[:1] if fleet.report(host) is not None)
    engine = rules(entry.engine)
    seats = engine.seats(profile, None)
    placement = choose_hosts(fleet, profile, entry.engine, (), seats, _bounds(engine, profile, None, seats))
    # Every chosen host first; then whoever is live, as the file may be anywhere.
    return tuple(dict.fromkeys((*placement.hosts, *(report.host for report in fleet.reports))))


def plan(
    catalog: Catalog,
    fleet: FleetFacts,
    request: PlanRequest,
    *,
    model: ModelFacts | None,
    now_unix_ms: UnixMs,
    model_words: str = "",
    model_host: HostId | None = None,
    generation_floor: int = 0,
    version: str = "",
    replica: ReplicaId | None = None,
    reported: tuple[HeardCut, ...] = (),
) -> Plan:
    """Everything that loading ``request`` would do, with every finding, sealed.

    ``model`` is the header as read at ``model_host``; None with the reason in ``model_words``. ``generation_floor`` is
    the highest generation known from elsewhere (ledgers), ``version`` that of the program that asks, ``replica`` the id
    to take instead of the next free one, ``reported`` what loads that no host remembers said of cuts. Raises
    UnknownModel for a target that is not in the catalog or cannot be used; everything else that is wrong is a finding.
    """
    entry, profile_name, profile = catalog.resolve(request.target)
    engine = rules(entry.engine)
    if model is not None or not engine.reads_header:
        model = with_geometry(model, entry)
    named = tuple(dict.fromkeys(request.hosts or profile.hosts))
    seats = engine.seats(profile, model)
    bounds = _bounds(engine, profile, model, seats)
    placement = choose_hosts(fleet, profile, entry.engine, named, seats, bounds, model_host)
    replica = replica or next_replica_id(fleet, entry.name)
    generation = mint_generation(fleet, now_unix_ms, generation_floor)
    draft = Plan(
        replica=replica,
        model=entry.name,
        model_path=entry.path,
        model_facts=model,
        profile_name=profile_name,
        profile=profile,
        profile_fingerprint=fingerprint(profile),
        engine=entry.engine,
        load_generation=generation,
        shards=seat_shards(fleet, profile, entry.engine, placement.seating, seats, bounds, replica, generation),
        phases=engine.phases(profile, bounds),
        facts=_facts(fleet, placement, entry.engine, exact_build=profile.exact_build),
        candidates=placement.candidates,
        findings=(),
        made_unix_ms=now_unix_ms,
    )
    situation = Situation(
        plan=draft,
        fleet=fleet,
        rules=engine,
        seats=seats,
        named=named,
        model=model,
        model_words=model_words,
        now_unix_ms=now_unix_ms,
        version=version,
        catalog_stale=catalog.stale,
        reported=(*heard_at(fleet.reports), *reported),
    )
    return sealed(msgspec.structs.replace(draft, findings=run_guards(situation)))


def recheck(saved: Plan, fleet: FleetFacts) -> tuple[Finding, ...]:
    """What speaks against a saved plan now: changed by hand, generations that differ, facts that have moved."""
    found: list[Finding] = []
    if plan_digest(saved) != saved.digest:
        found.append(
            refuse(
                "plan.edited",
                saved.replica,
                expected=f"digest {saved.digest[:8] or 'none'}, written in the plan",
                found=f"digest {plan_digest(saved)[:8]}, computed from it",
                remedy="It was changed after it was made. Plan again instead of editing.",
            )
        )
    found += generation_differs(saved)
    found += [*ranks_of(saved), *layers_of(saved), *endpoints_of(saved, fleet)]
    found += [*replica_known(saved, fleet), *device_moved(saved, fleet)]
    found += _incomplete(saved)
    for fact in saved.facts:
        report = fleet.report(fact.host)
        if report is None:
            found.append(
                refuse(
                    "host.unreachable",
                    fact.host,
                    expected="a live agent, as when the plan was made",
                    found=fleet.silence(fact.host) or "not in this context",
                    remedy="Bring its agent back, or plan again without it.",
                )
            )
            continue
        found += host_cordoned(report)
        now = engine_of(report, saved.engine)
        found += _stale(fact, report, now)
        found += _moved(fact, report.host, now.resident.address if now and now.resident else "")
        found += generation_not_above(saved, report)
    return tuple(found)


def _incomplete(saved: Plan) -> list[Finding]:
    """A plan without shards would load nothing and call it done; without its facts nothing could be seen to move."""
    known = {fact.host for fact in saved.facts}
    found = [
        refuse(
            "plan.incomplete",
            host,
            expected=f"a fact about each host of the plan: {', '.join(saved.hosts)}",
            found=f"none about {host}",
            remedy="Nobody could tell what moved there since. Plan again instead of editing.",
        )
        for host in saved.hosts
        if host not in known
    ]
    if not saved.shards:
        found.append(
            refuse(
                "plan.incomplete",
                saved.replica,
                expected=f"{saved.profile.ranks} shards, from ranks = {saved.profile.ranks}",
                found="none",
                remedy="It would load nothing and call that done. Plan again.",
            )
        )
    return found


def _stale(fact: Fact, report: HostReport, engine: EngineFacts | None) -> list[Finding]:
    """One finding when the host is no longer what the plan relied on."""
    release = engine.release if engine else "no release"
    flavour = build_of(engine) if engine and fact.flavour else ""
    then = f"epoch {fact.agent_epoch[:8]}, revision {fact.revision}, release {fact.flavour or fact.release}"
    if (fact.agent_epoch, fact.revision, fact.release, fact.flavour) == (
        report.agent_epoch,
        report.revision,
        release,
        flavour,
    ):
        return []
    return [
        refuse(
            "plan.stale",
            fact.host,
            expected=f"{then}, when the plan was made",
            found=f"epoch {report.agent_epoch[:8]}, revision {report.revision}, release {flavour or release}",
            remedy="Something was decided there since. Plan again and look at what changed.",
        )
    ]


def _moved(fact: Fact, host: HostId, address: str) -> list[Finding]:
    """One finding when the engine's own agent advertises another address: to its peers it would be somebody else."""
    if fact.address == address:
        return []
    return [
        refuse(
            "address.moved",
            host,
            expected=f"{fact.address or 'no agent of the engine'}, when the plan was made",
            found=address or "no agent of the engine",
            remedy="What is sent to the old address goes nowhere, and nobody says so. Plan again.",
        )
    ]


def _bounds(
    engine: EngineRules, profile: Profile, model: ModelFacts | None, seats: tuple[Seat, ...]
) -> tuple[Bound, ...]:
    """The bound of every seat; unknown ones while the model is, or its layers or options do not add up.

    A rank that computes is planned with at least the profile's ``memory``.
    """
    counts = tuple(seat.layers[1] - seat.layers[0] for seat in seats if seat.layers is not None)
    sound = not has_refusal(engine.check_options(profile)) and (model is None or not engine.check_shape(profile, model))
    if not sound or (engine.reads_header and (model is None or not counts)):
        bounds = unknown_bounds(len(seats))
    else:
        bounds = engine.bounds(model or NOTHING_KNOWN, profile, counts)
    pairs = zip(seats, bounds, strict=True)
    return tuple(demanded(bound, profile.memory) if seat.takes_device else bound for seat, bound in pairs)


def _facts(fleet: FleetFacts, placement: Placement, engine: str, *, exact_build: bool) -> tuple[Fact, ...]:
    facts: list[Fact] = []
    for host in placement.hosts:
        report = fleet.report(host)
        if report is not None:
            installed = engine_of(report, engine)
            release = installed.release if installed else "no release"
            flavour = build_of(installed) if installed and exact_build else ""
            address = installed.resident.address if installed and installed.resident else ""
            facts.append(Fact(host, report.agent_epoch, report.revision, release, flavour, address))
    return tuple(facts)
