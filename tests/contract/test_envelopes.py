"""Commands are closed both ways; events are open, so that one new word in a newer agent never hides a host."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
import pytest

from backend.contract.commands import AnyCommand, Load, StartDrain, Unload
from backend.contract.endpoints import Agent, Node
from backend.contract.entities import JournalRecord
from backend.contract.envelopes import (
    PROTOCOL_VERSION,
    command_envelope,
    command_type,
    decode_command,
    decode_event,
    encode,
    event_envelope,
)
from backend.contract.events import AnyEvent, Heartbeat, JournalBatch, UnknownEvent
from backend.contract.frames import FrameError
from backend.contract.words import HostId, NodeGeneration, NodeId, UnixMs
from tests.contract.factories import AGENT, CONSOLE, GENERATION, command_tree, drain_command, load


def changed(tree: dict[str, Any], **fields: Any) -> str:
    return json.dumps({**tree, **fields})


def with_body(tree: dict[str, Any], **fields: Any) -> str:
    return json.dumps({**tree, "body": {**tree["body"], **fields}})


@pytest.mark.parametrize("command", [load(), drain_command()], ids=command_type)
def test_a_command_comes_back_equal_with_its_envelope(command: Load | StartDrain) -> None:
    sent = command_envelope(command, source=CONSOLE, target=AGENT, sequence=7)
    envelope, body = decode_command(encode(sent))
    assert body == command
    assert (envelope.source, envelope.target, envelope.sequence) == (CONSOLE, AGENT, 7)
    assert (envelope.correlation_id, envelope.class_) == (command.op_id, "control")


@pytest.mark.parametrize("name", ["by", "why"])
def test_what_a_person_says_with_a_command_has_a_longest(name: str) -> None:
    assert decode_command(with_body(command_tree(drain_command()), **{name: "é" * 4096}))
    with pytest.raises(FrameError, match=f"{name} has 4097 characters, more than 4096"):
        decode_command(with_body(command_tree(drain_command()), **{name: "y" * 4097}))


def test_the_class_travels_under_its_wire_name() -> None:
    assert command_tree(load())["class"] == "control"


def test_every_command_and_event_has_a_type_of_its_own() -> None:
    for union in (AnyCommand, AnyEvent):
        tags = [kind.__struct_config__.tag for kind in get_args(union)]
        assert len(set(tags)) == len(tags)
        assert all(isinstance(tag, str) and tag == tag.lower() for tag in tags)


def test_a_command_to_the_node_it_creates_is_refused_with_its_code_and_the_remedy() -> None:
    node = {"kind": "node", "agent": "host-a", "node_id": "tiny-1/0", "generation": GENERATION}
    with pytest.raises(FrameError, match=r"target\.not_agent.*tiny-1/0.*address the agent of its host"):
        decode_command(changed(command_tree(load()), target=node))


def test_a_command_to_a_console_is_refused_too() -> None:
    tree = command_tree(load())
    with pytest.raises(FrameError, match=r"target\.not_agent"):
        decode_command(changed(tree, target=tree["source"]))


@pytest.mark.parametrize("kind", ["reboot", "", "Load", None, 5, ["load"], {}])
def test_an_unknown_command_type_is_refused_by_name(kind: object) -> None:
    with pytest.raises(FrameError) as refused:
        decode_command(with_body(command_tree(load()), type=kind))
    assert f"command type {kind!r} is unknown" in str(refused.value)
    assert "drain.start" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"force": True}, "force"),
        ({"capacities": {"queue_capacity": 0}}, "queue_capacity"),
        ({"capacities": {"queues": 1}}, "queues"),
        ({"node_generation": 0}, "node_generation"),
        ({"node_generation": True}, "node_generation"),
        ({"node_generation": "1"}, "node_generation"),
        ({"fence": -1}, "fence"),
        ({"op_id": ""}, "op_id"),
        ({"expect": {"epoch": "x"}}, "epoch"),
    ],
)
def test_an_unknown_or_impossible_field_of_a_command_is_refused_by_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(FrameError, match=rf"command load: .*{name}"):
        decode_command(with_body(command_tree(load()), **fields))


def test_an_unknown_value_of_a_command_is_refused_by_name() -> None:
    with pytest.raises(FrameError, match=r"command drain\.start: .*explode.*at_deadline"):
        decode_command(with_body(command_tree(drain_command()), at_deadline="explode"))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"type": "journal.subscribe", "tail": -5}, "tail"),
        ({"type": "probe.listen", "address": "a", "port": 0, "nonce": "n"}, "port"),
        ({"type": "probe.dial", "address": "a", "port": 65_536, "nonce": "n"}, "port"),
        ({"type": "log.read", "node_id": "tiny-1/0", "limit": -1}, "limit"),
        (
            {"type": "unload", "node_id": "tiny-1/0", "node_generation": 0, "adapter_kind": "llamacpp", "by": "alice"},
            "node_generation",
        ),
    ],
)
def test_a_number_outside_its_range_is_refused_by_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(FrameError, match=rf"command {fields['type']}: {name} is -?[0-9]+, outside"):
        decode_command(changed(command_tree(load()), body={"op_id": "op-9", **fields}))


@pytest.mark.parametrize("seconds", [0, -5, 1e300])
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"type": "drain.start", "replica": "t-1", "load_generation": 1, "by": "a", "why": ""}, "deadline_seconds"),
        ({"type": "drain.change", "replica": "t-1", "by": "a", "action": "extend"}, "extend_seconds"),
        ({"type": "probe.listen", "address": "a", "port": 1, "nonce": "n"}, "seconds"),
        ({"type": "probe.dial", "address": "a", "port": 1, "nonce": "n"}, "seconds"),
        ({"type": "replica.test", "node_id": "t-1/0", "prompt": "one"}, "seconds"),
        ({"type": "operator.hold", "subject": "t", "scope": "model", "kind": "down", "by": "a"}, "seconds"),
        ({"type": "host.cordon", "by": "a"}, "seconds"),
        ({"type": "keeper.claim", "keeper_epoch": 1, "who": "a", "console": "c"}, "seconds"),
        ({"type": "reserve", "plan": command_tree(load())["body"]["plan"], "by": "a"}, "seconds"),
    ],
    ids=lambda value: str(value.get("type")) if isinstance(value, dict) else "",
)
def test_a_length_of_time_that_no_agent_could_keep_is_refused_by_name(
    fields: dict[str, Any], name: str, seconds: float
) -> None:
    with pytest.raises(FrameError, match=rf"command {fields['type']}: {name} is .*; expected more than 0"):
        decode_command(changed(command_tree(load()), body={"op_id": "op-9", **fields, name: seconds}))


def test_a_drain_is_cancelled_and_forced_without_a_length_of_time() -> None:
    for action in ("cancel", "force"):
        fields = {"op_id": "op-9", "type": "drain.change", "replica": "t-1", "by": "a", "action": action}
        decode_command(changed(command_tree(load()), body=fields))


def test_a_refusal_stays_short_whatever_the_frame_held() -> None:
    for text in (
        with_body(command_tree(load()), type="x" * 500_000),
        with_body(command_tree(load()), **{"y" * 500_000: 1}),
        changed(command_tree(load()), protocol_version="9" * 500_000),
    ):
        with pytest.raises(FrameError) as refused:
            decode_command(text)
        assert len(str(refused.value)) < 1100


def test_a_missing_field_of_a_command_is_refused_by_name() -> None:
    tree = command_tree(load())
    del tree["body"]["fence"]
    with pytest.raises(FrameError, match="fence"):
        decode_command(json.dumps(tree))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"priority": 1}, "priority"),
        ({"class": "urgent"}, "urgent"),
        ({"sequence": -1}, "sequence"),
        ({"sequence": 2**64}, "outside"),
        ({"event_id": ""}, "event_id"),
        ({"deadline_unix_ms": 0}, "deadline_unix_ms"),
        ({"target": {"kind": "planet", "address": "x"}}, "planet"),
        ({"target": {"kind": "agent", "address": ""}}, "address"),
        ({"target": {"kind": "agent", "address": "a", "port": 1}}, "port"),
        ({"body": []}, "body"),
        ({"body": None}, "body"),
    ],
)
def test_a_command_envelope_is_closed_as_well(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(FrameError, match=name):
        decode_command(changed(command_tree(load()), **fields))


@pytest.mark.parametrize("version", ["2.0", "0.9", "10.0", "", "x", "1x.0"])
def test_another_major_is_refused_with_both_versions(version: str) -> None:
    with pytest.raises(FrameError, match=rf"protocol_version is {version}; this agent speaks {PROTOCOL_VERSION}"):
        decode_command(changed(command_tree(load()), protocol_version=version))


def test_another_minor_is_accepted() -> None:
    decode_command(changed(command_tree(load()), protocol_version="1.99"))


def event_tree(event: Any = None) -> dict[str, Any]:
    event = event or Heartbeat(head_seq=5, at_unix_ms=UnixMs(9))
    envelope = event_envelope(
        event, source=AGENT, target=CONSOLE, sequence=2, correlation_id="link-1", causation_id="op-1"
    )
    tree = json.loads(encode(envelope))
    assert isinstance(tree, dict)
    return tree


def test_an_event_comes_back_equal() -> None:
    record = JournalRecord(kind="a", words="b", at_unix_ms=UnixMs(1), seq=4)
    event = JournalBatch(records=(record,), cursor="c")
    envelope, body = decode_event(json.dumps(event_tree(event)))
    assert body == event
    assert (envelope.class_, envelope.causation_id) == ("output", "op-1")


def test_measurements_and_heartbeats_are_telemetry() -> None:
    assert event_tree()["class"] == "telemetry"


def test_an_unknown_event_type_is_kept_raw() -> None:
    raw = {"type": "weather", "sky": ["blue", 1]}
    _, body = decode_event(changed(event_tree(), body=raw))
    assert body == UnknownEvent(type="weather", raw=raw)


def test_an_unknown_field_of_an_event_or_of_its_envelope_is_let_pass() -> None:
    tree = event_tree()
    tree["body"]["mood"] = "good"
    _, body = decode_event(changed(tree, weight=3))
    assert body == Heartbeat(head_seq=5, at_unix_ms=UnixMs(9))


def test_a_known_event_without_its_field_or_with_a_wrong_type_is_refused_by_name() -> None:
    tree = event_tree()
    with pytest.raises(FrameError, match=r"event heartbeat: .*head_seq"):
        decode_event(with_body(tree, head_seq="5"))
    del tree["body"]["head_seq"]
    with pytest.raises(FrameError, match="head_seq"):
        decode_event(json.dumps(tree))


def test_a_command_type_allows_only_an_agent_as_target() -> None:
    hint = command_envelope.__annotations__["target"]
    assert hint == "Agent"
    node = Node(HostId("host-a"), NodeId("tiny-1/0"), NodeGeneration(1))
    assert not isinstance(node, Agent)
    assert command_type(load()) == "load"
    assert Unload.__struct_config__.tag == "unload"
    assert msgspec.to_builtins(node)["kind"] == "node"
