"""What the codec writes it reads; of anything else it says why, in its own error and in bounded memory."""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.contract.p4.addresses import host_and_port, p4_address, parse_address
from backend.contract.p4.documents import DOCUMENT_KINDS, DocumentKind, read_document, write_document
from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import (
    MAX_ENVELOPE_BYTES,
    P4Agent,
    P4Event,
    P4Node,
    P4Outer,
    decode_event,
    encode_event,
)
from backend.contract.p4.framing import FINISH, BodyReader, frame_body
from backend.contract.p4.hops import (
    Data,
    Hello,
    HelloAck,
    Query,
    QueryResult,
    Receipt,
    ReceiptAck,
    ReceiptStatus,
    decode_hop,
    encode_hop,
)
from backend.contract.p4.lifecycle import NodeLoad, NodeResult, NodeUnload, encode_lifecycle
from tests.contract.p4.bytes_on_file import body_of, entries

U64 = 2**64 - 1

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
counts = st.integers(1, U64)
addresses = st.builds(p4_address, texts, st.integers(1, 65_535))
outers = st.builds(P4Outer, addresses, texts, counts)
bodies = st.binary(max_size=200)


@st.composite
def events(draw: st.DrawFn) -> P4Event:
    """Any event that the contract allows."""
    route = draw(outers)
    ends = st.one_of(st.builds(P4Agent, addresses), st.builds(P4Node, addresses, texts, counts), st.just(route))
    return P4Event(
        event_id=draw(texts),
        correlation_id=draw(texts),
        source=draw(ends),
        target=draw(ends),
        return_route=route,
        class_=draw(st.sampled_from(["control", "data", "output", "telemetry"])),
        sequence=draw(st.integers(0, U64)),
        payload_content_type=draw(texts),
        payload=draw(bodies),
        causation_id=draw(st.none() | texts),
        deadline_unix_ms=draw(st.none() | counts),
        adapter_kind=draw(st.none() | texts),
    )


digests = st.binary(min_size=32, max_size=32)
statuses = st.sampled_from(ReceiptStatus)
details = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
limits = st.integers(1, 2**32 - 1)
frames = st.one_of(
    st.builds(Hello, texts, counts, limits, counts),
    st.builds(HelloAck, counts, texts, counts, limits, counts),
    st.builds(Data, counts, st.binary(min_size=1, max_size=200)),
    st.builds(Receipt, counts, digests, statuses, details),
    st.builds(ReceiptAck, texts, counts, counts, digests),
    st.builds(Query, texts, counts, counts, digests),
    st.builds(QueryResult, counts, digests, statuses, details),
)
named: dict[str, Any] = {
    "node_id": texts,
    "node_generation": counts,
    "adapter_kind": texts,
    "adapter_content_type": texts,
    "body": bodies,
}
capacities: dict[str, Any] = dict.fromkeys(
    ("queue_capacity", "completion_capacity", "retained_capacity", "retained_bytes"), counts
)
results = st.builds(
    NodeResult,
    operation=st.sampled_from(["load", "unload"]),
    status=st.sampled_from(["rejected", "failed"]),
    resource_state=st.sampled_from(["absent", "present", "unknown"]),
    first_error=texts,
    cleanup_error=st.none() | details,
    **named,
)
written = st.one_of(
    st.tuples(st.just("event"), events().map(encode_event)),
    st.tuples(st.just("hop"), frames.map(encode_hop)),
    st.tuples(st.just("load"), st.builds(NodeLoad, **named, **capacities).map(encode_lifecycle)),
    st.tuples(st.just("unload"), st.builds(NodeUnload, **named).map(encode_lifecycle)),
    st.tuples(st.just("result"), results.map(encode_lifecycle)),
)


@given(event=events())
def test_every_event_comes_back(event: P4Event) -> None:
    assert decode_event(encode_event(event)) == event


@given(frame=frames)
def test_every_hop_frame_comes_back(frame: Any) -> None:
    assert decode_hop(encode_hop(frame)) == frame


@given(pair=written)
def test_every_document_comes_back(pair: tuple[DocumentKind, bytes]) -> None:
    kind, data = pair
    tree = msgspec.json.decode(msgspec.json.encode(read_document(kind, data)))
    assert write_document(kind, tree) == data


@given(pair=written, data=st.data())
def test_of_spoilt_bytes_the_reason_is_given_and_nothing_else_is_raised(
    pair: tuple[DocumentKind, bytes], data: st.DataObject
) -> None:
    _, body = pair
    spoilt = bytearray(body)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(spoilt) - 1)))
        piece = data.draw(st.binary(max_size=6))
        spoilt[at : at + data.draw(st.integers(0, 6))] = piece
    for kind in DOCUMENT_KINDS:
        _read_or_reason(kind, bytes(spoilt))


@given(
    data=st.binary(max_size=300), magic=st.sampled_from([b"", b"P4E3", b"P4H1\x01\x00\x00\x00", b"\x10\x00\x00\x00{"])
)
def test_of_any_bytes_the_reason_is_given_and_nothing_else_is_raised(data: bytes, magic: bytes) -> None:
    for kind in DOCUMENT_KINDS:
        _read_or_reason(kind, magic + data)


@given(text=st.text(max_size=400), before=st.sampled_from(["", '{"schema":1,', "[1,", "[" * 40, '{"a":' * 40]))
def test_of_any_metadata_the_reason_is_given_and_nothing_else_is_raised(text: str, before: str) -> None:
    raw = (before + text).encode("utf-8", "surrogatepass")
    for kind in ("load", "unload", "result"):
        _read_or_reason(kind, len(raw).to_bytes(4, "little") + raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(pair=written, value=json_values, data=st.data())
def test_of_any_document_the_reason_is_given_and_nothing_else_is_raised(
    pair: tuple[DocumentKind, bytes], value: Any, data: st.DataObject
) -> None:
    kind, body = pair
    tree = read_document(kind, body)
    target = tree
    while True:
        name = data.draw(st.sampled_from(sorted(target)))
        if isinstance(target[name], dict) and data.draw(st.booleans()):
            target = target[name]
            continue
        break
    target[name] = value
    with contextlib.suppress(P4CodecError):
        write_document(kind, tree)


@given(parts=st.lists(st.binary(min_size=1, max_size=90), max_size=6), cut=st.lists(st.integers(1, 40), min_size=1))
def test_bodies_come_out_whole_however_they_arrive(parts: list[bytes], cut: list[int]) -> None:
    stream = b"".join(frame_body(part) for part in parts) + FINISH
    reader, found, at = BodyReader(limit=100), [], 0
    for size in cut * (len(stream) + 1):
        found += reader.feed(stream[at : at + size])
        at += size
        if at >= len(stream):
            break
    assert found == parts
    assert reader.is_finished
    assert reader.held_bytes == 0


@given(pieces=st.lists(st.binary(max_size=60), max_size=8))
def test_of_any_stream_the_reader_raises_its_own_error_and_holds_no_more_than_a_body(pieces: list[bytes]) -> None:
    reader = BodyReader(limit=50)
    with contextlib.suppress(P4CodecError):
        for piece in pieces:
            assert all(0 < len(body) <= 50 for body in reader.feed(piece))
            assert reader.held_bytes < 54


@pytest.mark.parametrize("length", [65, 2**31, 2**32 - 1])
def test_a_length_over_the_limit_is_refused_when_its_four_bytes_are_there(length: int) -> None:
    reader = BodyReader(limit=64)
    assert reader.feed(length.to_bytes(4, "little")[:3]) == []
    with pytest.raises(P4CodecError, match=f"says it has {length} bytes; at most 64"):
        reader.feed(length.to_bytes(4, "little")[3:])


def test_after_finish_a_side_says_nothing() -> None:
    reader = BodyReader()
    with pytest.raises(P4CodecError, match="1 bytes follow FINISH"):
        reader.feed(frame_body(b"last") + FINISH + b"\x01")


def test_an_empty_body_is_never_sent_since_it_would_mean_finish() -> None:
    with pytest.raises(P4CodecError, match="FINISH"):
        frame_body(b"")
    with pytest.raises(P4CodecError, match="at most 3"):
        frame_body(b"long", limit=3)


def test_declared_lengths_allocate_nothing() -> None:
    hostile = [
        ("event", b"P4E3" + MAX_ENVELOPE_BYTES.to_bytes(4, "little") + (2**31).to_bytes(4, "little")),
        ("event", b"P4E3" + b"\xff" * 8),
        ("hop", b"P4H1\x01\x00\x00\x00\x03" + b"\x01" * 40 + b"\xff" * 4),
        ("load", (65_536).to_bytes(4, "little") + b"{"),
        ("result", b"\xff" * 8),
    ]
    tracemalloc.start()
    try:
        for kind, body in hostile:
            _read_or_reason(kind, body)  # type: ignore[arg-type]  # one of the kinds
        BodyReader().feed((60_000_000).to_bytes(4, "little"))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_an_envelope_that_no_agent_would_read_is_not_written() -> None:
    golden = decode_event(body_of(entries("p4e3-valid")[0].values[0]))
    long = msgspec.structs.replace(golden, event_id="a" * 200_000, correlation_id="b" * 100_000)
    with pytest.raises(P4CodecError, match="the envelope has 300"):
        encode_event(long)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"event_id": ""}, "event_id is empty"),
        ({"adapter_kind": ""}, "adapter_kind is empty"),
        ({"sequence": 2**64}, "sequence is 18446744073709551616"),
        ({"sequence": True}, "sequence is True"),
        ({"deadline_unix_ms": 0}, "deadline_unix_ms is 0"),
        ({"protocol_version": 4}, "protocol_version 4"),
        ({"class_": "urgent"}, "'urgent'"),
        ({"correlation_id": "\ud800"}, "lone surrogate"),
        ({"target": P4Node(parse_address("tcp://h:1"), "", 1)}, "target.node is empty"),
        ({"target": P4Node(parse_address("tcp://h:1"), "s0", 0)}, "target.generation is 0"),
        ({"source": P4Outer(parse_address("tcp://h:1"), "c", 1)}, "source is the outer 'c' number 1 at tcp://h:1"),
    ],
)
def test_what_an_agent_would_refuse_is_not_written(change: dict[str, Any], words: str) -> None:
    golden = decode_event(body_of(entries("p4e3-valid")[0].values[0]))
    with pytest.raises(P4CodecError, match=words):
        encode_event(msgspec.structs.replace(golden, **change))


def test_an_address_is_dialled_without_its_brackets() -> None:
    assert host_and_port(parse_address("tcp://[::1]:042011")) == ("::1", 42011)
    assert host_and_port(p4_address("gpu-b", 1)) == ("gpu-b", 1)


def _read_or_reason(kind: DocumentKind, data: bytes) -> None:
    with contextlib.suppress(P4CodecError):
        read_document(kind, data)
