"""What an agent says about a model file, read from its header only."""

from __future__ import annotations

import msgspec

from backend.contract.words import Bytes


class BlockFacts(msgspec.Struct, frozen=True):
    """The weights of one block (``blk.<index>.*``), padded to the file's alignment."""

    index: int
    weight_bytes: Bytes


class ModelFacts(msgspec.Struct, frozen=True):
    """Size, digest and geometry of one model file. Sizes in bytes; ``header_digest`` is sha256 of the header region.

    ``cut_tensors`` is how many tensors cross the cut between two p4 stages, ``cut_row_bytes`` what those take for one
    row; 0 is unknown. No header says either: they come from the catalog or from what an engine once reported.
    """

    path: str
    file_bytes: Bytes
    expected_bytes: Bytes
    header_digest: str
    architecture: str
    name: str
    n_layer: int
    n_embd: int
    n_head: int
    n_head_kv: int
    key_length: int
    value_length: int
    n_vocab: int
    context_train: int
    blocks: tuple[BlockFacts, ...]
    output_bytes: Bytes
    token_embd_bytes: Bytes
    has_output: bool
    tensor_types: tuple[str, ...]
    has_unusual_cache: bool = False
    cut_tensors: int = 0
    cut_row_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        """The file holds every tensor its header promises."""
        return self.file_bytes >= self.expected_bytes
