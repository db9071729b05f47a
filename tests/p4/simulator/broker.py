"""The broker's rules, in order: duplicate window, sequence, destination, capacity. Pure, without clock and sockets."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from tests.p4.simulator.wire import Address, AgentEnd, Endpoint, Event, NodeEnd, OuterEnd

WINDOW = 262_144


class Queue(Enum):
    """Where an admitted event goes."""

    CONTROL = "control"
    NODE = "node"
    OUTER = "outer"
    OUTBOUND = "outbound"
    NOWHERE = "nowhere"
    """Suppressed as a duplicate, or forwarded outward by the private rule and dropped there; nobody is told."""


class Refusal(Exception):
    """An event that can never be admitted; the text is the broker's error."""


class Full(Exception):
    """An event for which there is no room now: its node is loading or unloading."""


@dataclass
class Route:
    """A registered node as the broker knows it."""

    generation: int
    store_bytes: int
    paused: bool = True


@dataclass
class Counts:
    """What became of the events so far."""

    committed: int = 0
    duplicates: int = 0
    forwarded_outward: int = 0
    evicted: int = 0


@dataclass
class Broker:
    """One agent's broker. ``address`` is the advertised one: its text decides what is local."""

    address: Address
    store_bytes: int
    rule: str = "public"
    window: int = WINDOW
    routes: dict[str, Route] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    seen: OrderedDict[str, tuple[bytes, int]] = field(default_factory=OrderedDict)
    seen_bytes: int = 0
    _sequences: dict[tuple[Endpoint, str], int] = field(default_factory=dict)
    _highest: dict[str, int] = field(default_factory=dict)

    def register(self, node: str, generation: int, store_bytes: int) -> None:
        """A new node, paused. Raises Refusal unless its generation is above every one used here for that id."""
        highest = self._highest.get(node, 0)
        if generation <= highest:
            raise Refusal(f"StaleNode {{ current: {highest}, incoming: {generation} }}")
        self._highest[node] = generation
        self.routes[node] = Route(generation, store_bytes)

    def unregister(self, node: str) -> None:
        """A node that is gone; its generation stays used."""
        del self.routes[node]

    def offer(self, event: Event, raw: bytes) -> Queue:
        """Admit one event and say where it goes. Raises Refusal for good, Full for now."""
        digest = hashlib.sha256(raw).digest()
        earlier = self.seen.get(event.event_id)
        if earlier is not None:
            if earlier[0] != digest:
                raise Refusal(f"ConflictingDuplicate({event.event_id!r})")
            self.counts.duplicates += 1
            return Queue.NOWHERE
        stream = event.source, event.correlation_id
        last = self._sequences.get(stream)
        if last is not None and event.sequence <= last:
            raise Refusal(f"SequenceRegression {{ previous: {last}, incoming: {event.sequence} }}")
        queue, limit = self._destination(event)
        if len(raw) > limit:
            raise Refusal(f"StorageTooLarge {{ required: {len(raw)}, limit: {limit} }}")
        self._sequences[stream] = event.sequence
        self._remember(event.event_id, digest, len(raw))
        return queue

    def _destination(self, event: Event) -> tuple[Queue, int]:
        target = event.target
        if target.agent != self.address:
            return Queue.OUTBOUND, self.store_bytes
        match target:
            case AgentEnd():
                return Queue.CONTROL, self.store_bytes
            case OuterEnd():
                return Queue.OUTER, self.store_bytes
            case NodeEnd():
                return self._node(target)

    def _node(self, target: NodeEnd) -> tuple[Queue, int]:
        route = self.routes.get(target.node)
        if route is None:
            if self.rule == "private":
                self.counts.forwarded_outward += 1
                return Queue.NOWHERE, self.store_bytes
            raise Refusal(f"UnknownNode({target.node!r})")
        if route.generation != target.generation:
            raise Refusal(f"StaleNode {{ current: {route.generation}, incoming: {target.generation} }}")
        if route.paused:
            raise Full(f"node {target.node} is paused")
        return Queue.NODE, route.store_bytes

    def _remember(self, event_id: str, digest: bytes, size: int) -> None:
        self.seen[event_id] = digest, size
        self.seen_bytes += size
        self.counts.committed += 1
        while len(self.seen) > self.window:
            _, (_, gone) = self.seen.popitem(last=False)
            self.seen_bytes -= gone
            self.counts.evicted += 1
