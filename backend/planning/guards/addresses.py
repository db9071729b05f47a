"""Guards about addresses and ports."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from backend.contract.findings import Finding, refuse
from backend.planning.fleet import taken_ports
from backend.planning.guards.situation import Situation

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def loopback(situation: Situation) -> Iterator[Finding]:
    """Loopback advertised by a host whose peers are on other machines: each would dial itself."""
    machines = {report.facts.boot_id or report.host for report in situation.reports}
    hosts = ", ".join(report.host for report in situation.reports)
    if len(machines) < 2:
        return
    for report in situation.reports:
        if is_loopback(report.facts.advertise):
            peer = next(other.host for other in situation.reports if other.facts.boot_id != report.facts.boot_id)
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


def port_taken(situation: Situation) -> Iterator[Finding]:
    """The profile's own port is not free."""
    port = situation.plan.profile.port
    for shard, report in situation.seated:
        holder = taken_ports(report, ended=False).get(shard.ports[0]) if shard.ports else None
        if shard.rank == 0 and port is not None and holder is not None:
            yield refuse(
                "port.taken",
                f"{shard.node_id} on {shard.host}",
                expected=f"port {port} free, from the profile",
                found=f"port {port} is {holder}",
                remedy="Stop what uses it, give the profile another port, or leave port out.",
            )


def port_outside(situation: Situation) -> Iterator[Finding]:
    """The profile's own port is not one that the host's agent may use."""
    port = situation.plan.profile.port
    for shard, report in situation.seated:
        first, last = report.facts.ports
        if shard.rank == 0 and port is not None and not first <= port <= last:
            yield refuse(
                "port.outside",
                f"{shard.node_id} on {shard.host}",
                expected=f"a port of {first}-{last}, from {shard.host}'s agent.toml",
                found=f"port = {port} in the profile",
                remedy="Give the profile a port of that range, or leave port out.",
            )


def ports_none(situation: Situation) -> Iterator[Finding]:
    """The host's range is used up."""
    for shard, report in situation.seated:
        if not shard.ports:
            first, last = report.facts.ports
            yield refuse(
                "ports.none",
                f"{shard.node_id} on {shard.host}",
                expected=f"a free port of {first}-{last}, from {shard.host}'s agent.toml",
                found=f"all {last - first + 1} are in use, held or reserved",
                remedy="Dismiss ended replicas there, or widen ports in its agent.toml.",
            )


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
