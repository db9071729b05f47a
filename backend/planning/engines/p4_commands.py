"""What a p4 agent is told of one stage: the plan text for its standard input, and the adapter's own LOAD body."""

from __future__ import annotations

from typing import Any

from backend.contract.plans import Plan, PlannedShard
from backend.planning.engines.p4_options import OPTIONS, option_value, store_bytes

_IO_TIMEOUT_MS = 120_000
_REQUEST_BYTES = 1 << 22
_RECEIPT_BYTES = 1 << 26


def stage_plan(plan: Plan, shard: PlannedShard, model: str) -> str:
    """The plan text of one stage, as it goes to its standard input. ``model`` is the file's path on its host.

    Raises ValueError for a shard without a window, and for options that no sound plan has.
    """
    if shard.layers is None or shard not in plan.shards:
        raise ValueError(f"{shard.node_id} has no window of layers in plan {plan.digest[:8]}")
    if '"' in model or "\n" in model:
        raise ValueError(f"{model!r} has a quote or a line break, which a plan text cannot carry. Rename the file.")
    profile, (first, end) = plan.profile, shard.layers
    words: list[object] = ["--model", f'"{model}"', "--ctx-size", profile.context * profile.sequences]
    words += ["--batch-size", profile.n_batch, "--ubatch-size", profile.n_ubatch, "--n-seq-max", profile.sequences]
    words += ["--layer-begin", first, "--layer-end", end, "--kv-layer-begin", first, "--kv-layer-end", end]
    words += ["--n-gpu-layers", 999, "--device", shard.device, "--threads", profile.threads, "--stage-only"]
    words += ["--expect-layer-device", f"{first}:{end}:{shard.device}"]
    for name, option in OPTIONS.items():
        if option.flag:
            words += [option.flag, option_value(profile, name)]
    return " ".join(str(word) for word in words)


def load_body(plan: Plan, shard: PlannedShard, *, binary: str, model: str) -> dict[str, Any]:
    """The adapter's own LOAD of one stage, closed: every field that it takes and no other.

    ``binary`` and ``model`` come from the agent's configuration. The stage listens on loopback: only its own p4 agent
    speaks to it, and it asks nobody for a name. Raises ValueError for a shard without a port, and for a plan whose
    phases have no bound.
    """
    if not shard.ports:
        raise ValueError(f"{shard.node_id} on {shard.host} has no port for its stage. Plan again.")
    profile = plan.profile
    passive = option_value(profile, "wait_policy") == "passive"
    try:
        seconds = plan.phase_seconds("connecting") + plan.phase_seconds("loading")
    except KeyError as error:
        raise ValueError(f"the plan of {plan.replica} has no bound for the phase {error}. Plan again.") from error
    return {
        "load_generation": int(plan.load_generation),
        "binary": binary,
        "endpoint": f"127.0.0.1:{shard.ports[0]}",
        "plan": stage_plan(plan, shard, model),
        "args": [],
        "environment": [["OMP_WAIT_POLICY", "PASSIVE"]] if passive else [],
        "n_batch": profile.n_batch,
        "n_ubatch": profile.n_ubatch,
        "context_size": profile.context,
        "total_context_size": profile.context * profile.sequences,
        "sequence_capacity": profile.sequences,
        "resource_profile": resource_profile(plan, shard),
        "ready_timeout_ms": round(seconds * 1000),
        "io_timeout_ms": _IO_TIMEOUT_MS,
    }


def resource_profile(plan: Plan, shard: PlannedShard) -> dict[str, int]:
    """The twelve fields of a stage's resource profile; its result is the derived one, which READY must equal."""
    profile, store = plan.profile, store_bytes(plan.profile)
    return {
        "version": 1,
        "max_requests": profile.sequences,
        "max_request_retained_bytes": _REQUEST_BYTES * profile.sequences,
        "max_input_tokens": profile.context * profile.sequences,
        "max_request_bytes": _REQUEST_BYTES,
        "max_output_tokens_per_request": profile.context,
        "max_output_tokens": profile.context * profile.sequences,
        "max_physical_result_bytes": int(shard.bound.result),
        "max_completion_payload_bytes": store,
        "max_completion_retained_bytes": store,
        "max_edge_retained_bytes": store,
        "max_receipt_retained_bytes": _RECEIPT_BYTES,
    }
