"""``last-load.json``: which stages make a ring and in what order, as whoever loads past ringtop writes it, or we do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from backend.contract.frames import FrameError, decode_frame
from backend.contract.plans import Plan

LONGEST = 1 << 20
"""A record names a few dozen stages; a file beyond this is something else."""


class RecordedStage(msgspec.Struct, frozen=True):
    """One stage of a record: its p4 agent's advertised address, its node and its generation."""

    agent: str
    node: str
    generation: int


class RecordedLoad(msgspec.Struct, frozen=True):
    """One load as recorded: its model in words, and its stages in the order of the ring."""

    model: str
    generation: int
    stages: tuple[RecordedStage, ...]

    def rank_of(self, agent: str, node: str, generation: int) -> int | None:
        """The place of a node in the ring, or None when it is not of this load."""
        wanted = RecordedStage(agent, node, generation)
        return next((rank for rank, stage in enumerate(self.stages) if stage == wanted), None)


def ring_of(plan: Plan) -> RecordedLoad:
    """One of our loads in the same form."""
    stages = tuple(
        RecordedStage(plan.address_of(shard), str(shard.node_id), int(shard.node_generation)) for shard in plan.shards
    )
    return RecordedLoad(plan.model, int(plan.load_generation), stages)


class RecordUnreadable(ValueError):
    """A record that cannot be used; the message names the file and says why."""


def read_record(path: Path) -> RecordedLoad:
    """Read a record. Raises RecordUnreadable: what is not certain is not guessed at."""
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
        if len(data) > LONGEST:
            raise RecordUnreadable(f"{path} is longer than {LONGEST} bytes, which no record is")
        tree = decode_frame(data.decode())
        generation = tree["load_generation"]
        stages = msgspec.convert(tree["stages"], tuple[_Stage, ...])
    except OSError as error:
        raise RecordUnreadable(f"{path} cannot be read: {error.strerror}") from error
    except (FrameError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise RecordUnreadable(f"{path} is no record of a load: {error}") from error
    except (KeyError, TypeError) as error:
        raise RecordUnreadable(f"{path} is no record of a load: it has no {error}") from error
    if type(generation) is not int:
        raise RecordUnreadable(f"{path} has the load generation {generation!r}")
    recorded = tuple(RecordedStage(stage.agent, stage.node, stage.generation) for stage in stages)
    return RecordedLoad(_model(tree.get("model")), generation, recorded)


def record_of(plan: Plan, at_unix_ms: int) -> dict[str, Any]:
    """The record of one of our loads, in the same form."""
    return {
        "load_generation": int(plan.load_generation),
        "at": at_unix_ms,
        "ingress_agent": plan.address_of(plan.shards[0]),
        "model": {"id": plan.model, "name": plan.model},
        "stages": msgspec.to_builtins(ring_of(plan).stages),
        "note": f"loaded by ringtop as {plan.replica}, plan {plan.digest[:8]}",
    }


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Put a record in the place of the one before, whole or not at all. Raises OSError."""
    draft = path.with_name(f".{path.name}.ringtop")
    with draft.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class _Stage(msgspec.Struct, frozen=True):
    """As it is written; what else a stage has there is not needed here."""

    agent: str
    node: str
    generation: int


def _model(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("id") or value.get("name")
    return value if isinstance(value, str) else ""
