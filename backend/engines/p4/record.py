"""``last-load.json``: which stages make a ring and in what order, as whoever loads past ringtop writes it, or we do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from backend.contract.frames import FrameError, decode_frame
from backend.contract.numbers import U64_MAX
from backend.contract.p4.addresses import parse_address
from backend.contract.p4.errors import P4CodecError
from backend.contract.plans import Plan
from backend.engines.p4.files import replace_file

LONGEST = 1 << 20
"""A record names a few dozen stages; a file beyond this is something else."""


class RecordedStage(msgspec.Struct, frozen=True):
    """One stage of a record: its p4 agent's advertised address, its node and its generation; more is not needed."""

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
        stages = msgspec.convert(tree["stages"], tuple[RecordedStage, ...])
    except OSError as error:
        raise RecordUnreadable(f"{path} cannot be read: {error.strerror}") from error
    except (FrameError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise RecordUnreadable(f"{path} is no record of a load: {error}") from error
    except (KeyError, TypeError) as error:
        raise RecordUnreadable(f"{path} is no record of a load: it has no {error}") from error
    if type(generation) is not int:
        raise RecordUnreadable(f"{path} has the load generation {generation!r}")
    for stage in stages:
        _check_stage(path, stage)
    return RecordedLoad(_model(tree.get("model")), generation, stages)


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
    text = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
    replace_file(path, text, path.with_name(f".{path.name}.ringtop"))


def _check_stage(path: Path, stage: RecordedStage) -> None:
    """Raise RecordUnreadable for a stage that no event can name."""
    try:
        parse_address(stage.agent)
    except P4CodecError as error:
        raise RecordUnreadable(f"{path} places stage {stage.node!r} nowhere: {error.reason}") from error
    if not stage.node or not 1 <= stage.generation <= U64_MAX:
        raise RecordUnreadable(f"{path} names a stage {stage.node!r} of generation {stage.generation}")


def _model(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("id") or value.get("name")
    return value if isinstance(value, str) else ""
