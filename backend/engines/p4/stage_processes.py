"""The stages' processes under a p4 agent, looked at from outside: threads that spin while nothing crosses the ring.

A stage of an active wait policy burns whole cores while it waits, and starves its own agent. Read-only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from backend.contract.reports import ResidentProcess
from backend.engines.p4.own_agent import PROC, life_of, read_text, variable_given

WAIT_POLICY = "OMP_WAIT_POLICY"
_BUSY_SHARE = 0.5
"""A thread that took more of the time than this while its stage was idle spins."""
_LEAST_SECONDS = 1.0
_TICKS = os.sysconf("SC_CLK_TCK")


class StageSeen(msgspec.Struct, frozen=True):
    """One look at a stage's process. ``ticks`` is the processor time of each of its threads so far, ``wanted`` the same
    with the time that it waited for a processor, which tells a spinning thread on a busy host too; empty is unknown."""

    pid: int
    life: str
    port: int
    ticks: dict[int, int]
    wait_policy: str | None
    wanted: dict[int, int] = {}


def look_at_stages(agent: int, proc: Path = PROC) -> tuple[StageSeen, ...]:
    """Every child of a p4 agent that was given a port to listen on: that is what a stage is started with."""
    found = []
    for pid in _children(agent, proc):
        port = _port_of(pid, proc)
        if port is not None:
            policy = variable_given(pid, WAIT_POLICY, proc)
            found.append(StageSeen(pid, life_of(pid, proc), port, _ticks(pid, proc), policy, _wanted(pid, proc)))
    return tuple(sorted(found, key=lambda each: each.port))


class IdleStages:
    """What stages take while they are idle. A stretch counts when ``mark``, what shows that something crossed them or
    changed, is the same at both ends; None is a moment at which they are not at rest."""

    def __init__(self) -> None:
        self._before: tuple[float, Any, dict[str, StageSeen]] | None = None
        self._idle: dict[str, tuple[float, int]] = {}

    def see(self, at: float, stages: tuple[StageSeen, ...], mark: Any) -> None:
        """One more look, at a monotonic time in seconds. The same look again says nothing new."""
        if self._before is not None and at - self._before[0] < _LEAST_SECONDS:
            return
        before, self._before = self._before, (at, mark, {stage.life: stage for stage in stages})
        self._idle = {life: said for life, said in self._idle.items() if life in self._before[2]}
        if before is None or mark is None or before[1] != mark:
            return
        for stage in stages:
            if stage.life in before[2]:
                self._idle[stage.life] = _taken(before[2][stage.life], stage, at - before[0])

    def processes(self, stages: tuple[StageSeen, ...], names: dict[int, str]) -> tuple[ResidentProcess, ...]:
        """The stages as they are told. ``names`` has the shard of each port that is ours."""
        found = []
        for stage in stages:
            cores, spinning = self._idle.get(stage.life, (None, None))
            found.append(
                ResidentProcess(
                    pid=stage.pid,
                    port=stage.port,
                    node_id=names.get(stage.port, ""),
                    threads=len(stage.ticks),
                    idle_cores=cores,
                    spinning=spinning,
                    wait_policy=stage.wait_policy,
                )
            )
        return tuple(found)


def _taken(before: StageSeen, after: StageSeen, seconds: float) -> tuple[float, int]:
    """Cores taken in between, to one digit so that it does not swing, and how many threads spun."""
    taken = [(ticks - before.ticks.get(thread, ticks)) / _TICKS / seconds for thread, ticks in after.ticks.items()]
    cores = sum(taken)
    wanted = [(ticks - before.wanted.get(thread, ticks)) / _TICKS / seconds for thread, ticks in after.wanted.items()]
    return (float(f"{cores:.1g}") if cores >= 0.1 else 0.0), sum(share > _BUSY_SHARE for share in wanted or taken)


def _children(pid: int, proc: Path) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(proc / str(pid) / "task"):
            words = (proc / str(pid) / "task" / task / "children").read_text().split()
            found += [int(word) for word in words]
    except OSError:
        return found  # it is gone, or its threads came and went: the next look sees them
    return found


def _port_of(pid: int, proc: Path) -> int | None:
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    where = words.index(b"--port") + 1 if b"--port" in words else len(words)
    return int(words[where]) if where < len(words) and words[where].isdigit() else None


def _ticks(pid: int, proc: Path) -> dict[int, int]:
    found: dict[int, int] = {}
    try:
        for task in os.listdir(proc / str(pid) / "task"):
            words = read_text(proc / str(pid) / "task" / task / "stat").rpartition(")")[2].split()
            found[int(task)] = int(words[11]) + int(words[12])
    except OSError:
        return found
    return found


def _wanted(pid: int, proc: Path) -> dict[int, int]:
    """Ticks in which each thread ran or could have; empty where the kernel does not count that."""
    found: dict[int, int] = {}
    try:
        for task in os.listdir(proc / str(pid) / "task"):
            ran, waited, _ = (proc / str(pid) / "task" / task / "schedstat").read_text().split()
            found[int(task)] = (int(ran) + int(waited)) * _TICKS // 10**9
    except (OSError, ValueError):
        return {}
    return found
