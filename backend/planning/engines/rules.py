"""What planning asks of an engine: roles, shapes, bounds, phases and order. One object per engine; all of it pure."""

from __future__ import annotations

from typing import Protocol

import msgspec

from backend.contract.findings import Finding, warn
from backend.contract.models import ModelFacts
from backend.contract.plans import Bound, PhaseBound, Plan, Profile, Term
from backend.contract.words import Bytes

MAX_LAYERS = 512
"""Layers of a model at most: llama.cpp's LLAMA_MAX_LAYERS, which p4's stages share."""


class Seat(msgspec.Struct, frozen=True):
    """One rank's place before it has a host. ``takes_device`` is False for a rank that computes nothing itself."""

    rank: int
    role: str
    layers: tuple[int, int] | None
    holds_output: bool
    takes_device: bool
    ports: int


class EngineRules(Protocol):
    """One engine, as the plan sees it.

    ``reads_header`` says that its bounds need the model's header; an engine that takes a model by its id has none to
    read. ``places_layers`` says that the plan, not the engine, decides which layers a rank holds.
    """

    engine: str
    content_type: str
    reads_header: bool
    places_layers: bool

    def seats(self, profile: Profile, model: ModelFacts | None) -> tuple[Seat, ...]:
        """Every rank with its role and layers; layers are None while the model is unknown or the split is wrong."""

    def check_shape(self, profile: Profile, model: ModelFacts | None) -> tuple[Finding, ...]:
        """Whether ranks, split and model go together."""

    def check_options(self, profile: Profile) -> tuple[Finding, ...]:
        """Whether every option of the profile is on the allowlist, with a value in its range."""

    def check_model(self, profile: Profile, model: ModelFacts) -> tuple[Finding, ...]:
        """What is known about this model on this engine: architectures never tried, contexts beyond training."""

    def check_cpu(self, profile: Profile, model: ModelFacts, missing: tuple[str, ...]) -> str:
        """Why a CPU without the features ``missing`` cannot run this model, or nothing."""

    def bounds(self, model: ModelFacts, profile: Profile, counts: tuple[int, ...]) -> tuple[Bound, ...]:
        """The bound of every rank, in rank order. ``counts`` are the layers of each rank that holds any.

        Asked only when the model's header is known, and shape and options are legal.
        """

    def mapped_bytes(self, model: ModelFacts, profile: Profile) -> int:
        """Bytes of the model file that rank 0 maps beyond its bound while it loads."""

    def phases(self, profile: Profile, bounds: tuple[Bound, ...]) -> tuple[PhaseBound, ...]:
        """The longest that each phase of a load may take."""

    def start_order(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """Ranks in waves: those of one wave start together, the next wave when the wave before is up."""

    def stop_order(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """Ranks in waves, as they are stopped."""


NOTHING_KNOWN = ModelFacts(
    path="",
    file_bytes=Bytes(0),
    expected_bytes=Bytes(0),
    header_digest="",
    architecture="",
    name="",
    n_layer=0,
    n_embd=0,
    n_head=0,
    n_head_kv=0,
    key_length=0,
    value_length=0,
    n_vocab=0,
    context_train=0,
    blocks=(),
    output_bytes=Bytes(0),
    token_embd_bytes=Bytes(0),
    has_output=False,
    tensor_types=(),
)
"""A model without a header to read; 0 is unknown."""


def unknown_bounds(ranks: int) -> tuple[Bound, ...]:
    """Bounds of a model that nobody could read: nothing derived, nothing compared."""
    zero = Bytes(0)
    return (Bound(zero, zero, zero, zero, zero, False, ()),) * ranks


def demanded(bound: Bound, memory: int) -> Bound:
    """The bound with the profile's demand of ``memory`` bytes, where that is more than what was derived."""
    extra = memory - bound.memory
    if extra <= 0:
        return bound
    known = Term("derived", bound.memory, "B", "weights, KV and compute" if bound.terms else "nothing is derived")
    demand = Term("memory", memory, "B", "memory in the profile, which is more than what is derived", (known,))
    return msgspec.structs.replace(bound, extra=Bytes(extra), terms=(*bound.terms, demand))


def beyond_training(profile: Profile, model: ModelFacts, tokens: int, consequence: str) -> tuple[Finding, ...]:
    """The warning of a context that is larger than the one the model was trained with."""
    if not 0 < model.context_train < tokens:
        return ()
    return (
        warn(
            "context.training",
            model.path,
            expected=f"at most {model.context_train} tokens, the context it was trained with",
            found=f"context = {profile.context} in the profile",
            remedy=consequence,
        ),
    )
