"""Guards about addresses and ports."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from backend.contract.findings import Finding, refuse, warn
from backend.planning.fleet import machine_of, taken_ports
from backend.planning.guards.situation import Guard, Situation
from backend.planning.guards.table import LOOPBACK, refusing, warning

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_INTERNAL = {
    ipaddress.ip_network("172.17.0.0/16"): "Docker's own bridge",
    ipaddress.ip_network("10.88.0.0/16"): "Podman's own bridge",
    ipaddress.ip_network("10.0.2.0/24"): "the user network of a virtual machine or rootless container",
    ipaddress.ip_network("192.168.122.0/24"): "libvirt's own bridge",
}


def loopback(situation: Situation) -> Iterator[Finding]:
    """Loopback advertised by a host whose peers are on other machines: each would dial itself."""
    machines = {machine_of(report) for report in situation.reports}
    hosts = ", ".join(report.host for report in situation.reports)
    if len(machines) < 2:
        return
    for report in situation.reports:
        if is_loopback(report.facts.advertise):
            peer = next(other.host for other in situation.reports if machine_of(other) != machine_of(report))
            yield refuse(
                "address.loopback",
                report.host,
                expected=f"an address that {peer} can reach, as ranks are on {hosts}",
                found=f"advertise = {report.facts.advertise}",
                remedy=f"{peer} would dial itself. Set advertise in {report.host}'s agent.toml to an address of its "
                "own that the other hosts can reach.",
            )


def wildcard(situation: Situation) -> Iterator[Finding]:
    """An address to listen on everywhere is none to dial, and opens an engine without authentication to everybody."""
    for report in situation.reports:
        address = _parsed(report.facts.advertise)
        if not report.facts.advertise or (address is not None and address.is_unspecified):
            yield refuse(
                "address.wildcard",
                report.host,
                expected="one address of this host",
                found=f"advertise = {report.facts.advertise or 'nothing'}",
                remedy="Set advertise in its agent.toml to the one address that the other hosts should dial.",
            )


def linklocal(situation: Situation) -> Iterator[Finding]:
    """A link-local address means another interface on every host."""
    for report in situation.reports:
        address = _parsed(report.facts.advertise)
        if address is not None and address.is_link_local:
            yield refuse(
                "address.linklocal",
                report.host,
                expected="a routed address of this host",
                found=f"advertise = {report.facts.advertise}, which is link-local",
                remedy="Set advertise in its agent.toml to an address that means the same from every host.",
            )


def container(situation: Situation) -> Iterator[Finding]:
    """An address of the networks that containers and virtual machines get by default: each machine has its own."""
    if situation.machines < 2:
        return
    for report in situation.reports:
        address = _parsed(report.facts.advertise)
        network = next((words for net, words in _INTERNAL.items() if address is not None and address in net), None)
        if network is not None:
            yield warn(
                "address.container",
                report.host,
                expected="an address that other machines can reach",
                found=f"advertise = {report.facts.advertise}, which is of {network}",
                remedy="Seen from another machine it is somebody else, or nobody. Set advertise in its agent.toml to "
                "an address of the machine itself; the dial before the load decides.",
            )


def foreign(situation: Situation) -> Iterator[Finding]:
    """An address that the host itself does not have: no engine can listen there."""
    for report in situation.reports:
        own, advertise = report.facts.addresses, report.facts.advertise
        address = _parsed(advertise)
        if not own or address is None or address.is_unspecified or is_loopback(advertise):
            continue
        if address not in [_parsed(each) for each in own]:
            yield refuse(
                "address.foreign",
                report.host,
                expected=f"one of its own addresses: {', '.join(own)}",
                found=f"advertise = {advertise}",
                remedy="No engine could listen there. Set advertise in its agent.toml to one of these.",
            )


def same(situation: Situation) -> Iterator[Finding]:
    """Two machines under one address: one of them answers for the other."""
    owners: dict[str, tuple[str, str]] = {}
    for report in situation.reports:
        advertise = report.facts.advertise.lower()
        if not advertise or is_loopback(advertise) or is_wildcard(advertise):
            continue
        machine, host = owners.setdefault(advertise, (machine_of(report), report.host))
        if machine != machine_of(report):
            yield refuse(
                "address.same",
                report.host,
                expected=f"an address other than {host}'s, as the two are different machines",
                found=f"advertise = {report.facts.advertise} on both",
                remedy="Whoever dials one may reach the other. Give each its own in agent.toml.",
            )


def port_taken(situation: Situation) -> Iterator[Finding]:
    """A port of the profile's own band is not free."""
    port = situation.plan.profile.port
    for shard, report in situation.seated:
        if shard.rank != 0 or port is None:
            continue
        together = situation.fleet.same_machine(report)
        taken = {number: words for each in together for number, words in taken_ports(each, ended=False).items()}
        for number in shard.ports:
            if number in taken:
                yield refuse(
                    "port.taken",
                    f"{shard.node_id} on {shard.host}",
                    expected=f"port {number} free, {_of_band(port, len(shard.ports))}",
                    found=f"port {number} is {taken[number]}",
                    remedy="Stop what uses it, give the profile another port, or leave port out.",
                )


def port_outside(situation: Situation) -> Iterator[Finding]:
    """The profile's own port is not one that the host's agent may use."""
    port = situation.plan.profile.port
    for shard, report in situation.seated:
        first, last = report.facts.ports
        end = max(shard.ports, default=0)
        if shard.rank == 0 and port is not None and not first <= port <= end <= last:
            yield refuse(
                "port.outside",
                f"{shard.node_id} on {shard.host}",
                expected=f"a port of {first}-{last}, from {shard.host}'s agent.toml",
                found=f"port = {port} in the profile" + (f", a band up to {end}" if end > port else ""),
                remedy="Give the profile a port of that range, or leave port out.",
            )


def ports_none(situation: Situation) -> Iterator[Finding]:
    """The host's range is used up, or has no band of the size that is needed."""
    wanted = {seat.rank: seat.ports for seat in situation.seats}
    for shard, report in situation.seated:
        count = wanted.get(shard.rank, 0)
        if count and not shard.ports:
            first, last = report.facts.ports
            some = "a free port" if count == 1 else f"{count} free ports in a row"
            yield refuse(
                "ports.none",
                f"{shard.node_id} on {shard.host}",
                expected=f"{some} of {first}-{last}, from {shard.host}'s agent.toml",
                found=f"all {last - first + 1} are in use, held or reserved"
                if count == 1
                else f"no {count} in a row that are neither in use, held nor reserved",
                remedy="Dismiss ended replicas there, or widen ports in its agent.toml.",
            )


def ephemeral(situation: Situation) -> Iterator[Finding]:
    """Ports that the kernel may give to any outgoing connection in the moment before the engine binds them."""
    for report in situation.reports:
        low, high = report.facts.ephemeral
        ports = [port for shard in situation.shards_on(report.host) for port in shard.ports if low <= port <= high]
        if high and ports:
            yield warn(
                "port.ephemeral",
                report.host,
                expected=f"ports outside {low}-{high}, which its kernel gives to outgoing connections",
                found=f"{', '.join(map(str, ports[:4]))}{' and more' if len(ports) > 4 else ''}",
                remedy="One may be taken just before the engine binds it. Move ports in agent.toml below that, or "
                f"set net.ipv4.ip_local_reserved_ports={min(ports)}-{max(ports)} by sysctl.",
            )


def is_wildcard(address: str) -> bool:
    """Whether an address is one to listen on everywhere, or none at all."""
    parsed = _parsed(address)
    return not address or (parsed is not None and parsed.is_unspecified)


def is_loopback(address: str) -> bool:
    """Whether an advertised address, a name or a number, means the host itself."""
    parsed = _parsed(address)
    if parsed is None:
        return address.lower().rstrip(".") in ("localhost", "localhost.localdomain", "ip6-localhost")
    mapped = getattr(parsed, "ipv4_mapped", None)
    return parsed.is_loopback or (mapped is not None and mapped.is_loopback)


def _parsed(address: str) -> _Address | None:
    try:
        return ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return None  # a name: only the dial from a peer can prove it


def _of_band(port: int, count: int) -> str:
    return (
        "from the profile" if count == 1 else f"as the band of {count} from port {port} of the profile is needed whole"
    )


GUARDS: tuple[Guard, ...] = (
    refusing(
        "address.loopback",
        "a peer that dials itself",
        "Set advertise in agent.toml.",
        "advertise and boot ids",
        loopback,
        drift=LOOPBACK,
    ),
    refusing(
        "address.wildcard",
        "an address that cannot be dialled, and an engine open to everybody",
        "Set advertise in agent.toml.",
        "advertise",
        wildcard,
        drift=LOOPBACK,
    ),
    refusing(
        "address.linklocal",
        "an address that is another interface on every host",
        "Set advertise in agent.toml.",
        "advertise",
        linklocal,
        drift=LOOPBACK,
    ),
    warning(
        "address.container",
        "an address that only its own machine knows",
        "Set advertise in agent.toml.",
        "advertise against default bridges",
        container,
        drift=LOOPBACK,
    ),
    refusing(
        "address.foreign",
        "an engine that cannot listen, which llama.cpp's worker calls success (exit 0)",
        "Set advertise in agent.toml.",
        "the interfaces of the host",
        foreign,
    ),
    refusing(
        "address.same",
        "a peer that answers for another host",
        "Give each host its own advertise.",
        "advertise and boot ids",
        same,
    ),
    refusing("port.taken", "a bind that fails", "Free it, or leave port out.", "the agent's ports", port_taken),
    refusing("port.outside", "a port the host may not use", "Leave port out.", "agent.toml", port_outside),
    refusing("ports.none", "a shard without a port", "Dismiss ended replicas.", "the agent's ports", ports_none),
    warning(
        "port.ephemeral",
        "a port that the kernel gives away just before the engine binds it",
        "Move ports below the range, or reserve them by sysctl.",
        "ip_local_port_range",
        ephemeral,
    ),
)
