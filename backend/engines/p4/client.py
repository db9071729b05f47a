"""A client of one p4 agent: what is asked of it, and how each request ended.

Three lanes, each with a connection of its own, since one event to a node that is still loading freezes its connection:
``inspection`` and ``control`` in hop mode, whose connections cost no slot when we are killed, and ``submission`` in
direct mode, which is the only one that the head of a ring takes prompts from. Each is dialled when it is first needed,
kept, and left with FINISH. Usage::

    slots = SlotCount(folder / "p4-slots.json", life="4711:88123")     # one run of the p4 agent's process
    async with P4Client(("127.0.0.1", 52001), P4Address("tcp://10.0.0.2:52001"), slots) as client:
        seen = await client.inspect(10)                                 # Snapshot | Refused | NotSent | Unknown
        asked = await client.begin_lifecycle(NodeLoad(…))                # Asked | NotSent
        done = await client.lifecycle_result(asked, 900)                # NodeResult | Refused | Unknown
        if isinstance(done, Unknown) and done.cause == "silence":
            done = await client.lifecycle_result(asked, 60)             # the answer may still come

The advertised address is the p4 agent's identity and stands in every envelope, whatever is dialled: an event that names
another one goes outward and nobody hears of it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal

from backend.contract.envelopes import Class
from backend.contract.findings import Finding
from backend.contract.p4 import content_types
from backend.contract.p4.addresses import P4Address, parse_address
from backend.contract.p4.errors import P4CodecError
from backend.contract.p4.events import P4Agent, P4Event, P4Node
from backend.contract.p4.hops import ReceiptStatus
from backend.contract.p4.lifecycle import (
    NodeLoad,
    NodeResult,
    NodeUnload,
    decode_load,
    decode_result,
    decode_unload,
    encode_lifecycle,
)
from backend.engines.p4.asked import Asked, Stream
from backend.engines.p4.connection import CannotSend, P4Settings
from backend.engines.p4.lane import Lane
from backend.engines.p4.outcomes import NotSent, Outcome, Refused, Replied, Unknown
from backend.engines.p4.payloads import json_payload, write_json
from backend.engines.p4.slots import Mode, SlotCount
from backend.engines.p4.snapshot import Snapshot, read_snapshot

LaneName = Literal["inspection", "control", "submission"]

HOP_FIRST: tuple[Mode, ...] = ("hop", "direct")
DIRECT: tuple[Mode, ...] = ("direct",)
DEFAULT_MODES: dict[LaneName, tuple[Mode, ...]] = {
    "inspection": HOP_FIRST,
    "control": HOP_FIRST,
    "submission": DIRECT,
}
"""A head binds each prompt to the record of its direct admission; one that came in hop mode fails at the head."""

_STREAMED = frozenset(
    {
        content_types.OUTPUT,
        content_types.RELEASE_RECEIPT,
        content_types.BATCH_OBSERVATION,
        content_types.STAGE_SPAN,
    }
)


class P4Client:
    """One p4 agent, dialled at ``dial`` and addressed as ``advertised``."""

    def __init__(
        self,
        dial: tuple[str, int],
        advertised: P4Address,
        slots: SlotCount,
        *,
        settings: P4Settings | None = None,
        modes: dict[LaneName, tuple[Mode, ...]] | None = None,
        now: Callable[[], float] = time.monotonic,
        make_channel: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """Nothing is dialled yet. ``slots`` is shared by all clients of this p4 agent, and closed by its owner.

        Raises P4CodecError for an address that p4 does not know.
        """
        self.address = parse_address(advertised)
        self.settings = settings or P4Settings()
        self._slots = slots
        self._now = now
        chosen = {**DEFAULT_MODES, **(modes or {})}
        self._lanes: dict[LaneName, Lane] = {
            name: Lane(name, chosen[name], dial, self.address, slots, self.settings, now=now, make_channel=make_channel)
            for name in chosen
        }
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> P4Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave: FINISH on every connection. It goes on in the background when this call is cancelled."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="p4 client leaves")
        await asyncio.shield(self._closing)

    def lane(self, name: LaneName) -> Lane:
        """One lane, for what it counts and how its last connection ended."""
        return self._lanes[name]

    def finding(self) -> Finding | None:
        """What the slot count says: nothing, a warning, or that nothing is dialled any more."""
        return self._slots.finding()

    async def inspect(self, seconds: float = 10.0) -> Snapshot | Refused | NotSent | Unknown:
        """What the p4 agent says of itself and its nodes. Serial at the agent, but never behind a load."""
        asked = await self.ask(
            "inspection",
            target=P4Agent(self.address),
            content_type=content_types.INSPECT,
            payload=b"{}",
            expects={content_types.SNAPSHOT},
            seconds=seconds,
        )
        if isinstance(asked, NotSent):
            return asked
        outcome = await asked.outcome(seconds)
        if not isinstance(outcome, Replied):
            return outcome
        try:
            return read_snapshot(outcome.event)
        except P4CodecError as error:
            return Unknown(f"the answer to INSPECT cannot be used: {error.reason}", "answer")

    async def begin_lifecycle(
        self,
        request: NodeLoad | NodeUnload,
        *,
        seconds: float = 10.0,
        deadline_unix_ms: int | None = None,
        correlation_id: str | None = None,
    ) -> Asked | NotSent:
        """Send a LOAD or UNLOAD to the Agent endpoint; ``lifecycle_result`` then hears how it ended.

        ``seconds`` is for coming to a connection. ``deadline_unix_ms`` is the p4 agent's admission fence. Raises
        P4CodecError for a request that p4 would refuse: nothing was sent.
        """
        is_load = isinstance(request, NodeLoad)
        return await self.ask(
            "control",
            target=P4Agent(self.address),
            content_type=content_types.NODE_LOAD if is_load else content_types.NODE_UNLOAD,
            payload=encode_lifecycle(request),
            expects={content_types.LIFECYCLE_RESULT},
            seconds=seconds,
            adapter_kind=request.adapter_kind,
            deadline_unix_ms=deadline_unix_ms,
            correlation_id=correlation_id,
        )

    async def lifecycle_result(self, asked: Asked, seconds: float) -> NodeResult | Refused | Unknown:
        """How a LOAD or UNLOAD ended, waiting up to ``seconds``. After Unknown by silence it may be called again."""
        return _node_result(asked, await asked.outcome(seconds))

    async def lifecycle(
        self,
        request: NodeLoad | NodeUnload,
        *,
        seconds: float,
        deadline_unix_ms: int | None = None,
        correlation_id: str | None = None,
    ) -> NodeResult | Refused | NotSent | Unknown:
        """``begin_lifecycle`` and ``lifecycle_result`` in one, for whoever does not listen again."""
        asked = await self.begin_lifecycle(
            request,
            seconds=min(seconds, self.settings.dial_seconds + self.settings.hello_seconds),
            deadline_unix_ms=deadline_unix_ms,
            correlation_id=correlation_id,
        )
        return asked if isinstance(asked, NotSent) else await self.lifecycle_result(asked, seconds)

    async def query(self, asked: Asked, seconds: float = 10.0) -> ReceiptStatus | NotSent | Unknown:
        """What the broker knows of a request, asked anew on its own connection; only in hop mode.

        ``asked.receipt_words`` has its detail. UNKNOWN means that no receipt is pinned any more, and never allows to
        send it again.
        """
        for lane in self._lanes.values():
            connection = lane.connection
            if connection is not None and connection.route == asked.request.return_route:
                try:
                    asked.expect_query()
                    connection.query(asked.ticket)
                except CannotSend as error:
                    return NotSent(str(error))
                if await asked.queried(seconds) and asked.receipt is not None:
                    return asked.receipt
                return Unknown(f"the broker did not answer a query within {seconds:g} s", "silence", asked.receipt)
        return NotSent("the connection that it was sent on is over, and receipts do not outlive it here")

    async def session(
        self, stage: P4Node, body: dict[str, Any], seconds: float, *, correlation_id: str | None = None
    ) -> dict[str, Any] | Refused | NotSent | Unknown:
        """Open a session at one stage: ``{load_generation, session_id, stages, stage_index}``; its answer's JSON.

        One event for each stage. A stage at another p4 agent is reached through this one, which forwards it.
        """
        asked = await self.ask(
            "submission",
            target=stage,
            content_type=content_types.SESSION,
            payload=write_json(body),
            expects={content_types.SESSION_READY},
            seconds=seconds,
            adapter_kind=content_types.LLAMACPP,
            correlation_id=correlation_id,
        )
        return asked if isinstance(asked, NotSent) else _json(await asked.outcome(seconds))

    async def submit(
        self, head: P4Node, body: dict[str, Any], seconds: float = 10.0, *, correlation_id: str | None = None
    ) -> Stream | NotSent:
        """Send a prompt to the head of a ring; outputs, release receipts and telemetry flow into the stream.

        ``body``: ``{load_generation, session_id, request_id, prompt or tokens, options, max_tokens}``. It cannot be
        taken back. Read with ``stream.next`` and leave with ``async with``.
        """
        asked = await self.ask(
            "submission",
            target=head,
            content_type=content_types.PREFILL,
            payload=write_json(body),
            expects=_STREAMED,
            seconds=seconds,
            class_="data",
            adapter_kind=content_types.LLAMACPP,
            correlation_id=correlation_id,
            is_stream=True,
        )
        if isinstance(asked, NotSent):
            return asked
        assert asked.stream is not None  # it was asked for as one
        return asked.stream

    async def reconcile(self, failure_id: str, seconds: float = 10.0) -> dict[str, Any] | Refused | NotSent | Unknown:
        """Let the p4 agent drop an undelivered event that it keeps, and the connection slot that it holds.

        Its answer is ``{ok, state, detail}``.
        """
        asked = await self.ask(
            "control",
            target=P4Agent(self.address),
            content_type=content_types.RECONCILE,
            payload=write_json({"failure_id": failure_id}),
            expects={content_types.NODE_RESULT},
            seconds=seconds,
        )
        return asked if isinstance(asked, NotSent) else _json(await asked.outcome(seconds))

    async def ask(
        self,
        lane: LaneName,
        *,
        target: P4Agent | P4Node,
        content_type: str,
        payload: bytes,
        expects: set[str] | frozenset[str],
        seconds: float,
        class_: Class = "control",
        adapter_kind: str | None = None,
        deadline_unix_ms: int | None = None,
        correlation_id: str | None = None,
        is_stream: bool = False,
    ) -> Asked | NotSent:
        """Send one event on a lane, waiting up to ``seconds`` for a connection; every other request is made of it.

        Raises P4CodecError for an event that p4 would refuse.
        """
        where = self._lanes[lane]
        connection = await where.ready(seconds)
        if isinstance(connection, NotSent):
            return connection
        if not where.questions.make_room():
            return NotSent(f"{self.settings.max_asked} requests of this connection are waited for already")
        sequence = connection.next_sequence()
        event_id = f"{connection.route.channel}:{sequence}"
        event = P4Event(
            event_id=event_id,
            correlation_id=correlation_id or event_id,
            source=connection.route,
            target=target,
            return_route=connection.route,
            class_=class_,
            sequence=sequence,
            payload_content_type=content_type,
            payload=payload,
            deadline_unix_ms=deadline_unix_ms,
            adapter_kind=adapter_kind,
        )
        try:
            ticket = connection.send(event)
        except CannotSend as error:
            return NotSent(str(error))
        asked = Asked(event, frozenset(expects), ticket)
        if is_stream:
            asked.stream = Stream(asked, self.settings.stream_events, where.questions)
        where.questions.add(asked)
        return asked

    async def _close(self) -> None:
        await asyncio.gather(*(lane.close() for lane in self._lanes.values()))


def _json(outcome: Outcome) -> dict[str, Any] | Refused | Unknown:
    """The JSON that an answer carries."""
    if not isinstance(outcome, Replied):
        return outcome
    try:
        return json_payload(outcome.event)
    except P4CodecError as error:
        return Unknown(f"it was answered, and the answer cannot be read: {error.reason}", "answer")


def _node_result(asked: Asked, outcome: Outcome) -> NodeResult | Refused | Unknown:
    """The result that an answer carries, when it is about the node that was asked about."""
    if not isinstance(outcome, Replied):
        return outcome
    is_load = asked.request.payload_content_type == content_types.NODE_LOAD
    request = (decode_load if is_load else decode_unload)(asked.request.payload)
    try:
        result = decode_result(outcome.event.payload)
    except P4CodecError as error:
        return Unknown(f"the lifecycle result cannot be read: {error.reason}", "answer")
    sent = ("load" if is_load else "unload", request.node_id, request.node_generation)
    said = (result.operation, result.node_id, result.node_generation)
    if sent != said:
        return Unknown(
            f"{' '.join(map(str, sent))} was asked, and the result is of {' '.join(map(str, said))}", "answer"
        )
    return result
