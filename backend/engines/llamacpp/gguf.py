"""Reads the header of a GGUF file, and nothing behind it: metadata and the table of tensors, never a weight.

A header is input from somebody else. Every count and length in it is compared with a limit, and with what the file
still holds, before anything is allocated for it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from backend.engines.driver import ModelUnreadable
from backend.planning.engines.llamacpp_bounds import padded

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
MAX_HEADER: Final = 1 << 27
"""Bytes of the whole header: the texts of a million tokens and their merges stay under half of it, and it bounds how
long a header that lies can keep the reader busy."""
MAX_SIZE: Final = 1 << 62
"""Bytes of all tensors: what an offset can name and a file can hold."""

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_TEXT, _LIST = 8, 9
_LENGTH = struct.Struct("<Q")
_BLOCK_BYTES = 1 << 20
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
Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]


class Tensor(msgspec.Struct, frozen=True):
    """One line of the table. ``size`` is in bytes, without the padding behind it."""

    name: str
    type_name: str
    shape: tuple[int, ...]
    size: int


class GgufHeader(msgspec.Struct, frozen=True):
    """What the header says. ``lengths`` counts the elements of every list and the bytes of every text not kept.

    The data begin at ``data_offset`` of the file and should have ``data_size`` bytes.
    """

    entries: dict[str, Value]
    lengths: dict[str, int]
    tensors: tuple[Tensor, ...]
    alignment: int
    data_offset: int
    data_size: int


def read_gguf(path: Path) -> tuple[GgufHeader, int, str]:
    """The header of a file, how many bytes the file has, and the sha256 of its header.

    A file that ends before its last tensor is read all the same. Raises ModelUnreadable, naming path, offset and
    reason, when the file cannot be opened or its header cannot be believed.
    """
    try:
        with _open(path) as file:
            size = os.fstat(file.fileno()).st_size
            header = _Reader(file, path, size).header()
            return header, size, _digest(file, min(header.data_offset, size))
    except OSError as error:
        raise ModelUnreadable(f"{path} cannot be read: {error.strerror or error}") from error


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

    def skip_texts(self, count: int, key: str) -> None:
        """Pass over so many texts by their lengths, block by block: a vocabulary has hundreds of thousands."""
        block, begin, end, at = b"", 0, 0, self.at
        for index in range(count):
            if at + 8 > end:
                self.at = at
                self.need(8, f"the length of {key}[{index}]")
                self.file.seek(at)
                block, begin = self.file.read(_BLOCK_BYTES), at
                end = at + len(block)
                if at + 8 > end:
                    raise self.refuse(f"{key}[{index}] is not there any more: the file shrank while it was read")
            length = _LENGTH.unpack_from(block, at - begin)[0]
            at += 8 + length
            if at > self.size:
                self.at = at - length
                self.need(length, f"{key}[{index}]")
        self.at = at
        self.file.seek(at)

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

    def header(self) -> GgufHeader:
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
        entries: dict[str, Value] = {}
        lengths: dict[str, int] = {}
        for _ in range(entry_count):
            self.entry(entries, lengths)
        alignment = self.alignment(entries)
        tensors, data_size = self.tensors(tensor_count, alignment)
        return GgufHeader(entries, lengths, tensors, alignment, padded(self.at, alignment), data_size)

    def entry(self, entries: dict[str, Value], lengths: dict[str, int]) -> None:
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

    def value(self, kind: int, what: str) -> Scalar:
        code = _SCALARS.get(kind)
        if code is None:
            raise self.refuse(f"the value of {what} has type {kind}, which the format does not have")
        raw = self.take(struct.calcsize("<" + code), what)
        value: Scalar = struct.unpack("<" + code, raw)[0]
        return value

    def long_text(self, key: str) -> tuple[int, str | None]:
        """The length of a text entry, and the text unless it is too long to be kept."""
        length = self.count(f"the length of {key!r}", self.size)
        if length > MAX_TEXT:
            self.skip(length, f"{key!r}")
            return length, None
        return length, self.take(length, f"{key!r}").decode(errors="replace")

    def list(self, key: str) -> tuple[int, tuple[Scalar, ...] | None]:
        """The length of a list, and its elements when they are few numbers. A list of lists is refused."""
        kind = self.scalar("I", f"the element type of {key!r}")
        length = self.count(f"the length of {key!r}", MAX_ITEMS)
        if kind == _TEXT:
            self.need(8 * length, f"the list {key!r}")
            self.skip_texts(length, key)
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

    def alignment(self, entries: dict[str, Value]) -> int:
        value = entries.get("general.alignment", _DEFAULT_ALIGNMENT)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 1 << 20 or value & (value - 1):
            raise self.refuse(f"general.alignment is {value!r}, not a power of two up to 2^20")
        return value

    def tensors(self, count: int, alignment: int) -> tuple[tuple[Tensor, ...], int]:
        """The tensor table and the bytes of data that it promises. Offsets must follow on each other, padded."""
        self.need(count * 24, "the tensor table")
        found: dict[str, Tensor] = {}
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
            end += padded(tensor.size, alignment)
            if end > MAX_SIZE:
                raise self.refuse(f"the tensors up to {name!r} take {end} bytes, more than a file can hold")
        last = next(reversed(found.values()), None)
        # The padding behind the last tensor need not be in the file.
        return tuple(found.values()), end if last is None else end - padded(last.size, alignment) + last.size

    def tensor(self, name: str) -> Tensor:
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
        return Tensor(name, type_name, shape, elements // per_block * block_bytes)
