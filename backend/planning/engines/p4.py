"""p4 as the plan sees it: a chain of stages, each with a window of layers on one device, behind the p4 agents.

Every stage holds layers, rank 0 (the head) too; the last (the tail) returns tokens instead of tensors. One p4 agent
loads its stages one after the other. ``context`` is what each of ``sequences`` streams gets.
"""

from __future__ import annotations

import msgspec

from backend.contract.findings import Finding, refuse, warn
from backend.contract.models import ModelFacts
from backend.contract.plans import Bound, PhaseBound, Plan, Profile, Term
from backend.contract.words import Bytes
from backend.planning.engines import p4_options
from backend.planning.engines.llamacpp_bounds import padded, row_bytes
from backend.planning.engines.p4_bounds import (
    FLOAT,
    BoundRefused,
    FittingPair,
    ResultShape,
    derivation,
    fitting_pairs,
    largest_result,
)
from backend.planning.engines.p4_options import is_speculative, option_value, store_bytes
from backend.planning.engines.p4_reported import Cut
from backend.planning.engines.rules import Seat, beyond_training

HEAD, STAGE, TAIL = "head", "stage", "tail"
VERIFIED_ARCHITECTURES = {"step35": 2}
"""Architectures whose READY met the formula to the byte, with the tensors that cross a cut of them."""
_ASSUMED_TENSORS = 2

_GIB = 2**30
_LOAD_RATE = 0.2  # GiB/s, of a stage that reads its window from a local disk
_PER_STAGE = 60.0


class P4:
    """The rules of one p4 chain."""

    engine = "p4"
    content_type = "application/vnd.p4.llamacpp.load-v4+json"
    reads_header = True
    places_layers = True

    def seats(self, profile: Profile, model: ModelFacts | None) -> tuple[Seat, ...]:
        """Head, stages, tail, each with its window; windows are None while the model is unknown or the split wrong."""
        counts = window_counts(profile, model) if model is not None and not self.check_shape(profile, model) else ()
        seats, start = [], 0
        for rank in range(profile.ranks):
            is_last = rank == profile.ranks - 1
            count = counts[rank] if counts else 0
            role = HEAD if rank == 0 else TAIL if is_last else STAGE
            seats.append(Seat(rank, role, (start, start + count) if counts else None, is_last, True, 1))
            start += count
        return tuple(seats)

    def check_shape(self, profile: Profile, model: ModelFacts | None) -> tuple[Finding, ...]:
        """At least two stages, one device each, a window for everyone, and windows that make the model."""
        if profile.ranks < 2 or profile.devices > 1:
            return (
                refuse(
                    "ranks" if profile.ranks < 2 else "ranks.devices",
                    "ranks" if profile.ranks < 2 else "devices",
                    expected="at least 2 stages of 1 device each",
                    found=f"ranks = {profile.ranks}, devices = {profile.devices} in the profile",
                    remedy="A p4 session needs a head and a tail. Raise ranks, and leave devices out.",
                ),
            )
        if profile.split and len(profile.split) != profile.ranks:
            return (
                refuse(
                    "split.length",
                    "split",
                    expected=f"{profile.ranks} layer counts, one per stage, as ranks = {profile.ranks}",
                    found=f"{len(profile.split)} in split = {list(profile.split)}",
                    remedy="Give split one count per stage, or leave it out for an even one.",
                ),
            )
        if model is None or not model.n_layer:
            return ()
        if profile.ranks > model.n_layer:
            return (
                refuse(
                    "ranks",
                    "ranks",
                    expected=f"at most {model.n_layer}, as {model.path} has {model.n_layer} layers",
                    found=f"ranks = {profile.ranks} in the profile",
                    remedy="A stage without a layer is none. Lower ranks.",
                ),
            )
        if profile.split and sum(profile.split) != model.n_layer:
            return (
                refuse(
                    "split.sum",
                    "split",
                    expected=f"{model.n_layer} layers, from the header of {model.path}",
                    found=f"{sum(profile.split)} in split = {list(profile.split)}",
                    remedy="Make the counts add up to the model's layers.",
                ),
            )
        return ()

    def check_options(self, profile: Profile) -> tuple[Finding, ...]:
        """The allowlist, threads that would spin, and a micro-batch within the batch."""
        found = list(p4_options.check_options(profile))
        if profile.n_ubatch > profile.n_batch or profile.n_batch > 65_536:
            found.append(
                refuse(
                    "batch.order",
                    "n_ubatch",
                    expected=f"n_ubatch at most n_batch = {profile.n_batch}, and that at most 65536",
                    found=f"n_ubatch = {profile.n_ubatch} in the profile",
                    remedy="The stage would refuse its plan. Lower n_ubatch or n_batch.",
                )
            )
        if profile.options.get("wait_policy") == "active":
            found.append(
                warn(
                    "threads.spin",
                    "options.wait_policy",
                    expected="passive: idle threads of a stage sleep",
                    found="active in the profile",
                    remedy="Idle stages spin on their cores and starve their agent (116 instead of 8 ms of CPU per "
                    "token were measured). Leave wait_policy out.",
                )
            )
        return tuple(found)

    def check_model(self, profile: Profile, model: ModelFacts) -> tuple[Finding, ...]:
        """A cut that nobody verified, a result beyond 2^64-1, a context beyond training."""
        found: list[Finding] = []
        if not is_verified(model):
            found.append(
                warn(
                    "bound.unverified",
                    model.path,
                    expected=f"{', '.join(VERIFIED_ARCHITECTURES)}, or cut_tensors and cut_row_bytes as geometry",
                    found=f"{model.architecture or 'no name'}: {_ASSUMED_TENSORS} tensors of n_embd are assumed",
                    remedy="A READY, also of a load that fails, reports physical_result_tensor_count and "
                    "physical_result_payload_bytes: give the count, and the bytes divided by n_ubatch, as geometry of "
                    "the model in the catalog.",
                )
            )
        try:
            largest_result(result_shape(profile, model, is_tail=False))
        except BoundRefused as error:
            found.append(
                refuse(
                    "bound.overflow",
                    model.path,
                    expected="a largest result of at most 2^64-1 bytes",
                    found=str(error),
                    remedy="Lower n_batch or n_ubatch in the profile.",
                )
            )
        consequence = "Positions beyond it were never trained; answers decay there, and the KV is reserved in full."
        return (*found, *beyond_training(profile, model, profile.context, consequence))

    def check_cpu(self, profile: Profile, model: ModelFacts, missing: tuple[str, ...]) -> str:
        """A stage is built on the host it runs on; what its build needs is not known before it is asked."""
        return ""

    def bounds(self, model: ModelFacts, profile: Profile, counts: tuple[int, ...]) -> tuple[Bound, ...]:
        """Weights of the window, KV of its layers at every stream's context, and the result to the byte."""
        blocks = {block.index: block.weight_bytes for block in model.blocks}
        found, start = [], 0
        for index, count in enumerate(counts):
            held = Term(
                "blocks",
                sum(blocks.get(layer, 0) for layer in range(start, start + count)),
                "B",
                f"blk.{start}..{start + count - 1}, from the header",
            )
            found.append(self._bound(model, profile, held, count, index == 0, index == len(counts) - 1))
            start += count
        return tuple(found)

    def _bound(
        self, model: ModelFacts, profile: Profile, held: Term, count: int, is_head: bool, is_tail: bool
    ) -> Bound:
        parts = [held]
        if is_head:
            parts.append(Term("embedding", model.token_embd_bytes, "B", "token_embd, from the header"))
        if is_tail:
            output = model.output_bytes if model.has_output else model.output_bytes + model.token_embd_bytes
            parts.append(Term("output", output, "B", "output_norm and output (or the tied embedding), from the header"))
        weights = Term("weights", sum(part.value for part in parts), "B", "estimate: the sum of", tuple(parts))
        kv = _kv(model, profile, count)
        result = _result(profile, model, is_tail)
        limit = Term("result limit", store_bytes(profile), "B", "store in the profile, the same at every agent")
        return Bound(
            weights=Bytes(weights.value),
            kv=Bytes(kv.value),
            compute=Bytes(0),
            result=Bytes(result.value),
            result_limit=Bytes(limit.value),
            derived=False,
            terms=(weights, kv, result, limit),
            result_derived=is_tail or is_verified(model),
        )

    def mapped_bytes(self, model: ModelFacts, profile: Profile) -> int:
        """Every stage maps only its own window, which its bound counts."""
        return 0

    def phases(self, profile: Profile, bounds: tuple[Bound, ...]) -> tuple[PhaseBound, ...]:
        """An agent loads its stages one after the other: the sum counts, as all of them may be at one agent."""
        weights = sum(bound.weights for bound in bounds)
        load = round(weights / (_LOAD_RATE * _GIB) + _PER_STAGE * profile.ranks, 1)
        return (
            PhaseBound("spawning", 10.0, "10 s from the LOAD until the stage's process is there"),
            PhaseBound("connecting", 30.0, "30 s until the stage answers HELLO"),
            PhaseBound(
                "loading",
                load,
                f"{weights / _GIB:.2f} GiB / {_LOAD_RATE} GiB/s + {profile.ranks} stages × {_PER_STAGE:.0f} s, as one "
                "agent loads its stages one after the other",
            ),
            PhaseBound("warming", 60.0, "60 s for the session on every stage and one canary"),
        )

    def start_order(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """Every stage behind the head first; the head opens the chain."""
        return (tuple(shard.rank for shard in plan.shards if shard.rank > 0), (0,))

    def stop_order(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """The head first, so that nothing new enters; an UNLOAD that is refused as busy says what is left."""
        return tuple(reversed(self.start_order(plan)))


P4_RULES = P4()


def window_counts(profile: Profile, model: ModelFacts) -> tuple[int, ...]:
    """Layers per stage: the profile's split, or an even one with the remainder in front."""
    if profile.split:
        return profile.split
    each, more = divmod(model.n_layer, profile.ranks)
    return tuple(each + (rank < more) for rank in range(profile.ranks))


def is_verified(model: ModelFacts) -> bool:
    """Whether tensors and payload of a cut are known rather than assumed."""
    return bool(model.cut_tensors and model.cut_row_bytes) or model.architecture in VERIFIED_ARCHITECTURES


def result_shape(profile: Profile, model: ModelFacts, *, is_tail: bool) -> ResultShape:
    """What the result bound of a stage depends on. Raises BoundRefused."""
    tensors = model.cut_tensors or VERIFIED_ARCHITECTURES.get(model.architecture, _ASSUMED_TENSORS)
    row = model.cut_row_bytes or tensors * model.n_embd * FLOAT
    return ResultShape(
        n_batch=profile.n_batch,
        n_ubatch=profile.n_ubatch,
        n_seq_max=profile.sequences,
        tensors=0 if is_tail else tensors,
        payload_bytes=0 if is_tail else row * profile.n_ubatch,
        speculative=is_speculative(profile),
    )


def cut_as_geometry(model: ModelFacts, cut: Cut) -> ModelFacts:
    """The model with a cut that was reported in the place of one that is assumed."""
    return msgspec.structs.replace(model, cut_tensors=cut.tensors, cut_row_bytes=cut.row_bytes)


def stage_result(profile: Profile, model: ModelFacts) -> int:
    """The largest result in bytes of a stage that hands on; 0 where it has no bound."""
    return _result(profile, model, is_tail=False).value


def pairs_that_fit(profile: Profile, model: ModelFacts) -> tuple[FittingPair, ...]:
    """The batch sizes whose results fit the profile's store, for the remedy."""
    return fitting_pairs(result_shape(profile, model, is_tail=False), store_bytes(profile))


def _result(profile: Profile, model: ModelFacts, is_tail: bool) -> Term:
    """The result bound as a tree; one that overflows is a finding of its own, and 0 here."""
    try:
        tree = derivation(result_shape(profile, model, is_tail=is_tail))
    except BoundRefused as error:
        return Term("result", 0, "B", str(error))
    return msgspec.structs.replace(tree, name="result")


def _kv(model: ModelFacts, profile: Profile, layers: int) -> Term:
    k_type, v_type = str(option_value(profile, "cache_type_k")), str(option_value(profile, "cache_type_v"))
    k_row = row_bytes(k_type, padded(model.key_length * model.n_head_kv, 32))
    v_row = row_bytes(v_type, padded(model.value_length * model.n_head_kv, 32))
    cells = padded(profile.context, 256) * profile.sequences
    return Term(
        "KV",
        (k_row + v_row) * cells * layers,
        "B",
        "estimate: (K row + V row) × cells × layers",
        (
            Term("K row", k_row, "B", f"{k_type}: {model.key_length} × {model.n_head_kv} KV heads"),
            Term("V row", v_row, "B", f"{v_type}: {model.value_length} × {model.n_head_kv} KV heads"),
            Term(
                "cells", cells, "", f"context {profile.context} padded to 256, for each of {profile.sequences} streams"
            ),
            Term("layers", layers, "", "of this stage"),
        ),
    )
