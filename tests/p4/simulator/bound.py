"""The largest physical result of a stage, as its READY reports it (from the contract's formula)."""

from __future__ import annotations

_STRING = 2 + 4096
_OWNER = 56 + 5 * _STRING
_CAPSULE = 8 + 10 * 4
_DESCRIPTOR = 8 + 4 * 8 + 4 * 8 + 8 + 8 + 4 + _STRING + 8
_TEXTS = 4 + 4 + 2 * _STRING


def largest_result(
    n_batch: int, n_ubatch: int, n_seq_max: int, tensors: int, payload_bytes: int, *, speculative: bool = False
) -> int:
    """Bytes of the worst split: as many capsules as rows, each with the whole payload."""
    row = 16 + 4 + 1 + _OWNER + 4 * n_seq_max
    outcome = 24 + n_ubatch * (_TEXTS + 8) if speculative else 24 + _TEXTS
    passed_on = 12 + n_batch * (_CAPSULE + tensors * _DESCRIPTOR + payload_bytes) + n_batch * row
    terminal = 12 + n_batch * _CAPSULE + n_batch * (row + outcome)
    return max(passed_on, terminal)
