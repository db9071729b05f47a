"""What is addressed to the agent itself: INSPECT, LOAD, UNLOAD, reconcile. A load's own work runs beside it."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.p4.simulator import lifecycle
from tests.p4.simulator.agent import SimulatedAgent
from tests.p4.simulator.broker import Refusal
from tests.p4.simulator.inspection import snapshot
from tests.p4.simulator.launch import launch
from tests.p4.simulator.lifecycle import Payload
from tests.p4.simulator.load import (
    ERROR,
    LOAD,
    LOADED,
    UNLOAD,
    UNLOADED,
    LoadBody,
    LoadFailed,
    LoadRejected,
    check_ready,
    loaded_body,
    read_load,
    ready,
)
from tests.p4.simulator.node import ADAPTER, Node
from tests.p4.simulator.stage import REJECTED, Stage, StageStopped
from tests.p4.simulator.strict_json import BadJson, read_json, write_json
from tests.p4.simulator.wire import AgentEnd, Class, Event, NodeEnd, OuterEnd, Refused

CONTENT = "application/vnd.p4."
INSPECT, SNAPSHOT = CONTENT + "agent.inspect-v1+json", CONTENT + "agent.snapshot-v1+json"
NODE_LOAD, NODE_UNLOAD = CONTENT + "node.load-v1", CONTENT + "node.unload-v1"
NODE_RESULT, AGENT_RESULT = CONTENT + "node.lifecycle-result-v1", CONTENT + "node.result-v3+json"
RECONCILE = CONTENT + "transport.reconcile-v1+json"


class Control:
    """The agent's control handler."""

    def __init__(self, agent: SimulatedAgent) -> None:
        self.agent = agent

    async def run(self) -> None:
        """Answer one event after the other, for as long as the agent lives."""
        while True:
            await self._answer(await self.agent.control.get())

    async def _answer(self, event: Event) -> None:
        match event.content_type:
            case t if t == INSPECT:
                await asyncio.sleep(self.agent.switches.probe_seconds)
                self._reply(event, SNAPSHOT, write_json(snapshot(self.agent)), Class.TELEMETRY)
            case t if t == NODE_LOAD:
                self._load(event)
            case t if t == NODE_UNLOAD:
                self._unload(event)
            case t if t == RECONCILE:
                self._reconcile(event)
            case _:
                self._say(event, f"unsupported agent control content type {event.content_type}")

    def _reply(self, event: Event, content: str, payload: bytes, kind: Class) -> None:
        assert event.return_route is not None
        number = self.agent.next_number()
        self.agent.publish(
            Event(
                event_id=f"{self.agent.address}:agent:{number}",
                correlation_id=event.correlation_id,
                causation_id=event.event_id,
                source=AgentEnd(self.agent.address),
                target=event.return_route,
                return_route=event.return_route,
                kind=kind,
                sequence=number,
                content_type=content,
                payload=payload,
                deadline=event.deadline,
            )
        )

    def _say(self, event: Event, detail: str) -> None:
        self._reply(event, AGENT_RESULT, write_json({"ok": False, "detail": detail}), Class.TELEMETRY)

    def _reconcile(self, event: Event) -> None:
        try:
            body = read_json(event.payload)
        except BadJson as error:
            self._say(event, str(error))
            return
        failure_id = str(body.get("failure_id")) if isinstance(body, dict) else ""
        known = self.agent.reconcile(failure_id)
        said = {"ok": known, "state": "reconciled" if known else "unknown", "detail": failure_id}
        self._reply(event, AGENT_RESULT, write_json(said), Class.TELEMETRY)

    def _read(self, kind: lifecycle.Kind, event: Event) -> Payload | None:
        """The payload of a lifecycle request whose form and requester are right; else the refusal is said."""
        try:
            payload = lifecycle.decode_payload(kind, event.payload)
        except Refused as refusal:
            self._say(event, str(refusal))
            return None
        if not isinstance(event.source, OuterEnd) or event.kind is not Class.CONTROL:
            self._say(event, "node lifecycle requires an OUTER requester and class control")
        elif event.adapter not in (None, payload.metadata["adapter_kind"]):
            self._say(event, "node lifecycle adapter kind differs from the envelope")
        else:
            return payload
        return None

    def _finish(
        self,
        event: Event,
        asked: Payload,
        operation: str,
        outcome: tuple[str, str],
        *,
        content: str = "",
        body: bytes = b"",
        error: str = "",
    ) -> None:
        """The one result of a lifecycle request. Without ``content`` it was refused before anything started."""
        same = ("node_id", "node_generation", "adapter_kind", "adapter_content_type")
        metadata = {"schema": 1} | {name: asked.metadata[name] for name in same}
        if content:
            metadata["adapter_content_type"] = content
        metadata |= {"operation": operation, "status": outcome[0], "resource_state": outcome[1]}
        if error:
            metadata["first_error"] = error
        payload = lifecycle.encode_payload("result", Payload(metadata, body))
        node = self.agent.nodes.get(asked.metadata["node_id"])
        if node is not None and content:
            node.result = {"operation": operation, "status": outcome[0], "resource_state": outcome[1]}
        self._reply(event, NODE_RESULT, payload, Class.CONTROL)

    def _load(self, event: Event) -> None:
        asked = self._read("load", event)
        if asked is None:
            return
        metadata, agent = asked.metadata, self.agent
        node_id, generation = metadata["node_id"], metadata["node_generation"]
        if metadata["adapter_kind"] != ADAPTER:
            self._finish(event, asked, "load", ("rejected", "absent"), error="unsupported adapter kind")
        elif node_id in agent.nodes:
            self._finish(event, asked, "load", ("rejected", "present"), error="node already exists")
        elif agent.journal is None:
            error = "operational journal is required before model LOAD"
            self._finish(event, asked, "load", ("rejected", "absent"), error=error)
        else:
            try:
                agent.broker.register(node_id, generation, metadata["retained_bytes"])
            except Refusal as refusal:
                self._finish(event, asked, "load", ("rejected", "absent"), error=str(refusal))
                return
            limits = {name: metadata[name] for name in metadata if name.endswith(("capacity", "bytes"))}
            node = agent.nodes[node_id] = Node(node_id, generation, metadata["retained_bytes"], limits)
            agent.spawn(self._carry_out_load(event, asked, node))

    async def _carry_out_load(self, event: Event, asked: Payload, node: Node) -> None:
        """Launch, wait, READY, checks. Loads of one agent wait for each other, so its stages take the sum."""
        switches = self.agent.switches
        outcome, error = ("rejected", "absent"), ""
        try:
            if asked.metadata["adapter_content_type"] != LOAD:
                raise LoadRejected(f"unsupported adapter content type {asked.metadata['adapter_content_type']}")
            body = read_load(asked.body, node.store_bytes, switches)
            outcome = ("failed", "absent")
            async with self.agent.load_gate:
                said = await self._ready(node, body)
            if switches.load_outcome:
                outcome = ("failed", switches.load_outcome)
                raise LoadFailed("stage connection lost after READY")
            check_ready(body, said)
        except (LoadRejected, LoadFailed) as reason:
            error = str(reason)
        else:
            end = NodeEnd(self.agent.address, node.node_id, node.generation)
            node.stage = self._stage(end, body)
            node.phase = "loaded"
            node.task = self.agent.spawn(self._work(node, node.stage))
            self.agent.broker.routes[node.node_id].paused = False
            reply = write_json(loaded_body(body, said))
            self._finish(event, asked, "load", ("succeeded", "present"), content=LOADED, body=reply)
            return
        if outcome[1] == "absent":
            await self._remove(node)
        else:
            node.phase = "failed"
        self._adapter_error(event, asked, "load", outcome, error)

    def _adapter_error(
        self, event: Event, asked: Payload, operation: str, outcome: tuple[str, str], error: str
    ) -> None:
        reply = write_json({"code": REJECTED, "detail": error})
        self._finish(event, asked, operation, outcome, content=ERROR, body=reply, error=error)

    def _stage(self, end: NodeEnd, body: LoadBody) -> Stage:
        agent = self.agent
        journal = agent.journal
        assert journal is not None
        return Stage(
            end,
            body,
            agent.switches,
            agent.publish,
            agent.spawn,
            lambda event_id: journal.has("admission", event_id),
            lambda event: agent.record("settled", event, b""),
            agent.born,
        )

    async def _work(self, node: Node, stage: Stage) -> None:
        """Work through the node's queue until it is gone, or until its worker stops with everything left in it."""
        while True:
            event = await node.queue.get()
            try:
                stage.handle(event)
            except StageStopped:
                node.stopped = True
                return

    async def _ready(self, node: Node, body: LoadBody) -> dict[str, Any]:
        """READY of the stage: played, or from a process that is launched for it. Raises LoadFailed."""
        switches = self.agent.switches
        patience = body.raw.get("ready_timeout_ms", 600_000) / 1000
        await asyncio.sleep(min(switches.load_seconds, patience))
        if switches.load_seconds > patience:
            raise LoadFailed("stage runtime initialization failed: ReadyTimeout")
        if not switches.stage_processes:
            return ready(body, switches)
        node.process = await launch(body)
        await node.process.greet(body)
        self.agent.spawn(node.process.watch(lambda code: _lose(node, code)))
        return node.process.said

    async def _remove(self, node: Node) -> None:
        if node.task is not None:
            node.task.cancel()
        if node.process is not None:
            await node.process.stop()
        self.agent.broker.unregister(node.node_id)
        del self.agent.nodes[node.node_id]

    def _unload(self, event: Event) -> None:
        asked = self._read("unload", event)
        if asked is None:
            return
        metadata = asked.metadata
        node = self.agent.nodes.get(metadata["node_id"])
        refused, state = "", "present"
        if node is None:
            refused, state = "node does not exist", "absent"
        elif node.generation != metadata["node_generation"]:
            refused = "node generation is stale; "
            refused += f"current={node.generation} incoming={metadata['node_generation']}"
        elif metadata["adapter_kind"] != ADAPTER:
            refused = "adapter kind does not match the loaded node"
        elif node.phase != "loaded":
            refused = f"node is not unloadable; state={node.phase}"
        if node is None or refused:
            self._finish(event, asked, "unload", ("rejected", state), error=refused)
            return
        node.phase = "unloading"
        self.agent.broker.routes[node.node_id].paused = True
        self.agent.spawn(self._carry_out_unload(event, asked, node))

    async def _carry_out_unload(self, event: Event, asked: Payload, node: Node) -> None:
        stage = node.stage
        assert stage is not None
        if node.stopped or self.agent.switches.unload_outcome:
            node.phase = "failed"
            error = "node worker has stopped" if node.stopped else "stage connection lost during UNLOAD"
            self._adapter_error(event, asked, "unload", ("failed", "unknown"), error)
            return
        error = _refusal_of_unload(asked, stage)
        if error:
            stage.state = f"failed:{error}"
            node.phase = "loaded"
            self.agent.broker.routes[node.node_id].paused = False
            self._adapter_error(event, asked, "unload", ("rejected", "present"), error)
            return
        await asyncio.sleep(self.agent.switches.unload_seconds)
        await self._remove(node)
        body = {
            "state": "unloaded",
            "load_generation": stage.load_generation,
            "lifecycle": {
                "operation": "unload",
                "status": "succeeded",
                "resource_state": "absent",
                "first_error": None,
                "cleanup_error": None,
            },
        }
        self._finish(event, asked, "unload", ("succeeded", "absent"), content=UNLOADED, body=write_json(body))


def _lose(node: Node, code: int) -> None:
    """The stage's process ended by itself; its node is dead, and says so in its text."""
    node.stopped = True
    if node.stage is not None:
        how = f"exit status: {code}" if code >= 0 else f"signal: {-code}"
        node.stage.state = f"failed:stage server exited: {how}"
    if node.task is not None:
        node.task.cancel()


def _refusal_of_unload(asked: Payload, stage: Stage) -> str:
    """Why the adapter keeps its stage: another generation first, then work that is left."""
    if asked.metadata["adapter_content_type"] != UNLOAD:
        return f"unsupported adapter content type {asked.metadata['adapter_content_type']}"
    try:
        body = read_json(asked.body)
    except BadJson as error:
        return f"invalid unload command: {error}"
    if not isinstance(body, dict) or set(body) != {"load_generation"}:
        return "invalid unload command: expected exactly load_generation"
    if body["load_generation"] != stage.load_generation:
        return "unload load generation is stale"
    if stage.is_busy():
        return f"unload is busy;work={write_json(stage.census()).decode()}"
    return ""
