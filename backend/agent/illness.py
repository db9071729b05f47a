"""How ill a host is: what was measured goes in, degrees of illness come out. Pure.

An illness warns, or refuses loads. It lasts a while longer than its cause, by its kind, so that a value which swings
about its limit is one illness and not twenty.
"""

from __future__ import annotations

import msgspec

from backend.agent.core.health import FLAPPING_SECONDS, JOURNAL_DAMAGED
from backend.contract.durations import duration
from backend.contract.entities import Entities
from backend.contract.reports import EngineFacts, Illness, ResidentFacts, ResidentProcess
from backend.contract.states import shard_state
from backend.contract.words import UnixMs
from backend.planning.guards.residents import SLOTS_CRITICAL, SLOTS_WARN

PASSIVE = "PASSIVE"
SPINNING_CORES = 0.5
"""What an idle shard may take: it waits, so that anything near a whole core is a thread that spins."""
SYNC_WARNS_SECONDS = 1.0
SYNC_REFUSES_SECONDS = 10.0
DISK_WARNS_SHARE = 0.05
DISK_WARNS_BYTES = 2 << 30
DISK_REFUSES_BYTES = 512 << 20
DISK_SILENT_SECONDS = 5.0
DESCRIPTORS_WARN = 64
DESCRIPTORS_REFUSE = 16
CLOCK_JUMP_SECONDS = 2.0
SUSPEND_SECONDS = 5.0
LINGERS = {"journal slow": 30.0, "descriptors low": 10.0, "disk low": 10.0, "clock jumped": 600.0, "suspended": 600.0}
"""Seconds that an illness of this kind stays after it was last seen; others end with their cause."""


class Clocks(msgspec.Struct, frozen=True):
    """One moment on three clocks. ``wall_ms`` is Unix milliseconds; in seconds, only ``boot`` counts a suspend."""

    wall_ms: int
    mono: float
    boot: float


class DiskRoom(msgspec.Struct, frozen=True):
    """Bytes of the file system under the agent's state; ``silent`` is how long it has not answered, in seconds."""

    path: str
    free: int = 0
    total: int = 0
    silent: float = 0.0


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of the agent and its host. None is unknown and is no illness.

    ``descriptors`` is used and allowed; ``ports`` the range of the engines, ``ephemeral`` the kernel's for outgoing
    connections, ``kept`` the ranges that it leaves out of those (``net.ipv4.ip_local_reserved_ports``). ``engines``
    are those with an agent of their own, as they last answered.
    """

    clocks: Clocks
    journal_health: str = "ok"
    sync_seconds: float = 0.0
    disk: DiskRoom | None = None
    descriptors: tuple[int, int] | None = None
    ports: tuple[int, int] = (0, 0)
    ephemeral: tuple[int, int] | None = None
    kept: tuple[tuple[int, int], ...] = ()
    engines: tuple[EngineFacts, ...] = ()


class Health(msgspec.Struct, frozen=True):
    """The illnesses of a host, the clocks at the last look, and until when each illness lasts at least."""

    illnesses: tuple[Illness, ...] = ()
    clocks: Clocks | None = None
    until: dict[tuple[str, str], float] = {}

    @property
    def refuses_loads(self) -> str:
        """Why no load is taken, or an empty text. A damaged journal refuses them by itself, in its own words."""
        return "; ".join(ill.words for ill in self.illnesses if ill.refuses_loads and ill.kind != JOURNAL_DAMAGED)


def judge(before: Health, vitals: Vitals, entities: Entities) -> Health:
    """The health after one look."""
    seen = [
        *_of_journal(vitals),
        *_of_disk(vitals),
        *_of_descriptors(vitals),
        *_of_clocks(before.clocks, vitals.clocks),
        *_of_ports(vitals),
        *_of_residents(vitals),
        *_of_shards(entities),
    ]
    now = vitals.clocks.mono
    known = {(ill.kind, ill.subject): ill for ill in before.illnesses}
    after: dict[tuple[str, str], Illness] = {}
    until: dict[tuple[str, str], float] = {}
    for ill in seen:
        key = (ill.kind, ill.subject)
        old = known.get(key)
        after[key] = ill if old is None else msgspec.structs.replace(ill, since_unix_ms=old.since_unix_ms)
        until[key] = now + LINGERS.get(ill.kind, 0.0)
    for key, old in known.items():
        if key not in after and before.until.get(key, 0.0) > now:
            after[key], until[key] = old, before.until[key]
    return Health(illnesses=tuple(after[key] for key in sorted(after)), clocks=vitals.clocks, until=until)


def _ill(vitals: Vitals, kind: str, words: str, *, refuses_loads: bool = False, subject: str = "") -> Illness:
    return Illness(kind, words, UnixMs(vitals.clocks.wall_ms), refuses_loads, subject)


def _of_journal(vitals: Vitals) -> list[Illness]:
    if vitals.journal_health != "ok":
        return [_ill(vitals, JOURNAL_DAMAGED, vitals.journal_health, refuses_loads=True)]
    if vitals.sync_seconds <= SYNC_WARNS_SECONDS:
        return []
    refuses = vitals.sync_seconds > SYNC_REFUSES_SECONDS
    limit = (
        f"loads are refused over {SYNC_REFUSES_SECONDS:g} s"
        if refuses
        else f"{SYNC_WARNS_SECONDS:g} s is slow, over {SYNC_REFUSES_SECONDS:g} s loads are refused"
    )
    words = (
        f"a sync of the journal takes {vitals.sync_seconds:.1f} s ({limit}); every answer waits for it. "
        "Look at what else writes to that disk, and at the kernel's log"
    )
    return [_ill(vitals, "journal slow", words, refuses_loads=refuses)]


def _of_disk(vitals: Vitals) -> list[Illness]:
    disk = vitals.disk
    if disk is None:
        return []
    if disk.silent >= DISK_SILENT_SECONDS:
        words = (
            f"the file system of {disk.path} has not answered for {duration(disk.silent)}. Look at its mount and disk"
        )
        return [_ill(vitals, "disk silent", words, refuses_loads=True, subject=disk.path)]
    if not disk.total or (disk.free >= DISK_WARNS_BYTES and disk.free >= DISK_WARNS_SHARE * disk.total):
        return []
    refuses = disk.free < DISK_REFUSES_BYTES
    limit = (
        f"loads are refused under {DISK_REFUSES_BYTES >> 20} MiB"
        if refuses
        else f"under {DISK_WARNS_BYTES >> 30} GiB or {DISK_WARNS_SHARE:.0%} is low"
    )
    words = f"{disk.free >> 20} MiB free of {disk.total >> 20} MiB under {disk.path} ({limit}). Make room there"
    return [_ill(vitals, "disk low", words, refuses_loads=refuses, subject=disk.path)]


def _of_descriptors(vitals: Vitals) -> list[Illness]:
    if vitals.descriptors is None:
        return []
    used, allowed = vitals.descriptors
    left = allowed - used
    if left >= DESCRIPTORS_WARN:
        return []
    words = (
        f"{max(left, 0)} of {allowed} file descriptors of the agent are left (under {DESCRIPTORS_WARN} is low, under "
        f"{DESCRIPTORS_REFUSE} loads are refused). Raise LimitNOFILE of its unit, or close consoles"
    )
    return [_ill(vitals, "descriptors low", words, refuses_loads=left < DESCRIPTORS_REFUSE)]


def _of_clocks(last: Clocks | None, now: Clocks) -> list[Illness]:
    if last is None:
        return []
    seen = []
    slept = (now.boot - last.boot) - (now.mono - last.mono)
    if slept > SUSPEND_SECONDS:
        words = (
            f"the host was suspended for {duration(slept)}: what was measured before is old, and engines stood still"
        )
        seen.append(Illness("suspended", words, UnixMs(now.wall_ms)))
    jumped = (now.wall_ms - last.wall_ms) / 1000 - (now.boot - last.boot)
    if abs(jumped) > CLOCK_JUMP_SECONDS:
        words = (
            f"the wall clock jumped by {jumped:+.0f} s. Deadlines hold, as they are monotonic; generations are minted "
            "from wall clocks. Look at the host's time service"
        )
        seen.append(Illness("clock jumped", words, UnixMs(now.wall_ms)))
    return seen


def _of_ports(vitals: Vitals) -> list[Illness]:
    """Ports that the kernel may give to an outgoing connection before an engine binds them."""
    if vitals.ephemeral is None:
        return []
    low, high = max(vitals.ports[0], vitals.ephemeral[0]), min(vitals.ports[1], vitals.ephemeral[1])
    if low > high or _covers(vitals.kept, low, high):
        return []
    kept = ",".join(f"{first}-{last}" if first != last else str(first) for first, last in vitals.kept)
    wanted = f"{kept + ',' if kept else ''}{low}-{high}"
    words = (
        f"ports {low}-{high} of the engines lie in the kernel's range {vitals.ephemeral[0]}-{vitals.ephemeral[1]} for "
        f"outgoing connections, any of which may take one first. Run: sysctl -w "
        f"net.ipv4.ip_local_reserved_ports={wanted}"
    )
    return [_ill(vitals, "ports ephemeral", words)]


def _covers(ranges: tuple[tuple[int, int], ...], low: int, high: int) -> bool:
    for first, last in sorted(ranges):
        if first <= low <= last:
            low = last + 1
    return low > high


def _of_residents(vitals: Vitals) -> list[Illness]:
    """Engines with an agent of their own: silent ones, lost connection slots, and journals that end a restart."""
    seen = []
    for engine in vitals.engines:
        if engine.words:
            seen.append(_ill(vitals, f"{engine.engine} silent", engine.words, subject=engine.engine))
        if engine.resident is not None:
            seen += _of_resident(vitals, engine.engine, engine.resident)
    return seen


def _of_resident(vitals: Vitals, engine: str, resident: ResidentFacts) -> list[Illness]:
    seen = []
    used, hidden = resident.sockets or 0, resident.hidden or 0
    if used >= SLOTS_WARN or hidden:
        words = (
            f"the {engine} agent holds {used} sockets, {hidden} of them hidden: connections that ended without FINISH "
            f"and are lost until it starts again ({SLOTS_WARN} is high, at {SLOTS_CRITICAL} loads are refused, at 256 "
            "it takes nobody and says nothing). Unload its rings and start it again in time"
        )
        seen.append(_ill(vitals, f"{engine} slots", words, refuses_loads=used >= SLOTS_CRITICAL, subject=engine))
    if resident.journal != "ok":
        words = f"the journal of the {engine} agent: {resident.journal}. It takes no load like this"
        seen.append(_ill(vitals, f"{engine} journal", words, subject=engine))
    if resident.restart:
        kib = (resident.journal_bytes or 0) >> 10
        size = f"{resident.journal_files} files, {f'{kib >> 10} MiB' if kib >= 1024 else f'{kib} KiB'}"
        seen.append(_ill(vitals, f"{engine} restart", f"{resident.restart} ({size})", subject=engine))
    spinning = [each for each in resident.processes if each.spinning or (each.idle_cores or 0) >= SPINNING_CORES]
    return seen + [_spinning(vitals, engine, each) for each in spinning]


def _spinning(vitals: Vitals, engine: str, stage: ResidentProcess) -> Illness:
    """A shard that takes whole cores while nothing crosses it: its threads wait actively."""
    policy = "may not be read" if stage.wait_policy is None else f"is {stage.wait_policy or 'not set'}"
    if (stage.wait_policy or "").upper() == PASSIVE:
        remedy = "So something else of it keeps polling: look at its threads (top -H) and its other variables"
    elif stage.node_id:
        remedy = f"Take wait_policy = 'active' out of its profile, so that it is {PASSIVE}, and load it again"
    else:
        remedy = f'Add ["OMP_WAIT_POLICY", "{PASSIVE}"] to environment in the plan of who loads it, and load it again'
    words = (
        f"{stage.node_id or 'a stage'} (pid {stage.pid}) takes {stage.idle_cores:.1f} cores, {stage.spinning} of "
        f"{stage.threads} threads spinning, while nothing crosses it: they starve the {engine} agent. OMP_WAIT_POLICY "
        f"{policy}; {PASSIVE} lets them sleep. {remedy}"
    )
    return _ill(vitals, f"{engine} spinning", words, subject=stage.node_id or f"pid {stage.pid}")


def _of_shards(entities: Entities) -> list[Illness]:
    """What the slots of this host say: stuck, flapping, unresponsive."""
    seen = []
    for hold in entities.holds.values():
        if hold.kind == "stuck":
            words = f"{hold.device} takes no load until {hold.until}: it survives KILL. Look at the kernel's log"
            seen.append(Illness("stuck", words, hold.at_unix_ms, False, hold.node_id))
    for failing in entities.failing.values():
        if failing.is_quarantined:
            words = (
                f"{failing.node_id} failed {len(failing.failed_unix_ms)} times within {FLAPPING_SECONDS // 60} min and "
                f"takes no load until it is unloaded; the last time: {failing.words}"
            )
            seen.append(Illness("flapping", words, failing.failed_unix_ms[-1], False, failing.node_id))
    for shard in entities.shards.values():
        state = shard_state(shard.state)
        if state is not None and state.is_live and shard.canary is not None and not shard.canary.ok:
            words = f"{shard.node_id} runs and does not answer: {shard.canary.words}. Nothing stops it by itself"
            seen.append(Illness("unresponsive", words, shard.canary.at_unix_ms, False, shard.node_id))
    return seen
