"""Guards about devices: there, under this engine's name, free, and the one that is meant."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from backend.contract.findings import Finding, refuse, warn
from backend.contract.plans import Plan
from backend.contract.reports import DeviceFacts, HostReport, same_device
from backend.contract.words import HostId, NodeId
from backend.planning.fleet import FleetFacts, device_of, device_users, engine_of, how_to_measure, is_shared
from backend.planning.guards.situation import Guard, Situation
from backend.planning.guards.table import DEVICE, refusing, warning
from backend.planning.inventory import matching_devices


def missing(situation: Situation) -> Iterator[Finding]:
    """A device under a name that the engine on that host does not use."""
    wanted = situation.plan.profile.device
    for report in _computing(situation):
        installed = engine_of(report, situation.plan.engine)
        if installed is None or matching_devices(report, situation.plan.engine, wanted):
            continue
        yield refuse(
            "device.missing",
            report.host,
            expected=f"device {wanted}, from the profile",
            found=f"{situation.plan.engine} there has {', '.join(installed.devices) or 'no device'}",
            remedy="Give the profile a name from that list; an engine built for other devices has other names.",
        )


def unseen(situation: Situation) -> Iterator[Finding]:
    """A device that the driver shows and the engine does not: a build without its backend, or a mask."""
    for report in _computing(situation):
        installed = engine_of(report, situation.plan.engine)
        if installed is None:
            continue
        for device in report.facts.devices:
            names = same_device(report.facts.devices, device.name)
            if is_shared(device.name) or not _is_wanted(situation, device.name):
                continue
            if any(name in installed.devices for name in names):
                continue
            yield warn(
                "device.unseen",
                f"{device.name} on {report.host}",
                expected=f"every device of the driver in the list of {installed.engine}",
                found=f"{', '.join(installed.devices) or 'no device'} in it, and {device.name} at the driver",
                remedy="The engine is built without this device's backend, or the device is masked or broken. Run the "
                "engine's own list of devices on the host.",
            )


def unmeasured(situation: Situation) -> Iterator[Finding]:
    """A device that no driver measures, and whose memory the engine's own list does not settle either."""
    for shard, report in situation.seated:
        for name in shard.all_devices:
            installed, device = engine_of(report, situation.plan.engine), device_of(report, name)
            if installed is None or name not in installed.devices or is_shared(name):
                continue
            if device is not None:
                yield from _by_its_list(report, device)
                continue
            known = ", ".join(device.name for device in report.facts.devices) or "no device"
            yield refuse(
                "device.unmeasured",
                f"{name} on {report.host}",
                expected="a driver, or the engine's own list, that says how much memory it has",
                found=f"{known} at the drivers, and no memory of {name} in a list",
                remedy=f"Nothing can be held of it: {how_to_measure(name)}.",
            )


def _by_its_list(report: HostReport, device: DeviceFacts) -> Iterator[Finding]:
    """What stays unknown of a device that only its engine's list names."""
    if device.is_capped_only:
        yield warn(
            "device.unmeasured",
            f"{device.name} on {report.host}",
            expected="a driver, or the engine's own list, that says what is free on it",
            found=f"{device.total >> 20} MiB by agent.toml alone",
            remedy="What others take of it is not seen. Make sure that nothing else runs there.",
        )
    drivers = [each.name for each in report.facts.devices if not each.listed_by and not is_shared(each.name)]
    if device.listed_by and not device.same_as and drivers:
        yield warn(
            "device.unmeasured",
            f"{device.name} on {report.host}",
            expected="a description that exactly one device of the drivers has",
            found=f"{device.words}; {', '.join(drivers)} at the drivers",
            remedy="It may be one of those under another name, and nobody can compare them: use one kind of name only.",
        )


def taken(situation: Situation) -> Iterator[Finding]:
    """A GPU that somebody has, another rank of this plan included: it is taken whole unless the profile shares it."""
    if situation.plan.profile.share_device:
        return
    given: dict[tuple[HostId, str], NodeId] = {}
    for shard, report in situation.seated:
        users = device_users(report)
        for name in shard.all_devices if situation.takes_device(shard) else ():
            if is_shared(name):
                continue
            other = given.setdefault((shard.host, name), shard.node_id)
            if other != shard.node_id:
                users.setdefault(name, f"planned for {other} too: no other one is left there")
            if name in users:
                yield refuse(
                    "device.taken",
                    f"{shard.node_id} on {shard.host}",
                    expected=f"{name} free, as a GPU is taken whole",
                    found=f"{name} is {users[name]}",
                    remedy="Unload what uses it, name another host, or set share_device in the profile.",
                )


def index(situation: Situation) -> Iterator[Finding]:
    """Two names for one device, or numbers that nothing ties to a device."""
    for report in _computing(situation):
        uuids: dict[str, str] = {}
        wanted = [
            each for each in report.facts.devices if _is_wanted(situation, each.name) and not is_shared(each.name)
        ]
        for device in wanted:
            other = uuids.setdefault(device.uuid, device.name) if device.uuid else device.name
            if other != device.name:
                yield refuse(
                    "device.index",
                    f"{device.name} on {report.host}",
                    expected="one uuid per device",
                    found=f"{device.name} and {other} both are {device.uuid}",
                    remedy="Two shards would take one device. Remove the mask that doubles it, and restart the agent.",
                )
        nameless = [device.name for device in wanted if not device.uuid]
        if nameless and len(wanted) > 1:
            yield warn(
                "device.index",
                report.host,
                expected="a uuid for each of several devices",
                found=f"{', '.join(nameless)} by number only",
                remedy="Drivers and engines may count in another order, and a restart may renumber them.",
            )


def device_moved(plan: Plan, fleet: FleetFacts) -> Iterator[Finding]:
    """The device under a planned name is another one by now, or gone."""
    for shard in plan.shards:
        report = fleet.report(shard.host)
        uuids = shard.device_uuids or (shard.device_uuid,)
        for name, uuid in zip(shard.all_devices, uuids, strict=False):
            device = device_of(report, name) if report is not None else None
            if report is not None and uuid and (device is None or device.uuid != uuid):
                yield refuse(
                    "device.index",
                    f"{shard.node_id} on {shard.host}",
                    expected=f"{name} with uuid {uuid}, when the plan was made",
                    found=f"uuid {device.uuid or 'unknown'}" if device else "no such device",
                    remedy="The devices were renumbered. Plan again.",
                )


def _computing(situation: Situation) -> Iterator[HostReport]:
    """The reports of the hosts on which a shard takes a device."""
    for report in situation.reports:
        if any(situation.takes_device(shard) for shard in situation.shards_on(report.host)):
            yield report


def _is_wanted(situation: Situation, name: str) -> bool:
    return any(fnmatchcase(name, pattern.strip()) for pattern in situation.plan.profile.device.split(","))


GUARDS: tuple[Guard, ...] = (
    refusing(
        "device.missing",
        "a whole load that ends at an unknown device name",
        "Name a device of the engine's own list.",
        "the engine's own device list",
        missing,
        drift=DEVICE,
    ),
    warning(
        "device.unseen",
        "layers that silently stay on the CPU",
        "Install a build with this backend, or remove the mask.",
        "the driver's list against the engine's",
        unseen,
        drift=DEVICE,
    ),
    refusing(
        "device.unmeasured",
        "memory that nobody can compare",
        "Set its memory in agent.toml.",
        "the driver's list against the engine's",
        unmeasured,
    ),
    refusing("device.taken", "two replicas on one GPU", "Unload one, or set share_device.", "shards and holds", taken),
    refusing(
        "device.index",
        "a shard on another device than the one planned",
        "Plan again; tie devices to uuids.",
        "the driver's uuids",
        index,
    ),
)
