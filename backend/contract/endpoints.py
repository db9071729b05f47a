"""Endpoints are values: who a frame is from, and whom it is for."""

from __future__ import annotations

import msgspec

from backend.contract.numbers import check_u64
from backend.contract.words import HostId, NodeGeneration, NodeId


class Agent(msgspec.Struct, frozen=True, tag_field="kind", tag="agent", forbid_unknown_fields=True):
    """An agent, by the id of its host. Commands go here, never to the node that they create."""

    address: HostId

    def __post_init__(self) -> None:
        if not self.address:
            raise ValueError("an agent endpoint needs an address")


class Node(msgspec.Struct, frozen=True, tag_field="kind", tag="node", forbid_unknown_fields=True):
    """One shard's slot at one agent, under the generation it was registered with."""

    agent: HostId
    node_id: NodeId
    generation: NodeGeneration

    def __post_init__(self) -> None:
        if not self.agent or not self.node_id:
            raise ValueError("a node endpoint needs an agent and a node id")
        check_u64("generation", self.generation, least=1)


class Outer(msgspec.Struct, frozen=True, tag_field="kind", tag="outer", forbid_unknown_fields=True):
    """Something outside the fleet that talks to it: a console, an operation, a keeper."""

    ingress_agent: HostId
    channel: str
    connection_generation: int

    def __post_init__(self) -> None:
        if not self.ingress_agent or not self.channel:
            raise ValueError("an outer endpoint needs an ingress agent and a channel")
        check_u64("connection_generation", self.connection_generation, least=1)


Endpoint = Agent | Node | Outer
