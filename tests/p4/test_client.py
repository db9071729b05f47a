"""The client against a simulated p4 agent: what it asks, what it is told, and what silence is called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.contract.p4.content_types import OUTPUT, RELEASE_RECEIPT
from backend.contract.p4.events import P4Event
from backend.contract.p4.lifecycle import NodeResult
from backend.engines.p4.asked import Stream
from backend.engines.p4.client import P4Client
from backend.engines.p4.payloads import json_payload
from backend.engines.p4.snapshot import Snapshot
from tests.p4.client_worlds import SECONDS, a_client, end_of, node_load, node_unload, stages_on
from tests.p4.peer import PlannedStage
from tests.p4.ring import SimulatedRing, simulated_ring

HOP = ("hop",)
DIRECT = ("direct",)


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[SimulatedRing]:
    with simulated_ring(tmp_path, 1) as started:
        yield started


async def ask_once(client: P4Client, stages: list[PlannedStage], tokens: int = 3) -> list[str]:
    """A session over all stages and one prompt; the texts that came back before the release."""
    sent = [{"agent": stage.agent, "node": stage.node, "generation": stage.generation} for stage in stages]
    generation = stages[0].load_generation
    for index, stage in enumerate(stages):
        body = {"load_generation": generation, "session_id": "s", "stages": sent, "stage_index": index}
        ready = await client.session(end_of(stage), body, SECONDS)
        assert isinstance(ready, dict), ready
    prompt = {"load_generation": generation, "session_id": "s", "request_id": "r", "prompt": "hi", "options": ""}
    texts: list[str] = []
    stream = await client.submit(end_of(stages[0]), {**prompt, "max_tokens": tokens})
    assert isinstance(stream, Stream), stream
    async with stream:
        while True:
            event = await stream.next(SECONDS)
            assert isinstance(event, P4Event), event
            if event.payload_content_type == OUTPUT:
                texts.append(json_payload(event)["text"])
            elif event.payload_content_type == RELEASE_RECEIPT:
                return texts


@pytest.mark.parametrize("modes", [HOP, DIRECT], ids=["hop", "direct"])
async def test_a_ring_is_loaded_asked_and_unloaded(ring: SimulatedRing, tmp_path: Path, modes: tuple[Any, ...]) -> None:
    stages = stages_on(ring.hosts)
    async with a_client(ring[0], tmp_path, modes={"inspection": modes, "control": modes}) as client:
        for stage in stages:
            result = await client.lifecycle(node_load(stage), seconds=SECONDS)
            assert isinstance(result, NodeResult), result
            assert (result.status, result.resource_state) == ("succeeded", "present")
            assert json.loads(result.body)["load_generation"] == stage.load_generation
        assert len(await ask_once(client, stages)) == 3
        seen = await client.inspect(SECONDS)
        assert isinstance(seen, Snapshot), seen
        assert [(node.node_id, node.generation) for node in seen.nodes] == [
            (stage.node, stage.generation) for stage in stages
        ]
        for stage in stages:
            result = await client.lifecycle(node_unload(stage), seconds=SECONDS)
            assert isinstance(result, NodeResult), result
            assert (result.status, result.resource_state) == ("succeeded", "absent")
    said = ring[0].until("every slot is free", lambda said: said["slots"]["used"] == 0)
    assert said["slots"]["leaked"] == 0
    assert said["failures"] == {}
