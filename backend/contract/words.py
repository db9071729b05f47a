"""The vocabulary: names for the values that must never be mistaken for one another."""

from __future__ import annotations

from typing import NewType

HostId = NewType("HostId", str)
"""Stable name of a machine with devices; one agent each."""
AgentAddress = NewType("AgentAddress", str)
"""How an agent is reached: ``unix:PATH``, ``ssh://[user@]host`` or ``wss://…``."""
ReplicaId = NewType("ReplicaId", str)
"""One servable copy of a model: model name, hyphen, counter (``tiny-1``)."""
NodeId = NewType("NodeId", str)
"""The slot of one shard: replica id, slash, rank (``tiny-1/0``)."""
OpId = NewType("OpId", str)
"""Identity of an operation or of one of its commands, made before the first send."""
LoadGeneration = NewType("LoadGeneration", int)
"""Number of one load of a replica: u64, wall-clock milliseconds."""
NodeGeneration = NewType("NodeGeneration", int)
"""Number under which a shard is registered at its agent. Must equal the load generation."""
Bytes = NewType("Bytes", int)
"""A count of bytes, 0..2^64-1."""
Port = NewType("Port", int)
"""A TCP port, 1..65535."""
UnixMs = NewType("UnixMs", int)
"""Wall-clock milliseconds since 1970: for display and for generations, never for timeouts."""


def node_id(replica: ReplicaId, rank: int) -> NodeId:
    """The slot name of one rank of a replica."""
    return NodeId(f"{replica}/{rank}")


def counted(count: int, noun: str) -> str:
    """A number with its noun, as a person says it: ``1 worker``, ``2 workers``, ``2 processes``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"
