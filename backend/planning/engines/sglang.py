"""SGLang as the plan sees it: ``sglang.launch_server`` once per host; the first rank answers by HTTP.

Flags and facts are those of 0.5.23, read in its sources. Ranks other than 0 serve a health endpoint that always says
200, so theirs proves life only; and they ignore SIGTERM once rank 0 is gone, so that they end by SIGKILL.
"""

from __future__ import annotations

from backend.contract.findings import Finding, warn
from backend.contract.plans import Plan, PlannedShard, Profile
from backend.planning.engines.options import Option
from backend.planning.engines.serving import ADDRESSES, PARALLEL, REFUSED, ServingRules

OPTIONS: dict[str, Option] = {
    **PARALLEL,
    **ADDRESSES,
    # percent of each device for weights and KV
    "mem_fraction_static": Option("", 85, least=1, most=99),
    "chunked_prefill_size": Option("--chunked-prefill-size", 4096, least=-1, most=1_048_576),
    "dist_timeout": Option("--dist-timeout", 300, least=10, most=3600),
    "watchdog_timeout": Option("--watchdog-timeout", 300, least=10, most=3600),
    "force_shutdown": Option("", "off", ("on", "off")),
    "dtype": Option("--dtype", "auto", ("auto", "half", "float16", "bfloat16", "float32")),
    "kv_cache_dtype": Option("--kv-cache-dtype", "auto", ("auto", "fp8_e5m2", "fp8_e4m3")),
}


class Sglang(ServingRules):
    """The rules of one SGLang replica."""

    engine = "sglang"
    content_type = "application/vnd.ringtop.sglang.v1"
    options = OPTIONS
    refused = {**REFUSED, "dist_init_addr": "the plan names rank 0's address; set rendezvous for another"}
    share_option = "mem_fraction_static"
    worker_ports = 1
    """For the health endpoint of a rank that serves nothing else."""
    ready_seconds = 1200.0
    ready_source = "as SGLang has no bound of its own for the weights"

    def check_options(self, profile: Profile) -> tuple[Finding, ...]:
        """The allowlist, and a prefill without chunks."""
        found = super().check_options(profile)
        if not found and self.value(profile, "chunked_prefill_size") == -1:
            return (
                warn(
                    "batch.unbounded",
                    "options.chunked_prefill_size",
                    expected="a chunk of so many tokens, such as 4096",
                    found="-1 in the profile, which is no chunks at all",
                    remedy="Activations then grow with the longest prompt and may end the engine. Give a size.",
                ),
            )
        return found


SGLANG = Sglang()


def launch_command(plan: Plan, shard: PlannedShard, python: str, model: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Arguments and environment of one rank. ``python`` has SGLang installed; ``model`` is a folder or an id.

    Raises ValueError for a shard of another plan, a leader without ports, and options that no sound plan has.
    """
    profile, (master, port, own) = plan.profile, SGLANG.addresses(plan, shard)
    if not shard.ports:
        raise ValueError(f"{shard.node_id} on {shard.host} has no port")
    tensor, pipeline = SGLANG.parallelism(profile)
    argv: list[object] = [python, "-m", "sglang.launch_server", "--model-path", model]
    argv += ["--tp-size", tensor, "--pp-size", pipeline, "--context-length", profile.context]
    argv += ["--max-running-requests", profile.sequences, "--max-prefill-tokens", profile.n_batch]
    argv += ["--mem-fraction-static", SGLANG.share(profile) / 100, *SGLANG.flags(profile)]
    argv += ["--nnodes", profile.ranks, "--node-rank", shard.rank, "--dist-init-addr", f"{master}:{port}"]
    argv += ["--host", own or "127.0.0.1", "--port", shard.ports[0], "--enable-metrics"]
    environment = SGLANG.environment(plan, shard, "SGLANG_HOST_IP")
    if SGLANG.value(profile, "force_shutdown") == "on":
        environment["SGL_FORCE_SHUTDOWN"] = "1"
    return tuple(str(word) for word in argv), environment
