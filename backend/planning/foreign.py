"""An engine that no agent started, beside a profile of the catalog: whether it may be adopted as that, and as what.

Pure. What is known and differs is refused with both values; what cannot be known is a warning, never an agreement.
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from backend.contract.durations import duration
from backend.contract.findings import Finding, refuse, warn
from backend.contract.plans import Bound, Fact, Plan, PlannedShard, Profile, Term, sealed
from backend.contract.reports import ForeignProcess, HostFacts, HostReport
from backend.contract.words import Bytes, NodeGeneration, UnixMs, node_id
from backend.planning.catalog import ModelEntry, fingerprint
from backend.planning.fleet import FleetFacts
from backend.planning.guards.numbers import CLOCK_LIMIT_MS
from backend.planning.placement import mint_generation, next_replica_id

_ZERO = Bytes(0)


def plan_adoption(
    process: ForeignProcess,
    report: HostReport,
    fleet: FleetFacts,
    entry: ModelEntry,
    profile_name: str,
    profile: Profile,
    *,
    now_unix_ms: UnixMs,
    generation_floor: int = 0,
) -> Plan:
    """The process as the one shard of a new replica of this profile, with every finding, sealed.

    Its bound is the memory that was measured, its generation the number of the adoption: it knows of neither.
    """
    facts = report.facts
    replica = next_replica_id(fleet, entry.name)
    generation = mint_generation(fleet, now_unix_ms, generation_floor)
    device = process.devices[0] if process.devices else profile.device
    shard = PlannedShard(
        rank=0,
        host=report.host,
        node_id=node_id(replica, 0),
        node_generation=NodeGeneration(int(generation)),
        role="leader",
        device=device,
        device_uuid=next((each.uuid for each in facts.devices if each.name == device), ""),
        layers=None,
        holds_output=True,
        ports=process.ports[:1],
        advertise=process.address,
        bound=measured_bound(process),
        devices=process.devices if len(process.devices) > 1 else (),
    )
    return sealed(
        Plan(
            replica=replica,
            model=entry.name,
            model_path=entry.path,
            model_facts=None,
            profile_name=profile_name,
            profile=profile,
            profile_fingerprint=fingerprint(profile),
            engine=entry.engine,
            load_generation=generation,
            shards=(shard,),
            phases=(),
            facts=(Fact(report.host, report.agent_epoch, report.revision, process.release),),
            candidates=(),
            findings=(*match_profile(process, facts, entry, profile_name, profile), *_clock(fleet)),
            made_unix_ms=now_unix_ms,
        )
    )


def measured_bound(process: ForeignProcess) -> Bound:
    """What it held when it was looked at. Nothing is derived, so that nothing is ever compared with it."""
    held = process.holds or 0
    term = Term("measured", held, "B", "what it held when it was adopted; nobody derived what it may take")
    return Bound(_ZERO, _ZERO, _ZERO, _ZERO, _ZERO, False, (term,), extra=Bytes(held))


def match_profile(
    process: ForeignProcess, facts: HostFacts, entry: ModelEntry, profile_name: str, profile: Profile
) -> tuple[Finding, ...]:
    """What speaks against adopting it as this profile: engine, role, ranks, model, port, device, and its answers."""
    target = f"{entry.name}:{profile_name}"
    found = [*_engine(process, entry, target), *_identity(process)]
    if not found:
        found += [*_ranks(process, profile, target), *_model(process, facts, entry, target)]
        found += [*_port(process, profile, target), *_device(process, facts, profile, target), *_answers(process)]
    return tuple(found)


def _subject(process: ForeignProcess) -> str:
    return f"pid {process.pid} ({process.program})"


def _engine(process: ForeignProcess, entry: ModelEntry, target: str) -> Iterator[Finding]:
    if process.engine != entry.engine:
        yield refuse(
            "foreign.engine",
            _subject(process),
            expected=f"engine {entry.engine}, as the catalog has {entry.name}",
            found=f"engine {process.engine or 'unknown'}, by its command line",
            remedy=f"Adopt it as a model that {process.engine or 'its engine'} runs, or correct catalog.toml.",
        )
    elif process.role != "leader":
        yield refuse(
            "foreign.role",
            _subject(process),
            expected=f"a leader, which serves {target} itself",
            found=f"a {process.role or 'part of an engine'}, which serves no model by itself",
            remedy="Adopt the leader that it works for; a part without one is stopped by hand on its host.",
        )


def _identity(process: ForeignProcess) -> Iterator[Finding]:
    if not process.start_ticks or not process.boot_id:
        yield refuse(
            "foreign.identity",
            _subject(process),
            expected="pid, start ticks and boot id, which a pid that is given out again cannot forge",
            found=f"pid {process.pid} alone, from an older agent",
            remedy="Install this release of the agent on that host.",
        )
    if process.can_signal is False:
        yield refuse(
            "foreign.user",
            _subject(process),
            expected="a process that the agent of its host may end",
            found=f"a process of {process.user or 'another user'}, whom the agent's user may not signal",
            remedy=f"Stop it as {process.user or 'that user'} and load it here, or run the agent as that user.",
        )


def _ranks(process: ForeignProcess, profile: Profile, target: str) -> Iterator[Finding]:
    if process.ranks is None:
        yield warn(
            "foreign.ranks",
            _subject(process),
            expected=f"ranks = {profile.ranks} of {target}",
            found="unknown: its command line does not say a world size",
            remedy="Look at how it was started before you confirm.",
        )
    elif process.ranks != profile.ranks:
        yield refuse(
            "foreign.ranks",
            _subject(process),
            expected=f"ranks = {profile.ranks} of {target}",
            found=f"{process.ranks}, by its command line",
            remedy="Adopt it as a profile with as many ranks, or write one into catalog.toml.",
        )
    if profile.ranks > 1:
        yield refuse(
            "foreign.ring",
            _subject(process),
            expected="one process that is the whole replica",
            found=f"ranks = {profile.ranks} of {target}: the other ranks are processes of their own",
            remedy="Only a replica of one rank is adopted. Keep requests from it, stop it by hand, and load it here.",
        )


def _model(process: ForeignProcess, facts: HostFacts, entry: ModelEntry, target: str) -> Iterator[Finding]:
    if not process.model:
        yield warn(
            "foreign.model",
            _subject(process),
            expected=f"model {entry.path} of {target}",
            found="unknown: neither its command line nor its answers name a model",
            remedy="Ask whoever started it before you confirm.",
        )
        return
    names = {entry.path, *(f"{root.rstrip('/')}/{entry.path}" for root in facts.model_roots)}
    if process.model not in names:
        served = f", served as {', '.join(process.served)}" if process.served else ""
        yield refuse(
            "foreign.model",
            _subject(process),
            expected=f"model {entry.path} of {target}",
            found=f"{process.model}{served}",
            remedy="Adopt it as the model that it serves, or correct the path in catalog.toml.",
        )


def _port(process: ForeignProcess, profile: Profile, target: str) -> Iterator[Finding]:
    listed = ", ".join(str(port) for port in process.ports)
    if not process.ports:
        yield refuse(
            "foreign.port",
            _subject(process),
            expected="a port that takes requests",
            found="it listens on none that the agent of its host can see",
            remedy="Wait until it listens, or let the agent run as a user that may look at it.",
        )
    elif profile.port is not None and profile.port not in process.ports:
        yield refuse(
            "foreign.port",
            _subject(process),
            expected=f"port = {profile.port} of {target}",
            found=f"port {listed}",
            remedy="Adopt it as a profile without that port, or start it again on the other one.",
        )


def _device(process: ForeignProcess, facts: HostFacts, profile: Profile, target: str) -> Iterator[Finding]:
    uuids = {device.uuid: device.name for device in facts.devices if device.uuid}
    wanted = [uuids.get(word.strip(), word.strip()) for word in profile.device.split(",")]
    if not process.devices:
        yield warn(
            "foreign.device",
            _subject(process),
            expected=f"device = {profile.device} of {target}",
            found="unknown: the drivers do not say which devices it uses",
            remedy=f"It will be counted on {profile.device}; see that this is right before you confirm.",
        )
    elif not all(any(fnmatchcase(name, pattern) for pattern in wanted) for name in process.devices):
        yield refuse(
            "foreign.device",
            _subject(process),
            expected=f"device = {profile.device} of {target}",
            found=f"{', '.join(process.devices)}, by the drivers of its host",
            remedy="Adopt it as a profile of that device, or write one into catalog.toml.",
        )
    if process.holds is None:
        yield warn(
            "foreign.memory",
            _subject(process),
            expected="the bytes that it holds, to count them",
            found="unknown: the kernel does not show them",
            remedy="Its memory is counted as 0; only what its devices have free tells of it.",
        )


def _answers(process: ForeignProcess) -> Iterator[Finding]:
    if process.answers == "ready":
        return
    if process.answers == "other":
        yield refuse(
            "foreign.answers",
            _subject(process),
            expected=f"answers of {process.engine}, as its command line says",
            found=process.words,
            remedy="Something else is behind that port. Look at the process on its host.",
        )
        return
    yield warn(
        "foreign.answers",
        _subject(process),
        expected=f"answers that prove {process.engine} and its model",
        found=process.words or "its port has not been asked yet",
        remedy="It is adopted by its command line alone; what it has in flight may stay unknown.",
    )


def _clock(fleet: FleetFacts) -> Iterator[Finding]:
    if abs(fleet.clock_median_ms) > CLOCK_LIMIT_MS:
        yield refuse(
            "clock.off",
            "this machine's clock",
            expected=f"at most {CLOCK_LIMIT_MS // 60_000} minutes off the agents' median clock",
            found=f"{duration(abs(fleet.clock_median_ms) / 1000)} off",
            remedy="The adoption's number would be wrong for everybody. Set this machine's clock.",
        )
