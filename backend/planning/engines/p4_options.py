"""Which options of a p4 stage a profile may set, and which it may not, each with its reason."""

from __future__ import annotations

from backend.contract.findings import Finding, refuse
from backend.contract.plans import Profile
from backend.planning.engines.llamacpp_options import CACHE_TYPES, is_quantized
from backend.planning.engines.options import Option, check_allowlist, value_of

OPTIONS: dict[str, Option] = {
    "cache_type_k": Option("--cache-type-k", "f16", CACHE_TYPES),
    "cache_type_v": Option("--cache-type-v", "f16", CACHE_TYPES),
    "flash_attn": Option("--flash-attn", "auto", ("auto", "on", "off")),
    # MiB that every completion store and every edge keeps; one result must fit into each of them.
    "store": Option("", 256, least=1, most=2048),
    "speculative": Option("", "off", ("on", "off")),
    "memory_topology": Option(
        "--memory-topology", "discrete", pattern=r"discrete|host-shared:\d+(,\d+)*", shape="discrete or host-shared:0,1"
    ),
    # Stages of an active policy spin while they wait and starve their agent.
    "wait_policy": Option("", "passive", ("passive", "active")),
}

REFUSED: dict[str, str] = {
    "layer_begin": "the plan chooses layer windows; set split in the profile",
    "layer_end": "the plan chooses layer windows; set split in the profile",
    "n_gpu_layers": "the plan places every layer of a window on its device",
    "override_tensor": "the plan places every tensor by layer",
    "ctx_size": "set context in the profile",
    "n_seq_max": "set sequences in the profile",
    "parallel": "set sequences in the profile",
    "batch_size": "set n_batch in the profile",
    "ubatch_size": "set n_ubatch in the profile",
    "device": "set device in the profile",
    "endpoint": "addresses come from each agent's own configuration",
    "binary": "binaries come from each agent's own configuration",
    "environment": "the environment is built from empty",
    "max_physical_result_bytes": "it is derived; a guessed one fails after the whole model is loaded",
}


def check_options(profile: Profile) -> tuple[Finding, ...]:
    """One finding per option that is not allowed, not known, outside its range, or impossible beside another."""
    found = check_allowlist("p4", OPTIONS, REFUSED, profile)
    if found:
        return found
    v_type = str(option_value(profile, "cache_type_v"))
    if option_value(profile, "flash_attn") == "off" and is_quantized(v_type):
        return (
            refuse(
                "options.value",
                "options.cache_type_v",
                expected="f16, bf16 or f32 with flash_attn = 'off'",
                found=f"{v_type} in the profile",
                remedy="The stage refuses it before loading. Set flash_attn to 'auto', or cache_type_v to 'f16'.",
            ),
        )
    return ()


def option_value(profile: Profile, name: str) -> str | int:
    """The value of an allowed option, or its default. Raises ValueError for a value outside its range."""
    return value_of(OPTIONS, profile, name)


def store_bytes(profile: Profile) -> int:
    """What one store keeps, in bytes."""
    return int(option_value(profile, "store")) * 2**20


def is_speculative(profile: Profile) -> bool:
    """Whether decoding is speculative, which makes every outcome grow with n_ubatch."""
    return option_value(profile, "speculative") == "on"
