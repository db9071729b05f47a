"""A p4 agent as a process of its host: measured, ended and started by configured commands, its journal moved aside.

KILL is never used: it may leave stages behind. Nothing of a journal is ever deleted.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import psutil

from backend.contract.p4.addresses import host_and_port
from backend.contract.reports import ResidentNode
from backend.contract.residents import MARK, Commands, ResidentLook, StageProcess
from backend.contract.words import UnixMs
from backend.engines.driver import EngineMissing, TendingFailed, TendingRefused
from backend.engines.p4.journal import look_at_journal
from backend.engines.p4.moving import count_folder, move_aside
from backend.engines.p4.own_agent import command_of, journal_given, life_of, listening, still_runs, unit_of
from backend.engines.p4.place import P4Place
from backend.engines.p4.programs import run_program
from backend.engines.p4.record import RecordUnreadable, read_record
from backend.engines.p4.surroundings import Lookout, Surroundings

COMMAND_SECONDS = 90.0
"""How long a command of agent.toml may take; one that takes longer is left running and said so."""
_TAIL = 20

Answered = Callable[[], Awaitable[tuple[ResidentNode, ...]]]


class P4Tender:
    """Tends one p4 agent. ``ask`` is one INSPECT (EngineMissing for silence), ``afresh`` leaves every connection."""

    def __init__(self, place: P4Place, lookout: Lookout, ask: Answered, afresh: Callable[[], Awaitable[None]]) -> None:
        self._place = place
        self._lookout = lookout
        self._ask = ask
        self._afresh = afresh
        self._port = host_and_port(place.agent)[1]
        self._life = ""
        self._folder = place.journal

    async def look(self, processes: tuple[str, ...], aside: str) -> ResidentLook:
        """Measure it now, all but devices and memory."""
        around = await self._lookout.seen(now=True)
        if around.life and self._life and around.life != self._life:
            await self._afresh()  # another life than the one our connections and their back-off are about
        self._life = around.life or self._life
        nodes: tuple[ResidentNode, ...] = ()
        is_there = bool(around.life) or await asyncio.to_thread(listening, self._port)
        silence = "" if is_there else "no process of it runs"
        if not silence:
            try:
                nodes = await self._ask()
            except EngineMissing as error:
                silence = str(error)
        seen = await asyncio.to_thread(self._measure, around, processes, aside)
        return msgspec.structs.replace(seen, nodes=nodes, silence=silence)

    def _measure(self, around: Surroundings, processes: tuple[str, ...], aside: str) -> ResidentLook:
        pid, life = around.pid, around.life
        folder = (journal_given(pid) if pid is not None else None) or self._folder
        if pid is not None and life:
            self._folder = folder
        gauge = around.gauge
        return ResidentLook(
            engine="p4",
            address=self._place.advertise,
            port=self._port,
            looked_unix_ms=UnixMs(time.time_ns() // 1_000_000),
            pid=pid if life else None,
            life=life,
            user=_user(pid) if pid is not None and life else "",
            is_listening=listening(self._port),
            sockets=gauge.sockets if gauge else None,
            unique=gauge.unique if gauge else None,
            hidden=gauge.hidden if gauge else None,
            processes=_descendants(pid) if pid is not None and life else (),
            alive=tuple(each for each in processes if still_runs(each)),
            journal=count_folder(folder),
            aside=count_folder(aside) if folder and aside.startswith(f"{folder}{MARK}") else None,
            restart=look_at_journal(folder, None).restart,
            commands=self._commands(pid if life else None),
            recorded=self._recorded(),
        )

    def _commands(self, pid: int | None) -> Commands:
        """What ends and starts it: of agent.toml, else what a person would type, as far as that can be seen."""
        place, unit = self._place, unit_of(pid) if pid is not None else ""
        end = f"systemctl {unit.replace('UNIT', 'stop', 1)}" if unit else f"kill -TERM {pid}" if pid is not None else ""
        begin = f"systemctl {unit.replace('UNIT', 'start', 1)}" if unit else command_of(pid) if pid is not None else ""
        return Commands(
            end=shlex.join(_ending(place.stop, str(pid or "PID"))) if place.stop else end,
            begin=shlex.join(place.start) if place.start else begin,
            bridge=shlex.join(place.bridge.restart),
            end_is_ours=bool(place.stop),
            begin_is_ours=bool(place.start),
            bridge_is_ours=bool(place.bridge.restart),
            is_told=place.bridge.is_told,
        )

    def _recorded(self) -> int:
        if not self._place.record:
            return 0
        try:
            return read_record(Path(self._place.record)).generation
        except RecordUnreadable:
            return 0  # said already, with the host's facts

    async def end(self, life: str) -> str:
        """End this life of it, never by KILL."""
        around = await self._lookout.seen(now=True)
        if not still_runs(life):
            return f"{life} was gone already"
        if around.life and around.life != life:
            raise TendingRefused(
                f"the p4 agent is {around.life} now and the command names {life}: it was started again meanwhile. "
                "Make a new plan."
            )
        if not self._place.stop:
            raise TendingRefused("agent.toml has no engines.p4.stop, so that ending the p4 agent is a person's to do")
        await self._afresh()  # FINISH on every connection: the next life is dialled without a back-off
        command = _ending(self._place.stop, life.partition(":")[0])
        await _run(command)
        return f"{shlex.join(command)} was run for {life}"

    async def begin(self) -> str:
        """Start it."""
        if not self._place.start:
            raise TendingRefused(
                "agent.toml has no engines.p4.start, so that starting the p4 agent is a person's to do"
            )
        is_taken = await asyncio.to_thread(listening, self._port)
        if is_taken:
            raise TendingRefused(f"port {self._port} is listened on already: it runs, or something else took its place")
        why = (await asyncio.to_thread(look_at_journal, self._folder, None)).restart
        if why:
            raise TendingRefused(f"{self._folder}: {why}")
        await _run(self._place.start)
        await self._afresh()
        return f"{shlex.join(self._place.start)} was run"

    async def move_journal(self, folder: str, aside: str, files: int, size: int) -> str:
        """Move its journal folder aside and leave an empty one in its place."""
        if folder not in (self._place.journal, self._folder):
            known = self._place.journal or self._folder or "none"
            raise TendingRefused(
                f"{folder!r} is not the journal of this p4 agent, which is {known!r}. Set journal of [engines.p4] in "
                "agent.toml."
            )
        around = await self._lookout.seen(now=True)
        is_taken = await asyncio.to_thread(listening, self._port)
        if around.life or is_taken:
            raise TendingRefused(
                f"the p4 agent runs ({around.life or f'port {self._port} is taken'}), and writes to {folder}. End it "
                "first."
            )
        return await asyncio.to_thread(move_aside, Path(folder), Path(aside), files, size)

    async def restart_bridge(self) -> str:
        """Restart the bridge that submits to its rings."""
        command = self._place.bridge.restart
        if not command:
            raise TendingRefused("agent.toml has no engines.p4.bridge.restart, so that this is a person's to do")
        await _run(command)
        return f"{shlex.join(command)} was run"


def _ending(command: tuple[str, ...], pid: str) -> tuple[str, ...]:
    """The command that ends it, with its pid where agent.toml has ``{pid}``."""
    return tuple(word.replace("{pid}", pid) for word in command)


async def _run(command: tuple[str, ...]) -> None:
    """Run one command of agent.toml to its end. What it leaves running in the background is its own."""
    try:
        ran = await run_program(command, COMMAND_SECONDS, lines=_TAIL, kills=False)
    except OSError as error:
        raise TendingFailed(f"{command[0]} cannot be run: {error.strerror}. Correct it in agent.toml.") from error
    if ran.code is None:
        raise TendingFailed(
            f"{shlex.join(command)} did not end within {COMMAND_SECONDS:g} s; it is left running. A command that "
            "starts the p4 agent must return (systemctl does)."
        )
    if ran.code:
        raise TendingFailed(f"{shlex.join(command)} {ran.how}: {' / '.join(ran.said) or 'it said nothing'}")


def _descendants(pid: int) -> tuple[StageProcess, ...]:
    try:
        found = [(each.pid, each.name()) for each in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return ()
    lives = [(life_of(each), name) for each, name in found]
    return tuple(StageProcess(life, name) for life, name in lives if life)


def _user(pid: int) -> str:
    try:
        return psutil.Process(pid).username()
    except (psutil.Error, KeyError):
        return ""
