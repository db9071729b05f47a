"""Answers to a question for a shard's output: of a run of ours, or what an engine's own agent keeps of its shards."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from backend.agent.engine_logs import LogPiece, generations_of, read_file, read_log
from backend.agent.run_folder import RunFolder
from backend.contract.commands import ReadLog
from backend.contract.entities import Shard
from backend.engines.driver import AskingDriver

if TYPE_CHECKING:
    from backend.agent.daemon import AgentDaemon


class NoEarlierRun(ValueError):
    """The slot had no run before that one."""


async def read_shard_log(agent: AgentDaemon, command: ReadLog) -> dict[str, Any]:
    """A piece of what was printed, as it is told. Raises ValueError, NoEarlierRun: why there is none."""
    shard = agent.core.entities.shards.get(command.node_id)
    if shard is not None and shard.resident is not None:
        piece, wanted = await _resident_piece(agent, command, shard), int(shard.load_generation)
    else:
        wanted = _wanted_run(agent, command, shard)
        piece = _piece_of_run(agent, command, shard, wanted)
    text = piece.data.decode(errors="replace")
    said = {"text": text, "offset": piece.offset, "size": piece.size, "skipped": piece.skipped}
    return {**said, "generation": wanted}


async def _resident_piece(agent: AgentDaemon, command: ReadLog, shard: Shard) -> LogPiece:
    """Its agent keeps one file for all of its shards and all of their runs, if it keeps any."""
    whose = f"{shard.node_id} is {shard.resident.words}" if shard.resident is not None else str(shard.node_id)
    if command.previous or command.generation not in (None, shard.load_generation):
        raise ValueError(f"{whose}, which keeps no run apart: leave the run away, and look further back with --tail")
    driver = agent.inventory.drivers.get(shard.engine)
    if not isinstance(driver, AskingDriver):
        raise ValueError(f"{whose}, and [engines.{shard.engine}] stands in agent.toml no more")
    try:
        file = await driver.log_file()
    except ValueError as error:
        raise ValueError(f"{whose}: {error}") from None
    try:
        return await asyncio.to_thread(read_file, file, command.offset, command.limit)
    except OSError as error:
        raise ValueError(f"{whose}, and {file} cannot be read: {error.strerror}") from None


def _wanted_run(agent: AgentDaemon, command: ReadLog, shard: Shard | None) -> int:
    generation = command.generation or (shard.load_generation if shard is not None else None)
    kept = generations_of(agent.runs.folder, command.node_id)
    if generation is None and not kept:
        known = ", ".join(sorted(agent.core.entities.shards)) or "none"
        raise ValueError(f"no shard {command.node_id} on {agent.host}; shards here: {known}")
    wanted = kept[-1] if generation is None else int(generation)
    if not command.previous:
        return wanted
    before = [each for each in kept if each < wanted]
    if not before:
        raise NoEarlierRun(
            f"{command.node_id} has no run before generation {wanted} on {agent.host}; the last three are kept"
        )
    return before[-1]


def _piece_of_run(agent: AgentDaemon, command: ReadLog, shard: Shard | None, wanted: int) -> LogPiece:
    try:
        return read_log(RunFolder(agent.runs.run_folder(command.node_id, wanted)), command.offset, command.limit)
    except FileNotFoundError:
        if shard is not None and shard.taken_over is not None and wanted == shard.load_generation:
            by = shard.taken_over.started_by or "somebody else"
            words = f"{command.node_id} was started by {by}: what it prints goes where they sent it, not here"
            raise ValueError(words) from None
        raise ValueError(f"{command.node_id} of generation {wanted} printed nothing on {agent.host}") from None
