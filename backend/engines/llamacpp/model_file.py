"""What a model file says of the model in it, in the words of a plan: geometry, sizes, and where its weights belong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from backend.contract.models import BlockFacts, ModelFacts
from backend.contract.words import Bytes
from backend.engines.driver import ModelUnreadable
from backend.engines.llamacpp.gguf import GgufHeader, Tensor, read_gguf
from backend.planning.engines.llamacpp_bounds import padded
from backend.planning.engines.rules import MAX_LAYERS

# Keys of caches that are not one K and one V row per layer and cell: their KV is not derived.
_UNUSUAL_KEYS = re.compile(
    r"\.(attention\.(sliding_window|kv_lora_rank|key_length_mla|value_length_mla|shared_kv_layers|indexer\.)"
    r"|ssm\.|wkv\.|rwkv|full_attention_interval|nextn_predict_layers|recurrent|shortconv)"
)
_BLOCK = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.")


def read_header(path: Path) -> ModelFacts:
    """Size, digest and geometry of a model file, from its header.

    A file that ends before its last tensor is read all the same: ``ModelFacts.is_whole`` is then False. Raises
    ModelUnreadable, naming path and reason, also for a header without a language model's geometry.
    """
    header, size, digest = read_gguf(path)
    keys = _Keys(path, header)
    if keys.number("split.count", default=1, least=0) > 1:  # a merged file says 0
        part = keys.number("split.no", default=0, least=0) + 1
        raise ModelUnreadable(
            f"{path} is part {part} of {keys.number('split.count')}; its layers cannot be planned from one part. "
            "Merge the parts into one file (llama-gguf-split --merge)."
        )
    if not header.tensors:
        raise ModelUnreadable(f"{path} has no tensors: a vocabulary alone, or a first part without any, is no model")
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

    def __init__(self, path: Path, header: GgufHeader) -> None:
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


def _vocabulary(keys: _Keys, names: dict[str, Tensor]) -> int:
    """Tokens of the tokenizer, else rows of the output or of the embedding."""
    tokens = keys.header.lengths.get("tokenizer.ggml.tokens", 0)
    if tokens:
        return tokens
    for name in ("output.weight", "token_embd.weight"):
        if name in names and len(names[name].shape) > 1:
            return names[name].shape[1]
    return keys.number(f"{keys.text('general.architecture')}.vocab_size")


def _group(header: GgufHeader, n_layer: int, path: Path) -> dict[int, int]:
    """Padded bytes of weights by block. Raises ModelUnreadable for a block beyond the model's count."""
    groups: dict[int, int] = {}
    for tensor in header.tensors:
        match = _BLOCK.match(tensor.name)
        if match is None:
            continue
        index = int(match[1])
        if index >= n_layer:
            raise ModelUnreadable(f"{path} has tensor {tensor.name!r}, and its block_count is {n_layer}")
        groups[index] = groups.get(index, 0) + padded(tensor.size, header.alignment)
    return groups


def _sum(header: GgufHeader, belongs: Callable[[str], bool]) -> int:
    return sum(padded(tensor.size, header.alignment) for tensor in header.tensors if belongs(tensor.name))


def _has_unusual_cache(architecture: str, header: GgufHeader) -> bool:
    """Sliding windows, latent attention, recurrent state, or KV heads that differ from layer to layer."""
    for key in (*header.entries, *header.lengths):
        if key.startswith(architecture + ".") and _UNUSUAL_KEYS.search(key):
            value = header.entries.get(key, 1)
            if value not in (0, False):
                return True
    heads = header.entries.get(f"{architecture}.attention.head_count_kv")
    return isinstance(heads, tuple) and len(set(heads)) > 1
