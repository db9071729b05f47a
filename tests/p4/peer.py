"""A bare caller of a p4 agent, as thin as the contract allows: no guard and no judgement, one blocking socket.

It stands for the loaders and bridges of operators, so that a drift can be shown as they met it.
"""

from __future__ import annotations

import itertools
import json
import secrets
import socket
import time
from dataclasses import dataclass, replace
from typing import Any

from tests.p4.simulator import hops, lifecycle
from tests.p4.simulator.bound import largest_result
from tests.p4.simulator.control import INSPECT, NODE_LOAD, NODE_UNLOAD
from tests.p4.simulator.hops import Data, Hello, HelloAck, Receipt, ReceiptAck, Status
from tests.p4.simulator.lifecycle import Payload
from tests.p4.simulator.load import LOAD, UNLOAD
from tests.p4.simulator.stage import PREFILL, SESSION
from tests.p4.simulator.wire import (
    AgentEnd,
    Class,
    Endpoint,
    Event,
    NodeEnd,
    OuterEnd,
    decode_event,
    encode_event,
    parse_address,
)

SECONDS = 30.0
QUIET = 0.1
"""How long a test listens to a silence that it has made sure of by other means."""
MIB = 2**20
GENERATION = 1_764_412_800_123


@dataclass(frozen=True)
class PlannedStage:
    """One stage as a loader would send it."""

    agent: str
    node: str
    generation: int
    load_generation: int
    body: dict[str, Any]

    @property
    def end(self) -> NodeEnd:
        return NodeEnd(parse_address(self.agent), self.node, self.generation)


def planned_ring(
    agents: list[str], count: int = 4, *, generation: int = GENERATION, n_batch: int = 128, n_ubatch: int = 32
) -> list[PlannedStage]:
    """The operators' ring: 45 layers over ``count`` stages, agents filled one after the other, exact bounds."""
    stages, per_stage = [], -(-45 // count)
    for rank in range(count):
        begin, end = rank * per_stage, min(45, (rank + 1) * per_stage)
        is_tail = end == 45
        tensors = 0 if is_tail else 2
        bound = largest_result(n_batch, n_ubatch, 8, tensors, tensors * n_ubatch * 4096 * 4)
        plan = f'--model "/models/step 37.gguf" --batch-size {n_batch} --ubatch-size {n_ubatch} --n-seq-max 8'
        plan += f" --ctx-size 32768 --layer-begin {begin} --layer-end {end} --device CUDA0"
        plan += f" --expect-layer-device {begin}:{end}:CUDA0 --memory-topology discrete --stage-only"
        body = {
            "load_generation": generation,
            "binary": "/opt/stage/p4_staged_server",
            "endpoint": f"127.0.0.1:{43001 + rank}",
            "plan": plan,
            "args": [],
            "environment": [["OMP_WAIT_POLICY", "PASSIVE"]],
            "n_batch": n_batch,
            "n_ubatch": n_ubatch,
            "context_size": 4096,
            "total_context_size": 32768,
            "sequence_capacity": 8,
            "resource_profile": profile_of(bound),
            "ready_timeout_ms": 1_800_000,
            "io_timeout_ms": 120_000,
        }
        agent = agents[rank * len(agents) // count]
        stages.append(PlannedStage(agent, f"step37-s{rank}", generation, generation, body))
    return stages


def profile_of(bound: int, store: int = 192 * MIB) -> dict[str, int]:
    """A resource profile around one result bound."""
    return {
        "version": 1,
        "max_requests": 8,
        "max_request_retained_bytes": 32 * MIB,
        "max_input_tokens": 32768,
        "max_request_bytes": 4 * MIB,
        "max_output_tokens_per_request": 4096,
        "max_output_tokens": 32768,
        "max_physical_result_bytes": bound,
        "max_completion_payload_bytes": store,
        "max_completion_retained_bytes": store,
        "max_edge_retained_bytes": store,
        "max_receipt_retained_bytes": 64 * MIB,
    }


def changed(stage: PlannedStage, **members: Any) -> PlannedStage:
    """The stage with other members in its LOAD body."""
    return replace(stage, body=stage.body | members)


class Closed(Exception):
    """The agent closed this connection."""


class BarePeer:
    """One connection. It is not closed by itself: a test leaves it by ``finish`` or drops it."""

    def __init__(self, dial: tuple[str, int], address: str, *, hop: bool = False, ingress: str = "") -> None:
        self.address = parse_address(address)
        self.route = OuterEnd(parse_address(ingress or address), secrets.token_hex(8), 1)
        self.socket = socket.create_connection(dial, timeout=SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.receipts: dict[int, Receipt | None] = {}
        self.events: list[Event] = []
        self._numbers = itertools.count(1)
        self._attempts = itertools.count(1)
        self._hop = hop
        self._sender = f"peer-{self.route.channel}"
        if hop:
            self.send_body(hops.encode_hop(Hello(self._sender, 1, 256, 64 * MIB)))
            ack = hops.decode_hop(self.receive_body(SECONDS) or b"")
            assert isinstance(ack, HelloAck)
            assert ack.accepted_generation == 1
            self.their_name = ack.sender

    def send_body(self, body: bytes) -> None:
        """One frame as it is."""
        self.socket.settimeout(SECONDS)
        self.socket.sendall(len(body).to_bytes(4, "little") + body)

    def receive_body(self, seconds: float) -> bytes | None:
        """The next frame's body, empty for FINISH; None when nothing begins in time. Raises Closed."""
        self.socket.settimeout(seconds)
        try:
            head = self.socket.recv(4)
        except TimeoutError:
            return None
        except ConnectionError as error:
            raise Closed(str(error)) from None
        self.socket.settimeout(SECONDS)
        head += self._exactly(4 - len(head)) if head else b""
        if not head:
            raise Closed("end of stream")
        return self._exactly(int.from_bytes(head, "little"))

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            more = self.socket.recv(count - len(parts))
            if not more:
                raise Closed("end of stream inside a frame")
            parts += more
        return parts

    def event(
        self, target: Endpoint, content: str, payload: bytes, kind: Class = Class.CONTROL, correlation: str = ""
    ) -> Event:
        """The next event of this connection, not yet sent."""
        number = next(self._numbers)
        name = f"{self.route.channel}:{number}"
        return Event(name, correlation or name, self.route, target, self.route, kind, number, content, payload)

    def send(self, event: Event) -> Event:
        """Send it bare, or as the next attempt of a hop connection."""
        raw = encode_event(event)
        if self._hop:
            attempt = next(self._attempts)
            self.receipts[attempt] = None
            self.send_body(hops.encode_hop(Data(attempt, raw)))
        else:
            self.send_body(raw)
        return event

    def receive(self, seconds: float = SECONDS) -> Event | None:
        """The next event; None when none came in time. Hop frames are answered on the way. Raises Closed."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            body = self.receive_body(left)
            if body is None:
                return None
            if not body:
                raise Closed("finished")
            if not self._hop:
                return decode_event(body)
            event = self._frame(body)
            if event is not None:
                return event
        return None

    def _frame(self, body: bytes) -> Event | None:
        frame = hops.decode_hop(body)
        match frame:
            case Data():
                digest = frame.digest
                self.send_body(hops.encode_hop(Receipt(frame.attempt, digest, Status.ACCEPTED)))
                return decode_event(frame.event)
            case Receipt():
                self.receipts[frame.attempt] = frame
                if frame.status is Status.ACCEPTED:
                    self.send_body(hops.encode_hop(ReceiptAck(self._sender, 1, frame.attempt, frame.digest)))
            case ReceiptAck():
                pass
            case _:
                raise AssertionError(f"unexpected {frame}")
        return None

    def answer(self, asked: Event, content: str = "", seconds: float = SECONDS) -> Event | None:
        """One answer to an event, also one that came while another was awaited; ``content`` is a word of its type."""
        deadline = time.monotonic() + seconds
        looked = 0
        while True:
            for event in self.events[looked:]:
                looked += 1
                if event.correlation_id == asked.correlation_id and content in event.content_type:
                    return event
            left = deadline - time.monotonic()
            came = self.receive(left) if left > 0 else None
            if came is None:
                return None
            self.events.append(came)

    def inspect(self, seconds: float = SECONDS) -> dict[str, Any] | None:
        """The agent's snapshot, or None when it does not come."""
        event = self.answer(self.send(self.event(AgentEnd(self.address), INSPECT, b"{}")), seconds=seconds)
        return None if event is None else json.loads(event.payload)

    def load(self, stage: PlannedStage, target: Endpoint | None = None) -> Event:
        """Send one LOAD, to its agent unless told otherwise."""
        metadata = {"schema": 1, "node_id": stage.node, "node_generation": stage.generation}
        metadata |= {"adapter_kind": "llamacpp", "adapter_content_type": LOAD, "queue_capacity": 65536}
        metadata |= {"completion_capacity": 65536, "retained_capacity": 65536, "retained_bytes": 256 * MIB}
        payload = lifecycle.encode_payload("load", Payload(metadata, json.dumps(stage.body).encode()))
        return self.send(self.event(target or AgentEnd(stage.end.agent), NODE_LOAD, payload))

    def unload(self, stage: PlannedStage, load_generation: int = 0) -> Event:
        """Send one UNLOAD."""
        metadata = {"schema": 1, "node_id": stage.node, "node_generation": stage.generation}
        metadata |= {"adapter_kind": "llamacpp", "adapter_content_type": UNLOAD}
        body = {"load_generation": load_generation or stage.body["load_generation"]}
        payload = lifecycle.encode_payload("unload", Payload(metadata, json.dumps(body).encode()))
        return self.send(self.event(AgentEnd(stage.end.agent), NODE_UNLOAD, payload))

    def result(self, asked: Event, seconds: float = SECONDS) -> Payload | None:
        """The lifecycle result of a LOAD or UNLOAD, or None when it does not come."""
        event = self.answer(asked, "lifecycle-result", seconds)
        return None if event is None else lifecycle.decode_payload("result", event.payload)

    def open_session(self, stages: list[PlannedStage], session: str, load_generation: int = 0) -> list[Event]:
        """Announce the chain to every stage; the events sent, in order."""
        named = [{"agent": each.agent, "node": each.node, "generation": each.generation} for each in stages]
        sent = []
        for index, stage in enumerate(stages):
            body = {"load_generation": load_generation or stage.body["load_generation"], "session_id": session}
            body |= {"stages": named, "stage_index": index}
            sent.append(self.send(self.event(stage.end, SESSION, json.dumps(body).encode())))
        return sent

    def prefill(self, stages: list[PlannedStage], session: str, request: str, max_tokens: int = 4) -> Event:
        """Submit one prompt to the head."""
        body = {"load_generation": stages[0].body["load_generation"], "session_id": session, "request_id": request}
        body |= {"prompt": "one two three", "options": "{}", "max_tokens": max_tokens}
        return self.send(self.event(stages[0].end, PREFILL, json.dumps(body).encode(), Class.DATA))

    def finish(self) -> None:
        """Leave as the contract says: FINISH, read to its echo, close."""
        self.send_body(b"")
        while self.receive_body(SECONDS):
            pass
        self.socket.close()

    def drop(self) -> None:
        """Close without FINISH."""
        self.socket.close()
