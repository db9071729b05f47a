"""What INSPECT says of a p4 agent: its nodes and the devices that its stages may name. Open: what is new is skipped."""

from __future__ import annotations

from typing import Any

import msgspec

from backend.contract.frames import FrameError, decode_frame

_BACKENDS = {"cuda": "CUDA", "rocm": "ROCm", "metal": "MTL", "vulkan": "Vulkan"}
"""ggml's names of the backends that INSPECT names: a device is called ``CUDA0``, never ``cuda:0``."""


class SnapshotUnreadable(ValueError):
    """A snapshot that says nothing that could be relied on; the text says what is wrong with it."""


class SeenNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node of a p4 agent. ``state`` is the adapter's own text: shown, never interpreted, as nothing resets it.

    ``phase`` is the agent's: loading, loaded, unloading or failed. ``stopped`` says that the node's task is dead; None
    is unknown.
    """

    name: str
    generation: int
    phase: str
    state: str = ""
    adapter_kind: str = ""
    stopped: bool | None = None
    pending: int | None = None
    load_generation: int | None = None

    @property
    def words(self) -> str:
        """Phase, and the adapter's text where it says more."""
        more = f", its text is {self.state!r}" if self.state and self.state != self.phase else ""
        return self.phase + more + (", its task is dead" if self.stopped else "")


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One answer to INSPECT. ``devices`` are ggml's names for what the agent has, the CPU first."""

    nodes: tuple[SeenNode, ...]
    devices: tuple[str, ...]
    failures: int | None = None

    def node(self, name: str) -> SeenNode | None:
        """The node of this name, or None: then the agent has none."""
        return next((node for node in self.nodes if node.name == name), None)


def read_snapshot(payload: bytes) -> Snapshot:
    """Read the answer to INSPECT. Raises SnapshotUnreadable: an answer without nodes is no word on them."""
    try:
        tree = decode_frame(payload.decode(), limit=len(payload) + 1)
        nodes = tree["nodes"]
        if not isinstance(nodes, list):
            raise TypeError(f"nodes is {type(nodes).__name__}")
        seen = tuple(_node(each) for each in nodes)
    except (FrameError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise SnapshotUnreadable(f"the answer to INSPECT cannot be read: {error}") from error
    transport = _table(tree, "transport", "failures")
    return Snapshot(nodes=seen, devices=("CPU", *_devices(tree)), failures=_count(transport, "count"))


def _node(tree: Any) -> SeenNode:
    if not isinstance(tree, dict):
        raise TypeError(f"a node is {type(tree).__name__}")
    name, generation = tree["node_id"], tree["generation"]
    if not isinstance(name, str) or type(generation) is not int:
        raise TypeError(f"a node is called {name!r} and has the generation {generation!r}")
    stopped = _table(tree, "delivery").get("stopped")
    return SeenNode(
        name=name,
        generation=generation,
        phase=_text(tree, "lifecycle_state") or "unknown",
        state=_text(tree, "state"),
        adapter_kind=_text(tree, "adapter_kind"),
        stopped=stopped if isinstance(stopped, bool) else None,
        pending=_count(_table(tree, "retention", "pending_requests"), "count"),
        load_generation=_count(tree, "load_generation"),
    )


def _devices(tree: dict[str, Any]) -> list[str]:
    """Every GPU under ggml's name. Its number counts within its backend, as ggml counts."""
    found: list[str] = []
    numbers: dict[str, int] = {}
    gpus = _table(tree, "machine", "capability").get("gpus")
    for gpu in gpus if isinstance(gpus, list) else []:
        backend = _text(gpu, "backend").lower() if isinstance(gpu, dict) else ""
        name = _BACKENDS.get(backend)
        if name is not None:
            found.append(f"{name}{numbers.get(name, 0)}")
            numbers[name] = numbers.get(name, 0) + 1
    return found


def _table(tree: dict[str, Any], *path: str) -> dict[str, Any]:
    for key in path:
        value = tree.get(key)
        if not isinstance(value, dict):
            return {}
        tree = value
    return tree


def _text(tree: dict[str, Any], key: str) -> str:
    value = tree.get(key)
    return value if isinstance(value, str) else ""


def _count(tree: dict[str, Any], key: str) -> int | None:
    value = tree.get(key)
    return value if type(value) is int else None
