"""The header reader against a library's reader, against files that end early, and against headers that lie."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backend.engines.driver import ModelUnreadable
from backend.engines.llamacpp.gguf import MAX_ENTRIES, MAX_TENSORS, TENSOR_TYPES
from backend.engines.llamacpp.model_file import read_header
from backend.local.tiny_model import write_tiny_model

Write = Callable[[bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(data: bytes) -> Path:
        path = tmp_path / "given.gguf"
        path.write_bytes(data)
        return path

    return write


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_model(path)
    return path


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def u32(key: str, value: int) -> bytes:
    return entry(key, 4, struct.pack("<I", value))


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def geometry(**changes: Any) -> list[bytes]:
    numbers = {"block_count": 1, "embedding_length": 64, "attention.head_count": 2, "context_length": 128, **changes}
    return [entry("general.architecture", 8, text("llama")), *(u32(f"llama.{key}", n) for key, n in numbers.items())]


def a_file(
    entries: list[bytes] | None = None, tensors: list[bytes] | None = None, *, version: int = 3, data: int = 0
) -> bytes:
    entries = geometry() if entries is None else entries
    tensors = [tensor("token_embd.weight", (64, 8), 1, 0)] if tensors is None else tensors
    head = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(entries)) + b"".join(entries + tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


def refused(path: Path) -> str:
    with pytest.raises(ModelUnreadable) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_the_tiny_model_reads_as_a_library_reads_it(tiny: Path) -> None:
    facts, reader = read_header(tiny), gguf.GGUFReader(tiny)
    assert (facts.n_layer, facts.n_embd, facts.n_head, facts.n_head_kv) == (4, 128, 4, 2)
    assert (facts.key_length, facts.value_length, facts.context_train) == (32, 32, 4096)
    assert facts.n_vocab == len(reader.fields["tokenizer.ggml.tokens"].data)
    assert facts.name == "ringtop-tiny-4x128"
    assert facts.tensor_types == ("f16", "f32")
    assert facts.has_output
    assert not facts.has_unusual_cache
    assert facts.file_bytes == facts.expected_bytes == tiny.stat().st_size
    assert facts.is_whole
    sizes = {one.name: one.n_bytes for one in reader.tensors}
    assert facts.token_embd_bytes == sizes["token_embd.weight"]
    assert facts.output_bytes == sizes["output.weight"] + sizes["output_norm.weight"]
    for block in facts.blocks:
        assert block.weight_bytes == sum(size for name, size in sizes.items() if name.startswith(f"blk.{block.index}."))


def test_every_tensor_type_has_the_librarys_block_sizes() -> None:
    for number, (name, per_block, size) in TENSOR_TYPES.items():
        known = gguf.GGMLQuantizationType(number)
        assert known.name.lower() == name
        assert gguf.GGML_QUANT_SIZES[known] == (per_block, size)


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "BF16", "F32"])
def test_a_librarys_quantized_file_has_the_sizes_that_the_library_says(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "quantized.gguf"
    quantization = gguf.GGMLQuantizationType[kind]
    per_block, size = gguf.GGML_QUANT_SIZES[quantization]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(512)
    writer.add_head_count(4)
    writer.add_vocab_size(7)
    writer.add_custom_alignment(64)
    rows = np.zeros((3, 512 // per_block * size), dtype=np.uint8)
    writer.add_tensor("blk.0.attn_q.weight", rows, raw_dtype=quantization)
    writer.add_tensor("output_norm.weight", np.ones(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    facts = read_header(path)
    assert facts.blocks[0].weight_bytes == -(-rows.nbytes // 64) * 64
    assert facts.output_bytes == 64
    assert facts.is_whole
    assert kind.lower() in facts.tensor_types


def test_a_file_without_output_rows_says_so(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "tied.gguf", tied=True)
    facts = read_header(tmp_path / "tied.gguf")
    assert not facts.has_output
    assert facts.output_bytes == 128 * 4


def test_version_two_reads_the_same(write: Write) -> None:
    assert read_header(write(a_file(version=2, data=1024))).n_embd == 64


def test_a_file_that_ends_inside_its_tensors_is_read_and_is_not_whole(tiny: Path, write: Write) -> None:
    whole = read_header(tiny)
    facts = read_header(write(tiny.read_bytes()[:-1]))
    assert not facts.is_whole
    assert facts.expected_bytes - facts.file_bytes == 1
    assert facts.header_digest == whole.header_digest


def test_the_padding_behind_the_last_tensor_need_not_be_there(write: Write) -> None:
    tensors = [tensor("token_embd.weight", (64, 8), 1, 0), tensor("output_norm.weight", (3,), 0, 1024)]
    facts = read_header(write(a_file(tensors=tensors, data=1024 + 12)))
    assert facts.is_whole
    assert facts.output_bytes == 32


def test_the_digest_is_of_the_header_alone(write: Write) -> None:
    first = read_header(write(a_file(data=1024))).header_digest
    assert read_header(write(a_file()[:-1] + bytes(1) + b"\1" * 1024)).header_digest == first
    assert read_header(write(a_file(geometry(context_length=129), data=1024))).header_digest != first


def test_a_header_that_ends_early_is_refused_wherever_it_ends(tiny: Path, write: Write) -> None:
    whole = tiny.read_bytes()
    end = whole.rindex(b"output.weight") + len(b"output.weight") + 4 + 16 + 4 + 8
    read_header(write(whole[:end]))
    for length in (*range(64), *range(64, end, 211), end - 1):
        assert "byte" in refused(write(whole[:length])), length


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_header_with_changed_bytes_is_read_or_refused_and_nothing_else(tiny: Path, write: Write, data: Any) -> None:
    raw = bytearray(tiny.read_bytes()[:20_000])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(st.integers(0, 900), st.integers(0, len(raw) - 8)))
        raw[at : at + 8] = data.draw(st.sampled_from([b"\xff" * 8, bytes(8), os.urandom(8), b"\x00" * 7 + b"\x80"]))
    with contextlib.suppress(ModelUnreadable):
        read_header(write(bytes(raw)))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "the magic needs 4 bytes and 0 are left"),
        (b"PK\3\4 a zip file", "begins with b'PK"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "the version is 1: only 2 and 3"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "the file is big-endian"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**63, 0), f"number of tensors is {2**63}, more than {MAX_TENSORS}"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**40), f"more than {MAX_ENTRIES}"),
        (a_file([text("k" * 70_000)]), "the length of a metadata key is 70000"),
        (a_file([entry("k", 99, b"")]), "type 99"),
        (a_file([entry("k", 8, struct.pack("<Q", 2**62))]), "the length of 'k'"),
        (a_file([entry("k", 9, struct.pack("<IQ", 4, 2**60))]), "the length of 'k'"),
        (a_file([entry("k", 9, struct.pack("<IQ", 8, 1_000_000))]), "needs 8000000 bytes"),
        (a_file([entry("k", 9, struct.pack("<IQ", 4, 1_000_000))]), "needs 4000000 bytes"),
        (a_file([entry("k", 9, struct.pack("<IQ", 9, 1))]), "elements of 'k' have type 9"),
        (a_file([entry("k", 9, struct.pack("<IQ", 8, 3) + text("a") + struct.pack("<Q", 2**62))]), "k[1] needs"),
        (
            a_file([entry("k", 9, struct.pack("<IQ", 8, 2) + text("a" * 16))], []).rstrip(b"\0"),
            "the length of k[1] needs",
        ),
        (a_file([u32("k", 1), u32("k", 2)]), "'k' is there twice"),
        (a_file([entry("\xff", 4, b"").replace("\xff".encode(), b"\xff\xff")]), "not UTF-8"),
        (a_file([u32("general.alignment", 24)]), "general.alignment is 24"),
        (a_file([u32("general.alignment", 0)]), "general.alignment is 0"),
        (a_file(tensors=[tensor("n" * 65, (4,), 0, 0)]), "length of a tensor's name is 65"),
        (a_file(tensors=[tensor("t", (1,) * 5, 0, 0)]), "5 dimensions"),
        (a_file(tensors=[tensor("t", (), 0, 0)]), "0 dimensions"),
        (a_file(tensors=[tensor("t", (0,), 0, 0)]), "no whole number"),
        (a_file(tensors=[tensor("t", (33,), 8, 0)]), "no whole number of q8_0 blocks"),
        (a_file(tensors=[tensor("t", (2**40, 2**40), 0, 0)]), "larger than a file can be"),
        (a_file(tensors=[tensor("t", (64,), 77, 0)]), "type 77"),
        (a_file(tensors=[tensor("t", (64,), 0, 32)]), "is at data offset 32, and the one before it ends at 0"),
        (a_file(tensors=[tensor("t", (64,), 0, 0), tensor("t", (64,), 0, 256)]), "'t' is there twice"),
    ],
)
def test_a_header_that_lies_is_refused_with_the_offset_and_both_values(raw: bytes, words: str, write: Write) -> None:
    message = refused(write(raw))
    assert words in message
    assert "at byte" in message


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([], "general.architecture"),
        (geometry()[:1], "llama.block_count"),
        (geometry(block_count=0), "block_count = 0"),
        (geometry(block_count=100_000), "not an integer of 1..512"),
        ([*geometry()[1:], entry("general.architecture", 4, struct.pack("<I", 1))], "general.architecture = 1"),
        ([*geometry(), u32("split.count", 3)], "part 1 of 3"),
        ([*geometry()[:-2], entry("llama.attention.head_count", 8, text("2"))], "not an integer"),
    ],
)
def test_a_header_without_a_models_geometry_is_refused(entries: list[bytes], words: str, write: Write) -> None:
    assert words in refused(write(a_file(entries)))


def test_a_file_that_was_merged_from_parts_is_whole(write: Write) -> None:
    """The engine's own tool writes 0 parts into what it merges."""
    parts = [entry("split.count", 2, struct.pack("<H", 0)), entry("split.no", 2, struct.pack("<H", 0))]
    assert read_header(write(a_file([*geometry(), *parts]))).n_layer == 1


def test_a_vocabulary_alone_is_no_model_of_no_bytes(write: Write) -> None:
    assert "has no tensors" in refused(write(a_file(tensors=[])))


def test_a_block_beyond_the_models_count_is_refused(write: Write) -> None:
    assert "blk.1." in refused(write(a_file(tensors=[tensor("blk.1.attn_q.weight", (64,), 0, 0)])))


@pytest.mark.parametrize(
    ("extra", "unusual"),
    [
        (u32("llama.attention.sliding_window", 1024), True),
        (u32("llama.attention.sliding_window", 0), False),
        (u32("llama.attention.kv_lora_rank", 512), True),
        (u32("llama.ssm.state_size", 16), True),
        (u32("llama.expert_count", 8), False),
        (entry("llama.attention.head_count_kv", 9, struct.pack("<IQ2I", 4, 2, 1, 2)), True),
        (entry("llama.attention.head_count_kv", 9, struct.pack("<IQ2I", 4, 2, 2, 2)), False),
    ],
)
def test_a_cache_that_is_not_one_row_per_layer_is_unusual(extra: bytes, unusual: bool, write: Write) -> None:
    assert read_header(write(a_file([*geometry(), extra]))).has_unusual_cache is unusual


def test_missing_heads_and_lengths_follow_from_the_embedding(write: Write) -> None:
    facts = read_header(write(a_file()))
    assert (facts.n_head_kv, facts.key_length, facts.value_length, facts.n_vocab) == (2, 32, 32, 8)
    facts = read_header(write(a_file([*geometry(), u32("llama.attention.key_length", 48)])))
    assert (facts.key_length, facts.value_length) == (48, 32)


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "missing.gguf")
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    assert "no regular file" in refused(pipe)
    assert "no regular file" in refused(tmp_path)


def test_a_header_of_a_large_vocabulary_is_only_counted(write: Write) -> None:
    tokens = b"".join(text(f"token{n}") for n in range(100_000))
    big = entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 100_000) + tokens)
    template = entry("tokenizer.chat_template", 8, text("x" * 100_000))
    assert read_header(write(a_file([*geometry(), big, template]))).n_vocab == 100_000
