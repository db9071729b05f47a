"""How a host's p4 agent would be recovered: the runbook's steps in order, from what was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from backend.contract.durations import duration
from backend.contract.entities import KeeperLease, Shard
from backend.contract.findings import Finding, refuse, warn
from backend.contract.residents import MARK, ResidentLook
from backend.contract.states import ShardState, shard_state
from backend.contract.words import HostId, UnixMs, counted
from backend.control import recovery_document as document
from backend.control.recovery_document import AtStake, DeviceFloor, PlannedStep, RecoveryPlan, sealed_recovery
from backend.control.views import FleetState, HostView, ReplicaView

SLACK_BYTES = 256 << 20
"""Device memory that may be missing all the same: contexts of others come and go."""
TAKEN_SHARE = 0.95
"""How much of what was derived for a stage must be back: a derived size is no measurement."""
FRESH_SOCKETS = 16
"""A p4 agent that has just started holds four socket descriptors; our own connections and its peers' come on top."""
ENOUGH_TOKENS = 8


def make_recovery(
    state: FleetState,
    host: HostView,
    look: ResidentLook,
    now_unix_ms: UnixMs,
    *,
    leave: Literal["drain", "cut"],
    deadline_seconds: float,
    keeper: KeeperLease | None = None,
) -> RecoveryPlan:
    """The plan, sealed, with everything that speaks against it; ``keeper`` is who keeps the fleet."""
    stakes = tuple(_stake(view) for view in state.replicas.values() if _touches(view, host.host))
    aside = f"{look.journal.folder}{MARK}{now_unix_ms}" if look.journal.folder else ""
    floors = _floors(host, look)
    need = sum(
        shard.bound.memory for shard in host.entities.shards.values() if _is_p4(shard.engine) and shard.device == "CPU"
    )
    steps = _steps(host.host, look, stakes, leave, deadline_seconds, aside, floors, need)
    return sealed_recovery(
        RecoveryPlan(
            context=state.context,
            host=host.host,
            made_unix_ms=now_unix_ms,
            look=look,
            replicas=stakes,
            leave=leave,
            deadline_seconds=deadline_seconds,
            aside=aside,
            floors=floors,
            memory_need=need,
            steps=steps,
            findings=tuple(_findings(host, look, stakes, leave, keeper)),
        )
    )


def _is_p4(engine: str) -> bool:
    return engine == "p4"


def _touches(view: ReplicaView, host: HostId) -> bool:
    return any(_is_p4(each.shard.engine) and each.shard.host == host for each in view.shards)


def _stake(view: ReplicaView) -> AtStake:
    return AtStake(
        replica=view.id,
        model=view.model,
        profile_name=view.profile_name,
        state=view.state.value,
        load_generation=view.load_generation,
        hosts=tuple(sorted({each.shard.host for each in view.shards})),
        in_flight=view.in_flight,
        plan=view.plan if view.plan is not None and view.plan.shards else None,
    )


def _floors(host: HostView, look: ResidentLook) -> tuple[DeviceFloor, ...]:
    """What every GPU must have free once the stages are gone. Main memory has its own step."""
    floors = []
    for device in look.devices:
        if device.name == "CPU":
            continue
        taken = sum(
            shard.bound.compared
            for shard in host.entities.shards.values()
            if look.life and shard.device == device.name and _is_p4(shard.engine) and _holds_memory(shard)
        )
        floor = min(device.total, device.free + int(taken * TAKEN_SHARE)) - SLACK_BYTES
        floors.append(DeviceFloor(device.name, device.free, taken, max(0, floor)))
    return tuple(floors)


def _holds_memory(shard: Shard) -> bool:
    return shard_state(shard.state) in (ShardState.WARMING, ShardState.READY, ShardState.DRAINING)


def _findings(
    host: HostView, look: ResidentLook, stakes: tuple[AtStake, ...], leave: str, keeper: KeeperLease | None
) -> list[Finding]:
    found = [*_blind(host, look), *_foreign(host, look, leave)]
    found += [
        warn(
            "recovery.not_ours",
            each.replica,
            expected="a plan of its load to load it again by",
            found="it was loaded by somebody else",
            remedy="It will be gone; whoever loaded it has to load it again.",
        )
        for each in stakes
        if each.plan is None
    ]
    if keeper is not None and not keeper.ended and stakes:
        models = ", ".join(sorted({each.model for each in stakes}))
        found.append(
            warn(
                "recovery.keeper",
                host.host,
                expected="nobody else who loads while this goes on",
                found=f"a keeper: {keeper.who}",
                remedy=f"Let it leave them alone until this is done: ringtop pause {models}",
            )
        )
    return found


def _blind(host: HostView, look: ResidentLook) -> Iterator[Finding]:
    """What must be known, or written down, before anything is ended."""
    name, facts = host.host, host.facts
    if facts is not None and facts.journal != "ok":
        yield refuse(
            "recovery.our_journal",
            name,
            expected="a journal of its ringtop agent that can be written",
            found=facts.journal,
            remedy="What is done must be written down first: repair that journal, then make the plan again.",
        )
    if look.is_listening and not look.life:
        yield refuse(
            "recovery.unseen",
            name,
            expected=f"the process that listens on port {look.port}",
            found="it is another user's, so that nobody here can tell one life of it from the next",
            remedy="Let the ringtop agent run as the p4 agent's user, or as root.",
        )
    if not look.journal.folder:
        yield refuse(
            "recovery.no_journal",
            name,
            expected="the folder of the p4 agent's journal",
            found=look.journal.words or "nobody says where it is",
            remedy="Set journal of [engines.p4] in agent.toml, then make the plan again.",
        )


def _foreign(host: HostView, look: ResidentLook, leave: str) -> Iterator[Finding]:
    """Stages that nobody here loaded, and nobody said that they are cut."""
    foreign = [node.name for node in look.nodes if not node.is_ours and node.rank is None]
    if foreign and leave == "drain":
        yield refuse(
            "recovery.foreign",
            host.host,
            expected="no stage that nobody here can drain",
            found=", ".join(foreign),
            remedy="They end with the p4 agent, and whoever loaded them has to load them again: say --cut.",
        )


def _steps(
    host: HostId,
    look: ResidentLook,
    stakes: tuple[AtStake, ...],
    leave: str,
    deadline: float,
    aside: str,
    floors: tuple[DeviceFloor, ...],
    need: int,
) -> tuple[PlannedStep, ...]:
    return (
        *_leaving(look, stakes, leave, deadline),
        *_host_down(host, look, floors),
        _census(host, look, aside),
        _begin(host, look),
        *_ring(look, stakes, need),
    )


def _step(
    name: str, what: str, condition: str, value: str, proof: str, *, command: str = "", ours: bool = True
) -> PlannedStep:
    by: Literal["ringtop", "a person"] = "ringtop" if ours else "a person"
    return PlannedStep(name=name, what=what, by=by, command=command, condition=condition, value=value, proof=proof)


def _leaving(look: ResidentLook, stakes: tuple[AtStake, ...], leave: str, deadline: float) -> tuple[PlannedStep, ...]:
    names = ", ".join(each.replica for each in stakes) or "no replica"
    flying = [each.in_flight for each in stakes]
    counts = "unknown" if None in flying else str(sum(each or 0 for each in flying))
    if not look.is_running:
        what = f"{names}: its stages ended with the p4 agent, which does not run"
        return (_step(document.LEAVE, what, "nothing", "no stage", "said"),)
    if leave == "cut":
        what = f"{names}: cut with the p4 agent, as was said"
        return (_step(document.LEAVE, what, "said with --cut", f"in flight: {counts}", "said"),)
    what = f"drain {names} within {duration(deadline)}"
    return (_step(document.LEAVE, what, "nothing: a drain cuts nothing", f"in flight: {counts}", "no leader serves"),)


def _host_down(host: HostId, look: ResidentLook, floors: tuple[DeviceFloor, ...]) -> tuple[PlannedStep, ...]:
    commands, seen = look.commands, counted(len(look.processes), "process") if look.processes else "none seen"
    gone = "the process and every process under it are gone; no orphan"
    memory = "; ".join(f"{each.name} {each.free} free and {each.taken} taken by its stages" for each in floors)
    back = "; ".join(f"{each.name} at least {each.floor} bytes free" for each in floors)
    return (
        _step(
            document.END,
            f"TERM the p4 agent of {host}, never KILL: KILL may leave its stages behind",
            f"it is still {look.life or 'not running'}",
            f"{look.life or 'not running'}; under it: {seen}",
            gone,
            command=commands.end,
            ours=commands.end_is_ours or not look.life,
        ),
        _step(
            document.PORT,
            "wait for its port",
            "no process of it is left",
            f"port {look.port} {'taken' if look.is_listening else 'free'}",
            f"nothing listens on port {look.port}",
        ),
        _step(
            document.MEMORY,
            "wait for the memory of its devices",
            "its port is free",
            memory or "no GPU here",
            back or "nothing to wait for",
        ),
    )


def _census(host: HostId, look: ResidentLook, aside: str) -> PlannedStep:
    journal = look.journal
    value = f"{journal.said}, {journal.admissions if journal.admissions is not None else 'unknown'} admitted requests"
    if not look.restart:
        what = f"count the journal {journal.folder}: nothing has to be moved"
        return _step(document.CENSUS, what, "the p4 agent is gone", value, "the census is empty")
    return _step(
        document.CENSUS,
        f"move the journal {journal.folder} to {aside}; nothing is deleted",
        "approved with --move-journal --why TEXT",
        value,
        f"every file is in {aside}, and {journal.folder} is empty",
    )


def _begin(host: HostId, look: ResidentLook) -> PlannedStep:
    commands = look.commands
    sockets = "unknown" if look.sockets is None else f"{look.sockets}, {look.hidden} hidden"
    return _step(
        document.BEGIN,
        f"start the p4 agent of {host}",
        "its port is free and its journal's census is empty",
        f"sockets now: {sockets}",
        f"another life answers INSPECT as {look.address}, with at most {FRESH_SOCKETS} socket descriptors, none hidden",
        command=commands.begin,
        ours=commands.begin_is_ours,
    )


def _ring(look: ResidentLook, stakes: tuple[AtStake, ...], need: int) -> tuple[PlannedStep, ...]:
    names = ", ".join(each.replica for each in stakes) or "no replica"
    again = [each for each in stakes if each.plan is not None]
    seen = max((*(int(each.load_generation) for each in stakes), *(node.generation for node in look.nodes)), default=0)
    commands = look.commands
    room = "unknown" if look.memory_available is None else f"{look.memory_available} bytes available"
    return (
        _step(
            document.NARROW,
            f"unload what is left of {names} elsewhere, stage by stage; dismiss what ended here",
            "the p4 agent answers",
            f"hosts: {', '.join(sorted({host for each in stakes for host in each.hosts})) or 'none'}",
            "each rank is proven absent",
        ),
        _step(
            document.ROOM,
            "count the host's memory without page cache",
            "no stage is left",
            room,
            f"{need} bytes or more",
        ),
        _step(
            document.LOAD,
            f"load {', '.join(each.model for each in again) or 'nothing'} again by the last good plan",
            "the new generation is greater than every one seen",
            f"the highest here: {seen}",
            "ready: every rank reports, and a canary crossed them",
        ),
        _step(
            document.BRIDGE,
            "restart the bridge, which clears its dial back-off",
            "the ring is ready",
            "told of loads" if commands.is_told else "no bridge is told of loads",
            "its command ended with 0",
            command=commands.bridge,
        ),
        _step(
            document.PROMPT,
            "one real prompt through every rank",
            "the ring is ready",
            "",
            f"{ENOUGH_TOKENS} tokens or more",
        ),
    )
