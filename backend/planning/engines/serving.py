"""What vLLM and SGLang have in common: one process per host over all of its devices there, and a rendezvous at rank 0.

The engine itself decides which layers a rank holds, so nothing is derived from a header: what a rank needs is the
profile's ``memory``, or the share of its devices that the engine is told to take.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from backend.contract.durations import duration
from backend.contract.findings import Finding, refuse
from backend.contract.models import ModelFacts
from backend.contract.plans import Bound, PhaseBound, Plan, PlannedShard, Profile, Term
from backend.contract.words import Bytes
from backend.planning.engines.options import Option, check_allowlist, flags_of, value_of
from backend.planning.engines.rules import Seat, beyond_training

LEADER, WORKER = "leader", "worker"
NUMBERS = r"\d{1,3}(,\d{1,3}){0,63}"

PARALLEL: dict[str, Option] = {
    # 0: every device of every rank in one tensor-parallel group
    "tensor_parallel": Option("", 0, least=1, most=4096),
    "pipeline_parallel": Option("", 1, least=1, most=512),
}
ADDRESSES: dict[str, Option] = {
    "rendezvous": Option(
        "", "", pattern=r"[A-Za-z0-9._:\[\]-]{1,255}", shape="an address of rank 0 that every rank can reach"
    ),
    "host_address": Option("", "advertise", ("advertise", "auto")),
    "interface": Option("", "", pattern=r"[A-Za-z0-9._@:-]{1,15}", shape="a network interface such as eth1"),
    "hip_visible_devices": Option("", "", pattern=NUMBERS, shape="device numbers such as 0,1"),
    "rocr_visible_devices": Option("", "", pattern=NUMBERS, shape="device numbers such as 0,1"),
}
REFUSED: dict[str, str] = {
    "api_key": "a plan is printed and kept; a secret does not belong in it",
    "host": "addresses come from each agent's own configuration",
    "port": "set port in the profile",
    "nnodes": "set ranks in the profile",
    "node_rank": "the plan numbers the ranks",
    "max_model_len": "set context in the profile",
    "context_length": "set context in the profile",
    "trust_remote_code": "code of a model would run on every host",
    "environment": "the environment is built from empty",
}


class ServingRules:
    """The rules of one such engine; what differs between them is given by their own modules."""

    engine = ""
    content_type = ""
    reads_header = False
    places_layers = False
    options: Mapping[str, Option] = {}
    refused: Mapping[str, str] = REFUSED
    share_option = ""
    leader_ports = 2
    """HTTP and the rendezvous."""
    worker_ports = 0
    ready_seconds = 600.0
    ready_source = ""

    def seats(self, profile: Profile, model: ModelFacts | None) -> tuple[Seat, ...]:
        """One process per rank, all with devices; the first one serves and holds the rendezvous."""
        return tuple(
            Seat(
                rank,
                LEADER if rank == 0 else WORKER,
                None,
                rank == profile.ranks - 1,
                True,
                self.leader_ports if rank == 0 else self.worker_ports,
            )
            for rank in range(profile.ranks)
        )

    def check_shape(self, profile: Profile, model: ModelFacts | None) -> tuple[Finding, ...]:
        """Tensor and pipeline parallelism against the devices of all ranks; a split is not the plan's to choose."""
        found: list[Finding] = []
        if profile.split:
            found.append(
                refuse(
                    "split.engine",
                    "split",
                    expected=f"no split, as {self.engine} divides the layers itself",
                    found=f"split = {list(profile.split)} in the profile",
                    remedy="Leave split out; set pipeline_parallel in options.",
                )
            )
        if not check_allowlist(self.engine, self.options, self.refused, profile):
            tensor, pipeline = self.parallelism(profile)
            if tensor * pipeline != profile.ranks * profile.devices:
                found.append(
                    refuse(
                        "ranks.parallel",
                        "options.tensor_parallel",
                        expected=f"{profile.ranks * profile.devices} devices, from ranks = {profile.ranks} × devices = "
                        f"{profile.devices}",
                        found=f"tensor_parallel {tensor} × pipeline_parallel {pipeline} = {tensor * pipeline}",
                        remedy="Ranks would wait for each other for minutes, without an error. Make the two equal.",
                    )
                )
        return tuple(found)

    def check_options(self, profile: Profile) -> tuple[Finding, ...]:
        """The allowlist."""
        return check_allowlist(self.engine, self.options, self.refused, profile)

    def check_model(self, profile: Profile, model: ModelFacts) -> tuple[Finding, ...]:
        """A context beyond training."""
        return beyond_training(profile, model, profile.context, "The engine refuses it at its start, or answers decay.")

    def check_cpu(self, profile: Profile, model: ModelFacts, missing: tuple[str, ...]) -> str:
        """Their builds choose instructions at run time."""
        return ""

    def bounds(self, model: ModelFacts, profile: Profile, counts: tuple[int, ...]) -> tuple[Bound, ...]:
        """Nothing is derived: the engine fills the share of its devices that it is told to."""
        zero = Bytes(0)
        note = Term("share", self.share(profile), "%", "of each device, taken by the engine at its start; not derived")
        return (Bound(zero, zero, zero, zero, zero, False, (note,)),) * profile.ranks

    def mapped_bytes(self, model: ModelFacts, profile: Profile) -> int:
        """Weights are read by every rank for itself."""
        return 0

    def phases(self, profile: Profile, bounds: tuple[Bound, ...]) -> tuple[PhaseBound, ...]:
        """The engine's own time-outs, as nothing else is known before it started."""
        seconds = self.ready_seconds
        return (
            PhaseBound("spawning", 30.0, "30 s from exec until the process is past its imports"),
            PhaseBound("connecting", 300.0, "300 s until every rank is at the rendezvous"),
            PhaseBound("loading", seconds, f"{duration(seconds)}, {self.ready_source}"),
            PhaseBound("warming", 120.0, "120 s for graphs to be captured and one canary"),
        )

    def start_order(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """All at once: every rank waits at the rendezvous for the others."""
        return (tuple(shard.rank for shard in plan.shards),)

    def stop_order(self, plan: Plan) -> tuple[tuple[int, ...], ...]:
        """The leader first: it is the only one that knows of requests."""
        others = tuple(shard.rank for shard in plan.shards if shard.rank > 0)
        return ((0,), others) if others else ((0,),)

    def parallelism(self, profile: Profile) -> tuple[int, int]:
        """Tensor and pipeline parallelism; unset, all devices of all ranks are one tensor-parallel group per stage."""
        pipeline = int(self.value(profile, "pipeline_parallel"))
        return int(self.value(profile, "tensor_parallel")) or profile.ranks * profile.devices // pipeline, pipeline

    def share(self, profile: Profile) -> int:
        """Percent of each device that the engine takes at its start; less free memory than that ends it there."""
        return int(self.value(profile, self.share_option))

    def value(self, profile: Profile, name: str) -> str | int:
        """The value of an allowed option, or its default. Raises ValueError for one outside its range."""
        return value_of(self.options, profile, name)

    def flags(self, profile: Profile) -> tuple[str, ...]:
        """The options that are flags of its command line."""
        return flags_of(self.options, profile)

    def addresses(self, plan: Plan, shard: PlannedShard) -> tuple[str, str, str]:
        """Rank 0's rendezvous address and port, and this shard's own address or nothing when it is to guess."""
        leader = plan.shards[0]
        if shard not in plan.shards or len(leader.ports) < self.leader_ports or not leader.advertise:
            raise ValueError(f"{leader.node_id} on {leader.host} has no address: {leader.advertise!r}, {leader.ports}")
        own = shard.advertise if self.value(plan.profile, "host_address") == "advertise" else ""
        return str(self.value(plan.profile, "rendezvous") or leader.advertise), str(leader.ports[1]), own

    def environment(self, plan: Plan, shard: PlannedShard, own_name: str) -> dict[str, str]:
        """Built from empty: own address, interface and visible devices. ``own_name`` is the engine's variable."""
        _, _, own = self.addresses(plan, shard)
        profile, numbers = plan.profile, ",".join(re.sub(r"\D", "", name) for name in shard.all_devices)
        found = {own_name: own} if own else {}
        if interface := self.value(profile, "interface"):
            found |= {"NCCL_SOCKET_IFNAME": str(interface), "GLOO_SOCKET_IFNAME": str(interface)}
        if shard.device.startswith("CUDA"):
            found["CUDA_DEVICE_ORDER"], found["CUDA_VISIBLE_DEVICES"] = "PCI_BUS_ID", numbers
        elif shard.device.startswith("ROCm"):
            hip, rocr = self.value(profile, "hip_visible_devices"), self.value(profile, "rocr_visible_devices")
            if rocr:
                found["ROCR_VISIBLE_DEVICES"] = str(rocr)
            if hip or not rocr:
                found["HIP_VISIBLE_DEVICES"] = str(hip or numbers)
        return found
