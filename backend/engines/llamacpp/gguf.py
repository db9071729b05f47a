"""Reads the header of a GGUF file, and nothing behind it: geometry, sizes and tensor placement, never a weight.

A header is input from somebody else. Every count and length in it is compared with a limit, and with what the file
still holds, before anything is allocated for it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from backend.contract.models import BlockFacts, ModelFacts
from backend.contract.words import Bytes
from backend.engines.driver import ModelUnreadable

MAX_ENTRIES: Final = 4_096
"""Metadata entries. Published models have 20 to 60; a hundred times that is no model."""
MAX_TENSORS: Final = 65_536
"""Tensors. The largest mixtures of experts published with one tensor per expert have under 50,000."""
MAX_KEY: Final = 65_535
"""Bytes of a metadata key: the format's own limit."""
MAX_NAME: Final = 64
"""Bytes of a tensor's name: the engine's GGML_MAX_NAME."""
MAX_DIMENSIONS: Final = 4
"""Dimensions of a tensor: the engine's GGML_MAX_DIMS."""
MAX_TEXT: Final = 65_536
"""Bytes of a text that is kept. Longer ones (templates) are passed over without being read into memory."""
MAX_KEPT: Final = 1_024
"""Elements of a list that is kept: per-layer counts. Longer ones (vocabularies) are only counted."""
MAX_ITEMS: Final = 4_194_304
"""Elements of a list. The largest vocabularies and merge tables have under a million."""
MAX_LAYERS: Final = 512
"""Blocks of a model: the engine's LLAMA_MAX_LAYERS."""
MAX_HEADER: Final = 1 << 27
"""Bytes of the whole header: the texts of a million tokens and their merges stay under half of it, and it bounds how
long a header that lies can keep the reader busy."""
MAX_SIZE: Final = 1 << 62
"""Bytes of all tensors: what an offset can name and a file can hold."""

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_TEXT, _LIST = 8, 9
# Value types by their number in the format: struct code of each scalar.
_SCALARS: dict[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
# Tensor types by their number in the format: name, elements per block, bytes per block.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("f32", 1, 4),
    1: ("f16", 1, 2),
    2: ("q4_0", 32, 18),
    3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22),
    7: ("q5_1", 32, 24),
    8: ("q8_0", 32, 34),
    9: ("q8_1", 32, 40),
    10: ("q2_k", 256, 84),
    11: ("q3_k", 256, 110),
    12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176),
    14: ("q6_k", 256, 210),
    15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66),
    17: ("iq2_xs", 256, 74),
    18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50),
    20: ("iq4_nl", 32, 18),
    21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82),
    23: ("iq4_xs", 256, 136),
    24: ("i8", 1, 1),
    25: ("i16", 1, 2),
    26: ("i32", 1, 4),
    27: ("i64", 1, 8),
    28: ("f64", 1, 8),
    29: ("iq1_m", 256, 56),
    30: ("bf16", 1, 2),
    34: ("tq1_0", 256, 54),
    35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17),
}
# Keys of caches that are not one K and one V row per layer and cell: their KV is not derived.
_UNUSUAL_KEYS = re.compile(
    r"\.(attention\.(sliding_window|kv_lora_rank|key_length_mla|value_length_mla|shared_kv_layers|indexer\.)"
    r"|ssm\.|wkv\.|rwkv|full_attention_interval|nextn_predict_layers|recurrent|shortconv)"
)
_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.")

_Scalar = int | float | bool | str
_Value = _Scalar | tuple[_Scalar, ...]


class _Tensor(msgspec.Struct, frozen=True):
    name: str
    type_name: str
    shape: tuple[int, ...]
    size: int


class _Header(msgspec.Struct, frozen=True):
    """What the header says. ``lengths`` counts the elements of every list and the bytes of every text not kept."""

    entries: dict[str, _Value]
    lengths: dict[str, int]
    tensors: tuple[_Tensor, ...]
    alignment: int
    data_offset: int
    data_size: int


def read_header(path: Path) -> ModelFacts:
    """Size, digest and geometry of a model file.

    A file that ends before its last tensor is read all the same: ``ModelFacts.is_whole`` is then False. Raises
    ModelUnreadable, naming path, offset and reason, when the file cannot be opened or its header cannot be believed.
    """
    try:
        with _open(path) as file:
            size = os.fstat(file.fileno()).st_size
            header = _Reader(file, path, size).header()
            digest = _digest(file, min(header.data_offset, size))
    except OSError as error:
        raise ModelUnreadable(f"{path} cannot be read: {error.strerror or error}") from error
    return _facts(path, size, digest, header)


def _open(path: Path) -> BinaryIO:
    """The file, when it is one. Not blocking: a path that turns out to be a pipe must not hang the agent."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:
        raise ModelUnreadable(f"{path!r} is no path: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ModelUnreadable(f"{path} is no regular file")
    return os.fdopen(descriptor, "rb", buffering=1 << 20)


def _digest(file: BinaryIO, size: int) -> str:
    sha = hashlib.sha256()
    file.seek(0)
    while size > 0 and (chunk := file.read(min(size, 1 << 20))):
        sha.update(chunk)
        size -= len(chunk)
    return sha.hexdigest()


class _Reader:
    """Takes the header apart from its first byte on; ``at`` is the offset of what is read next."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.file = file
        self.path = path
        self.size = min(size, MAX_HEADER)
        self.at = 0

    def refuse(self, what: str) -> ModelUnreadable:
        return ModelUnreadable(f"{self.path} is not a usable GGUF file: at byte {self.at}, {what}")

    def need(self, count: int, what: str) -> None:
        """Raise unless ``count`` more bytes of header can be there."""
        if count > self.size - self.at:
            raise self.refuse(f"{what} needs {count} bytes and {self.size - self.at} are left; copy the file again")

    def take(self, count: int, what: str) -> bytes:
        self.need(count, what)
        raw = self.file.read(count)
        if len(raw) != count:
            raise self.refuse(f"{what} ends after {len(raw)} of {count} bytes: the file shrank while it was read")
        self.at += count
        return raw

    def skip(self, count: int, what: str) -> None:
        self.need(count, what)
        self.file.seek(count, os.SEEK_CUR)
        self.at += count

    def scalar(self, code: str, what: str) -> int:
        return int(struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0])

    def count(self, what: str, most: int) -> int:
        value = self.scalar("Q", what)
        if value > most:
            raise self.refuse(f"{what} is {value}, more than {most}")
        return value

    def text(self, what: str, most: int) -> str:
        raw = self.take(self.count(f"the length of {what}", most), what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self.refuse(f"{what} is not UTF-8: {error.reason}") from None

    def header(self) -> _Header:
        magic = self.take(4, "the magic")
        if magic != _MAGIC:
            raise self.refuse(f"it begins with {magic!r}, not {_MAGIC!r}")
        version = self.scalar("I", "the version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "big"), "little")
            why = "the file is big-endian" if swapped in (2, 3) else "only 2 and 3 are read"
            raise self.refuse(f"the version is {version}: {why}")
        tensor_count = self.count("the number of tensors", MAX_TENSORS)
        entry_count = self.count("the number of metadata entries", MAX_ENTRIES)
        entries: dict[str, _Value] = {}
        lengths: dict[str, int] = {}
        for _ in range(entry_count):
            self.entry(entries, lengths)
        alignment = self.alignment(entries)
        tensors, data_size = self.tensors(tensor_count, alignment)
        return _Header(entries, lengths, tensors, alignment, _padded(self.at, alignment), data_size)

    def entry(self, entries: dict[str, _Value], lengths: dict[str, int]) -> None:
        key = self.text("a metadata key", MAX_KEY)
        if key in entries or key in lengths:
            raise self.refuse(f"metadata key {key!r} is there twice")
        kind = self.scalar("I", f"the type of {key!r}")
        if kind == _LIST:
            kept = self.list(key)
            lengths[key] = kept[0]
            if kept[1] is not None:
                entries[key] = kept[1]
        elif kind == _TEXT:
            length, text = self.long_text(key)
            if text is None:
                lengths[key] = length
            else:
                entries[key] = text
        else:
            entries[key] = self.value(kind, f"{key!r}")

    def value(self, kind: int, what: str) -> _Scalar:
        code = _SCALARS.get(kind)
        if code is None:
            raise self.refuse(f"the value of {what} has type {kind}, which the format does not have")
        raw = self.take(struct.calcsize("<" + code), what)
        value: _Scalar = struct.unpack("<" + code, raw)[0]
        return value

    def long_text(self, key: str) -> tuple[int, str | None]:
        """The length of a text entry, and the text unless it is too long to be kept."""
        length = self.count(f"the length of {key!r}", self.size)
        if length > MAX_TEXT:
            self.skip(length, f"{key!r}")
            return length, None
        return length, self.take(length, f"{key!r}").decode(errors="replace")

    def list(self, key: str) -> tuple[int, tuple[_Scalar, ...] | None]:
        """The length of a list, and its elements when they are few numbers. A list of lists is refused."""
        kind = self.scalar("I", f"the element type of {key!r}")
        length = self.count(f"the length of {key!r}", MAX_ITEMS)
        if kind == _TEXT:
            self.need(8 * length, f"the list {key!r}")
            for index in range(length):
                self.skip(self.count(f"the length of {key}[{index}]", self.size), f"{key}[{index}]")
            return length, None
        code = _SCALARS.get(kind)
        if code is None:
            raise self.refuse(f"the elements of {key!r} have type {kind}, which a list cannot have")
        width = struct.calcsize("<" + code)
        if length > MAX_KEPT:
            self.skip(width * length, f"the list {key!r}")
            return length, None
        raw = self.take(width * length, f"the list {key!r}")
        return length, struct.unpack(f"<{length}{code}", raw)

    def alignment(self, entries: dict[str, _Value]) -> int:
        value = entries.get("general.alignment", _DEFAULT_ALIGNMENT)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 20 or value & (value - 1):
            raise self.refuse(f"general.alignment is {value!r}, not a power of two up to 2^20")
        return value

    def tensors(self, count: int, alignment: int) -> tuple[tuple[_Tensor, ...], int]:
        """The tensor table and the bytes of data that it promises. Offsets must follow on each other, padded."""
        self.need(count * 24, "the tensor table")
        found: dict[str, _Tensor] = {}
        end = 0
        for _ in range(count):
            name = self.text("a tensor's name", MAX_NAME)
            if name in found:
                raise self.refuse(f"tensor {name!r} is there twice")
            tensor = self.tensor(name)
            offset = self.scalar("Q", f"the offset of {name!r}")
            if offset != end:
                raise self.refuse(f"tensor {name!r} is at data offset {offset}, and the one before it ends at {end}")
            found[name] = tensor
            end += _padded(tensor.size, alignment)
            if end > MAX_SIZE:
                raise self.refuse(f"the tensors up to {name!r} take {end} bytes, more than a file can hold")
        last = next(reversed(found.values()), None)
        # The padding behind the last tensor need not be in the file.
        return tuple(found.values()), end if last is None else end - _padded(last.size, alignment) + last.size

    def tensor(self, name: str) -> _Tensor:
        dimensions = self.scalar("I", f"the dimensions of {name!r}")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.refuse(f"tensor {name!r} has {dimensions} dimensions, not 1..{MAX_DIMENSIONS}")
        shape = tuple(self.count(f"the shape of {name!r}", MAX_SIZE) for _ in range(dimensions))
        kind = self.scalar("I", f"the type of {name!r}")
        if kind not in TENSOR_TYPES:
            raise self.refuse(f"tensor {name!r} has type {kind}, which this reader does not know")
        type_name, per_block, block_bytes = TENSOR_TYPES[kind]
        if 0 in shape or shape[0] % per_block:
            raise self.refuse(f"tensor {name!r} of shape {list(shape)} is no whole number of {type_name} blocks")
        elements = 1
        for length in shape:
            elements *= length
            if elements > MAX_SIZE:
                raise self.refuse(f"tensor {name!r} of shape {list(shape)} is larger than a file can be")
        return _Tensor(name, type_name, shape, elements // per_block * block_bytes)


def _facts(path: Path, size: int, digest: str, header: _Header) -> ModelFacts:
    """The header in the words of a plan. Raises ModelUnreadable for one without a language model's geometry."""
    keys = _Keys(path, header)
    if keys.number("split.count", default=1) > 1:
        part = keys.number("split.no", default=0, least=0) + 1
        raise ModelUnreadable(
            f"{path} is part {part} of {keys.number('split.count')}; its layers cannot be planned from one part. "
            "Merge the parts into one file (llama-gguf-split --merge)."
        )
    architecture = keys.text("general.architecture")
    n_layer = keys.number(f"{architecture}.block_count", most=MAX_LAYERS)
    n_embd = keys.number(f"{architecture}.embedding_length")
    n_head = keys.number(f"{architecture}.attention.head_count")
    head = n_embd // n_head
    groups = _group(header, n_layer, path)
    names = {tensor.name: tensor for tensor in header.tensors}
    return ModelFacts(
        path=str(path),
        file_bytes=Bytes(size),
        expected_bytes=Bytes(header.data_offset + header.data_size),
        header_digest=digest,
        architecture=architecture,
        name=keys.text("general.name", default=""),
        n_layer=n_layer,
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=keys.number(f"{architecture}.attention.head_count_kv", default=n_head),
        key_length=keys.number(f"{architecture}.attention.key_length", default=head),
        value_length=keys.number(f"{architecture}.attention.value_length", default=head),
        n_vocab=_vocabulary(keys, names),
        context_train=keys.number(f"{architecture}.context_length", default=0, least=0),
        blocks=tuple(BlockFacts(index, Bytes(groups.get(index, 0))) for index in range(n_layer)),
        output_bytes=Bytes(_sum(header, lambda name: name.startswith("output"))),
        token_embd_bytes=Bytes(_sum(header, lambda name: name.startswith("token_embd."))),
        has_output="output.weight" in names,
        tensor_types=tuple(sorted({tensor.type_name for tensor in header.tensors})),
        has_unusual_cache=_has_unusual_cache(architecture, header),
    )


class _Keys:
    """Looks metadata up by key and says what is wrong with an entry in the reader's words."""

    def __init__(self, path: Path, header: _Header) -> None:
        self.path = path
        self.header = header

    def number(self, key: str, *, default: int | None = None, least: int = 1, most: int = 1 << 31) -> int:
        """One integer; of a list with one per layer, the largest. Raises ModelUnreadable outside least..most."""
        found = self.header.entries.get(key, default)
        values = found if isinstance(found, tuple) else (found,)
        if found is None and key not in self.header.lengths:
            raise ModelUnreadable(f"{self.path} has no {key}: it is no model that can be planned")
        numbers = [value for value in values if isinstance(value, int) and not isinstance(value, bool)]
        if len(numbers) != len(values) or not numbers or not least <= max(numbers) <= most:
            raise ModelUnreadable(f"{self.path} says {key} = {found!r}, not an integer of {least}..{most}")
        return max(numbers)

    def text(self, key: str, *, default: str | None = None) -> str:
        found = self.header.entries.get(key, default)
        if not isinstance(found, str):
            raise ModelUnreadable(f"{self.path} says {key} = {found!r}, not a text: it is no model that can be planned")
        return found


def _vocabulary(keys: _Keys, names: dict[str, _Tensor]) -> int:
    """Tokens of the tokenizer, else rows of the output or of the embedding."""
    tokens = keys.header.lengths.get("tokenizer.ggml.tokens", 0)
    if tokens:
        return tokens
    for name in ("output.weight", "token_embd.weight"):
        if name in names and len(names[name].shape) > 1:
            return names[name].shape[1]
    return keys.number(f"{keys.text('general.architecture')}.vocab_size")


def _group(header: _Header, n_layer: int, path: Path) -> dict[int, int]:
    """Padded bytes of weights by block. Raises ModelUnreadable for a block beyond the model's count."""
    groups: dict[int, int] = {}
    for tensor in header.tensors:
        match = _BLOCK.match(tensor.name)
        if match is None:
            continue
        index = int(match[1])
        if index >= n_layer:
            raise ModelUnreadable(f"{path} has tensor {tensor.name!r}, and its block_count is {n_layer}")
        groups[index] = groups.get(index, 0) + _padded(tensor.size, header.alignment)
    return groups


def _sum(header: _Header, belongs: Callable[[str], bool]) -> int:
    return sum(_padded(tensor.size, header.alignment) for tensor in header.tensors if belongs(tensor.name))


def _has_unusual_cache(architecture: str, header: _Header) -> bool:
    """Sliding windows, latent attention, recurrent state, or KV heads that differ from layer to layer."""
    for key in (*header.entries, *header.lengths):
        if key.startswith(architecture + ".") and _UNUSUAL_KEYS.search(key):
            value = header.entries.get(key, 1)
            if value not in (0, False):
                return True
    heads = header.entries.get(f"{architecture}.attention.head_count_kv")
    return isinstance(heads, tuple) and len(set(heads)) > 1


def _padded(value: int, to: int) -> int:
    return (value + to - 1) // to * to
