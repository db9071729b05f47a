"""The INSPECT snapshot: machine, nodes, broker and transport, as far as the contract names their members."""

from __future__ import annotations

import os
import time
from collections import Counter
from typing import Any

from tests.p4.simulator.agent import SimulatedAgent
from tests.p4.simulator.broker import WINDOW
from tests.p4.simulator.node import ADAPTER, Node

_BACKENDS = {"CUDA": ("cuda", "NVIDIA"), "ROCm": ("rocm", "AMD"), "MTL": ("metal", "Apple")}
STATES = ("not_started", "uncertain", "unknown", "conflict", "rejected_local", "rejected_remote")


def snapshot(agent: SimulatedAgent) -> dict[str, Any]:
    """What an INSPECT is answered. Slots, journal and load generation are not in it, as in the engine's."""
    return {
        "schema": 1,
        "protocol_version": 3,
        "generated_at_unix_ms": _now(),
        "machine": _machine(agent),
        "nodes": [_node(agent, node) for _, node in sorted(agent.nodes.items())],
        "broker": _broker(agent),
        "transport": _transport(agent),
    }


def _now() -> int:
    return time.time_ns() // 1_000_000


def _machine(agent: SimulatedAgent) -> dict[str, Any]:
    switches = agent.switches
    capability, occupancy = [], []
    for index, device in enumerate(switches.devices):
        prefix = device.rstrip("0123456789")
        backend, vendor = _BACKENDS.get(prefix, (prefix.lower(), "unknown"))
        has_sensors = backend == "cuda"
        capability.append(
            {
                "index": index,
                "uuid": f"GPU-{agent.address.port:05d}-{index}",
                "vendor": vendor,
                "name": f"simulated {device}",
                "backend": backend,
                "memory_kind": "dedicated",
                "pci_bus_id": f"0000:{index + 1:02x}:00.0",
                "driver_version": "0.0",
                "memory_total_bytes": switches.device_bytes,
                "vram_total_bytes": switches.device_bytes,
            }
        )
        occupancy.append(
            {
                "uuid": f"GPU-{agent.address.port:05d}-{index}",
                "memory_used_bytes": 0,
                "memory_free_bytes": switches.device_bytes,
                "vram_used_bytes": 0,
                "vram_free_bytes": switches.device_bytes,
                "utilization_gpu_percent": 0 if has_sensors else None,
                "temperature_c": 40 if has_sensors else None,
                "power_draw_w": 60 if has_sensors else None,
            }
        )
    half = switches.memory_bytes // 2
    return {
        "capability": {
            "os": "linux",
            "arch": os.uname().machine,
            "cpu": {"physical_cores": 8, "logical_cores": 16},
            "memory": {"total_bytes": switches.memory_bytes},
            "gpus": capability,
            "adapters": [ADAPTER],
        },
        "occupancy": {"memory": {"available_bytes": half, "used_bytes": half}, "gpus": occupancy},
        "probes": [{"source": "simulated", "state": "available", "detail": None}],
    }


def _node(agent: SimulatedAgent, node: Node) -> dict[str, Any]:
    said: dict[str, Any] = {
        "node_id": node.node_id,
        "generation": node.generation,
        "adapter_kind": ADAPTER,
        "lifecycle_state": node.phase,
        "lifecycle_result": node.result,
        "state": node.state,
        "delivery": {"stopped": node.stopped, "input_retained": node.queue.qsize(), "completion_retained": 0},
        "retention": {
            "pending_requests": {"count": len(node.stage.requests) if node.stage else 0, "bytes": 0},
            "completions": {
                "count_limit": node.limits.get("completion_capacity", 0),
                "byte_limit": node.store_bytes,
                "retained_count": 0,
                "retained_bytes": 0,
                "queued_count": 0,
            },
            "native_responses": {"count": 0, "bytes": 0},
        },
    }
    if agent.switches.reports_load_generation and node.stage is not None:
        said["load_generation"] = node.stage.load_generation
    return said


def _broker(agent: SimulatedAgent) -> dict[str, Any]:
    broker = agent.broker
    stored = {"events": len(broker.seen), "event_bytes": broker.seen_bytes}
    receipts = {
        "duplicate_window": WINDOW,
        "indexed": stored,
        "retired": {"events": 0, "event_bytes": 0},
        "allocated": stored,
        "peak_allocated_event_bytes": broker.seen_bytes,
        "committed_events": broker.counts.committed,
        "evicted_events": broker.counts.evicted,
        "freed_events": broker.counts.evicted,
    }
    return {"sampled_at_unix_ms": _now(), "state": "ok", "receipts": receipts}


def _transport(agent: SimulatedAgent) -> dict[str, Any]:
    pins = list(agent.pins.values())
    by_status = Counter(pin.status for pin in pins)
    states = Counter(failure.state for failure in agent.failures.values())
    oldest = min((failure.at for failure in agent.failures.values()), default=None)
    return {
        "receipts": {
            "limit_count": 65_536,
            "limit_bytes": agent.switches.receipt_bytes,
            "records": len(pins),
            "reserved_bytes": sum(pin.size for pin in pins),
            "pending": by_status[None],
            "accepted": sum(count for status, count in by_status.items() if status == 1),
            "rejected": sum(count for status, count in by_status.items() if status == 2),
            "oldest_unix_ms": None,
        },
        "failures": {
            "count": len(agent.failures),
            "retained_event_bytes": sum(len(failure.event.payload) for failure in agent.failures.values()),
            "oldest_unix_ms": oldest,
            "states": {state: states[state] for state in STATES},
            "failure_ids": list(agent.failures),
        },
        "transfer": {
            "hop_data_writes": sum(peer.writes for peer in agent.peers.values()),
            "hop_data_bytes": sum(peer.bytes for peer in agent.peers.values()),
        },
    }
