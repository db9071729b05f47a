"""The adapter's LOAD: its closed body, the resource profile before the launch, and READY after it."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import dataclass
from typing import Any

from tests.p4.simulator.bound import largest_result
from tests.p4.simulator.stage_frames import BadFrame, read_ready, ready_body
from tests.p4.simulator.strict_json import BadJson, read_json
from tests.p4.simulator.switches import Switches
from tests.p4.simulator.wire import U64

CONTENT = "application/vnd.p4.llamacpp."
LOAD, LOADED = CONTENT + "load-v4+json", CONTENT + "loaded-v4+json"
UNLOAD, UNLOADED = CONTENT + "unload-v3+json", CONTENT + "unloaded-v3+json"
ERROR = CONTENT + "error-v2+json"

PROFILE = (
    "version",
    "max_requests",
    "max_request_retained_bytes",
    "max_input_tokens",
    "max_request_bytes",
    "max_output_tokens_per_request",
    "max_output_tokens",
    "max_physical_result_bytes",
    "max_completion_payload_bytes",
    "max_completion_retained_bytes",
    "max_edge_retained_bytes",
    "max_receipt_retained_bytes",
)
_NUMBERS = (
    "load_generation",
    "n_batch",
    "n_ubatch",
    "context_size",
    "total_context_size",
    "sequence_capacity",
)
_OPTIONAL = ("ready_timeout_ms", "io_timeout_ms")
_DEFAULT_TIMEOUT_MS = 600_000
_OPTION_NAMES = {
    "-b": "batch",
    "--batch-size": "batch",
    "-ub": "ubatch",
    "--ubatch-size": "ubatch",
    "--n-seq-max": "sequences",
    "--parallel": "sequences",
    "-np": "sequences",
    "-c": "context",
    "--ctx-size": "context",
    "--layer-begin": "begin",
    "--layer-end": "end",
    "--device": "device",
    "-dev": "device",
    "--expect-layer-device": "expected",
    "--memory-topology": "topology",
}


class LoadRejected(Exception):
    """A LOAD that the adapter refuses before anything is launched."""


class LoadFailed(Exception):
    """A LOAD that fails after the whole model was read."""


@dataclass(frozen=True)
class LoadBody:
    """A LOAD as read: every number positive, the profile complete."""

    raw: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.raw[name]

    @property
    def profile(self) -> dict[str, int]:
        """The twelve fields of the resource profile."""
        found: dict[str, int] = self.raw["resource_profile"]
        return found


def read_load(raw: bytes, store_bytes: int, switches: Switches) -> LoadBody:
    """The body of a LOAD that may be launched. Raises LoadRejected."""
    try:
        body = read_json(raw)
    except BadJson as error:
        raise LoadRejected(f"invalid load command: {error}") from None
    if not isinstance(body, dict):
        raise LoadRejected("invalid load command: expected an object")
    texts, lists = ("binary", "endpoint", "plan"), ("args", "environment")
    required = (*_NUMBERS, *texts, *lists, "resource_profile")
    for name in body:
        if name not in (*required, *_OPTIONAL):
            raise LoadRejected(f"invalid load command: unknown field `{name}`")
    for name in required:
        if name not in body:
            raise LoadRejected(f"invalid load command: missing field `{name}`")
    for name in (*_NUMBERS, *(each for each in _OPTIONAL if each in body)):
        if type(body[name]) is not int or not 1 <= body[name] <= U64:
            raise LoadRejected(f"load {name} must be a positive integer, found {body[name]!r}")
    if not all(isinstance(body[name], str) for name in texts) or not all(
        isinstance(body[name], list) for name in lists
    ):
        raise LoadRejected("invalid load command: binary, endpoint and plan are texts, args and environment lists")
    if not all(isinstance(each, list) and len(each) == 2 for each in body["environment"]):
        raise LoadRejected("invalid load command: environment is a list of pairs")
    _check_profile(body["resource_profile"], store_bytes, switches)
    return LoadBody(body)


def _check_profile(profile: Any, store_bytes: int, switches: Switches) -> None:
    if not isinstance(profile, dict) or set(profile) != set(PROFILE):
        raise LoadRejected(f"resource profile must have exactly {', '.join(PROFILE)}")
    for name in PROFILE:
        if type(profile[name]) is not int or profile[name] < 1:
            raise LoadRejected(f"resource profile {name} must be positive, found {profile[name]!r}")
    if profile["version"] != 1:
        raise LoadRejected(f"resource profile version {profile['version']} is not 1")
    smaller_or_equal = (
        ("max_request_bytes", "max_request_retained_bytes"),
        ("max_physical_result_bytes", "max_completion_payload_bytes"),
        ("max_completion_payload_bytes", "max_completion_retained_bytes"),
        ("max_completion_payload_bytes", "max_edge_retained_bytes"),
    )
    for less, more in smaller_or_equal:
        if profile[less] > profile[more]:
            raise LoadRejected(f"resource profile {less}={profile[less]} exceeds {more}={profile[more]}")
    if profile["max_requests"] * profile["max_output_tokens_per_request"] > profile["max_output_tokens"]:
        raise LoadRejected("resource profile max_requests * max_output_tokens_per_request exceeds max_output_tokens")
    stores = (
        ("max_completion_retained_bytes", store_bytes, "completion store"),
        ("max_edge_retained_bytes", switches.retained_bytes, "edge store"),
        ("max_receipt_retained_bytes", switches.receipt_bytes, "receipt store"),
    )
    for name, room, store in stores:
        if profile[name] > room:
            raise LoadRejected(f"resource profile {name}={profile[name]} exceeds the {store}={room}")


def plan_options(plan: str) -> dict[str, str]:
    """The options of a plan text that matter here. Double quotes group. Raises ValueError for a text that is none."""
    words = shlex.split(plan, posix=True)
    found = {}
    for name, value in itertools.pairwise(words):
        if name in _OPTION_NAMES:
            found[_OPTION_NAMES[name]] = value
    if "--inspect-memory-plan" in words:
        found["inspect"] = ""
    for name in ("batch", "ubatch", "sequences", "context", "begin", "end"):
        if name in found and not (found[name].isascii() and found[name].isdigit()):
            raise ValueError(f"{name} is no number: {found[name]!r}")
    return found


def stage_says(options: dict[str, str], asked: dict[str, Any], switches: Switches) -> dict[str, Any]:
    """What a stage reports of itself once its window is loaded. Raises LoadFailed for a device it has not got.

    ``asked`` stands in for options that the plan leaves to the LOAD's own numbers.
    """
    wanted = {*options.get("device", "").split(","), options.get("expected", "").rpartition(":")[2]}
    if wanted - {"", "CPU", "none", *switches.devices}:
        # The stage's own words are on a standard error that the agent throws away.
        raise LoadFailed("stage runtime initialization failed: stage server exited while starting: exit status: 5")
    n_batch = int(options.get("batch", asked.get("n_batch", 2048)))
    n_ubatch = int(options.get("ubatch", asked.get("n_ubatch", 512)))
    n_seq_max = int(options.get("sequences", asked.get("sequence_capacity", 1)))
    is_tail = int(options.get("end", switches.n_layer)) >= switches.n_layer
    tensors = 0 if is_tail else switches.tensors
    payload = tensors * n_ubatch * switches.n_embd * 4
    shape = n_batch, n_ubatch, n_seq_max, tensors, payload
    return {
        "upstream": switches.upstream,
        "patch_set": switches.patch_set,
        "backend_inventory": switches.inventory,
        "stage_wire_abi": switches.stage_wire_abi,
        "physical_identity_revision": 1,
        "n_ctx": int(options.get("context", asked.get("total_context_size", 4096))),
        "n_batch": n_batch,
        "n_ubatch": n_ubatch,
        "n_seq_max": n_seq_max,
        "max_atomic_sequences": n_seq_max,
        "equal_sequence_ubatch": 0,
        "atomic_batch_exclusive": 0,
        "physical_result_payload_bytes": payload,
        "physical_result_tensor_count": tensors,
        "max_physical_result_bytes": switches.ready_bound or largest_result(*shape, speculative=switches.speculative),
    }


def ready(body: LoadBody, switches: Switches) -> dict[str, Any]:
    """READY of a stage that is no process. Raises LoadFailed."""
    try:
        options = plan_options(body["plan"])
    except ValueError:
        raise LoadFailed(
            "stage runtime initialization failed: stage server exited while starting: exit status: 3"
        ) from None
    try:
        return read_ready(ready_body(stage_says(options, body.raw, switches), switches.stage_lacks))
    except BadFrame as error:
        raise LoadFailed(f"stage runtime initialization failed: {error}") from None


def check_ready(body: LoadBody, said: dict[str, Any]) -> None:
    """The adapter's checks of READY; the bound must be equal to the byte. Raises LoadFailed."""
    wanted = (
        ("n_ctx", body["total_context_size"]),
        ("n_batch", body["n_batch"]),
        ("n_ubatch", body["n_ubatch"]),
        ("n_seq_max", body["sequence_capacity"]),
    )
    for name, least in wanted:
        if said[name] < least:
            raise LoadFailed(f"stage {name}={said[name]} is below the requested {least}")
    if body["context_size"] * body["sequence_capacity"] > body["total_context_size"]:
        raise LoadFailed("context_size * sequence_capacity exceeds total_context_size")
    profile, found = body.profile["max_physical_result_bytes"], said["max_physical_result_bytes"]
    if profile != found:
        raise LoadFailed(f"resource profile physical result mismatch: profile={profile}, READY={found}")


def loaded_body(body: LoadBody, said: dict[str, Any]) -> dict[str, Any]:
    """The LOADED reply."""
    return {
        "state": "loaded",
        "load_generation": body["load_generation"],
        "physical_identity_revision": said["physical_identity_revision"],
        "n_batch": said["n_batch"],
        "n_ubatch": said["n_ubatch"],
        "n_ctx": said["n_ctx"],
        "n_seq_max": said["n_seq_max"],
        "equal_sequence_ubatch": bool(said["equal_sequence_ubatch"]),
        "max_atomic_sequences": said["max_atomic_sequences"],
        "atomic_batch_exclusive": bool(said["atomic_batch_exclusive"]),
        "max_physical_result_bytes": said["max_physical_result_bytes"],
        "resource_profile": body.profile,
        "upstream_commit": said["upstream"],
        "patch_set": said["patch_set"],
        "backend_inventory": said["backend_inventory"],
        "stage_wire_abi": said["stage_wire_abi"],
        "per_sequence_context": body["context_size"],
        "reserved_context": body["context_size"] * body["sequence_capacity"],
        "lifecycle": {
            "operation": "load",
            "status": "succeeded",
            "resource_state": "present",
            "first_error": None,
            "cleanup_error": None,
        },
    }
