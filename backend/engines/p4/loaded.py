"""LOADED against the plan, field by field; and what p4 says when it will not unload. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from backend.contract.findings import Finding, refuse
from backend.contract.plans import Plan, PlannedShard
from backend.planning.engines.p4_commands import resource_profile

PHYSICAL_IDENTITY = 1
"""The only revision of the physical identity that READY may have."""
COUNTS = (
    "requests",
    "pending",
    "pending_releases",
    "pending_settlements",
    "prepared_issue",
    "verify_fenced",
    "flight_batches",
    "flight_executions",
    "open_batch_view",
    "effects",
    "effects_fenced",
    "active_publications",
    "held_input",
    "deferred_ack_error",
    "active_owners",
    "active_frontiers",
    "receive",
)
"""The census of ``unload is busy``, in the engine's order: a stage is unloaded only when all are nothing."""

_BUSY = "unload is busy"
_PAIR = re.compile(r"([a-z_]+)\"?\s*[=:]\s*\"?([A-Za-z0-9_.-]+)\"?")
_NOTHING = ("", "0", "false", "none", "None", "null", "idle")


class Release(msgspec.Struct, frozen=True):
    """The build of a stage, as LOADED names it. ``inventory`` is its backends with their devices."""

    upstream: str
    patch_set: str
    wire: str
    inventory: str

    @property
    def words(self) -> str:
        """What must be equal on every rank: commit, patch set and wire. The backend flavour is not part of it."""
        return f"{self.upstream} patch {self.patch_set} wire {self.wire}"

    @property
    def exact(self) -> str:
        """The same with the backend flavour, for a profile that says ``exact_build``."""
        return f"{self.words} for {self.inventory}"


def release_of(body: dict[str, Any]) -> Release:
    """The release in a LOADED; what it does not say is ``unknown``, as the engine itself says it."""
    keys = ("upstream_commit", "patch_set", "stage_wire_abi", "backend_inventory")
    upstream, patch_set, wire, inventory = (str(body.get(key) or "unknown") for key in keys)
    return Release(upstream, patch_set, wire, inventory)


def result_of(body: dict[str, Any]) -> int | None:
    """The largest result in bytes that READY reported, or None."""
    value = body.get("max_physical_result_bytes")
    return value if type(value) is int else None


def judge_loaded(plan: Plan, shard: PlannedShard, body: dict[str, Any]) -> Finding | None:
    """What of a LOADED is not what was asked for: every field that differs, in one refusal; None when all agree."""
    profile = plan.profile
    equal: dict[str, object] = {
        "load_generation": int(plan.load_generation),
        "physical_identity_revision": PHYSICAL_IDENTITY,
        "max_physical_result_bytes": int(shard.bound.result),
        "resource_profile": resource_profile(plan, shard),
    }
    least = {
        "n_batch": profile.n_batch,
        "n_ubatch": profile.n_ubatch,
        "n_seq_max": profile.sequences,
        "n_ctx": profile.context * profile.sequences,
        "per_sequence_context": profile.context,
        "reserved_context": profile.context * profile.sequences,
    }
    wrong = [(name, f"{want}", body.get(name)) for name, want in equal.items() if body.get(name) != want]
    for name, want in least.items():
        found = body.get(name)
        if type(found) is not int or found < want:
            wrong.append((name, f"at least {want}", found))
    if not wrong:
        return None
    return refuse(
        "bound.differs",
        f"{shard.node_id} on {shard.host}",
        expected="; ".join(f"{name} = {want}" for name, want, _ in wrong) + ", as planned",
        found="; ".join(f"{name} = {'nothing' if found is None else found}" for name, _, found in wrong) + " in LOADED",
        remedy="It runs in another shape than was checked. Compare the stage binary and the model file of its host "
        "with the plan, and load again.",
    )


class Census(msgspec.Struct, frozen=True):
    """What a stage that will not unload still has to do: every count that is not nothing, by name, in its order."""

    counts: tuple[tuple[str, str], ...]

    @property
    def words(self) -> str:
        """The open counts; those that are nothing are only counted."""
        left = len(COUNTS) - len(self.counts)
        listed = ", ".join(f"{name} {value}" for name, value in self.counts) or "no count that is known here"
        return f"unload is busy: {listed}" + (f"; the other {left} are nothing" if left > 0 else "")

    @property
    def in_flight(self) -> int:
        """Requests under way; never 0, as the stage says that it is busy."""
        return max(self._count("requests"), self._count("active_owners"), 1)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return self._count("pending")

    def _count(self, name: str) -> int:
        value = dict(self.counts).get(name, "0")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else 0


def read_census(error: str) -> Census | None:
    """The census in the first error of an UNLOAD, or None when the stage was not refused for being busy."""
    if _BUSY not in error:
        return None
    _, _, rest = error.partition(_BUSY)
    said = rest.partition("work=")[2]
    try:
        tree = msgspec.json.decode(said)
        pairs = [(name, _flat(value)) for name, value in tree.items()]
    except (
        msgspec.DecodeError,
        AttributeError,
        RecursionError,
    ):  # printed in another form: the pairs are found all the same
        pairs = [(name, value) for name, value in _PAIR.findall(rest) if name != "work"]
    return Census(tuple((name, value) for name, value in pairs if value not in _NOTHING))


def _flat(value: Any) -> str:
    """One count as text; of a group what is open of it."""
    if isinstance(value, dict):
        return " ".join(f"{name} {_flat(each)}" for name, each in value.items() if _flat(each) not in _NOTHING)
    return "0" if value is None or value is False else str(value)
