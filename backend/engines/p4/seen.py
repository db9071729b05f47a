"""How an answer to INSPECT reads here: devices under ggml's names, and what to say of a node."""

from __future__ import annotations

from typing import Any

from backend.engines.p4.snapshot import NodeSeen, Snapshot

_BACKENDS = {"cuda": "CUDA", "rocm": "ROCm", "metal": "MTL", "vulkan": "Vulkan"}
"""ggml's names of the backends that INSPECT names: a device is called ``CUDA0``, never ``cuda:0``."""


def devices_of(snapshot: Snapshot) -> tuple[str, ...]:
    """The CPU, and every GPU under ggml's name; its number counts within its backend, as ggml counts."""
    found, numbers = ["CPU"], dict.fromkeys(_BACKENDS, 0)
    for gpu in _gpus(snapshot.tree):
        backend = str(gpu.get("backend", "")).lower() if isinstance(gpu, dict) else ""
        if backend in _BACKENDS:
            found.append(f"{_BACKENDS[backend]}{numbers[backend]}")
            numbers[backend] += 1
    return tuple(found)


def node_words(node: NodeSeen) -> str:
    """Its phase, and the adapter's own text where that says more: shown, never interpreted."""
    more = f", its text is {node.state!r}" if node.state and node.state != node.lifecycle_state else ""
    return f"{node.lifecycle_state}{more}{', its task is dead' if node.is_stopped else ''}"


def _gpus(tree: dict[str, Any]) -> list[Any]:
    found: Any = tree
    for name in ("machine", "capability", "gpus"):
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, list) else []
