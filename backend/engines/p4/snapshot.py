"""What INSPECT says of a p4 agent, read openly: newer engines say more, and nothing here stands on it."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import P4Event
from backend.engines.p4.payloads import json_payload

_SCHEMA = 1


class NodeSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One node as its p4 agent reports it. ``state`` is the adapter's own text: shown, never interpreted.

    ``is_stopped`` means that the node's task is dead. None is what was not said.
    """

    node_id: str
    generation: int
    adapter_kind: str
    lifecycle_state: str
    state: str
    lifecycle_result: Any = None
    load_generation: int | None = None
    is_stopped: bool | None = None
    input_retained: int | None = None
    pending_requests: int | None = None
    tree: dict[str, Any]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to INSPECT. It says nothing of connection slots, of the journal, and mostly of load generations."""

    generated_at_unix_ms: int
    nodes: tuple[NodeSeen, ...]
    failure_ids: tuple[str, ...]
    """Events that the p4 agent keeps undelivered; each may hold a connection slot."""
    tree: dict[str, Any]
    """All of it, as it was said."""

    def node(self, node_id: str) -> NodeSeen | None:
        """The node of this id, if it is there."""
        return next((node for node in self.nodes if node.node_id == node_id), None)


def read_snapshot(event: P4Event) -> Snapshot:
    """The snapshot in an event; raises P4CodecError when it says less than every version does."""
    tree = json_payload(event)
    if tree.get("schema") != _SCHEMA:
        raise P4CodecError(f"the snapshot has schema {tree.get('schema')!r}; {_SCHEMA} is understood")
    nodes = tree.get("nodes")
    if not isinstance(nodes, list):
        raise P4CodecError("the snapshot has no list of nodes")
    ids = _dig(tree, "transport", "failures", "failure_ids")
    return Snapshot(
        generated_at_unix_ms=_number(tree.get("generated_at_unix_ms")) or 0,
        nodes=tuple(_node(node) for node in nodes),
        failure_ids=tuple(each for each in ids if isinstance(each, str)) if isinstance(ids, list) else (),
        tree=tree,
    )


def _node(tree: Any) -> NodeSeen:
    if not isinstance(tree, dict) or not isinstance(tree.get("node_id"), str):
        raise P4CodecError("the snapshot has a node without a node_id")
    generation = _number(tree.get("generation"))
    if generation is None:
        raise P4CodecError(f"the snapshot says no generation of node {tree['node_id']}")
    stopped = _dig(tree, "delivery", "stopped")
    return NodeSeen(
        node_id=tree["node_id"],
        generation=generation,
        adapter_kind=_text(tree.get("adapter_kind")),
        lifecycle_state=_text(tree.get("lifecycle_state")),
        state=_text(tree.get("state")),
        lifecycle_result=tree.get("lifecycle_result"),
        load_generation=_number(tree.get("load_generation")),
        is_stopped=stopped if isinstance(stopped, bool) else None,
        input_retained=_number(_dig(tree, "delivery", "input_retained")),
        pending_requests=_number(_dig(tree, "retention", "pending_requests", "count")),
        tree=tree,
    )


def _dig(tree: Any, *path: str) -> Any:
    for name in path:
        if not isinstance(tree, dict):
            return None
        tree = tree.get(name)
    return tree


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
