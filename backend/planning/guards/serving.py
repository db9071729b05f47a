"""Guards for vLLM and SGLang, whose ranks wait for each other for minutes without a word when an address is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from backend.contract.findings import Finding, refuse, warn
from backend.planning.engines.serving import ServingRules
from backend.planning.fleet import available_memory, device_of
from backend.planning.guards.addresses import is_loopback, is_wildcard
from backend.planning.guards.situation import Guard, Situation
from backend.planning.guards.table import LOOPBACK, refusing, warning


def rendezvous(situation: Situation) -> Iterator[Finding]:
    """Ranks of other hosts would look for rank 0 on their own."""
    rules, plan = situation.rules, situation.plan
    if not isinstance(rules, ServingRules) or rules.check_options(plan.profile) or not plan.shards:
        return
    given = str(rules.value(plan.profile, "rendezvous"))
    address = given or plan.shards[0].advertise
    if situation.machines > 1 and (is_loopback(address) or is_wildcard(address)):
        source = "rendezvous in the profile" if given else f"advertise of {plan.shards[0].host}"
        yield refuse(
            "rendezvous.loopback",
            plan.shards[0].node_id,
            expected=f"an address of rank 0 that the {situation.machines} machines of the plan can reach",
            found=f"{address or 'nothing'}, from {source}",
            remedy="Every rank would wait for itself, for minutes and without an error. Give rank 0's own address.",
        )


def host_address(situation: Situation) -> Iterator[Finding]:
    """An engine that guesses its address on a host with several takes the default route's."""
    rules, plan = situation.rules, situation.plan
    if not isinstance(rules, ServingRules) or rules.check_options(plan.profile) or situation.machines < 2:
        return
    for report in situation.reports:
        several = len(report.facts.addresses) > 1
        if several and rules.value(plan.profile, "host_address") == "auto":
            yield refuse(
                "address.unset",
                report.host,
                expected="its address given, as it has several",
                found=f"host_address = 'auto' in the profile, and {', '.join(report.facts.addresses)} on the host",
                remedy="The engine would guess by the default route, and ranks would wait for each other. Leave "
                "host_address out: the plan then gives the advertised address.",
            )
        elif several and not rules.value(plan.profile, "interface"):
            yield warn(
                "address.interface",
                report.host,
                expected="interface in options, as the host has several networks",
                found=f"no interface, and {', '.join(report.facts.addresses)} on the host",
                remedy="NCCL and Gloo choose one by themselves. Name the interface of the cluster's network.",
            )


def visible_devices(situation: Situation) -> Iterator[Finding]:
    """Both of AMD's variables together filter the devices twice."""
    options = situation.plan.profile.options
    hip, rocr = options.get("hip_visible_devices"), options.get("rocr_visible_devices")
    if isinstance(situation.rules, ServingRules) and hip and rocr:
        yield refuse(
            "visible.twice",
            "options.rocr_visible_devices",
            expected="one of hip_visible_devices and rocr_visible_devices",
            found=f"hip_visible_devices = {hip!r} and rocr_visible_devices = {rocr!r} in the profile",
            remedy="The second numbers the devices that the first left: 'invalid device ordinal'. Remove one.",
        )


def shutdown(situation: Situation) -> Iterator[Finding]:
    """A stop that cuts every stream."""
    options = situation.plan.profile.options
    if not isinstance(situation.rules, ServingRules):
        return
    zero = options.get("shutdown_timeout")
    if (zero == 0 and zero is not False) or options.get("force_shutdown") == "on":
        found = "shutdown_timeout = 0" if zero == 0 else "force_shutdown = 'on'"
        yield warn(
            "shutdown.zero",
            "options",
            expected="a time in which requests may end",
            found=f"{found} in the profile",
            remedy="TERM cuts every request in flight at once. Leave it out, or drain before each stop.",
        )


def share(situation: Situation) -> Iterator[Finding]:
    """The engine ends at its start when less is free than the share that it is told to take."""
    rules, plan = situation.rules, situation.plan
    if not isinstance(rules, ServingRules) or rules.check_options(plan.profile):
        return
    percent = rules.share(plan.profile)
    for shard, report in situation.seated:
        for name in shard.all_devices:
            device = device_of(report, name)
            if device is None:
                continue
            need, free = device.total * percent // 100, available_memory(report, name)
            if free < need:
                yield refuse(
                    "memory.share",
                    f"{name} on {report.host}",
                    expected=f"{percent} % of {device.total / 2**30:.1f} GiB free, from {rules.share_option}",
                    found=f"{free / 2**30:.1f} GiB",
                    remedy=f"The engine would end before the weights. Free the device, or lower {rules.share_option}.",
                )


GUARDS: tuple[Guard, ...] = (
    refusing(
        "memory.share",
        "an engine that ends before the weights",
        "Lower the share, or free the device.",
        "free against total memory",
        share,
    ),
    refusing(
        "rendezvous.loopback",
        "ranks that wait for themselves for minutes",
        "Give rank 0's own address.",
        "advertise and options",
        rendezvous,
        drift=LOOPBACK,
    ),
    refusing(
        "address.unset",
        "an engine that guesses the wrong one of its addresses",
        "Leave host_address out.",
        "the interfaces of the host",
        host_address,
        drift=LOOPBACK,
    ),
    warning(
        "address.interface",
        "NCCL over the slow network",
        "Name the interface.",
        "the interfaces of the host",
        host_address,
    ),
    refusing("visible.twice", "devices filtered twice", "Remove one.", "options", visible_devices),
    warning("shutdown.zero", "a stop that cuts every stream", "Give it time.", "options", shutdown),
)
