"""Where a replica would go: hosts in order, devices, ports, the replica's id and its generation. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import islice

import msgspec

from backend.contract.plans import Bound, Candidate, PlannedShard, Profile
from backend.contract.reports import HostReport
from backend.contract.words import Bytes, HostId, LoadGeneration, NodeGeneration, Port, ReplicaId, UnixMs, node_id
from backend.planning.engines.rules import Seat
from backend.planning.fleet import (
    DAY_MS,
    HOST_MEMORY,
    FleetFacts,
    available_memory,
    device_of,
    engine_of,
    highest_generation,
    replica_ids,
    taken_ports,
)


class Placement(msgspec.Struct, frozen=True):
    """The hosts of a plan, leader's first, and every host of the context with the reason for or against it."""

    hosts: tuple[HostId, ...]
    candidates: tuple[Candidate, ...]


def choose_hosts(
    fleet: FleetFacts,
    profile: Profile,
    engine: str,
    named: Sequence[str],
    seats: Sequence[Seat],
    bounds: Sequence[Bound],
    first: str | None = None,
) -> Placement:
    """The hosts named, in their order; else the fewest that fit, those with the most free memory first.

    ``first`` is the host that must lead when none is named: the model was read there.
    """
    if named:
        hosts = tuple(HostId(host) for host in named)
        return Placement(hosts, _named_candidates(fleet, hosts))
    able = [report for report in fleet.reports if not _unable(report, profile, engine)]
    able.sort(key=lambda report: (report.host != first, -_room(report, profile, engine), report.host))
    workers = sum(seat.takes_device for seat in seats)
    chosen = [report.host for report in able[:1]]
    for count in range(1, min(len(able), workers) + 1):
        chosen = [report.host for report in able[:count]]
        if _fits(able[:count], profile, engine, seats, bounds):
            break
    return Placement(tuple(chosen), _free_candidates(fleet, profile, engine, chosen))


def spread(hosts: Sequence[HostId], seats: Sequence[Seat]) -> tuple[HostId, ...]:
    """The host of every seat: rank 0 on the first, the workers in order over all, neighbours together.

    With fewer workers than hosts the leader's host holds none.
    """
    if not hosts:
        return ()
    workers = [seat.rank for seat in seats if seat.rank > 0]
    over = hosts if len(workers) >= len(hosts) else hosts[len(hosts) - len(workers) :]
    return (hosts[0], *(over[index * len(over) // len(workers)] for index in range(len(workers))))


def matching_devices(report: HostReport, engine: str, wanted: str) -> tuple[str, ...]:
    """Devices of a host for a profile's ``device``: an exact name, or names and patterns (``CUDA*``) by commas."""
    installed = engine_of(report, engine)
    names = installed.devices if installed else ()
    patterns = [pattern.strip() for pattern in wanted.split(",")]
    return tuple(dict.fromkeys(name for pattern in patterns for name in names if fnmatchcase(name, pattern)))


def seat_shards(
    fleet: FleetFacts,
    profile: Profile,
    engine: str,
    hosts: Sequence[HostId],
    seats: Sequence[Seat],
    bounds: Sequence[Bound],
    replica: ReplicaId,
    generation: LoadGeneration,
) -> tuple[PlannedShard, ...]:
    """Every seat with host, device, address and ports. What a silent host would give stays empty."""
    shards: list[PlannedShard] = []
    next_device: dict[HostId, int] = {}
    given: dict[str, set[Port]] = {}
    for seat, host, bound in zip(seats, spread(hosts, seats), bounds, strict=False):
        report = fleet.report(host)
        device = HOST_MEMORY
        if seat.takes_device:
            names = matching_devices(report, engine, profile.device) if report else ()
            index = next_device.get(host, 0)
            next_device[host] = index + 1
            device = names[index % len(names)] if names else profile.device
        facts = device_of(report, device) if report else None
        wanted = Port(profile.port) if profile.port is not None and seat.rank == 0 else None
        ports = _take_ports(fleet, report, seat.ports, wanted, given) if report else ()
        left = available_memory(report, device) if report and facts else 0
        shards.append(
            PlannedShard(
                rank=seat.rank,
                host=host,
                node_id=node_id(replica, seat.rank),
                node_generation=NodeGeneration(generation),
                role=seat.role,
                device=device,
                device_uuid=facts.uuid if facts else "",
                layers=seat.layers,
                holds_output=seat.holds_output,
                ports=ports,
                advertise=report.facts.advertise if report else "",
                bound=msgspec.structs.replace(bound, limit=Bytes(max(0, left))),
            )
        )
    return tuple(shards)


def next_replica_id(fleet: FleetFacts, model: str) -> ReplicaId:
    """The model's name and the smallest number that no host knows a replica by."""
    known = {name for report in fleet.reports for name in replica_ids(report)}
    number = 1
    while f"{model}-{number}" in known:
        number += 1
    return ReplicaId(f"{model}-{number}")


def mint_generation(fleet: FleetFacts, now: UnixMs, floor: int = 0) -> LoadGeneration:
    """This moment in milliseconds, or one more than the highest generation seen.

    One that is more than a day ahead comes from a broken clock and is no floor; a guard reports it.
    """
    seen = [floor, *(highest_generation(report) for report in fleet.reports)]
    believable = [generation for generation in seen if generation <= now + DAY_MS]
    return LoadGeneration(max(now, max(believable, default=0) + 1))


def _take_ports(
    fleet: FleetFacts, report: HostReport, count: int, wanted: Port | None, given: dict[str, set[Port]]
) -> tuple[Port, ...]:
    """The wanted port, or the lowest free ones of the host's range; fewer than ``count`` when the range is used up.

    Agents that share a machine share its ports: what one of them has, no other can bind.
    """
    machine = report.facts.boot_id or report.host
    ours = given.setdefault(machine, set())
    if wanted is not None:
        ours.add(wanted)
        return (wanted,)
    taken = {port for other in fleet.reports if _is_same_machine(other, report) for port in taken_ports(other)}
    first, last = report.facts.ports
    free = (Port(number) for number in range(first, last + 1) if number not in taken and number not in ours)
    ports = tuple(islice(free, count))
    ours.update(ports)
    return ports


def _is_same_machine(one: HostReport, other: HostReport) -> bool:
    return one.host == other.host or (one.facts.boot_id == other.facts.boot_id != "")


def _unable(report: HostReport, profile: Profile, engine: str) -> str:
    """Why a host cannot take part at all, or nothing."""
    facts = report.facts
    installed = engine_of(report, engine)
    if facts.refuses_loads:
        return f"refuses loads: {facts.refuses_loads}"
    if facts.journal != "ok":
        return f"its journal is {facts.journal}"
    if installed is None:
        return f"has no {engine}"
    if not matching_devices(report, engine, profile.device):
        return f"{engine} there has {', '.join(installed.devices) or 'no device'}, not {profile.device}"
    return ""


def _room(report: HostReport, profile: Profile, engine: str) -> int:
    return sum(available_memory(report, name) for name in matching_devices(report, engine, profile.device))


def _fits(
    reports: Sequence[HostReport], profile: Profile, engine: str, seats: Sequence[Seat], bounds: Sequence[Bound]
) -> bool:
    """Whether these hosts have a device for every worker and memory for every bound."""
    by_host = {report.host: report for report in reports}
    need: dict[tuple[HostId, str], int] = {}
    used: dict[HostId, int] = {}
    for seat, host, bound in zip(seats, spread(list(by_host), seats), bounds, strict=False):
        device = HOST_MEMORY
        if seat.takes_device:
            names = matching_devices(by_host[host], engine, profile.device)
            index = used.get(host, 0)
            used[host] = index + 1
            if index >= len(names) and HOST_MEMORY not in names:
                return False
            device = names[index % len(names)]
        need[host, device] = need.get((host, device), 0) + bound.memory
    return all(size <= available_memory(by_host[host], device) for (host, device), size in need.items())


def _named_candidates(fleet: FleetFacts, named: Sequence[HostId]) -> tuple[Candidate, ...]:
    found = [Candidate(host, True, f"named, number {index + 1} of {len(named)}") for index, host in enumerate(named)]
    others = [host for host in fleet.hosts if host not in named]
    return (*found, *(Candidate(host, False, f"not named; named: {', '.join(named)}") for host in others))


def _free_candidates(
    fleet: FleetFacts, profile: Profile, engine: str, chosen: Sequence[HostId]
) -> tuple[Candidate, ...]:
    rooms = {report.host: _room(report, profile, engine) for report in fleet.reports}
    found = [Candidate(host, True, f"{_gib(rooms[host])} free on {profile.device}") for host in chosen]
    for host in (host for host in fleet.hosts if host not in chosen):
        report = fleet.report(host)
        if report is None:
            reason = f"unreachable: {fleet.silence(host) or 'no report'}"
        elif not (reason := _unable(report, profile, engine)):
            reason = f"not needed: {_gib(rooms[host])} free on {profile.device}, and {', '.join(chosen)} come first"
        found.append(Candidate(host, False, reason))
    return tuple(found)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
