"""A client at a simulated p4 agent, with a slot count of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from backend.contract.p4.addresses import P4Address, parse_address
from backend.contract.p4.content_types import LLAMACPP, LOAD, UNLOAD
from backend.contract.p4.events import P4Node
from backend.contract.p4.lifecycle import NodeLoad, NodeUnload
from backend.engines.p4.client import P4Client
from backend.engines.p4.connection import P4Settings
from backend.engines.p4.payloads import write_json
from backend.engines.p4.slots import SlotCount
from tests.p4.peer import PlannedStage, planned_ring
from tests.p4.ring import SimulatedHost

SECONDS = 30.0
MIB = 2**20


@contextlib.asynccontextmanager
async def a_client(host: SimulatedHost, home: Path, life: str = "first", **settings: Any) -> AsyncIterator[P4Client]:
    """A client that dials where the agent listens and writes what it advertises."""
    modes = settings.pop("modes", None)
    slots = SlotCount(home / "slots.json", life)
    try:
        async with P4Client(
            host.dial, P4Address(host.address), slots, settings=P4Settings(**settings), modes=modes
        ) as client:
            yield client
    finally:
        slots.close()


def stages_on(hosts: list[SimulatedHost], count: int = 4) -> list[PlannedStage]:
    """The operators' ring over these agents."""
    return planned_ring([host.address for host in hosts], count)


def node_load(stage: PlannedStage, generation: int | None = None) -> NodeLoad:
    """The LOAD of a planned stage, with the capacities that operators use."""
    return NodeLoad(
        node_id=stage.node,
        node_generation=generation or stage.generation,
        adapter_kind=LLAMACPP,
        adapter_content_type=LOAD,
        queue_capacity=65_536,
        completion_capacity=65_536,
        retained_capacity=65_536,
        retained_bytes=256 * MIB,
        body=write_json(stage.body),
    )


def node_unload(stage: PlannedStage) -> NodeUnload:
    """Its UNLOAD."""
    return NodeUnload(
        node_id=stage.node,
        node_generation=stage.generation,
        adapter_kind=LLAMACPP,
        adapter_content_type=UNLOAD,
        body=write_json({"load_generation": stage.load_generation}),
    )


def end_of(stage: PlannedStage) -> P4Node:
    """The Node endpoint of a stage."""
    return P4Node(parse_address(stage.agent), stage.node, stage.generation)
