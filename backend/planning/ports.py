"""Which ports a plan takes: for every shard one whole band, never one that anybody of the machine has."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from backend.contract.reports import HostReport
from backend.contract.words import Port
from backend.planning.fleet import FleetFacts, machine_of, taken_ports


class PortBook:
    """The ports of a fleet while one plan is made. Agents that share a machine share its ports."""

    def __init__(self, fleet: FleetFacts) -> None:
        self._fleet = fleet
        self._taken: dict[str, set[Port]] = {}

    def take(self, report: HostReport, count: int, wanted: Port | None = None) -> tuple[Port, ...]:
        """The band from the wanted port on, or the lowest free one of the host's range; empty when there is none.

        A wanted band is taken as it is: guards say what speaks against it.
        """
        taken = self._of(report)
        if wanted is not None:
            band = tuple(Port(port) for port in range(wanted, min(wanted + count, 65_536)))
        else:
            band = lowest_band(report.facts.ports, count, taken)
        taken.update(band)
        return band

    def has_room(self, report: HostReport, count: int, bands: int) -> bool:
        """Whether a host has this many free bands beside each other; nothing is taken."""
        if not count:
            return True
        taken = set(self._of(report))
        for _ in range(bands):
            band = lowest_band(report.facts.ports, count, taken)
            if not band:
                return False
            taken.update(band)
        return True

    def _of(self, report: HostReport) -> set[Port]:
        machine = machine_of(report)
        if machine not in self._taken:
            together = self._fleet.same_machine(report)
            self._taken[machine] = {port for other in together for port in taken_ports(other)}
        return self._taken[machine]


def lowest_band(ports: tuple[Port, Port], count: int, taken: AbstractSet[Port]) -> tuple[Port, ...]:
    """The lowest ``count`` ports in a row of an inclusive range that are not taken; empty when there are none."""
    first, last = ports
    start = first
    for port in range(first, last + 1):
        if port in taken:
            start = Port(port + 1)
        elif port - start + 1 == count:
            return tuple(Port(number) for number in range(start, port + 1))
    return ()
