"""Keeps an eye on engines that nobody here started: looks for them, asks their ports beside everything else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from backend.agent import devices
from backend.agent.foreign import ForeignFound, find_foreign
from backend.contract.entities import Entities
from backend.contract.reports import ForeignProcess
from backend.engines.answers import READY, Told, ask_engine

ANSWER_SECONDS = 2.0
AGAIN_SECONDS = 5.0
"""How often one that is not known to be ready is asked."""
SETTLED_SECONDS = 60.0
"""How often one that answered as it should is asked whether it still serves the same."""
_Key = tuple[int, int]
"""Pid and start ticks."""


class ForeignWatch:
    """What was found at the last look, with what their ports said last.

    Children of ``agent_pid`` (None: this process) are questions of its own.
    """

    def __init__(self, runs: Path, model_roots: Sequence[str], agent_pid: int | None = None) -> None:
        self._agent_pid = agent_pid
        self._runs = runs
        self._roots = tuple(model_roots)
        self._found = ForeignFound()
        self._told: dict[_Key, tuple[float, Told]] = {}
        self._asking: asyncio.Task[None] | None = None

    @property
    def mapped(self) -> int:
        """Bytes of files that foreign engines have mapped."""
        return self._found.mapped

    def processes(self, entities: Entities) -> tuple[ForeignProcess, ...]:
        """The foreign engines, each with what its port said last; one that was adopted since the look is none."""
        shards = entities.shards.values()
        adopted = {(s.identity.pid, s.identity.start_ticks) for s in shards if s.identity is not None}
        return tuple(self._with_answer(each) for each in self._found.processes if _key(each) not in adopted)

    async def look(self, entities: Entities) -> None:
        """Look at the process table; ports that are due are asked meanwhile, and answer by the next look."""
        self._found = await asyncio.to_thread(self._find, entities)
        known = {_key(process) for process in self._found.processes}
        self._told = {key: told for key, told in self._told.items() if key in known}
        due = [process for process in self._found.processes if process.ports and self._is_due(process)]
        if due and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask(due))

    def find_now(self, pid: int, entities: Entities) -> ForeignProcess | None:
        """The foreign engine of this pid as it is at this moment; None when there is none."""
        process = next((each for each in self._find(entities).processes if each.pid == pid), None)
        return None if process is None else self._with_answer(process)

    def _find(self, entities: Entities) -> ForeignFound:
        gpus = devices.last_reading()
        return find_foreign(entities, self._runs, self._agent_pid, model_roots=self._roots, gpus=gpus)

    def _is_due(self, process: ForeignProcess) -> bool:
        at, told = self._told.get(_key(process), (float("-inf"), Told()))
        return time.monotonic() - at >= (SETTLED_SECONDS if told.answers == READY else AGAIN_SECONDS)

    async def _ask(self, due: Sequence[ForeignProcess]) -> None:
        answers = await asyncio.gather(
            *(ask_engine(each.engine, each.role, each.address, each.ports[0], ANSWER_SECONDS) for each in due)
        )
        now = time.monotonic()
        self._told |= {_key(process): (now, told) for process, told in zip(due, answers, strict=True)}

    def _with_answer(self, process: ForeignProcess) -> ForeignProcess:
        _, told = self._told.get(_key(process), (0.0, Told()))
        return msgspec.structs.replace(
            process,
            answers=told.answers,
            served=told.served,
            release=told.release,
            words=told.words,
            model=process.model or told.model,
        )


def _key(process: ForeignProcess) -> _Key:
    return process.pid, process.start_ticks
