"""The tiny model: the same bytes everywhere, read by others, and the same words from a real engine."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from backend.engines.llamacpp.model_file import read_header
from backend.local.tiny_model import TINY_COMPLETION, TINY_PROMPT, TINY_TOKENS, write_tiny_model
from tests.planning.engines.real_ring import loopback_plan, running

SHA256 = "1773ee66ed0708452f6ce9477f1ae4290f8293689da92ef78a61cd9b4f684ebb"


def test_the_file_has_the_same_bytes_every_time_and_everywhere(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "one.gguf")
    write_tiny_model(tmp_path / "two.gguf")
    one = (tmp_path / "one.gguf").read_bytes()
    assert one == (tmp_path / "two.gguf").read_bytes()
    assert hashlib.sha256(one).hexdigest() == SHA256


def test_nothing_is_left_beside_the_file_and_an_old_one_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"old")
    write_tiny_model(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tiny.gguf"]
    assert path.read_bytes()[:4] == b"GGUF"


def test_a_failed_write_leaves_neither_model_nor_temporary_file(tmp_path: Path) -> None:
    target = tmp_path / "folder.gguf"
    target.mkdir()
    (target / "in the way").touch()
    with pytest.raises(OSError, match="folder"):
        write_tiny_model(target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder.gguf"]


@pytest.mark.parametrize("shape", [{"layers": 0}, {"embd": 130}, {"heads": 4, "kv_heads": 3}, {"embd": 12}])
def test_a_shape_that_no_engine_loads_is_refused(shape: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no shape for a model"):
        write_tiny_model(tmp_path / "tiny.gguf", **shape)
    assert not list(tmp_path.iterdir())


def test_a_library_reads_what_we_wrote(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path, layers=3, embd=96, heads=3, kv_heads=3)
    reader = gguf.GGUFReader(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 3 * 9 + 3
    q = tensors["blk.1.attn_q.weight"].data.astype(np.float64)
    assert np.all(np.isfinite(q))
    assert abs(q.mean()) < 0.01
    assert q.std() == pytest.approx(1 / math.sqrt(96), rel=0.1)
    assert np.all(tensors["output_norm.weight"].data == 1.0)


def test_only_whole_words_have_output_rows(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path)
    reader = gguf.GGUFReader(path)
    tokens = [
        bytes(reader.fields["tokenizer.ggml.tokens"].parts[index]).decode()
        for index in reader.fields["tokenizer.ggml.tokens"].data
    ]
    (output,) = (tensor.data for tensor in reader.tensors if tensor.name == "output.weight")
    heard = {token for token, row in zip(tokens, output, strict=True) if np.any(row)}
    assert "</s>" not in heard
    assert not any(token.startswith("<0x") for token in heard)
    assert {"\u2581ring", "\u2581was"} <= heard
    assert all(token.startswith("\u2581") for token in heard)


@pytest.mark.engine
@pytest.mark.parametrize(("ranks", "split"), [(1, ()), (2, ()), (3, ()), (3, (1, 3)), (4, ())])
def test_the_real_engine_says_the_known_words_however_it_is_split(
    ranks: int, split: tuple[int, ...], tmp_path: Path
) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_model(path)
    plan = loopback_plan(read_header(path), ranks=ranks, split=split)
    with running(plan, path, tmp_path) as ring:
        answer = ring.complete(TINY_PROMPT, TINY_TOKENS, n_probs=2)
    assert answer["content"] == TINY_COMPLETION
    assert answer["tokens_predicted"] == TINY_TOKENS
    steps = [step["top_logprobs"] for step in answer["completion_probabilities"]]
    assert min(first["logprob"] - second["logprob"] for first, second in steps) > 0.1
