"""Plans of four p4 stages over two hosts that have p4 agents, and the LOADED that agrees with a stage."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.plans import Plan, PlannedShard, Profile
from backend.contract.reports import HostReport, ResidentFacts
from backend.planning.catalog import Catalog, ModelEntry
from backend.planning.engines.p4_commands import resource_profile
from backend.planning.plan import plan
from tests.planning.worlds import GIB, NOW, Ask, a_fleet, a_host, a_model, an_engine

ADDRESSES = {"host-a": "tcp://10.77.0.1:52001", "host-b": "tcp://10.77.0.2:52001"}


def a_p4_host(name: str, address: str = "", **resident: Any) -> HostReport:
    """A host with a p4 agent that is well, and two GPUs."""
    gpus = {"CPU": (20 * GIB, 0), "CUDA0": (20 * GIB, 0), "CUDA1": (20 * GIB, 0)}
    said = {"journal": "ok", "taught": True, "sockets": 4, "hidden": 0, **resident}
    own = ResidentFacts(address=address or ADDRESSES[name], **said)
    return a_host(name, devices=gpus, engines=(msgspec.structs.replace(an_engine(*gpus), engine="p4", resident=own),))


def a_p4_plan(*reports: HostReport, **profile: Any) -> Plan:
    """The plan of Step-3.7's shape over these hosts, or over two that are well."""
    shape = Profile(
        **{"ranks": 4, "device": "CUDA*", "n_batch": 128, "n_ubatch": 32, "sequences": 8, "context": 4096, **profile}
    )
    entry = ModelEntry(name="step37", path="step37.gguf", engine="p4", profiles={"ring": shape})
    fleet = a_fleet(*(reports or (a_p4_host("host-a"), a_p4_host("host-b"))))
    model = a_model(architecture="step35", n_embd=4096, context_train=4096)
    return plan(Catalog("c", {"step37": entry}), fleet, Ask("step37"), model=model, now_unix_ms=NOW)


def loaded(plan: Plan, shard: PlannedShard, **changes: Any) -> dict[str, Any]:
    """The adapter's answer to a LOAD that went as planned."""
    profile = plan.profile
    return {
        "state": "loaded",
        "load_generation": int(plan.load_generation),
        "physical_identity_revision": 1,
        "n_batch": profile.n_batch,
        "n_ubatch": profile.n_ubatch,
        "n_ctx": profile.context * profile.sequences,
        "n_seq_max": profile.sequences,
        "max_physical_result_bytes": int(shard.bound.result),
        "resource_profile": resource_profile(plan, shard),
        "upstream_commit": "451b89bae",
        "patch_set": "f00dcafe0001",
        "backend_inventory": "CPU[CPU]|CUDA[CUDA0,CUDA1]",
        "stage_wire_abi": "physical-v4",
        "per_sequence_context": profile.context,
        "reserved_context": profile.context * profile.sequences,
        **changes,
    }
