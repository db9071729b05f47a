"""Which options of llama.cpp a profile may set, and which it may not, each with its reason."""

from __future__ import annotations

from backend.contract.findings import Finding, refuse
from backend.contract.plans import Profile
from backend.planning.engines.options import Option, check_allowlist, flags_of, value_of

CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


OPTIONS: dict[str, Option] = {
    "cache_type_k": Option("-ctk", "f16", CACHE_TYPES),
    "cache_type_v": Option("-ctv", "f16", CACHE_TYPES),
    "flash_attn": Option("-fa", "auto", ("auto", "on", "off")),
    # MiB of the leader host's memory for prompts of idle streams; the engine's own default is 8192, uncounted.
    "cram": Option("-cram", 0, least=0, most=1_048_576),
}

REFUSED: dict[str, str] = {
    "n_gpu_layers": "the plan offloads every layer",
    "ngl": "the plan offloads every layer",
    "tensor_split": "the plan chooses layer counts; set split in the profile",
    "ctx_size": "set context in the profile",
    "parallel": "set sequences in the profile; the canary's spare slot is added to it",
    "batch_size": "set n_batch in the profile",
    "ubatch_size": "set n_ubatch in the profile",
    "threads": "set threads in the profile",
    "device": "set device in the profile",
    "host": "addresses come from each agent's own configuration",
    "port": "set port in the profile",
    "rpc": "the plan names the workers",
    "api_key": "a plan is printed and kept; a secret does not belong in it",
    "model_draft": "draft models have no derived bound",
    "mmproj": "projectors have no derived bound",
    "lora": "adapters have no derived bound",
    "swa_full": "sliding-window caches have no derived bound",
    "no_kv_offload": "the KV cache belongs on the device of its layer",
    "kv_unified": "the canary's spare slot needs one KV cache for all streams",
    "cache_idle_slots": "saving idle slots would send the users' KV cache over the network at every canary",
    "fit": "the engine's own fitting would change what was planned",
    "override_tensor": "the plan places every tensor by layer",
    "split_mode": "rings split by layer only",
}


def check_options(profile: Profile) -> tuple[Finding, ...]:
    """One finding per option that is not allowed, not known, or has a value outside its range."""
    return check_allowlist("llamacpp", OPTIONS, REFUSED, profile) or _check_pairs(profile)


def _check_pairs(profile: Profile) -> tuple[Finding, ...]:
    """Options that are legal alone and not together."""
    v_type = option_value(profile, "cache_type_v")
    if option_value(profile, "flash_attn") == "off" and is_quantized(str(v_type)):
        return (
            refuse(
                "options.value",
                "options.cache_type_v",
                expected="f16, bf16 or f32 with flash_attn = 'off'",
                found=f"{v_type} in the profile",
                remedy="The engine exits at its start. Set flash_attn to 'auto', or cache_type_v to 'f16'.",
            ),
        )
    return ()


def option_value(profile: Profile, name: str) -> str | int:
    """The value of an allowed option, or its default. Raises ValueError for a value outside its range."""
    return value_of(OPTIONS, profile, name)


def option_flags(profile: Profile) -> tuple[str, ...]:
    """Every allowed option as flags, set or not: each default differs between builds.

    Raises ValueError for an option that is not on the allowlist, whoever sent the plan.
    """
    return flags_of(OPTIONS, profile)


def is_quantized(type_name: str) -> bool:
    """Whether a tensor type is stored in quantized blocks."""
    return type_name.lower() not in ("f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64")
