"""vLLM as the plan sees it: ``vllm serve`` once per host, without Ray; the first rank answers by HTTP.

Flags and facts are those of 0.32, read in its sources.
"""

from __future__ import annotations

from backend.contract.plans import Plan, PlannedShard
from backend.planning.engines.options import Option
from backend.planning.engines.serving import ADDRESSES, PARALLEL, REFUSED, ServingRules

OPTIONS: dict[str, Option] = {
    **PARALLEL,
    **ADDRESSES,
    # percent of each device; the engine's own default is 92
    "gpu_memory_utilization": Option("", 90, least=1, most=99),
    "shutdown_timeout": Option("--shutdown-timeout", 60, least=0, most=3600),
    "dtype": Option("--dtype", "auto", ("auto", "half", "float16", "bfloat16", "float32")),
    "kv_cache_dtype": Option("--kv-cache-dtype", "auto", ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")),
    "quantization": Option("--quantization", "", ("awq", "gptq", "fp8", "compressed-tensors", "bitsandbytes")),
}


class Vllm(ServingRules):
    """The rules of one vLLM replica."""

    engine = "vllm"
    content_type = "application/vnd.ringtop.vllm.v1"
    options = OPTIONS
    refused = {**REFUSED, "master_addr": "the plan names rank 0's address; set rendezvous for another"}
    share_option = "gpu_memory_utilization"
    ready_source = "VLLM_ENGINE_READY_TIMEOUT_S, which the plan sets"


VLLM = Vllm()


def serve_command(plan: Plan, shard: PlannedShard, program: str, model: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments and environment of one rank. ``model`` is a folder on its host, or an id.

    Raises ValueError for a shard of another plan, a leader without ports, and options that no sound plan has.
    """
    profile, (master, port, own) = plan.profile, VLLM.addresses(plan, shard)
    tensor, pipeline = VLLM.parallelism(profile)
    argv: list[object] = [program, "serve", model]
    argv += ["--tensor-parallel-size", tensor, "--pipeline-parallel-size", pipeline]
    argv += ["--max-model-len", profile.context, "--max-num-seqs", profile.sequences]
    argv += ["--max-num-batched-tokens", profile.n_batch]
    argv += ["--gpu-memory-utilization", VLLM.share(profile) / 100, *VLLM.flags(profile)]
    if profile.ranks > 1:
        argv += ["--nnodes", profile.ranks, "--node-rank", shard.rank, "--master-addr", master, "--master-port", port]
    if shard.rank == 0:
        argv += ["--host", own or "127.0.0.1", "--port", shard.ports[0]]
    else:
        argv.append("--headless")
    environment = VLLM.environment(plan, shard, "VLLM_HOST_IP")
    environment["VLLM_ENGINE_READY_TIMEOUT_S"] = f"{VLLM.ready_seconds:.0f}"
    return tuple(str(word) for word in argv), environment
