"""A ring that somebody else loaded, taken over as it runs: what its record and INSPECT say of it, as our own values.

Nothing is sent for it: no session, no canary. Its plan holds what is known, and names no shard, as nobody here placed
one; so nothing of it is compared with anything.
"""

from __future__ import annotations

import re

from backend.contract.entities import LoadRecord, Resident, Shard
from backend.contract.plans import Bound, Plan, Profile, sealed
from backend.contract.reports import ResidentFacts, ResidentNode
from backend.contract.states import ShardState
from backend.contract.words import Bytes, HostId, LoadGeneration, NodeGeneration, OpId, ReplicaId, UnixMs, node_id
from backend.planning.engines.p4 import HEAD, STAGE, TAIL

BY = "its record"
PROFILE = "adopted"
_OTHER = re.compile(r"[^A-Za-z0-9._-]+")


def is_adopted(plan: Plan) -> bool:
    """Somebody else loaded it: nobody here planned where its shards are."""
    return not plan.shards


def adoptable(resident: ResidentFacts) -> tuple[ResidentNode, ...]:
    """The nodes that a record places in a ring, loaded and not ours: the others stay foreign."""
    return tuple(
        node
        for node in resident.nodes
        if not node.is_ours and node.rank is not None and node.world_size and node.phase == "loaded"
    )


def adopted(host: HostId, address: str, node: ResidentNode, now: UnixMs) -> tuple[Shard, LoadRecord]:
    """The shard and load record of such a node. The same on every host of the ring but for its own place."""
    assert node.rank is not None
    assert node.world_size is not None
    model, generation = _OTHER.sub("-", node.replica).strip("-.") or "p4", LoadGeneration(node.generation)
    replica = ReplicaId(f"{model[:48]}-{generation}")
    op_id = OpId(f"adopted-{replica}")
    zero = Bytes(0)
    role = HEAD if node.rank == 0 else TAIL if node.rank == node.world_size - 1 else STAGE
    shard = Shard(
        host=host,
        replica=replica,
        node_id=node_id(replica, node.rank),
        rank=node.rank,
        world_size=node.world_size,
        load_generation=generation,
        node_generation=NodeGeneration(node.generation),
        engine="p4",
        release="",
        role=role,
        device="?",
        device_uuid="",
        layers=None,
        ports=(),
        advertise="",
        model=model,
        profile_name=PROFILE,
        profile_fingerprint="",
        op_id=op_id,
        bound=Bound(zero, zero, zero, zero, zero, False, ()),
        state=ShardState.READY.value,
        since_unix_ms=now,
        words=f"loaded by somebody else as {node.name}; adopted from {BY}",
        endpoint=f"{address}/{node.name}@{node.generation}" if node.rank == 0 else "",
        resident=Resident(address, node.name, NodeGeneration(node.generation)),
    )
    plan = _plan_of(replica, model, generation, node.world_size)
    return shard, LoadRecord(op_id=op_id, by=BY, plan=plan, at_unix_ms=now)


def _plan_of(replica: ReplicaId, model: str, generation: LoadGeneration, ranks: int) -> Plan:
    """What is known of the load as a whole, the same on every host: its name, its generation and how many ranks."""
    return sealed(
        Plan(
            replica=replica,
            model=model,
            model_path="",
            model_facts=None,
            profile_name=PROFILE,
            profile=Profile(ranks=ranks, device="?"),
            profile_fingerprint="",
            engine="p4",
            load_generation=generation,
            shards=(),
            phases=(),
            facts=(),
            candidates=(),
            findings=(),
            made_unix_ms=UnixMs(int(generation)),
        )
    )
