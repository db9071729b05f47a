"""What each rank of a llama.cpp ring will hold and return, from the model's header alone.

Weights and KV equalled the engine's own lines at two decimals of a MiB in every run of b10434; the layer placement is
its float32 arithmetic. Compute buffers differ by build and are only estimated.
"""

from __future__ import annotations

import struct

from backend.contract.models import ModelFacts
from backend.contract.plans import Bound, Profile, Term
from backend.contract.words import Bytes
from backend.planning.engines.llamacpp_options import option_value

RESULT_LIMIT = 268_435_456
"""The most one result may take: what the lifecycle envelope lets an agent retain (``Capacities.retained_bytes``)."""

# Elements per block and bytes per block of each cache type.
_ROWS: dict[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "iq4_nl": (32, 18),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
}
_CELL_PADDING = 256
_MIB = 2**20


def bounds(model: ModelFacts, profile: Profile, counts: tuple[int, ...], *, derived: bool) -> tuple[Bound, ...]:
    """The bound of every rank. ``counts`` are the layers of each rank that holds any, in order."""
    blocks = {block.index: block.weight_bytes for block in model.blocks}
    if profile.ranks == 1:
        return (_alone(model, profile, sum(blocks.values()), derived),)
    result, start = [_leader(model, profile, derived)], 0
    for index, count in enumerate(counts):
        held = sum(blocks.get(layer, 0) for layer in range(start, start + count))
        is_last = index == len(counts) - 1
        result.append(_worker(model, profile, (start, start + count), held, is_last, derived))
        start += count
    return tuple(result)


def placed_counts(split: tuple[float, ...], n_layer: int) -> tuple[int, ...]:
    """Layers that the engine gives each device for ``-ts split``, all offloaded. The output is not counted.

    Running sums and quotients are float32, as in the engine: plain floats misplace a layer in one case of a hundred.
    """
    sums: list[float] = []
    for part in split:
        sums.append(_f32(_f32(part) + (sums[-1] if sums else 0.0)))
    shares = [_f32(running / sums[-1]) for running in sums]
    counts = [0] * len(split)
    for layer in range(n_layer):
        position = _f32(layer / _f32(n_layer + 1))
        counts[next((i for i, share in enumerate(shares) if share > position), len(split) - 1)] += 1
    return tuple(counts)


def row_bytes(type_name: str, elements: int) -> int:
    """Bytes of one row of a cache of this type. Raises ValueError when the row is no whole number of blocks."""
    per_block, size = _ROWS[type_name]
    if elements % per_block:
        raise ValueError(f"a {type_name} row of {elements} is not a multiple of {per_block}")
    return elements // per_block * size


def padded(value: int, to: int) -> int:
    """``value`` rounded up to a multiple of ``to``."""
    return (value + to - 1) // to * to


def _f32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def _alone(model: ModelFacts, profile: Profile, blocks: int, derived: bool) -> Bound:
    """One rank: every layer, the output and the embedding. On the CPU a tied embedding is one mapping, counted once."""
    parts = [
        Term("blocks", blocks, "B", f"blk.0..{model.n_layer - 1}, each tensor padded, from the header"),
        Term("output", model.output_bytes, "B", "output_norm and output, from the header"),
        Term("embedding", model.token_embd_bytes, "B", "token_embd, mapped from the file"),
    ]
    if not model.has_output and profile.device != "CPU":
        parts.append(
            Term("tied output", model.token_embd_bytes, "B", "no output.weight: token_embd once more on the device")
        )
    return _bound(
        _sum("weights", parts, "held by the one rank"),
        _kv(model, profile, model.n_layer),
        _compute(model, profile, holds_output=True),
        _prompt_cache(profile),
        _no_result(),
        derived=derived,
    )


def _leader(model: ModelFacts, profile: Profile, derived: bool) -> Bound:
    """Rank 0 of a ring holds the embedding, a range of the mapped file, and no layer."""
    rows, cells = _micro_batch(profile), _cells(profile)
    compute = rows * 4 * (2 * model.n_embd + cells // 2)
    embedding = Term("embedding", model.token_embd_bytes, "B", "token_embd, mapped from the file")
    return _bound(
        _sum("weights", [embedding], "rank 0 holds no layer"),
        Term("KV", 0, "B", "rank 0 holds no layer"),
        Term(
            "compute",
            compute,
            "B",
            "estimate: rows × 4 × (2 × n_embd + cells / 2)",
            (_rows(profile, rows), _n_embd(model), _cells_term(profile)),
        ),
        _prompt_cache(profile),
        _no_result(),
        derived=derived,
    )


def _worker(
    model: ModelFacts, profile: Profile, layers: tuple[int, int], held: int, is_last: bool, derived: bool
) -> Bound:
    parts = [Term("blocks", held, "B", f"blk.{layers[0]}..{layers[1] - 1}, each tensor padded, from the header")]
    if is_last:
        parts.append(Term("output", model.output_bytes, "B", "output_norm and output, from the header"))
        if not model.has_output:
            parts.append(Term("tied output", model.token_embd_bytes, "B", "no output.weight: token_embd once more"))
    return _bound(
        _sum("weights", parts, f"layers {layers[0]} to {layers[1] - 1}"),
        _kv(model, profile, layers[1] - layers[0]),
        _compute(model, profile, holds_output=is_last),
        None,
        _result(model, profile, is_last),
        derived=derived,
    )


def _sum(name: str, parts: list[Term], source: str) -> Term:
    return Term(name, sum(part.value for part in parts), "B", f"the sum of: {source}", tuple(parts))


def _bound(weights: Term, kv: Term, compute: Term, cache: Term | None, result: Term, *, derived: bool) -> Bound:
    limit = Term(
        "result limit", RESULT_LIMIT, "B", "the most one result may take: retained_bytes of the lifecycle envelope"
    )
    return Bound(
        weights=Bytes(weights.value),
        kv=Bytes(kv.value),
        compute=Bytes(compute.value + (cache.value if cache else 0)),
        result=Bytes(result.value),
        result_limit=Bytes(RESULT_LIMIT),
        derived=derived,
        terms=tuple(term for term in (weights, kv, compute, cache, result, limit) if term is not None),
        result_derived=derived,
    )


def _cells(profile: Profile) -> int:
    """KV cells. One unified cache serves every stream and the canary, so streams do not multiply it."""
    return padded(profile.context, _CELL_PADDING)


def _micro_batch(profile: Profile) -> int:
    """Rows of the largest micro-batch: the engine cuts n_ubatch to n_batch and to the context."""
    return min(profile.n_ubatch, profile.n_batch, _cells(profile))


def _rows(profile: Profile, rows: int) -> Term:
    return Term("rows", rows, "", f"n_ubatch {profile.n_ubatch}, cut to n_batch {profile.n_batch} and the context")


def _cells_term(profile: Profile) -> Term:
    return Term("cells", _cells(profile), "", f"context {profile.context} padded to {_CELL_PADDING}, one unified cache")


def _n_embd(model: ModelFacts) -> Term:
    return Term("n_embd", model.n_embd, "", "from the header")


def _kv(model: ModelFacts, profile: Profile, layers: int) -> Term:
    k_type, v_type = str(option_value(profile, "cache_type_k")), str(option_value(profile, "cache_type_v"))
    k_row = row_bytes(k_type, padded(model.key_length * model.n_head_kv, _ROWS[k_type][0]))
    v_row = row_bytes(v_type, padded(model.value_length * model.n_head_kv, _ROWS[v_type][0]))
    return Term(
        "KV",
        (k_row + v_row) * _cells(profile) * layers,
        "B",
        "(K row + V row) × cells × layers",
        (
            Term("K row", k_row, "B", f"{k_type}: {model.key_length} × {model.n_head_kv} KV heads"),
            Term("V row", v_row, "B", f"{v_type}: {model.value_length} × {model.n_head_kv} KV heads"),
            _cells_term(profile),
            Term("layers", layers, "", "of this rank"),
        ),
    )


def _compute(model: ModelFacts, profile: Profile, *, holds_output: bool) -> Term:
    """An upper estimate for one device: activations of a layer about four times as wide inside, mask, logits."""
    rows, cells = _micro_batch(profile), _cells(profile)
    floats = 15 * model.n_embd + cells // 2
    formula, parts = "15 × n_embd + cells / 2", [_rows(profile, rows), _n_embd(model), _cells_term(profile)]
    if holds_output:
        floats += model.n_vocab
        formula += " + n_vocab"
        parts.append(Term("n_vocab", model.n_vocab, "", "from the header"))
    if option_value(profile, "flash_attn") == "off":
        floats += 2 * model.n_head * cells
        formula += " + 2 × heads × cells"
        parts.append(Term("heads", model.n_head, "", "from the header; flash_attn is off"))
    return Term("compute", rows * 4 * floats, "B", f"estimate: rows × 4 × ({formula})", tuple(parts))


def _prompt_cache(profile: Profile) -> Term | None:
    size = int(option_value(profile, "cram")) * _MIB
    return Term("prompt cache", size, "B", "cram MiB of the leader host's memory") if size else None


def _result(model: ModelFacts, profile: Profile, is_last: bool) -> Term:
    """Bytes back to the leader for one micro-batch. The last rank returns logits of the rows that are sampled."""
    if not is_last:
        rows = _micro_batch(profile)
        return Term(
            "result",
            rows * model.n_embd * 4 + 8,
            "B",
            "rows × n_embd × 4 + 8, the largest that goes back per hop",
            (_rows(profile, rows), _n_embd(model)),
        )
    sampled = profile.sequences + 1
    return Term(
        "result",
        sampled * model.n_vocab * 4 + 8,
        "B",
        "sampled rows × n_vocab × 4 + 8, the largest that goes back per hop",
        (
            Term("sampled rows", sampled, "", f"{profile.sequences} sequences and the canary"),
            Term("n_vocab", model.n_vocab, "", "from the header"),
        ),
    )


def _no_result() -> Term:
    return Term("result", 0, "B", "rank 0 answers by HTTP; nothing crosses the ring from it")
