"""One stage at work: sessions, prefill, tokens around the ring, the release of what a request held, and its census.

The tail returns every token to the submitter and a continuation to the head; when the last one is out, the head
releases the request at every stage and counts the receipts that come back. What travels between stages is ours: the
contract does not say its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.p4.simulator.load import CONTENT, ERROR, LoadBody
from tests.p4.simulator.strict_json import BadJson, read_json, write_json
from tests.p4.simulator.switches import Switches
from tests.p4.simulator.wire import U64, Class, Endpoint, Event, NodeEnd, Refused, parse_address

SESSION, SESSION_READY = CONTENT + "session-v4+json", CONTENT + "session-ready-v4+json"
PREFILL, OUTPUT = CONTENT + "prefill-v3+json", CONTENT + "output-v5+json"
RECEIPT = CONTENT + "release-receipt-v1+json"
OBSERVATION, SPAN = CONTENT + "batch-observation-v4+json", CONTENT + "stage-span-v4+json"
_BATCH, _CONTINUE = CONTENT + "simulated-batch+json", CONTENT + "simulated-continuation+json"
_RELEASE, _RELEASED = CONTENT + "simulated-release+json", CONTENT + "simulated-released+json"

REJECTED = "LLAMA_ADAPTER_EVENT_REJECTED"


class EventRejected(Exception):
    """An event that the adapter refuses; the text becomes the stage's state, and stays there."""


class StageStopped(Exception):
    """The worker ends; nothing that is queued for it is ever looked at."""


@dataclass
class Session:
    """The chain of stages that one caller announced to each of them."""

    session_id: str
    stages: tuple[NodeEnd, ...]
    index: int


@dataclass
class Request:
    """What the head knows of one request under way."""

    submission: Event
    session: Session
    request_id: str
    sequence_id: int
    prompt_rows: int
    max_tokens: int
    step: int = 0
    in_flight: bool = False
    releasing: set[NodeEnd] = field(default_factory=set)


class Stage:
    """The adapter's side of one loaded node."""

    def __init__(
        self,
        end: NodeEnd,
        body: LoadBody,
        switches: Switches,
        publish: Callable[[Event], None],
        spawn: Callable[[Any], Any],
        admitted: Callable[[str], bool],
        settled: Callable[[Event], None],
        born: int,
    ) -> None:
        self.end = end
        self.body = body
        self.switches = switches
        self.load_generation: int = body["load_generation"]
        self.sessions: dict[str, Session] = {}
        self.requests: dict[str, Request] = {}
        self.pending: list[tuple[Event, Session, dict[str, Any]]] = []
        self.owners: set[str] = set()
        self._text = "loaded"
        self._publish = publish
        self._spawn = spawn
        self._admitted = admitted
        self._settled = settled
        self._born = born
        self._sequence = 0

    @property
    def state(self) -> str:
        """The text that the snapshot shows. A failure sticks until the node is loaded again."""
        return self.switches.stuck_state or self._text

    @state.setter
    def state(self, text: str) -> None:
        self._text = text

    def census(self) -> dict[str, Any]:
        """The seventeen counts of an unload that is refused as busy."""
        flights = sum(request.in_flight for request in self.requests.values())
        counts: dict[str, Any] = {
            "requests": len(self.requests) + len(self.pending),
            "pending": len(self.pending),
            "pending_releases": sum(bool(request.releasing) for request in self.requests.values()),
            "pending_settlements": 0,
            "prepared_issue": None,
            "verify_fenced": False,
            "flight_batches": flights,
            "flight_executions": flights,
            "open_batch_view": flights,
            "effects": 0,
            "effects_fenced": False,
            "active_publications": 0,
            "held_input": False,
            "deferred_ack_error": False,
            "active_owners": len(self.owners),
            "active_frontiers": len(self.owners),
            "receive": {"running": 0, "uncertain": 0, "active_attempt": False, "fenced": False},
        }
        return counts | self.switches.census_lag

    def is_busy(self) -> bool:
        """Whether anything of the census is not zero."""
        return any(value for name, value in self.census().items() if name != "receive")

    def handle(self, event: Event) -> None:
        """One event of the node's queue. Raises StageStopped."""
        try:
            body = read_json(event.payload, numbers=True)
            if not isinstance(body, dict):
                raise EventRejected("command is no object")
            match event.content_type:
                case t if t == SESSION:
                    self._open_session(event, body)
                case t if t == PREFILL:
                    self._prefill(event, body)
                case t if t == _BATCH:
                    self._batch(event, body)
                case t if t == _CONTINUE:
                    self._continue(event, body)
                case t if t == _RELEASE:
                    self._release(event, body)
                case t if t == _RELEASED:
                    self._released(event, body)
                case _:
                    raise EventRejected(f"unsupported content type {event.content_type}")
        except (EventRejected, BadJson) as error:
            self.reject(event, str(error))
        except (KeyError, TypeError) as error:
            self.reject(event, f"malformed {event.content_type}: {error!r}")

    def reject(self, event: Event, detail: str) -> None:
        """Tell the submitter, and keep the text."""
        self.state = f"failed:{detail}"
        self._emit(event, event.return_route, ERROR, {"code": REJECTED, "detail": detail}, Class.TELEMETRY)

    def _open_session(self, event: Event, body: dict[str, Any]) -> None:
        wanted = {"load_generation", "session_id", "stages", "stage_index"}
        if set(body) != wanted:
            raise EventRejected(f"session must have exactly {', '.join(sorted(wanted))}")
        if body["load_generation"] != self.load_generation:
            raise EventRejected("session load generation is stale")
        stages = tuple(_stage_end(each) for each in body["stages"])
        if len(stages) < 2:
            raise EventRejected("session requires at least two stages")
        index = body["stage_index"]
        if type(index) is not int or not 0 <= index < len(stages) or stages[index] != self.end:
            raise EventRejected("session stage index does not name this node")
        if not isinstance(body["session_id"], str) or not body["session_id"]:
            raise EventRejected("session requires an id")
        self.sessions[body["session_id"]] = Session(body["session_id"], stages, index)
        ready = {"load_generation": self.load_generation, "session_id": body["session_id"], "stage_index": index}
        self._emit(event, event.return_route, SESSION_READY, ready, Class.CONTROL)

    def _prefill(self, event: Event, body: dict[str, Any]) -> None:
        known = {
            "load_generation",
            "session_id",
            "request_id",
            "prompt",
            "tokens",
            "options",
            "session_key",
            "max_tokens",
        }
        if unknown := set(body) - known:
            raise EventRejected(f"unknown field `{min(unknown)}`")
        if body.get("load_generation") != self.load_generation:
            raise EventRejected("prefill load generation is stale")
        session = self.sessions.get(str(body.get("session_id")))
        if session is None or session.index != 0:
            raise EventRejected("prefill names no session of which this node is the head")
        if ("prompt" in body) == ("tokens" in body):
            raise EventRejected("prefill requires either prompt or tokens")
        most = self.body.profile["max_output_tokens_per_request"]
        if type(body.get("max_tokens")) is not int or not 0 < body["max_tokens"] <= most:
            raise EventRejected(f"prefill max_tokens must be 1 to {most}")
        if not self._admitted(event.event_id):
            raise EventRejected("submission admission: No such file or directory (os error 2)")
        if len(self.requests) >= self.body["sequence_capacity"]:
            self.pending.append((event, session, body))
        else:
            self._start(event, session, body)

    def _start(self, event: Event, session: Session, body: dict[str, Any]) -> None:
        rows = len(body["tokens"]) if "tokens" in body else max(1, len(str(body["prompt"]).split()))
        taken = {request.sequence_id for request in self.requests.values()}
        sequence = min(set(range(self.body["sequence_capacity"])) - taken)
        request_id = str(body.get("request_id"))
        request = Request(event, session, request_id, sequence, rows, body["max_tokens"])
        self.requests[request_id] = request
        self.owners.add(request_id)
        self._issue(request, event)

    def _issue(self, request: Request, cause: Event) -> None:
        """Send the next rows of a request around the ring."""
        request.in_flight = True
        rows = request.prompt_rows if request.step == 0 else 1
        if self.switches.telemetry:
            batch = {
                "rows": rows,
                "prefill_rows": rows if request.step == 0 else 0,
                "decode_rows": 0 if request.step == 0 else 1,
                "owned_requests": [request.request_id],
            }
            seen: dict[str, Any] = {
                "stage_ms": 0,
                "idle_ms": 0,
                "idle_gated": False,
                "ready_rows": rows,
                "ready_sequences": 1,
            }
            seen |= {"logical_rows": rows, "physical_batches": [batch]}
            self._emit(cause, cause.return_route, OBSERVATION, seen, Class.TELEMETRY)
        body = {
            "load_generation": self.load_generation,
            "session_id": request.session.session_id,
            "request_id": request.request_id,
            "sequence_id": request.sequence_id,
            "step": request.step,
            "rows": rows,
            "position": request.prompt_rows + request.step,
            "is_last": request.step + 1 >= self._last(request),
            "is_eos": 0 < self.switches.eos_after <= request.step + 1,
            "submission": request.submission.event_id,
        }
        self._emit(cause, request.session.stages[1], _BATCH, body, Class.DATA)

    def _last(self, request: Request) -> int:
        return min(request.max_tokens, self.switches.eos_after or request.max_tokens)

    def _batch(self, event: Event, body: dict[str, Any]) -> None:
        session = self.sessions.get(body["session_id"])
        if session is None or body["load_generation"] != self.load_generation:
            raise EventRejected("batch of an unknown session or another load")
        self.owners.add(body["request_id"])
        if self.switches.telemetry:
            span = {"execution_ids": [body["step"]], "rows": body["rows"], "ingress_unix_ms": 1, "start_unix_ms": 1}
            span |= {"end_unix_ms": 1, "forward_unix_ms": 1}
            self._emit(event, event.return_route, SPAN, span, Class.TELEMETRY)
        if session.index + 1 < len(session.stages):
            self._emit(event, session.stages[session.index + 1], _BATCH, body, Class.DATA)
        else:
            self._spawn(self._token(event, session, body))

    async def _token(self, event: Event, session: Session, body: dict[str, Any]) -> None:
        """The tail samples one token: out to the submitter, and on to the head."""
        if self.switches.token_seconds:
            await asyncio.sleep(self.switches.token_seconds)
        await self.switches.until_tokens_flow()
        output = {
            "load_generation": self.load_generation,
            "session_id": body["session_id"],
            "request_id": body["request_id"],
            "sequence_id": body["sequence_id"],
            "token": 1000 + body["step"],
            "text": f" t{body['step']}",
            "position": body["position"],
            "submission_event_id": body["submission"],
            "incarnation": self._born,
        }
        if body["is_last"]:
            output["stop"] = "eos" if body["is_eos"] else "length"
            output["release_operation_id"] = f"{body['submission']}:release"
        self._emit(event, event.return_route, OUTPUT, output, Class.OUTPUT)
        self._emit(event, session.stages[0], _CONTINUE, body, Class.DATA)

    def _continue(self, event: Event, body: dict[str, Any]) -> None:
        request = self.requests.get(body["request_id"])
        if request is None:
            raise EventRejected("continuation of an unknown request")
        request.in_flight = False
        if not body["is_last"]:
            request.step += 1
            self._issue(request, event)
            return
        self.owners.discard(request.request_id)
        request.releasing = set(request.session.stages[1:])
        for stage in request.session.stages[1:]:
            self._emit(event, stage, _RELEASE, body, Class.CONTROL)

    def _release(self, event: Event, body: dict[str, Any]) -> None:
        self.owners.discard(body["request_id"])
        self._emit(event, event.source, _RELEASED, body, Class.CONTROL)

    def _released(self, event: Event, body: dict[str, Any]) -> None:
        """A receipt of a release. Its sender's generation must be the load's, or the head stops here."""
        source = event.source
        if not isinstance(source, NodeEnd):
            raise EventRejected("release receipt of no node")
        if self.switches.census_check and source.generation != body["load_generation"]:
            self.state = "failed:release owner census generation differs from source"
            raise StageStopped
        request = self.requests.get(body["request_id"])
        if request is None:
            raise EventRejected("release receipt of an unknown request")
        request.releasing.discard(source)
        if request.releasing:
            return
        del self.requests[request.request_id]
        self._settled(request.submission)
        member = {
            "request_id": request.request_id,
            "sequence_id": request.sequence_id,
            "release_operation_id": f"{request.submission.event_id}:release",
        }
        receipt = {
            "load_generation": self.load_generation,
            "session_id": request.session.session_id,
            "members": [member],
        }
        self._emit(event, event.return_route, RECEIPT, receipt, Class.OUTPUT)
        if self.pending:
            self._start(*self.pending.pop(0))

    def _emit(self, cause: Event, target: Endpoint | None, content: str, body: dict[str, Any], kind: Class) -> None:
        """One new event of this node, caused by another."""
        assert target is not None
        self._sequence += 1
        self._publish(
            Event(
                event_id=f"{self.end.agent}:{self._born}:{self.end.node}:{self.load_generation}:llamacpp:{self._sequence}",
                correlation_id=cause.correlation_id,
                causation_id=cause.event_id,
                source=self.end,
                target=target,
                return_route=cause.return_route,
                kind=kind,
                sequence=self._sequence,
                content_type=content,
                payload=write_json(body),
                deadline=cause.deadline,
                adapter="llamacpp",
            )
        )


def _stage_end(said: dict[str, Any]) -> NodeEnd:
    """One stage of a session. Raises EventRejected."""
    if set(said) != {"agent", "node", "generation"}:
        raise EventRejected("session stages need exactly agent, node and generation")
    try:
        address = parse_address(said["agent"])
    except Refused as refusal:
        raise EventRejected(f"session stage: {refusal}") from None
    if not isinstance(said["node"], str) or type(said["generation"]) is not int or not 0 < said["generation"] <= U64:
        raise EventRejected("session stage needs a node id and a generation")
    return NodeEnd(address, said["node"], said["generation"])
