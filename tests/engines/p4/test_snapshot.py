"""A snapshot is read openly: more is kept, less is null, and what every version says must be there."""

from __future__ import annotations

import msgspec
import pytest

from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import P4Event, decode_event
from backend.engines.p4.snapshot import read_snapshot
from tests.contract.p4.bytes_on_file import body_of, entries


def an_event(payload: bytes) -> P4Event:
    entry = next(each.values[0] for each in entries("p4e3-valid") if each.id == "inspect-reply-snapshot")
    return msgspec.structs.replace(decode_event(body_of(entry)), payload=payload)


def test_what_a_node_does_not_say_is_null_and_never_zero() -> None:
    seen = read_snapshot(an_event(b'{"schema":1,"nodes":[{"node_id":"s0","generation":7}]}'))
    node = seen.node("s0")
    assert node is not None
    assert (node.generation, node.load_generation, node.is_stopped) == (7, None, None)
    assert (node.input_retained, node.pending_requests, node.state) == (None, None, "")
    assert seen.node("s1") is None
    assert seen.failure_ids == ()


def test_what_a_newer_agent_says_is_kept() -> None:
    seen = read_snapshot(
        an_event(
            b'{"schema":1,"generated_at_unix_ms":5,"new":[1],"transport":{"failures":{"failure_ids":["transport-1"]}},'
            b'"nodes":[{"node_id":"s0","generation":7,"load_generation":8,"state":"failed:stale","more":true,'
            b'"delivery":{"stopped":true,"input_retained":2},"retention":{"pending_requests":{"count":3}}}]}'
        )
    )
    assert seen.tree["new"] == [1]
    assert seen.failure_ids == ("transport-1",)
    (node,) = seen.nodes
    assert (node.load_generation, node.state, node.is_stopped) == (8, "failed:stale", True)
    assert (node.input_retained, node.pending_requests, node.tree["more"]) == (2, 3, True)


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b'{"schema":2,"nodes":[]}', "schema 2"),
        (b'{"schema":1}', "no list of nodes"),
        (b'{"schema":1,"nodes":[{"generation":1}]}', "without a node_id"),
        (b'{"schema":1,"nodes":[{"node_id":"s0","generation":"7"}]}', "no generation of node s0"),
        (b'{"schema":1,"schema":1,"nodes":[]}', "twice"),
        (b"\xff", "not UTF-8"),
        (b"[]", "not an object"),
    ],
)
def test_less_than_every_version_says_is_refused(payload: bytes, words: str) -> None:
    with pytest.raises(P4CodecError, match=words):
        read_snapshot(an_event(payload))
