"""An agent's side of the contract over a real websockets server, for tests of the operator's side alone.

It keeps entities by the same fold as a real agent and does what each test tells it to; it runs no engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.server import Server, ServerConnection, unix_serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from backend.contract.commands import (
    AnyCommand,
    ChangeDrain,
    Check,
    Command,
    Hello,
    InspectModel,
    Load,
    OperationStatus,
    ProbeDial,
    ProbeListen,
    ReadLog,
    Release,
    Reserve,
    StartDrain,
    Subscribe,
    TestReplica,
    Unload,
)
from backend.contract.endpoints import Agent, Outer
from backend.contract.entities import Change, Drain, Entities, Exit, JournalRecord, LoadRecord, Result, Shard, fold
from backend.contract.envelopes import SUBPROTOCOL, command_type, decode_command, encode, event_envelope
from backend.contract.events import Answered, Event, Heartbeat, JournalBatch, Refused, Reported, Subscribed, Welcome
from backend.contract.frames import tree_of
from backend.contract.reports import EngineFacts, Presence
from backend.contract.words import HostId, NodeId, OpId, ReplicaId, UnixMs
from tests.control.factories import RELEASE, a_leader, a_shard, facts_of, report_of

Answerer = Callable[[AnyCommand], Result | None]
OK = Result(status="succeeded", resource_state="present")
GONE = Result(status="succeeded", resource_state="absent")


def rejected(words: str) -> Result:
    return Result(status="rejected", resource_state="absent", first_error=words)


def failed(words: str, state: str = "absent", **value: Any) -> Result:
    return Result(status="failed", resource_state=state, first_error=words, value=value)


class StandInAgent:
    """One host's agent. ``rules`` maps a command type to what answers it; None from a rule means silence."""

    def __init__(self, host: str, socket: Path, *, beat: float = 0.2) -> None:
        self.host = HostId(host)
        self.socket = socket
        self.beat = beat
        self.takes_bytes = 1 << 20
        self.says_host = self.host
        self.entities = Entities()
        self.journal: list[JournalRecord] = []
        self.heard: list[Command] = []
        self.results: dict[OpId, Result] = {}
        self.rules: dict[str, Answerer] = {}
        self.connections: list[ServerConnection] = []
        self.connected = 0
        self.present: tuple[Presence, ...] = ()
        self.refuses_cursors = False
        self.refuses_status = False
        self._server: Server | None = None
        self._subscribed: set[ServerConnection] = set()
        self._sequence = 0

    async def start(self) -> None:
        self._server = await unix_serve(
            self._serve,
            str(self.socket),
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            compression=None,
            max_size=self.takes_bytes,
            ping_interval=None,
            close_timeout=1,
        )

    async def stop(self) -> None:
        """Stop listening and cut every connection, as a killed agent does."""
        for connection in list(self.connections):
            connection.transport.abort()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        self.socket.unlink(missing_ok=True)

    def commands(self, kind: type[Command]) -> list[Any]:
        return [command for command in self.heard if isinstance(command, kind)]

    async def record(self, kind: str = "note", *, words: str = "w", **change: Any) -> None:
        """Journal something and stream it to everybody who subscribed."""
        seq = len(self.journal) + 1
        shard = change.get("shard")
        made = JournalRecord(
            kind=kind,
            words=words,
            at_unix_ms=UnixMs(time.time_ns() // 1_000_000),
            replica=shard.replica if shard else "",
            node_id=shard.node_id if shard else "",
            change=Change(**change) if change else None,
            seq=seq,
        )
        self.journal.append(made)
        self.entities = fold(self.entities, made)
        for connection in list(self._subscribed):
            await self.send(connection, JournalBatch(records=(made,), cursor=self._cursor(seq)))

    async def send(self, connection: ServerConnection, event: Event | dict[str, Any], correlation: str = "s") -> None:
        self._sequence += 1
        envelope = event_envelope(
            Heartbeat(head_seq=0, at_unix_ms=UnixMs(0)) if isinstance(event, dict) else event,
            source=Agent(self.host),
            target=Outer(self.host, "test", 1),
            sequence=self._sequence,
            correlation_id=correlation,
            causation_id=None,
        )
        if isinstance(event, dict):
            envelope = msgspec.structs.replace(envelope, body=event)
        with contextlib.suppress(ConnectionClosed):
            await connection.send(encode(envelope))

    def _cursor(self, seq: int) -> str:
        return f"journal-{self.host}:1:{seq}:00"

    async def _serve(self, connection: ServerConnection) -> None:
        self.connected += 1
        self.connections.append(connection)
        beating = asyncio.create_task(self._beat(connection))
        answering: set[asyncio.Task[None]] = set()
        try:
            async for frame in connection:
                assert isinstance(frame, str)
                _, command = decode_command(frame)
                self.heard.append(command)
                task = asyncio.create_task(self._take(connection, command))
                answering.add(task)
                task.add_done_callback(answering.discard)
        except ConnectionClosed:
            pass
        finally:
            beating.cancel()
            self._subscribed.discard(connection)
            self.connections.remove(connection)

    async def _beat(self, connection: ServerConnection) -> None:
        while True:
            await asyncio.sleep(self.beat)
            if connection in self._subscribed:
                head = len(self.journal)
                await self.send(connection, Heartbeat(head_seq=head, at_unix_ms=UnixMs(time.time_ns() // 1_000_000)))

    async def _take(self, connection: ServerConnection, command: AnyCommand) -> None:
        if isinstance(command, Hello):
            await self._greet(connection, command)
        elif isinstance(command, Subscribe):
            await self._subscribe(connection, command)
        elif isinstance(command, OperationStatus) and self.refuses_status:
            await self.send(connection, Refused(op_id=command.op_id, code="E_INVALID", words="no"), command.op_id)
        elif isinstance(command, OperationStatus):
            known = self.results.get(command.asked)
            value = {"known": known is not None, "result": tree_of(known) if known else None}
            await self._answer(connection, command, Result(status="succeeded", resource_state="present", value=value))
        elif command.op_id in self.results:
            await self._answer(connection, command, self.results[command.op_id])
        else:
            rule = self.rules.get(command_type(command))
            result = rule(command) if rule else await self._obey(command)
            if result is not None:
                self.results[command.op_id] = result
                await self._answer(connection, command, result)

    async def _answer(self, connection: ServerConnection, command: Command, result: Result) -> None:
        event = Answered(op_id=command.op_id, command=command_type(command), result=result)
        await self.send(connection, event, command.op_id)

    async def _greet(self, connection: ServerConnection, hello: Hello) -> None:
        engine = EngineFacts(engine="llamacpp", folder="", release=RELEASE, devices=("CPU",))
        facts = msgspec.structs.replace(facts_of(self.says_host), engines=(engine,))
        report = report_of(self.says_host, self.entities, seq=len(self.journal), facts=facts, present=self.present)
        welcome = Welcome(
            host=self.says_host,
            agent_epoch=report.agent_epoch,
            journal_id=report.journal_id,
            journal_epoch=1,
            head_seq=report.seq,
            major=1,
            minor=0,
            agent_version="0.1.0",
            read_only=hello.read_only,
            asked_unix_ms=hello.sent_unix_ms,
            answered_unix_ms=hello.sent_unix_ms + 2000,
        )
        await self.send(connection, welcome, hello.op_id)
        await self.send(connection, Reported(report=report), hello.op_id)

    async def _subscribe(self, connection: ServerConnection, command: Subscribe) -> None:
        if command.cursor and self.refuses_cursors:
            refusal = Refused(op_id=command.op_id, code="E_INVALID", words="no such cursor")
            await self.send(connection, refusal, command.op_id)
            return
        after = int(command.cursor.split(":")[2]) if command.cursor else max(0, len(self.journal) - command.tail)
        await self.send(connection, Subscribed(outcome="ok", from_seq=after + 1), command.op_id)
        self._subscribed.add(connection)
        for start in range(after, len(self.journal), 64):
            records = tuple(self.journal[start : start + 64])
            await self.send(connection, JournalBatch(records=records, cursor=self._cursor(records[-1].seq)))

    async def _obey(self, command: AnyCommand) -> Result | None:
        """What a healthy host does, with shards that are only records."""
        match command:
            case InspectModel():
                return rejected("E_NOT_FOUND: there is no such file")
            case Check():
                return Result(status="succeeded", resource_state="absent", value={"findings": []})
            case ProbeListen():
                return Result(status="succeeded", resource_state="present", value={"heard": True, "words": "heard"})
            case Release():
                return GONE
            case ProbeDial():
                return Result(status="succeeded", resource_state="absent", value={"answered": True, "words": ""})
            case Reserve() | ChangeDrain():
                return OK
            case Load():
                shard = await self._load(command)
                return Result(status="succeeded", resource_state="present", value={"endpoint": shard.endpoint})
            case Unload():
                return await self._unload(command)
            case StartDrain():
                drain = Drain(
                    replica=ReplicaId(command.replica),
                    load_generation=command.load_generation,
                    op_id=command.op_id,
                    by=command.by,
                    why=command.why,
                    left_ms=int(command.deadline_seconds * 1000),
                    at_unix_ms=UnixMs(time.time_ns() // 1_000_000),
                    at_deadline=command.at_deadline,
                )
                await self.record("draining", drain=drain)
                return OK
            case TestReplica():
                return Result(status="succeeded", resource_state="present", value={"text": "four", "seconds": 0.1})
            case ReadLog():
                value = {"text": f"the log of {command.node_id}\nits end", "offset": 10, "size": 10}
                return Result(status="succeeded", resource_state="present", value=value)
            case _:
                raise AssertionError(f"nobody told this agent what to do with {command}")

    async def _load(self, command: Load) -> Shard:
        rank, generation = int(command.node_id.rpartition("/")[2]), command.plan.load_generation
        if rank == 0:
            shard = a_leader(load_generation=generation, host=self.host, replica=command.plan.replica)
        else:
            shard = a_shard(rank, load_generation=generation, host=self.host, replica=command.plan.replica)
        shard = msgspec.structs.replace(shard, node_id=command.node_id)
        load = LoadRecord(command.reservation, command.by, command.plan, UnixMs(1))
        await self.record("ready", shard=shard, load=load)
        return shard

    async def _unload(self, command: Unload) -> Result:
        shard = self.entities.shards.get(command.node_id)
        if shard is None:
            return GONE
        if shard.state in ("stopped", "failed"):
            await self.record("dismissed", drop_shards=(command.node_id,))
        else:
            await self.end_shard(command.node_id, "stopped", "exit 0")
        return GONE

    async def end_shard(self, node_id: NodeId, state: str, words: str) -> None:
        shard: Shard = self.entities.shards[node_id]
        ended = Exit(0, None, words, UnixMs(1))
        await self.record("exited", shard=msgspec.structs.replace(shard, state=state, words=words, exit=ended))


@contextlib.asynccontextmanager
async def agents(*each: StandInAgent) -> AsyncIterator[None]:
    """These agents, running."""
    try:
        for agent in each:
            await agent.start()
        yield
    finally:
        for agent in each:
            await agent.stop()


async def wait_for(holds: Callable[[], object], seconds: float = 30.0) -> None:
    """Until ``holds()`` is true; fails with the time when it never is."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it did not come about within {seconds:g} s"
        await asyncio.sleep(0.02)
