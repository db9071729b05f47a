"""The bytes on disk stay what they are: their layout is written down here once more, by hand."""

from __future__ import annotations

import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.agent.journal.format import (
    MAX_COUNT,
    MAX_PAYLOAD,
    MAX_RECORD,
    FormatError,
    SegmentHeader,
    decode_segment_header,
    encode_batch,
    encode_record,
    encode_segment_header,
    first_wall_of,
    read_batch,
    read_bodies,
)

HEADER = SegmentHeader(
    journal_id="0123456789abcdef" * 2, epoch=3, first_seq=17, first_batch_no=9, prev_chain=0xFEEDBEEF, host="gpü-b"
)
BODIES = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=9)
U64 = st.integers(0, 2**64 - 1)


def framed(bodies: list[bytes]) -> list[bytes]:
    return [encode_record(body, wall_ns=n, mono_ns=-n) for n, body in enumerate(bodies)]


def test_a_segment_header_comes_back_and_names_its_checksum() -> None:
    data = encode_segment_header(HEADER)
    assert (len(data), decode_segment_header(data)) == (512, HEADER)
    assert data[:8] == b"\x89RTJ\r\n\x1a\n"
    assert struct.unpack_from("<HH8s", data, 8) == (1, 512, b"crc32\0\0\0")
    assert struct.unpack_from("<I", data, 508)[0] == zlib.crc32(data[:508])


@pytest.mark.parametrize(("at", "value"), [(8, b"\x02"), (12, b"sha1\0")], ids=["version", "checksum"])
def test_a_newer_format_is_refused_by_name_even_when_it_checks(at: int, value: bytes) -> None:
    data = bytearray(encode_segment_header(HEADER))
    data[at : at + len(value)] = value
    data[508:] = struct.pack("<I", zlib.crc32(data[:508]))
    with pytest.raises(FormatError, match="this agent reads format 1 with b'crc32'"):
        decode_segment_header(bytes(data))


def test_a_host_id_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="shorten host"):
        encode_segment_header(msgspec.structs.replace(HEADER, host="h" * 256))


def test_a_batch_is_laid_out_as_documented() -> None:
    data = encode_batch(framed([b"{}"]), batch_no=5, first_seq=17, prev_chain=0xABCD)
    magic, payload, count, batch_no, seq, prev_chain, crc, zero = struct.unpack_from("<IIIQQIII", data)
    assert (magic, payload, count, batch_no, seq, prev_chain, zero) == (0xB47C4A52, 32, 1, 5, 17, 0xABCD, 0)
    assert crc == zlib.crc32(data[:32] + data[36:])
    assert struct.unpack_from("<IHHqq", data, 40) == (2, 1, 0, 0, 0)
    assert data[64:] == b"{}" + bytes(6)


@given(BODIES, U64, U64, st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_what_is_encoded_is_read_back(
    bodies: list[bytes], batch_no: int, first_seq: int, prev_chain: int, words_before: int
) -> None:
    data = encode_batch(framed(bodies), batch_no=batch_no, first_seq=first_seq, prev_chain=prev_chain)
    at = 8 * words_before
    header = read_batch(bytes(at) + data + b"next", at)
    assert (header.batch_no, header.first_seq, header.prev_chain) == (batch_no, first_seq, prev_chain)
    assert (header.size, header.count) == (len(data), len(bodies))
    assert read_bodies(bytes(at) + data, at, header) == bodies
    assert len(data) % 8 == 0


def test_a_batch_tells_when_its_first_record_was_appended() -> None:
    frames = [encode_record(b"{}", wall_ns=wall, mono_ns=1) for wall in (-7, 8)]
    assert first_wall_of(encode_batch(frames, batch_no=1, first_seq=1, prev_chain=0), 0) == -7


def test_bounds_hold_when_writing() -> None:
    for body in (b"", bytes(MAX_RECORD + 1)):
        with pytest.raises(ValueError, match="outside"):
            encode_record(body, wall_ns=0, mono_ns=0)
    for frames in ([], [bytes(8)] * (MAX_COUNT + 1), [bytes(8), bytes(MAX_PAYLOAD)]):
        with pytest.raises(ValueError, match="outside"):
            encode_batch(frames, batch_no=1, first_seq=1, prev_chain=0)


@pytest.mark.parametrize(
    ("payload", "count"), [(0, 1), (MAX_PAYLOAD + 8, 1), (2**32 - 8, 1), (12, 1), (16, 0), (16, MAX_COUNT + 1)]
)
def test_bounds_hold_when_reading_before_anything_is_taken(payload: int, count: int) -> None:
    head = struct.pack("<IIIQQIII", 0xB47C4A52, payload, count, 1, 1, 0, 0, 0)
    with pytest.raises(FormatError, match="outside its bounds"):
        read_batch(head, 0)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (struct.pack("<IHHqq", 2, 0, 0, 0, 0) + b"{}" + bytes(6), "record type 0"),
        (struct.pack("<IHHqq", 2, 1, 4, 0, 0) + b"{}" + bytes(6), "flags 4"),
        (struct.pack("<IHHqq", 90, 1, 0, 0, 0) + b"{}" + bytes(6), "claims 90 bytes"),
        (struct.pack("<IHHqq", 0, 1, 0, 0, 0) + bytes(8), "claims 0 bytes"),
        (encode_record(b"{}", wall_ns=0, mono_ns=0) + bytes(8), "8 bytes after its last record"),
        (bytes(8), "ends inside a record"),
    ],
)
def test_records_that_do_not_fill_their_batch_are_refused(record: bytes, why: str) -> None:
    data = encode_batch([record], batch_no=1, first_seq=1, prev_chain=0)
    with pytest.raises(FormatError, match=why):
        read_bodies(data, 0, read_batch(data, 0))


@given(st.binary(max_size=300))
def test_zeros_and_random_bytes_are_never_a_batch(data: bytes) -> None:
    for candidate in (data, bytes(len(data)), struct.pack("<I", 0xB47C4A52) + data):
        with pytest.raises(FormatError):
            read_batch(candidate, 0)
