"""What the bridge is told of a load, and how its own word on it is heard: a real program, a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backend.engines.p4.bridge import Bridge
from backend.engines.p4.place import BridgePlace
from backend.engines.p4.record import RecordUnreadable, read_record, record_of, write_record
from tests.engines.p4.plans import ADDRESSES, a_p4_plan


@asynccontextmanager
async def controllers(answer: Any, status: str = "200 OK") -> AsyncIterator[tuple[str, list[str]]]:
    """An HTTP server that says this at ``/api/controllers``, and what it was asked."""
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.0 {status}\r\nContent-Type: application/json\r\n\r\n{json.dumps(answer)}".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


def stages(generation: int, matches: bool = True) -> dict[str, Any]:
    names = [f"step37-1/{rank}" for rank in range(4)]
    found = [{"node": name, "found": True, "generation": generation, "generationMatches": matches} for name in names]
    return {"controllers": [{"model": "step37", "stages": found}]}


def a_hook(folder: Path, script: str) -> tuple[str, ...]:
    path = folder / "hook"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return (str(path), "--ring")


async def test_a_load_is_published_to_its_record_and_verified(tmp_path: Path) -> None:
    plan = a_p4_plan()
    record, token = tmp_path / "last-load.json", tmp_path / "token"
    token.write_text("secret\n")
    async with controllers(stages(int(plan.load_generation))) as (url, asked):
        bridge = Bridge(BridgePlace(record=str(record), url=url, token=str(token)))
        told = await bridge.publish(plan, 5)
    assert told.ok, told.words
    assert "GET /api/controllers" in asked[0]
    assert "X-Kvasir-Service-Token: secret" in asked[0]
    found = read_record(record)
    assert found.generation == plan.load_generation
    assert found.rank_of(ADDRESSES["host-b"], "step37-1/3", int(plan.load_generation)) == 3
    assert found.rank_of(ADDRESSES["host-b"], "step37-1/3", 1) is None


async def test_a_bridge_that_did_not_take_it_over_is_said_aloud(tmp_path: Path) -> None:
    plan = a_p4_plan()
    async with controllers(stages(int(plan.load_generation), matches=False)) as (url, _):
        told = await Bridge(BridgePlace(record=str(tmp_path / "r"), url=url)).publish(plan, 5)
    assert not told.ok
    assert "step37-1/0" in told.words
    async with controllers({}, "503 Service Unavailable") as (url, _):
        told = await Bridge(BridgePlace(record=str(tmp_path / "r"), url=url)).publish(plan, 5)
    assert not told.ok
    assert "503" in told.words
    told = await Bridge(BridgePlace(record=str(tmp_path / "none" / "r"))).publish(plan, 5)
    assert not told.ok
    assert "stale" in told.words


async def test_a_bridge_behind_a_path_and_one_that_answers_no_json(tmp_path: Path) -> None:
    plan = a_p4_plan()
    async with controllers(stages(int(plan.load_generation))) as (url, asked):
        told = await Bridge(BridgePlace(record=str(tmp_path / "r"), url=f"{url}/ring/")).publish(plan, 5)
    assert told.ok, told.words
    assert "GET /ring/api/controllers HTTP" in asked[0]
    told = await Bridge(BridgePlace(record=str(tmp_path / "r"), url="http://127.0.0.1:port")).publish(plan, 5)
    assert not told.ok
    assert "does not say that it took it over" in told.words


async def test_a_hook_gets_the_word_and_the_ring(tmp_path: Path) -> None:
    plan = a_p4_plan()
    hook = a_hook(tmp_path, f'echo "$2" >> {tmp_path}/words; cat > {tmp_path}/"$2".json')
    bridge = Bridge(BridgePlace(hook=hook))
    assert (await bridge.publish(plan, 5)).ok
    assert (await bridge.say("close", record_of(plan, 6))).ok
    assert (tmp_path / "words").read_text().split() == ["publish", "close"]
    assert json.loads((tmp_path / "close.json").read_text())["load_generation"] == plan.load_generation


async def test_a_hook_that_fails_is_quoted(tmp_path: Path) -> None:
    bridge = Bridge(BridgePlace(hook=a_hook(tmp_path, "cat > /dev/null; echo no such ring >&2; exit 3")))
    told = await bridge.publish(a_p4_plan(), 5)
    assert not told.ok
    assert "exit 3" in told.words
    assert "no such ring" in told.words
    told = await Bridge(BridgePlace(hook=("/nowhere/hook",))).publish(a_p4_plan(), 5)
    assert not told.ok
    assert "cannot be run" in told.words


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"load_generation": "7", "stages": []}',
        '{"load_generation": 7, "stages": [{"agent": 1}]}',
        '{"load_generation": 7, "stages": [{"agent": "10.0.0.1:42011", "node": "s0", "generation": 7}]}',
        '{"load_generation": 7, "stages": [{"agent": "tcp://h:1", "node": "", "generation": 7}]}',
        '{"load_generation": 7, "stages": [{"agent": "tcp://h:1", "node": "s0", "generation": 0}]}',
        "\xff",
    ],
    ids=repr,
)
def test_a_record_that_is_none_is_not_guessed_at(tmp_path: Path, text: str) -> None:
    path = tmp_path / "last-load.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RecordUnreadable, match=r"last-load\.json"):
        read_record(path)
    with pytest.raises(RecordUnreadable, match="cannot be read"):
        read_record(tmp_path / "none")


def test_a_record_of_the_operators_loader_is_read(tmp_path: Path) -> None:
    path = tmp_path / "last-load.json"
    stage = {"agent": "tcp://10.0.0.1:42011", "node": "step37-s0", "generation": 7, "binary": "/opt/stage"}
    tree = {"load_generation": 7, "at": "2026-01-02T03:04:05Z", "ingress_agent": "tcp://10.0.0.1:42011"}
    path.write_text(json.dumps({**tree, "model": {"id": "step37", "name": "Step"}, "stages": [stage], "note": ""}))
    found = read_record(path)
    assert (found.model, found.rank_of("tcp://10.0.0.1:42011", "step37-s0", 7)) == ("step37", 0)


def test_a_record_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "last-load.json"
    path.write_text("old")
    write_record(path, record_of(a_p4_plan(), 5))
    assert read_record(path).model == "step37"
    assert [each.name for each in tmp_path.iterdir()] == ["last-load.json"]
