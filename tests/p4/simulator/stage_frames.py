"""What an agent and its stage server say to each other, as far as it is known: LCP4 frames and the READY text."""

from __future__ import annotations

import struct
from typing import Any

MAGIC = b"LCP4"
REVISION = 2
HELLO, UNLOAD, ERROR, BIND_LOAD = 1, 9, 10, 23
HEAD_BYTES = 12
MOST_BYTES = 1 << 20

_FLAGS = ("llama_runtime", "hop", "kv", "transactions", "physical_batch")
_IDENTITY = ("upstream", "patch_set", "backend_inventory", "stage_wire_abi")
NUMBERS = (
    "physical_identity_revision",
    "n_ctx",
    "n_batch",
    "n_ubatch",
    "n_seq_max",
    "max_atomic_sequences",
    "equal_sequence_ubatch",
    "atomic_batch_exclusive",
    "physical_result_payload_bytes",
    "physical_result_tensor_count",
    "max_physical_result_bytes",
)


class BadFrame(ValueError):
    """What came is no frame of a stage server."""


def frame(operation: int, body: bytes = b"") -> bytes:
    """One frame."""
    return MAGIC + struct.pack("<HBBI", REVISION, operation, 0, len(body)) + body


def read_head(head: bytes) -> tuple[int, int]:
    """Operation and body length of a frame's head. Raises BadFrame."""
    revision, operation, zero, length = struct.unpack("<HBBI", head[4:])
    if head[:4] != MAGIC or revision not in (1, REVISION) or zero or length > MOST_BYTES:
        raise BadFrame(f"no stage frame: {head.hex()}")
    return operation, length


def ready_body(said: dict[str, Any], lacks: list[str]) -> bytes:
    """The HELLO reply: revision, then one text of flags, identity and numbers; an older server leaves some out."""
    words = ["READY", *(f"{name}={int(name not in lacks)}" for name in _FLAGS)]
    words += [f"{name}={said[name]}" for name in (*_IDENTITY, *NUMBERS) if name not in lacks]
    return struct.pack("<H", REVISION) + ";".join(words).encode()


def read_ready(body: bytes) -> dict[str, Any]:
    """What a HELLO reply says; numbers as integers, absent texts as ``unknown``. Raises BadFrame."""
    text = body[2:].decode(errors="replace")
    if not text.startswith("READY"):
        raise BadFrame(f"no READY: {text[:80]}")
    words = dict(word.split("=", 1) for word in text.split(";")[1:] if "=" in word)
    if words.get("physical_batch") != "1":
        raise BadFrame("stage server lacks physical batches")
    said: dict[str, Any] = {name: words.get(name, "unknown") for name in _IDENTITY}
    for name in NUMBERS:
        if not words.get(name, "").isdigit():
            raise BadFrame(f"stage server HELLO omits {name}")
        said[name] = int(words[name])
    return said
