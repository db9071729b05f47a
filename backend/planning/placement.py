"""Where a replica would go: hosts in order, devices, ports, the replica's id and its generation. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from backend.contract.naming import few_of
from backend.contract.plans import Bound, Candidate, PlannedShard, Profile
from backend.contract.words import Bytes, HostId, LoadGeneration, NodeGeneration, Port, ReplicaId, UnixMs, node_id
from backend.planning.engines.rules import Seat
from backend.planning.fleet import (
    DAY_MS,
    HOST_MEMORY,
    FleetFacts,
    available_memory,
    device_of,
    highest_generation,
    is_shared,
    replica_ids,
)
from backend.planning.inventory import Offer, matching_devices, offer_of
from backend.planning.ports import PortBook

_NAMED_AT_MOST = 3  # hosts that a reason names before it counts them


class Placement(msgspec.Struct, frozen=True):
    """The hosts of a plan, leader's first, and every host of the context with the reason for or against it.

    ``seating`` is the host of every seat in rank order; empty without hosts.
    """

    hosts: tuple[HostId, ...]
    candidates: tuple[Candidate, ...]
    seating: tuple[HostId, ...]


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

    Hosts of one fabric are preferred to a mix. ``first`` is the host that must lead when none is named: the model was
    read there. Hosts that somebody named share the ranks evenly, as far as their devices go, whatever their memory.
    """
    if named:
        hosts = tuple(HostId(host) for host in named)
        own = [offer_of(each, profile, engine) if (each := fleet.report(host)) else None for host in hosts]
        limits = [each.most_ranks(profile, 0) if each and each.names else profile.ranks for each in own]
        return Placement(hosts, _named_candidates(fleet, hosts), spread(hosts, seats, limits))
    offers = [offer_of(report, profile, engine) for report in fleet.reports]
    able = [offer for offer in offers if not offer.unable]
    able.sort(key=lambda offer: (offer.host != first, -offer.room, offer.host))
    chosen: list[Offer] | None = None
    for group in _by_fabric(able, first):
        fewest = _fewest(fleet, group, profile, seats, bounds)
        if fewest is not None and (chosen is None or len(fewest) < len(chosen)):
            chosen = fewest
    workers = sum(seat.takes_device for seat in seats)
    if chosen is None:
        chosen = _fewest(fleet, able, profile, seats, bounds) or able[: max(workers, 1)]
    hosts = tuple(offer.host for offer in chosen)
    seating = spread(hosts, seats, _limits(chosen, profile, seats, bounds))
    return Placement(hosts, _free_candidates(fleet, profile, offers, hosts), seating)


def spread(hosts: Sequence[HostId], seats: Sequence[Seat], limits: Sequence[int] | None = None) -> tuple[HostId, ...]:
    """The host of every seat: rank 0 on the first, the others in order over all, neighbours together.

    A leader that computes nothing leaves its host to others when there are hosts enough. With ``limits``, the most
    computing ranks of each host, what is too much for one goes to the next that has room; where all have too little
    it stays even.
    """
    if not hosts or not seats:
        return ()
    moving = [seat for seat in seats if seat.rank > 0 or seat.takes_device]
    apart = len(seats) - len(moving)
    first = 0 if len(moving) >= len(hosts) or not apart else len(hosts) - len(moving)
    over = hosts[first:]
    begins = [-(-index * len(moving) // max(len(over), 1)) for index in range(len(over) + 1)]
    counts = [end - begin for begin, end in itertools.pairwise(begins)]
    if limits is not None:
        counts = _within(counts, limits[first:])
    return (*hosts[:apart], *(host for host, count in zip(over, counts, strict=True) for _ in range(count)))


def seat_shards(
    fleet: FleetFacts,
    profile: Profile,
    engine: str,
    seating: Sequence[HostId],
    seats: Sequence[Seat],
    bounds: Sequence[Bound],
    replica: ReplicaId,
    generation: LoadGeneration,
) -> tuple[PlannedShard, ...]:
    """Every seat with host, devices, address and ports. What a silent host would give stays empty."""
    reports = {host: fleet.report(host) for host in dict.fromkeys(seating)}
    takers = {
        host: _Devices(profile, offer_of(report, profile, engine), engine)
        for host, report in reports.items()
        if report is not None
    }
    ports = PortBook(fleet)
    shards: list[PlannedShard] = []
    for seat, host, bound in zip(seats, seating, bounds, strict=False):
        report = reports[host]
        names: tuple[str, ...] = (HOST_MEMORY,)
        if seat.takes_device:
            names = takers[host].take() if host in takers else (profile.device,)
        facts = [device_of(report, name) for name in names] if report else []
        wanted = Port(profile.port) if profile.port is not None and seat.rank == 0 else None
        left = sum(available_memory(report, name) for name in names) if report and all(facts) else 0
        uuids = tuple(each.uuid for each in facts if each is not None)
        shards.append(
            PlannedShard(
                rank=seat.rank,
                host=host,
                node_id=node_id(replica, seat.rank),
                node_generation=NodeGeneration(generation),
                role=seat.role,
                device=names[0],
                device_uuid=uuids[0] if uuids else "",
                layers=seat.layers,
                holds_output=seat.holds_output,
                ports=ports.take(report, seat.ports, wanted) if report and seat.ports else (),
                advertise=report.facts.advertise if report else "",
                bound=msgspec.structs.replace(bound, limit=Bytes(max(0, left))),
                devices=names if len(names) > 1 else (),
                device_uuids=uuids if len(names) > 1 else (),
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


class _Devices:
    """Hands out the devices of one host: a GPU once, what is shared again and again.

    Where too few are left the taken ones are named once more, so that the guards can say what speaks against it.
    """

    def __init__(self, profile: Profile, offer: Offer, engine: str) -> None:
        self._profile = profile
        self._shared = [name for name in offer.names if profile.share_device or is_shared(name)]
        self._alone = [name for name in offer.names if name not in self._shared]
        self._all = list(offer.names) or list(matching_devices(offer.report, engine, profile.device))
        self._given = 0

    def take(self) -> tuple[str, ...]:
        count = self._profile.devices
        names, self._alone = self._alone[:count], self._alone[count:]
        again = self._shared or self._all or [self._profile.device]
        while len(names) < count:
            names.append(again[self._given % len(again)])
            self._given += 1
        return tuple(dict.fromkeys(names))


def _within(counts: list[int], limits: Sequence[int]) -> list[int]:
    """The same number of ranks with none over its limit; unchanged when the limits are too small together."""
    if sum(limits) < sum(counts):
        return counts
    kept = [min(count, limit) for count, limit in zip(counts, limits, strict=True)]
    over = sum(counts) - sum(kept)
    for index, limit in enumerate(limits):
        more = min(over, limit - kept[index])
        kept[index] += more
        over -= more
    return kept


def _biggest(seats: Sequence[Seat], bounds: Sequence[Bound]) -> int:
    """Bytes of the largest computing rank."""
    return max((bound.memory for seat, bound in zip(seats, bounds, strict=False) if seat.takes_device), default=0)


def _beside(seats: Sequence[Seat], bounds: Sequence[Bound]) -> int:
    """Bytes that a leader which computes nothing takes of its host."""
    return sum(bound.memory for seat, bound in zip(seats, bounds, strict=False) if not seat.takes_device)


def _by_fabric(able: Sequence[Offer], first: str | None) -> list[list[Offer]]:
    """The hosts of each fabric, in their order; only those of the host that must lead when there is one."""
    groups: dict[str, list[Offer]] = {}
    for offer in able:
        groups.setdefault(offer.report.facts.fabric, []).append(offer)
    held = [group for group in groups.values() if any(offer.host == first for offer in group)]
    return held or list(groups.values())


def _fewest(
    fleet: FleetFacts, able: Sequence[Offer], profile: Profile, seats: Sequence[Seat], bounds: Sequence[Bound]
) -> list[Offer] | None:
    """The fewest of these hosts, taken in their order, that have room for every rank."""
    workers = sum(seat.takes_device for seat in seats)
    limits = _limits(able[:workers], profile, seats, bounds)
    room = 0
    for count, limit in enumerate(limits, start=1):
        room += limit
        if room >= workers and _fits(fleet, able[:count], profile, seats, bounds, limits[:count]):
            return list(able[:count])
    return None


def _limits(
    offers: Sequence[Offer], profile: Profile, seats: Sequence[Seat], bounds: Sequence[Bound]
) -> tuple[int, ...]:
    """The most computing ranks of each host; the first has the leader beside them."""
    biggest, beside = _biggest(seats, bounds), _beside(seats, bounds)
    return tuple(offer.most_ranks(profile, biggest, beside if n == 0 else 0) for n, offer in enumerate(offers))


def _fits(
    fleet: FleetFacts,
    offers: Sequence[Offer],
    profile: Profile,
    seats: Sequence[Seat],
    bounds: Sequence[Bound],
    limits: Sequence[int],
) -> bool:
    """Whether these hosts have devices, memory, budgets and ports for every rank."""
    by_host = {offer.host: offer for offer in offers}
    takers = {host: _Devices(profile, offer, "") for host, offer in by_host.items()}
    need: dict[tuple[HostId, str], int] = {}
    ranks: dict[HostId, int] = {}
    bands: dict[tuple[HostId, int], int] = {}
    given: set[tuple[HostId, str]] = set()
    for seat, host, bound in zip(seats, spread(list(by_host), seats, limits), bounds, strict=False):
        names: tuple[str, ...] = (HOST_MEMORY,)
        if seat.takes_device:
            names = takers[host].take()
            ranks[host] = ranks.get(host, 0) + 1
            alone = [(host, name) for name in names if not (profile.share_device or is_shared(name))]
            if given.intersection(alone) or len(names) < profile.devices:
                return False
            given.update(alone)
        for name in names:
            need[host, name] = need.get((host, name), 0) + -(-bound.memory // len(names))
        if seat.ports:
            bands[host, seat.ports] = bands.get((host, seat.ports), 0) + 1
    if any(ranks.get(host, 0) > offer.most_ranks(profile, 0) for host, offer in by_host.items()):
        return False
    if any(size > by_host[host].memory.get(name, 0) for (host, name), size in need.items()):
        return False
    ports = PortBook(fleet)
    return all(ports.has_room(by_host[host].report, size, count) for (host, size), count in bands.items())


def _named_candidates(fleet: FleetFacts, named: Sequence[HostId]) -> tuple[Candidate, ...]:
    found = [Candidate(host, True, f"named, number {index + 1} of {len(named)}") for index, host in enumerate(named)]
    words, known = f"not named; named: {few_of(named, _NAMED_AT_MOST)}", set(named)
    return (*found, *(Candidate(host, False, words) for host in fleet.hosts if host not in known))


def _free_candidates(
    fleet: FleetFacts, profile: Profile, offers: Sequence[Offer], chosen: Sequence[HostId]
) -> tuple[Candidate, ...]:
    by_host = {offer.host: offer for offer in offers}
    taken, come = set(chosen), "comes" if len(chosen) == 1 else "come"
    first = f"{few_of(chosen, _NAMED_AT_MOST)} {come} first"
    found = [Candidate(host, True, f"{_gib(by_host[host].room)} free on {profile.device}") for host in chosen]
    for host in (host for host in fleet.hosts if host not in taken):
        offer = by_host.get(host)
        if offer is None:
            reason = f"unreachable: {fleet.silence(host) or 'no report'}"
        elif not (reason := offer.unable):
            reason = f"not needed: {_gib(offer.room)} free on {profile.device}, and {first}"
        found.append(Candidate(host, False, reason))
    return tuple(found)


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
