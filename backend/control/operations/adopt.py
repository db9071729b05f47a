"""Stop strays and unclaimed shards that somebody named: each is read again from its agent first, and proven gone."""

from __future__ import annotations

import asyncio

import msgspec

from backend.contract.commands import Unload
from backend.contract.entities import Shard
from backend.contract.states import TERMINAL, HostState
from backend.contract.words import HostId, counted
from backend.control.exit_codes import DONE, FAILED, REFUSED, UNKNOWN, UNREACHABLE
from backend.control.operations.conduct import CONNECT_SECONDS, Conduct
from backend.control.operations.unload import UNLOAD_SECONDS, leaders_first
from backend.control.views import FleetState, Target

IDENTITIES = "identities"
"""The option that has the identity of every target, by node id and host."""


class Identity(msgspec.Struct, frozen=True):
    """Who a shard was when it was decided about: a process, or a ``node`` at the ``address`` of its engine's agent."""

    node_generation: int
    pid: int
    start_ticks: int
    nonce: str
    address: str = ""
    node: str = ""

    @property
    def words(self) -> str:
        """All of it, as the ledger and refusals say it."""
        if self.address:
            return f"generation {self.node_generation}, node {self.node} at {self.address}"
        return f"generation {self.node_generation}, pid {self.pid}, start ticks {self.start_ticks}, nonce {self.nonce}"


def target_key(target: Target) -> str:
    """Where a target is: ``tiny-1/1@gpu-b``."""
    return f"{target.node_id}@{target.host}"


async def adopt(conduct: Conduct) -> int:
    """Run an adopt operation to its end; returns its exit code. The worst of its targets decides."""
    operation = conduct.operation
    targets = operation.targets
    silent = await conduct.connect({target.host for target in targets})
    for host, words in silent.items():
        conduct.step(host, "unreachable", words)
    conduct.step(
        operation.subject,
        "stop",
        f"stopping {counted(len(targets), 'shard')} that {_source(conduct)} names",
        phase="stopping",
        unknown=len(targets),
    )
    ends: dict[Target, tuple[int, str]] = {
        target: (UNREACHABLE, f"may still run: {silent[target.host]}") for target in targets if target.host in silent
    }
    for number, group in enumerate(leaders_first(targets)):
        asked = [target for target in group if target.host not in silent]
        if number and asked:
            await _read_again(conduct, {target.host for target in asked})
        outcomes = await asyncio.gather(*(_stop(conduct, target) for target in asked))
        ends.update(zip(asked, outcomes, strict=True))
    return _end(conduct, ends)


async def _read_again(conduct: Conduct, hosts: set[HostId]) -> None:
    """Dial again: a report on a fresh connection is everything that an agent has, and nothing remembered here."""
    before = {host: conduct.reach.state.hosts[host].reported_at for host in hosts}
    for host in hosts:
        conduct.reach.links[host].reconnect("it is read again before anything stops")

    def all_reported(state: FleetState) -> bool:
        views = [state.hosts[host] for host in hosts]
        return all(view.state is HostState.LIVE and view.reported_at > before[view.host] for view in views)

    await conduct.reach.until(all_reported, CONNECT_SECONDS)


async def _stop(conduct: Conduct, target: Target) -> tuple[int, str]:
    """Stop one target when it is still who was named; the end of it as exit code and words."""
    code, words = await _stopped(conduct, target)
    conduct.step(target.node_id, "stop", f"rank {target.rank} on {target.host}: {words}")
    return code, words


async def _stopped(conduct: Conduct, target: Target) -> tuple[int, str]:
    host = conduct.reach.state.hosts[target.host]
    if host.state is not HostState.LIVE:
        return UNREACHABLE, f"may still run: it was not read again, {host.words}"
    shard = host.entities.shards.get(target.node_id)
    if shard is None or (shard.state in TERMINAL and shard.node_generation == target.node_generation):
        return DONE, "gone already"
    named = msgspec.convert(conduct.operation.options[IDENTITIES][target_key(target)], Identity)
    found = _identity(shard)
    if found != named:
        now = found.words if found is not None else f"generation {shard.node_generation} without a process"
        return REFUSED, f"not stopped: {_source(conduct)} names {named.words}; its agent says {now}. Look again"
    outcome = await conduct.ask(target.host, _command(conduct, target), UNLOAD_SECONDS)
    if outcome.succeeded:
        return DONE, "gone"
    if outcome.result is None:
        return UNKNOWN, f"is unknown: {outcome.words}"
    return REFUSED if outcome.was_rejected else FAILED, f"not stopped: {outcome.words}"


def _source(conduct: Conduct) -> str:
    """Who decided: a person by a document, or the keeper by itself."""
    digest = conduct.operation.options.get("digest", "")
    return f"document {digest[:8]}" if digest else "the keeper's decision"


def _identity(shard: Shard) -> Identity | None:
    process, asked = shard.identity, shard.resident
    if process is None and asked is not None:
        return Identity(int(shard.node_generation), 0, 0, "", asked.address, asked.name)
    if process is None:
        return None
    return Identity(int(shard.node_generation), process.pid, process.start_ticks, process.nonce)


def _command(conduct: Conduct, target: Target) -> Unload:
    return Unload(
        op_id=conduct.op_id(f"stop-{target.rank}-{target.host}"),
        node_id=target.node_id,
        node_generation=target.node_generation,
        adapter_kind=target.adapter_kind,
        by=conduct.by,
        why=str(conduct.operation.options.get("why", "")),
    )


def _end(conduct: Conduct, ends: dict[Target, tuple[int, str]]) -> int:
    trouble = [f"{target_key(target)} {words}" for target, (code, words) in ends.items() if code != DONE]
    if not trouble:
        return conduct.end(DONE, f"{counted(len(ends), 'shard')} gone")
    codes = {code for code, _ in ends.values()}
    code = next(code for code in (FAILED, UNKNOWN, UNREACHABLE, REFUSED) if code in codes)
    return conduct.end(code, "; ".join(trouble))
