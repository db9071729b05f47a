"""The largest physical result of a p4 stage, to the byte, as a tree of terms, and the batch sizes that fit a store.

The formula is the engine's own (``derive_max_physical_result_bytes`` of its stage_memory_plan.cpp); it met every number
that a READY reported. It assumes the worst split: as many capsules as rows, each with a full copy of the payload.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from backend.contract.numbers import U64_MAX, check_u64
from backend.contract.plans import Term

MAX_ROWS = 65_536
MAX_TENSORS = 16_384
STORE = 268_435_456
"""What one store keeps by default (``P4_EVENT_RETAINED_BYTES``): a result beyond it can never be admitted."""
FLOAT = 4

_SOURCE = "stage_memory_plan.cpp"
_STRING = 2 + 4096
_OWNER = 56 + 5 * _STRING
_CAPSULE = 8 + 10 * 4
_DESCRIPTOR = 8 + 4 * 8 + 4 * 8 + 8 + 8 + 4 + _STRING + 8
_OUTCOME = 4 + 4 + 2 * _STRING
_HEADER = 12
_OUTCOME_HEADER = 24
_LEAST_OFFERED = 32  # smaller batches are offered only where nothing larger fits


class BoundRefused(ValueError):
    """A shape for which no bound exists: outside the engine's own limits, or beyond 2^64-1."""


class ResultShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the result bound depends on. ``payload_bytes`` are those of the ``tensors`` that a stage outputs at
    ``n_ubatch`` rows; both are 0 on the last stage. Raises BoundRefused outside the engine's limits."""

    n_batch: int
    n_ubatch: int
    n_seq_max: int
    tensors: int
    payload_bytes: int
    speculative: bool = False

    def __post_init__(self) -> None:
        try:
            for name in ("n_batch", "n_ubatch", "n_seq_max"):
                check_u64(name, getattr(self, name), least=1)
            for name in ("tensors", "payload_bytes"):
                check_u64(name, getattr(self, name))
        except ValueError as error:
            raise BoundRefused(str(error)) from error
        if self.n_batch > MAX_ROWS:
            raise BoundRefused(f"n_batch is {self.n_batch}, and the engine takes at most {MAX_ROWS} rows")
        if self.n_ubatch > self.n_batch:
            raise BoundRefused(f"n_ubatch is {self.n_ubatch}, above n_batch {self.n_batch}; lower it to that")
        if self.tensors > MAX_TENSORS:
            raise BoundRefused(f"tensors is {self.tensors}, and the engine takes at most {MAX_TENSORS}")
        if self.payload_bytes and not self.tensors:
            raise BoundRefused(
                f"payload_bytes is {self.payload_bytes} with tensors = 0; a stage without tensors has none"
            )

    def at(self, n_batch: int, n_ubatch: int) -> ResultShape:
        """The same stage with other batch sizes; the payload grows with the rows of a micro-batch."""
        payload = -(-self.payload_bytes * n_ubatch // self.n_ubatch)
        return msgspec.structs.replace(self, n_batch=n_batch, n_ubatch=n_ubatch, payload_bytes=payload)


class FittingPair(msgspec.Struct, frozen=True):
    """A batch size, the largest micro-batch whose result still fits, and that result in bytes."""

    n_batch: int
    n_ubatch: int
    max_physical_result_bytes: int


def largest_result(shape: ResultShape) -> int:
    """``max_physical_result_bytes`` as READY must report it. Raises BoundRefused beyond 2^64-1."""
    most = max(_nonterminal(shape), _terminal(shape))
    if most > U64_MAX:
        raise BoundRefused(
            f"the largest result is {most} bytes, more than 2^64-1, which the engine refuses. Lower n_batch or n_ubatch"
        )
    return most


def derivation(shape: ResultShape) -> Term:
    """The same number with everything that it is made of. Raises BoundRefused beyond 2^64-1."""
    value = largest_result(shape)
    return Term(
        "largest result",
        value,
        "B",
        f"the larger of a result that goes on and one that ends; {_SOURCE}",
        (_nonterminal_tree(shape), _terminal_tree(shape)),
    )


def largest_n_ubatch(shape: ResultShape, n_batch: int, store: int) -> int | None:
    """The largest micro-batch of this stage at ``n_batch`` whose result fits ``store`` bytes; None when none does."""
    low, high = 0, n_batch
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(shape, n_batch, middle, store):
            low = middle
        else:
            high = middle - 1
    return low or None


def fitting_pairs(shape: ResultShape, store: int = STORE) -> tuple[FittingPair, ...]:
    """The batch sizes that fit a store, by powers of two and as asked, each with its largest micro-batch."""
    powers = [2**power for power in range(MAX_ROWS.bit_length())]
    pairs = tuple(_pairs(shape, sorted({*(size for size in powers if size >= _LEAST_OFFERED), shape.n_batch}), store))
    return pairs or tuple(_pairs(shape, (size for size in powers if size < _LEAST_OFFERED), store))


def _pairs(shape: ResultShape, sizes: Iterable[int], store: int) -> Iterable[FittingPair]:
    for n_batch in sizes:
        n_ubatch = largest_n_ubatch(shape, n_batch, store)
        if n_ubatch is not None:
            yield FittingPair(n_batch, n_ubatch, largest_result(shape.at(n_batch, n_ubatch)))


def _fits(shape: ResultShape, n_batch: int, n_ubatch: int, store: int) -> bool:
    """Whether the result of a stage at these batch sizes fits; one beyond 2^64-1 fits nowhere."""
    try:
        return largest_result(shape.at(n_batch, n_ubatch)) <= store
    except BoundRefused:
        return False


def _row(shape: ResultShape) -> int:
    return 16 + 4 + 1 + _OWNER + 4 * shape.n_seq_max


def _outcome(shape: ResultShape) -> int:
    return _OUTCOME_HEADER + (shape.n_ubatch * (_OUTCOME + 8) if shape.speculative else _OUTCOME)


def _nonterminal(shape: ResultShape) -> int:
    each = _CAPSULE + shape.tensors * _DESCRIPTOR + shape.payload_bytes + _row(shape)
    return _HEADER + shape.n_batch * each


def _terminal(shape: ResultShape) -> int:
    return _HEADER + shape.n_batch * (_CAPSULE + _row(shape) + _outcome(shape))


def _nonterminal_tree(shape: ResultShape) -> Term:
    return Term(
        "result that goes on",
        _nonterminal(shape),
        "B",
        "header + n_batch × (capsule + tensors × descriptor + payload + row)",
        (
            _header(),
            _n_batch(shape),
            _capsule(),
            Term("tensors", shape.tensors, "", "what a stage hands to the next; 0 on the last"),
            Term("descriptor", _DESCRIPTOR, "B", "8 + 4·8 + 4·8 + 8 + 8 + 4 + string + 8", (_string(),)),
            Term("payload", shape.payload_bytes, "B", f"those tensors at n_ubatch = {shape.n_ubatch} rows"),
            _row_tree(shape),
        ),
    )


def _terminal_tree(shape: ResultShape) -> Term:
    if shape.speculative:
        formula = f"24 + n_ubatch {shape.n_ubatch} × (4 + 4 + 2 × string + 8), as decoding is speculative"
    else:
        formula = "24 + (4 + 4 + 2 × string)"
    return Term(
        "result that ends",
        _terminal(shape),
        "B",
        "header + n_batch × (capsule + row + outcome)",
        (
            _header(),
            _n_batch(shape),
            _capsule(),
            _row_tree(shape),
            Term("outcome", _outcome(shape), "B", formula, (_string(),)),
        ),
    )


def _row_tree(shape: ResultShape) -> Term:
    owner = Term("owner", _OWNER, "B", "56 + 5 × string", (_string(),))
    streams = Term("n_seq_max", shape.n_seq_max, "", "sequences of the profile")
    return Term("row", _row(shape), "B", "16 + 4 + 1 + owner + 4 × n_seq_max", (owner, streams))


def _string() -> Term:
    return Term("string", _STRING, "B", "2 + 4096, the longest text of the wire; physical_wire_cursor.hpp")


def _header() -> Term:
    return Term("header", _HEADER, "B", "of the physical set")


def _capsule() -> Term:
    return Term("capsule", _CAPSULE, "B", "8 + 10 × 4")


def _n_batch(shape: ResultShape) -> Term:
    return Term("n_batch", shape.n_batch, "rows", "of the profile; every row may be a capsule of its own")
