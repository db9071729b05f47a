"""Proof before a load that rank 0's host reaches each worker at the address that its host advertises."""

from __future__ import annotations

import asyncio
import os

from backend.contract.commands import ProbeDial, ProbeListen
from backend.contract.findings import Finding, refuse
from backend.contract.plans import Plan, PlannedShard
from backend.contract.words import HostId
from backend.control.operations.conduct import Conduct

LISTEN_SECONDS = 10.0
DIAL_SECONDS = 3.0
ANSWER_SECONDS = 15.0
_TRIES = 3
_PAUSE = 0.3


def dials_of(plan: Plan, without: set[HostId]) -> list[tuple[PlannedShard, PlannedShard]]:
    """The pairs of leader and worker on two hosts, but for hosts whose own check has refused already."""
    leaders = [shard for shard in plan.shards if shard.rank == 0 and shard.host not in without]
    return [
        (leader, shard)
        for leader in leaders
        for shard in plan.shards
        if shard.host != leader.host and shard.ports and shard.host not in without
    ]


async def dial(conduct: Conduct, leader: PlannedShard, worker: PlannedShard, deadline: float) -> Finding | None:
    """Let the worker's host listen and the leader's dial it; None when it answered as the one that was meant.

    ``deadline`` is in the loop's time. The nonce begins with whom it is for, so that a dial that reaches somebody else
    names them.
    """
    nonce, port = f"{worker.host} rank {worker.rank}-{os.urandom(8).hex()}", worker.ports[0]
    name = f"{worker.rank}-{nonce.rpartition('-')[2]}"
    listen = ProbeListen(
        op_id=conduct.op_id(f"listen-{name}"), address=worker.advertise, port=port, nonce=nonce, seconds=LISTEN_SECONDS
    )
    listening = asyncio.create_task(conduct.ask(worker.host, listen, LISTEN_SECONDS + DIAL_SECONDS))
    words = "not dialled before the deadline of the checks"
    try:
        for attempt in range(1, _TRIES + 1):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                break
            asked = ProbeDial(
                op_id=conduct.op_id(f"dial-{name}-{attempt}"),
                address=worker.advertise,
                port=port,
                nonce=nonce,
                seconds=min(DIAL_SECONDS, left),
            )
            outcome = await conduct.ask(leader.host, asked, min(DIAL_SECONDS + ANSWER_SECONDS, left))
            if outcome.succeeded and outcome.value.get("answered") is True:
                return None
            words = str(outcome.value.get("words") or outcome.words)
            if listening.done() and listening.result().value.get("heard") is not True:
                heard = listening.result()
                return _cannot_listen(worker, str(heard.value.get("words") or heard.words))
            await asyncio.sleep(_PAUSE)
    finally:
        listening.cancel()
        await asyncio.wait({listening})
    return refuse(
        "address.unreachable",
        worker.node_id,
        expected=f"{leader.host} reaches {worker.advertise}:{port} of {worker.host}",
        found=words,
        remedy=f"Set advertise in {worker.host}'s agent.toml to an address that {leader.host} can reach.",
    )


def _cannot_listen(worker: PlannedShard, words: str) -> Finding:
    return refuse(
        "address.unlistenable",
        worker.node_id,
        expected=f"{worker.host} can listen at {worker.advertise}:{worker.ports[0]}, where its rank is to be reached",
        found=f"{worker.host} could not listen there: {words}",
        remedy=f"Free the port, or set advertise in {worker.host}'s agent.toml to an address of its own.",
    )
