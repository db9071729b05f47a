"""The simulator's own codec against the interoperability vectors, in both directions, and what it may not import."""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.p4.simulator import bound, hops, lifecycle, wire

VECTORS = Path(__file__).parents[1] / "contract" / "p4" / "vectors"
SIMULATOR = Path(__file__).parent / "simulator"


def entries(name: str) -> list[Any]:
    """The vectors of one file, each under its own name."""
    return [pytest.param(entry, id=entry["name"]) for entry in json.loads((VECTORS / f"{name}.json").read_text())]


def bytes_of(entry: dict[str, Any]) -> bytes:
    if "hex" in entry:
        return bytes.fromhex(entry["hex"])
    return b"".join(bytes.fromhex(part["hex"]) * part.get("repeat", 1) for part in entry["parts"])


def end_of(value: dict[str, Any] | None) -> wire.Endpoint | None:
    match value:
        case None:
            return None
        case {"kind": "agent", "agent": agent}:
            return wire.AgentEnd(wire.parse_address(agent))
        case {"kind": "node", "agent": agent, "node": node, "generation": generation}:
            return wire.NodeEnd(wire.parse_address(agent), node, generation)
        case _:
            address = wire.parse_address(value["ingress_agent"])
            return wire.OuterEnd(address, value["channel"], value["connection_generation"])


def event_of(entry: dict[str, Any]) -> wire.Event:
    said = entry["event"]
    source, target, route = end_of(said["source"]), end_of(said["target"]), end_of(said["return_route"])
    assert source is not None
    assert target is not None
    assert route is None or isinstance(route, wire.OuterEnd)
    return wire.Event(
        version=said["protocol_version"],
        event_id=said["event_id"] or "a" * entry["event_id_repeat"],
        correlation_id=said["correlation_id"],
        causation_id=said["causation_id"],
        source=source,
        target=target,
        return_route=route,
        kind=wire.Class[said["class"].upper()],
        sequence=said["sequence"],
        deadline=said["deadline_unix_ms"],
        adapter=said["adapter_kind"],
        content_type=said["payload_content_type"],
        payload=bytes.fromhex(entry["payload_hex"]),
    )


@pytest.mark.parametrize("entry", entries("p4e3-valid"))
def test_an_event_is_read_and_written_to_the_byte(entry: dict[str, Any]) -> None:
    body = bytes_of(entry)
    assert len(body) == entry["length"]
    assert hashlib.sha256(body).hexdigest() == entry["sha256"]
    event = wire.decode_event(body)
    assert event == event_of(entry)
    assert wire.encode_event(event) == (body if entry["canonical"] else bytes.fromhex(entry["canonical_hex"]))


@pytest.mark.parametrize("entry", entries("p4e3-invalid"))
def test_a_wrong_event_is_refused_by_the_first_rule_it_breaks(entry: dict[str, Any]) -> None:
    with pytest.raises(wire.Refused) as refusal:
        wire.decode_event(bytes_of(entry))
    assert str(refusal.value) == entry["error"]


@pytest.mark.parametrize("entry", entries("p4h1-valid"))
def test_a_hop_frame_is_read_and_written_to_the_byte(entry: dict[str, Any]) -> None:
    body, said = bytes_of(entry), entry["frame"]
    frame = hops.decode_hop(body)
    assert frame is not None
    assert type(frame).__name__.lower() == said["kind"].replace("_", "")
    assert frame.__class__.__name__ == "".join(word.capitalize() for word in said["kind"].split("_"))
    for theirs, ours in (
        ("sender_id", "sender"),
        ("connection_generation", "generation"),
        ("accepted_connection_generation", "accepted_generation"),
        ("max_outstanding", "max_outstanding"),
        ("max_receipt_bytes", "max_receipt_bytes"),
        ("attempt", "attempt"),
        ("detail", "detail"),
    ):
        if theirs in said:
            assert getattr(frame, ours) == said[theirs]
    if "digest" in said:
        assert getattr(frame, "digest", b"").hex() == said["digest"]
    if "event_hex" in said:
        assert getattr(frame, "event", b"").hex() == said["event_hex"]
    assert hops.encode_hop(frame) == body


@pytest.mark.parametrize("entry", entries("p4h1-invalid"))
def test_a_wrong_hop_frame_is_refused_or_none(entry: dict[str, Any]) -> None:
    if entry.get("not_hop"):
        assert hops.decode_hop(bytes_of(entry)) is None
        return
    with pytest.raises(wire.Refused) as refusal:
        hops.decode_hop(bytes_of(entry))
    assert str(refusal.value) == entry["error"]


@pytest.mark.parametrize("entry", entries("lifecycle-valid"))
def test_a_lifecycle_payload_is_read_and_written_to_the_byte(entry: dict[str, Any]) -> None:
    payload = lifecycle.decode_payload(entry["kind"], bytes_of(entry))
    assert payload.metadata == {name: value for name, value in entry["metadata"].items() if value is not None}
    assert payload.body.hex() == entry["opaque_hex"]
    expected = bytes_of(entry) if entry["canonical"] else bytes.fromhex(entry["canonical_hex"])
    assert lifecycle.encode_payload(entry["kind"], payload) == expected


@pytest.mark.parametrize("entry", entries("lifecycle-invalid"))
def test_a_wrong_lifecycle_payload_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(wire.Refused) as refusal:
        lifecycle.decode_payload(entry["kind"], bytes_of(entry))
    if "error" in entry and entry.get("stage") == "validate":
        assert str(refusal.value) == entry["error"]
    else:
        said = str(entry.get("error") or entry["error_prefix"])
        assert str(refusal.value).startswith(said.partition(":")[0])


@pytest.mark.parametrize("entry", entries("result-bound"))
def test_the_bound_is_the_reported_one_to_the_byte(entry: dict[str, Any]) -> None:
    shape = entry["n_batch"], entry["n_ubatch"], entry["n_seq_max"], entry["tensors"], entry["payload_bytes"]
    found = bound.largest_result(*shape, speculative=entry["speculative"])
    assert found == entry["max_physical_result_bytes"]


def test_the_simulator_shares_no_code_with_the_product() -> None:
    files = [*SIMULATOR.rglob("*.py"), Path(__file__).parent / "ring.py"]
    assert len(files) > 8
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.split(".")[0] in ("backend", "console", "bench")], file
