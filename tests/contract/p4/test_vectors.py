"""Every interoperability vector decodes to its fields, encodes to its bytes, or is refused, as the files say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from backend.contract.p4.documents import DOCUMENT_KINDS, read_document, write_document
from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import decode_event, encode_event
from backend.contract.p4.hops import decode_hop, encode_hop, is_hop_frame
from backend.contract.p4.lifecycle import Lifecycle, decode_load, decode_result, decode_unload, encode_lifecycle
from tests.contract.p4.bytes_on_file import body_of, canonical, entries

LIFECYCLES: dict[str, Callable[[bytes], Lifecycle]] = {
    "load": decode_load,
    "unload": decode_unload,
    "result": decode_result,
}


@pytest.mark.parametrize("entry", entries("p4e3-valid"))
def test_a_valid_event_is_read_and_written(entry: dict[str, Any]) -> None:
    body = body_of(entry)
    fields = dict(entry["event"])
    if "event_id_repeat" in entry:
        fields["event_id"] = "a" * entry["event_id_repeat"]
    document = {"event": fields, "payload_hex": entry["payload_hex"]}
    assert read_document("event", body) == document
    assert write_document("event", document) == canonical(entry)
    assert encode_event(decode_event(body)) == canonical(entry)


@pytest.mark.parametrize("entry", entries("p4e3-invalid"))
def test_an_invalid_event_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(P4CodecError) as refusal:
        decode_event(body_of(entry))
    assert refusal.value.reason


@pytest.mark.parametrize("entry", entries("p4h1-valid"))
def test_a_valid_hop_frame_is_read_and_written(entry: dict[str, Any]) -> None:
    body = body_of(entry)
    assert is_hop_frame(body)
    assert read_document("hop", body) == {"frame": entry["frame"]}
    assert write_document("hop", {"frame": entry["frame"]}) == canonical(entry)
    assert encode_hop(decode_hop(body)) == canonical(entry)


@pytest.mark.parametrize("entry", entries("p4h1-invalid"))
def test_an_invalid_hop_frame_is_refused(entry: dict[str, Any]) -> None:
    body = body_of(entry)
    assert is_hop_frame(body) is not entry.get("not_hop", False)
    with pytest.raises(P4CodecError) as refusal:
        decode_hop(body)
    assert refusal.value.reason


@pytest.mark.parametrize("entry", entries("lifecycle-valid"))
def test_a_valid_lifecycle_payload_is_read_and_written(entry: dict[str, Any]) -> None:
    kind, body = entry["kind"], body_of(entry)
    document = {name: entry[name] for name in ("kind", "metadata", "opaque_hex")}
    assert read_document(kind, body) == document
    assert write_document(kind, document) == canonical(entry)
    assert encode_lifecycle(LIFECYCLES[kind](body)) == canonical(entry)


@pytest.mark.parametrize("entry", entries("lifecycle-invalid"))
def test_an_invalid_lifecycle_payload_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(P4CodecError) as refusal:
        LIFECYCLES[entry["kind"]](body_of(entry))
    assert refusal.value.reason


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("version-wrong-but-truncated", "ends inside"),
        ("node-empty-id-and-zero-generation", "node is empty"),
        ("text-length-over-256-kib", "at most 262144"),
        ("text-length-256-kib-not-there", "ends inside"),
        ("payload-length-2-gib-not-there", "in all"),
        ("reserved-and-kind-wrong", "reserved bits"),
        ("data-length-one-too-small", "sha256"),
        ("data-length-one-too-small-right-digest", "follow the last field"),
        ("data-empty-event-wrong-digest", "sha256"),
        ("data-zero-attempt-trailing-byte", "follow the last field"),
        ("query-result-detail-length-4097-not-there", "at most 4096"),
        ("schema-2-and-empty-id", "schema 2"),
        ("length-over-64-kib", "at most 65536"),
    ],
)
def test_the_first_broken_rule_is_the_one_that_is_named(name: str, words: str) -> None:
    found = {
        entry["name"]: entry
        for file in ("p4e3-invalid", "p4h1-invalid", "lifecycle-invalid")
        for parameter in entries(file)
        for entry in parameter.values
    }[name]
    decode = LIFECYCLES.get(found.get("kind", ""), decode_event if body_of(found)[:4] == b"P4E3" else decode_hop)
    with pytest.raises(P4CodecError, match=words):
        decode(body_of(found))


def test_no_vector_is_read_as_another_kind() -> None:
    for file, own in (("p4e3-valid", "event"), ("p4h1-valid", "hop")):
        for parameter in entries(file):
            for kind in DOCUMENT_KINDS:
                if kind != own:
                    with pytest.raises(P4CodecError):
                        read_document(kind, body_of(parameter.values[0]))
