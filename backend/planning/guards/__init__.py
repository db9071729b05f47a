"""The guards of a plan, in one list. Each looks at one thing; none raises; all are heard out."""

from __future__ import annotations

from backend.contract.findings import Finding
from backend.planning.guards import addresses, hosts, numbers, sizes
from backend.planning.guards.situation import Guard, Situation

_LOOPBACK = "loopback advertised across hosts"
_GENERATION = "load generation differs from node generation"
_RELEASE = "native server older than the agent"
_DEVICE = "device name of another backend"
_BOUND = "result bound guessed"
_JOURNAL = "journal off"

GUARDS: tuple[Guard, ...] = (
    Guard("host.unknown", "", "contexts.toml", hosts.unknown),
    Guard("host.unreachable", "", "the links", hosts.unreachable),
    Guard("hosts.none", "", "placement", hosts.none),
    Guard("host.refuses", "", "the agent's cgroup and configuration", hosts.refuses),
    Guard("journal.unhealthy", _JOURNAL, "the agent's journal", hosts.journal),
    Guard("engine.missing", "", "the agent's configuration", hosts.engine),
    Guard("device.missing", _DEVICE, "the engine's own device list", hosts.device),
    Guard("release.differs", _RELEASE, "the engine's --version on every host", hosts.release),
    Guard("cpu.features", "", "/proc/cpuinfo against the build", hosts.cpu),
    Guard("address.loopback", _LOOPBACK, "advertise and boot ids", addresses.loopback),
    Guard("address.wildcard", _LOOPBACK, "advertise", addresses.wildcard),
    Guard("address.linklocal", _LOOPBACK, "advertise", addresses.linklocal),
    Guard("port.taken", "", "the agent's ports", addresses.port_taken),
    Guard("port.outside", "", "the agent's configuration", addresses.port_outside),
    Guard("ports.none", "", "the agent's ports", addresses.ports_none),
    Guard("generation.differs", _GENERATION, "the plan", numbers.differs),
    Guard("generation.not_above", _GENERATION, "the generations stored at the plan's hosts", numbers.not_above),
    Guard("generation.ahead", _GENERATION, "the generations stored anywhere", numbers.ahead),
    Guard("clock.off", _GENERATION, "the clock pairs of the hellos", numbers.clock_off),
    Guard("clock.offset", "", "the clock pairs of the hellos", numbers.clock_offset),
    Guard("split", "", "the engine's layer placement", sizes.shape),
    Guard("ranks", "", "the profile against hosts and devices", sizes.ranks),
    Guard("options", "", "the engine's allowlist", sizes.options),
    Guard("model.file", "", "the model's header", sizes.model_file),
    Guard("model.known", _BOUND, "the architectures that were tried", sizes.model_known),
    Guard("bound.result", _BOUND, "the engine's formula", sizes.result),
    Guard("memory.short", "", "the derived bounds against free memory", sizes.memory),
    Guard("memory.mapped", "", "the model's size against free memory", sizes.mapped),
)


def run_guards(situation: Situation) -> tuple[Finding, ...]:
    """What every guard has to say, refusals first; within a severity in the order of the list."""
    found = [finding for guard in GUARDS for finding in guard.check(situation)]
    return tuple(sorted(found, key=lambda finding: finding.severity != "refuse"))


__all__ = ["GUARDS", "Guard", "Situation", "run_guards"]
