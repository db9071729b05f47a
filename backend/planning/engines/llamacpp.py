"""llama.cpp as the plan sees it: a leader that serves, workers that hold the layers, and what each will take.

Rank 0 is ``llama-server``; ranks 1.. are ``ggml-rpc-server``, one device each. With ``ranks = 1`` the leader holds
every layer on its own device. Flags and formulas are those of build b10434 (RPC 5.0.0), measured.
"""

from __future__ import annotations

from backend.contract.findings import Finding, refuse, warn
from backend.contract.models import ModelFacts
from backend.contract.plans import Bound, PhaseBound, Plan, PlannedShard, Profile
from backend.planning.engines import llamacpp_bounds, llamacpp_options
from backend.planning.engines.llamacpp_bounds import placed_counts
from backend.planning.engines.llamacpp_options import is_quantized, option_flags, option_value
from backend.planning.engines.rules import Seat, beyond_training

LEADER, WORKER = "leader", "worker"
TRIED_ARCHITECTURES = ("llama",)
"""Architectures whose weights and KV were compared with the engine's own lines, and equal."""

_GIB = 2**30
_LOAD_RATE = 0.05  # GiB/s: a slow disk behind a slow network; faster is welcome, slower is a fault
NO_GPU = {"VK_ICD_FILENAMES": "/nonexistent", "VK_DRIVER_FILES": "/nonexistent"}
"""Hides every GPU from an engine that needs none: each one that sees them loads their drivers."""


def is_cpu(device: str) -> bool:
    """Whether a device name is the engine's CPU device."""
    return device == "CPU"


class LlamaCpp:
    """The rules of one llama.cpp ring."""

    engine = "llamacpp"
    content_type = "application/vnd.ringtop.llamacpp.v1"
    reads_header = True
    places_layers = True

    def seats(self, profile: Profile, model: ModelFacts | None) -> tuple[Seat, ...]:
        """The leader, then the workers in layer order; the last one holds the output as well."""
        counts = layer_counts(profile, model) if model is not None and not self.check_shape(profile, model) else ()
        if profile.ranks == 1:
            layers = (0, counts[0]) if counts else None
            return (Seat(0, LEADER, layers, True, True, 1),)
        seats = [Seat(0, LEADER, None, False, False, 1)]
        start = 0
        for rank in range(1, profile.ranks):
            count = counts[rank - 1] if counts else 0
            layers = (start, start + count) if counts else None
            seats.append(Seat(rank, WORKER, layers, rank == profile.ranks - 1, True, 1))
            start += count
        return tuple(seats)

    def check_shape(self, profile: Profile, model: ModelFacts | None) -> tuple[Finding, ...]:
        """Split length against workers, its sum against the model's layers, and what the engine would make of it."""
        workers = max(profile.ranks - 1, 1)
        said = "one rank that holds every layer" if profile.ranks == 1 else f"a leader and {workers} workers"
        if profile.split and len(profile.split) != workers:
            return (
                refuse(
                    "split.length",
                    "split",
                    expected=f"{workers} layer counts, as ranks = {profile.ranks} is {said}",
                    found=f"{len(profile.split)} in split = {list(profile.split)}",
                    remedy="Give split one count per worker, or leave it out for an even one.",
                ),
            )
        if model is None:
            return ()
        if workers > model.n_layer:
            return (
                refuse(
                    "ranks",
                    "ranks",
                    expected=f"at most {model.n_layer + 1}, as {model.path} has {model.n_layer} layers",
                    found=f"ranks = {profile.ranks}: {said}",
                    remedy="A worker without a layer holds nothing. Lower ranks.",
                ),
            )
        if profile.split and sum(profile.split) != model.n_layer:
            return (
                refuse(
                    "split.sum",
                    "split",
                    expected=f"{model.n_layer} layers, from the header of {model.path}",
                    found=f"{sum(profile.split)} in split = {list(profile.split)}",
                    remedy="Make the counts add up to the model's layers; the output is placed with the last.",
                ),
            )
        counts = layer_counts(profile, model)
        if profile.ranks > 1 and (engine := placed_counts(tensor_split(counts), model.n_layer)) != counts:
            return (
                refuse(
                    "split.engine",
                    "split",
                    expected=f"{list(counts)} layers per worker",
                    found=f"{list(engine)}, which is how the engine rounds -ts {tensor_split(counts)} in float32",
                    remedy="Choose another split.",
                ),
            )
        return ()

    def check_options(self, profile: Profile) -> tuple[Finding, ...]:
        """The allowlist, one device per rank, and a micro-batch within the batch."""
        found = list(llamacpp_options.check_options(profile))
        if profile.devices > 1:
            found.append(
                refuse(
                    "ranks.devices",
                    "devices",
                    expected="1 device per rank, as each worker of llama.cpp has one",
                    found=f"devices = {profile.devices} in the profile",
                    remedy="Leave devices out and raise ranks instead.",
                )
            )
        if profile.n_ubatch > profile.n_batch:
            found.append(
                warn(
                    "batch.order",
                    "n_ubatch",
                    expected=f"at most n_batch = {profile.n_batch}",
                    found=f"n_ubatch = {profile.n_ubatch} in the profile",
                    remedy="The engine cuts it to n_batch without a word. Lower it, or raise n_batch.",
                )
            )
        return tuple(found)

    def check_model(self, profile: Profile, model: ModelFacts) -> tuple[Finding, ...]:
        """Not derived outside the tried architectures; a context beyond training is allocated and never used."""
        found: list[Finding] = []
        if not is_derived(model):
            why = "a cache that is not one K and one V row per layer" if model.has_unusual_cache else "never tried here"
            found.append(
                warn(
                    "model.architecture",
                    model.path,
                    expected=f"one of {', '.join(TRIED_ARCHITECTURES)} with an ordinary cache",
                    found=f"{model.architecture}: {why}",
                    remedy="Its sizes are estimates and will not be compared with the engine's report.",
                )
            )
        consequence = "The KV cache is allocated in full, and each stream is capped at the trained context."
        return (*found, *beyond_training(profile, model, profile.context, consequence))

    def check_cpu(self, profile: Profile, model: ModelFacts, missing: tuple[str, ...]) -> str:
        """Quantized weights and a quantized K cache execute the missing instructions; f16, bf16 and f32 do not."""
        weights = sorted(name for name in model.tensor_types if is_quantized(name))
        k_type = str(profile.options.get("cache_type_k", "f16"))
        if not missing or not (weights or is_quantized(k_type)):
            return ""
        return f"{', '.join(weights)} weights" if weights else f"a {k_type} K cache"

    def bounds(self, model: ModelFacts, profile: Profile, counts: tuple[int, ...]) -> tuple[Bound, ...]:
        """See ``llamacpp_bounds``."""
        return llamacpp_bounds.bounds(model, profile, counts, derived=is_derived(model))

    def mapped_bytes(self, model: ModelFacts, profile: Profile) -> int:
        """The leader maps the whole file and pushes it to the workers; with one rank the bound counts it already."""
        return model.expected_bytes if profile.ranks > 1 else 0

    def phases(self, profile: Profile, bounds: tuple[Bound, ...]) -> tuple[PhaseBound, ...]:
        """Named by the states that they end: a bound that is overrun names its rank."""
        weights = sum(bound.weights for bound in bounds)
        load = round(weights / (_LOAD_RATE * _GIB) + 60, 1)
        return (
            PhaseBound(
                "spawning", 10.0, "10 s from exec until the port is bound (40 ms seen; a GPU driver may be slow)"
            ),
            PhaseBound("connecting", 10.0, "10 s until a worker answers HELLO, or the leader binds its HTTP port"),
            PhaseBound("loading", load, f"{weights / _GIB:.2f} GiB / {_LOAD_RATE} GiB/s + 60 s"),
            PhaseBound("warming", 30.0, "30 s for one canary through every rank"),
        )

    def start_order(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """Workers first: a leader whose worker is missing exits, one whose worker is silent hangs."""
        workers = tuple(shard.rank for shard in plan.shards if shard.role == WORKER)
        return (workers, (0,)) if workers else ((0,),)

    def stop_order(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """The leader first: with a worker gone it could only abort."""
        return tuple(reversed(self.start_order(plan)))


LLAMACPP = LlamaCpp()


def is_derived(model: ModelFacts) -> bool:
    """Whether weights and KV of this model may be compared with the engine's report."""
    return model.architecture in TRIED_ARCHITECTURES and not model.has_unusual_cache


def layer_counts(profile: Profile, model: ModelFacts) -> tuple[int, ...]:
    """Layers per rank that holds any: the profile's split, or an even one in which the output weighs as one layer.

    Every worker gets at least one layer, and earlier workers the remainder.
    """
    workers = max(profile.ranks - 1, 1)
    if profile.split:
        return profile.split
    if profile.ranks == 1:
        return (model.n_layer,)
    last = max((model.n_layer + 1) // workers - 1, 1)
    if workers == 1:
        return (model.n_layer,)
    each, more = divmod(model.n_layer - last, workers - 1)
    return (*(each + (index < more) for index in range(workers - 1)), last)


def tensor_split(counts: tuple[int, ...]) -> tuple[int, ...]:
    """The proportions for ``-ts``: layer counts, with the output as one more on the last worker."""
    return (*counts[:-1], counts[-1] + 1)


def canary_slot(plan: Plan) -> int:
    """The slot that canaries go to: the spare one behind the profile's sequences."""
    return plan.profile.sequences


def worker_command(plan: Plan, shard: PlannedShard, folder: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments and environment of one worker. ``folder`` holds the engine's programs.

    Raises ValueError for a shard that is no worker of this plan or has no address or port.
    """
    if shard.role != WORKER or shard not in plan.shards:
        raise ValueError(f"{shard.node_id} is no worker of plan {plan.digest[:8]}: its role is {shard.role}")
    address, port = _listening(shard)
    argv = (
        f"{folder}/ggml-rpc-server",
        *("-H", address, "-p", port),
        *("-d", shard.device, "-t", str(plan.profile.threads)),
    )
    return argv, _environment(hides_gpus=is_cpu(shard.device))


def leader_command(plan: Plan, shard: PlannedShard, folder: str, model: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments and environment of the leader. ``model`` is the file's path on its host.

    Its HTTP port binds 127.0.0.1. Every option with a default that differs between builds or hosts is set. Raises
    ValueError for a shard that is not the leader, and for options or layers that no sound plan has.
    """
    if shard.role != LEADER or shard not in plan.shards:
        raise ValueError(f"{shard.node_id} is not the leader of plan {plan.digest[:8]}: its role is {shard.role}")
    profile = plan.profile
    argv = (
        f"{folder}/llama-server",
        *("-m", model, "--host", "127.0.0.1", "--port", _listening(shard)[1]),
        *_placement(plan, shard),
        # 999 is "all": with 99 a deeper model leaves layers on the leader's CPU.
        *("-ngl", "999", "-c", str(profile.context)),
        *("-np", str(profile.sequences + 1), "-kvu"),
        *("-b", str(profile.n_batch), "-ub", str(profile.n_ubatch), "-t", str(profile.threads)),
        *option_flags(profile),
        *("--metrics", "-lv", "4", "--sse-ping-interval", "2", "--no-cache-idle-slots", "--no-webui"),
    )
    return argv, _environment(hides_gpus=profile.ranks > 1 or is_cpu(shard.device))


def _placement(plan: Plan, shard: PlannedShard) -> tuple[str, ...]:
    """Where the layers go. Naming the devices turns a missing peer into an exit instead of a silent local load."""
    workers = [other for other in plan.shards if other.role == WORKER]
    if not workers:
        return ("--device", "none" if is_cpu(shard.device) else shard.device)
    counts = []
    for worker in workers:
        if worker.layers is None or worker.layers[1] <= worker.layers[0]:
            raise ValueError(f"{worker.node_id} holds no layer; a worker without one gets no buffer and no error")
        counts.append(worker.layers[1] - worker.layers[0])
    return (
        *("--rpc", ",".join(":".join(_listening(worker)) for worker in workers)),
        *("--device", ",".join(f"RPC{index}" for index in range(len(workers)))),
        *("-ts", ",".join(str(part) for part in tensor_split(tuple(counts)))),
    )


def _listening(shard: PlannedShard) -> tuple[str, str]:
    if not shard.ports or not shard.advertise:
        raise ValueError(f"{shard.node_id} on {shard.host} has no address: {shard.advertise!r}, ports {shard.ports}")
    return shard.advertise, str(shard.ports[0])


def _environment(*, hides_gpus: bool) -> dict[str, str]:
    """Built from empty: an inherited ``LLAMA_ARG_*`` would change flags unseen. No backtrace: it starts a debugger."""
    return {"GGML_NO_BACKTRACE": "1", **(NO_GPU if hides_gpus else {})}


__all__ = [
    "LEADER",
    "LLAMACPP",
    "NO_GPU",
    "TRIED_ARCHITECTURES",
    "WORKER",
    "LlamaCpp",
    "canary_slot",
    "is_cpu",
    "layer_counts",
    "leader_command",
    "option_value",
    "tensor_split",
    "worker_command",
]
