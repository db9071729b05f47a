"""A tiny model that a real engine loads, splits and answers from: nonsense words, and the same bytes on every machine.

The weights come from SHAKE-256 and integer tables, so no library's random numbers and no floating-point noise decide
them. Standard library only: ``ringtop up`` writes it before anything else is installed.
"""

from __future__ import annotations

import hashlib
import math
import os
import string
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

TINY_PROMPT = "one two three"
TINY_TOKENS = 12
TINY_COMPLETION = " as was four one load as was nine token nine load a"
"""What the default model answers to TINY_PROMPT with ``n_predict`` TINY_TOKENS, greedily, however it is split.

The closest choice on the way is won by 0.16 in log probability; rounding moves it by less than a thousandth.
"""

_WORD_TEXT = """
    ring shard node head rank layer token cache batch load drain ready queue slot model weight memory device port
    peer link host split start stop wait run heal green amber red north south east west one two three four five six
    seven eight nine ten the a of to in and is on for with at by from this that it as an or not be are was
"""
_WORDS = _WORD_TEXT.split()

_SPACE = "\u2581"  # how SentencePiece spells the blank before a word
_ALIGNMENT = 32
_F32, _F16 = 0, 1
_UNKNOWN, _NORMAL, _CONTROL, _BYTE = 2, 1, 3, 6
_OUTPUT_SCALE = 4.0  # spreads the readable words' logits far beyond what rounding can move


def write_tiny_model(
    path: Path,
    *,
    layers: int = 4,
    embd: int = 128,
    heads: int = 4,
    kv_heads: int = 2,
    ff: int = 256,
    context: int = 4096,
    tied: bool = False,
    seed: int = 7,
) -> None:
    """Write a llama-architecture GGUF of f16 weights at ``path``, by a temporary file beside it and a rename.

    ``embd`` must be divisible by ``heads`` and ``heads`` by ``kv_heads``; ``tied`` leaves ``output.weight`` out, so
    that the embedding serves as output. The defaults give 1.5 MB. Raises ValueError for a shape that no engine loads.
    """
    if min(layers, embd, heads, kv_heads, ff, context) < 1 or embd % heads or heads % kv_heads or embd // heads % 2:
        raise ValueError(
            f"layers {layers}, embd {embd}, heads {heads}, kv_heads {kv_heads}, ff {ff}, context {context} is no shape "
            "for a model: all must be positive, embd an even multiple of heads and heads a multiple of kv_heads"
        )
    vocabulary = _vocabulary()
    tensors = list(_tensors(len(vocabulary), layers, embd, heads, kv_heads, ff, tied))
    metadata = [
        *_geometry(layers, embd, heads, kv_heads, ff, context, len(vocabulary)),
        *_tokenizer(vocabulary),
    ]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)))
            file.write(b"".join(metadata))
            file.write(_directory(tensors))
            _pad(file)
            for name, kind, shape in tensors:
                file.write(_weights(name, kind, shape, vocabulary, seed))
                _pad(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


_Tensor = tuple[str, int, tuple[int, ...]]
_Piece = tuple[str, float, int]


def _vocabulary() -> list[_Piece]:
    """Pieces with score and type, in SentencePiece's layout: three specials, every byte, ASCII, a few whole words."""
    rows: list[_Piece] = [("<unk>", 0.0, _UNKNOWN), ("<s>", 0.0, _CONTROL), ("</s>", 0.0, _CONTROL)]
    rows += [(f"<0x{byte:02X}>", 0.0, _BYTE) for byte in range(256)]
    pieces = [_SPACE, *string.printable[:94]]
    # A word is reached by merging known pairs only, so each of its prefixes must be a piece.
    for word in _WORDS:
        pieces += [_SPACE + word[:length] for length in range(1, len(word) + 1)]
    # Longer pieces score higher and win the merge.
    rows += [(piece, len(piece) - 100.0, _NORMAL) for piece in dict.fromkeys(pieces)]
    return rows


def _tensors(vocab: int, layers: int, embd: int, heads: int, kv_heads: int, ff: int, tied: bool) -> Iterator[_Tensor]:
    """Name, type and shape (row length first, as the format has it) of every tensor in file order."""
    kv = embd // heads * kv_heads
    yield "token_embd.weight", _F16, (embd, vocab)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        yield prefix + "attn_norm.weight", _F32, (embd,)
        yield prefix + "attn_q.weight", _F16, (embd, embd)
        yield prefix + "attn_k.weight", _F16, (embd, kv)
        yield prefix + "attn_v.weight", _F16, (embd, kv)
        yield prefix + "attn_output.weight", _F16, (embd, embd)
        yield prefix + "ffn_norm.weight", _F32, (embd,)
        yield prefix + "ffn_gate.weight", _F16, (embd, ff)
        yield prefix + "ffn_up.weight", _F16, (embd, ff)
        yield prefix + "ffn_down.weight", _F16, (ff, embd)
    yield "output_norm.weight", _F32, (embd,)
    if not tied:
        yield "output.weight", _F16, (embd, vocab)


def _weights(name: str, kind: int, shape: tuple[int, ...], vocabulary: list[_Piece], seed: int) -> bytes:
    """The data of one tensor. Norms are ones; output rows of anything but a whole word are zero, so none is chosen."""
    if kind == _F32:
        return struct.pack("<f", 1.0) * shape[0]
    width, rows = shape
    scale = math.sqrt(3.0 / width)  # uniform in ±scale has the variance 1/width that keeps activations level
    if name != "output.weight":
        return _noise(f"{seed}/{name}", width * rows, scale)
    words = {_SPACE + word for word in _WORDS}
    return b"".join(
        _noise(f"{seed}/{name}/{row}", width, _OUTPUT_SCALE * scale) if piece in words else bytes(2 * width)
        for row, (piece, _, _) in enumerate(vocabulary)
    )


def _noise(label: str, count: int, scale: float) -> bytes:
    """``count`` f16 values, uniform within ±``scale``, decided by ``label`` alone.

    The high byte of an f16 holds sign, exponent and two bits of the mantissa: a table turns a random byte into it, and
    the low byte is random as it is. That is a megabyte in milliseconds, without a loop over the values.
    """
    steps = [struct.pack("<e", scale * (step + 0.5) / 128)[1] for step in range(128)]
    table = bytes(steps + [high | 0x80 for high in steps])
    random = hashlib.shake_256(label.encode()).digest(2 * count)
    values = bytearray(2 * count)
    values[0::2] = random[:count]
    values[1::2] = random[count:].translate(table)
    return bytes(values)


def _geometry(layers: int, embd: int, heads: int, kv_heads: int, ff: int, context: int, vocab: int) -> Iterator[bytes]:
    yield _text("general.architecture", "llama")
    yield _text("general.name", f"ringtop-tiny-{layers}x{embd}")
    yield _u32("general.file_type", 1)  # mostly f16
    yield _u32("llama.context_length", context)
    yield _u32("llama.embedding_length", embd)
    yield _u32("llama.block_count", layers)
    yield _u32("llama.feed_forward_length", ff)
    yield _u32("llama.attention.head_count", heads)
    yield _u32("llama.attention.head_count_kv", kv_heads)
    yield _u32("llama.rope.dimension_count", embd // heads)
    yield _entry("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5))
    yield _u32("llama.vocab_size", vocab)


def _tokenizer(vocabulary: list[_Piece]) -> Iterator[bytes]:
    yield _text("tokenizer.ggml.model", "llama")
    yield _text("tokenizer.ggml.pre", "default")
    yield _array("tokenizer.ggml.tokens", 8, [_string(piece) for piece, _, _ in vocabulary])
    yield _array("tokenizer.ggml.scores", 6, [struct.pack("<f", score) for _, score, _ in vocabulary])
    yield _array("tokenizer.ggml.token_type", 5, [struct.pack("<i", kind) for _, _, kind in vocabulary])
    yield _u32("tokenizer.ggml.unknown_token_id", 0)
    yield _u32("tokenizer.ggml.bos_token_id", 1)
    yield _u32("tokenizer.ggml.eos_token_id", 2)
    yield _flag("tokenizer.ggml.add_bos_token", True)
    yield _flag("tokenizer.ggml.add_eos_token", False)
    yield _flag("tokenizer.ggml.add_space_prefix", True)
    yield _text(
        "tokenizer.chat_template",
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
    )


def _directory(tensors: list[_Tensor]) -> bytes:
    """The tensor table: each entry with its aligned offset in the data region."""
    out, offset = [], 0
    for name, kind, shape in tensors:
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        out.append(_string(name) + dimensions + struct.pack("<IQ", kind, offset))
        size = math.prod(shape) * (4 if kind == _F32 else 2)
        offset += (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    return b"".join(out)


def _pad(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % _ALIGNMENT))


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _entry(key: str, kind: int, value: bytes) -> bytes:
    return _string(key) + struct.pack("<I", kind) + value


def _u32(key: str, value: int) -> bytes:
    return _entry(key, 4, struct.pack("<I", value))


def _flag(key: str, value: bool) -> bytes:
    return _entry(key, 7, struct.pack("<?", value))


def _text(key: str, value: str) -> bytes:
    return _entry(key, 8, _string(value))


def _array(key: str, kind: int, items: list[bytes]) -> bytes:
    return _entry(key, 9, struct.pack("<IQ", kind, len(items)) + b"".join(items))
