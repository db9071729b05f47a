"""The desk where frames arrive: greets a console, reads its commands, answers each exactly once."""

from __future__ import annotations

import asyncio
import sys
import traceback
from typing import TYPE_CHECKING, Any

import msgspec
from websockets.asyncio.server import ServerConnection

from backend.agent import journal_answers, ports
from backend.agent.checks import check_plan
from backend.agent.clock import now
from backend.agent.connections import Connection
from backend.agent.core.state import CommandArrived, EngineSaw
from backend.agent.journal import CursorOutcome, JournalDamaged, JournalWriteFailed
from backend.agent.log_answers import NoEarlierRun, read_shard_log
from backend.agent.model_files import resolve_model
from backend.contract.commands import (
    AdoptForeign,
    AnyCommand,
    BeginResident,
    ChangeDrain,
    Check,
    ClaimKeeper,
    CordonHost,
    EndOperatorHold,
    EndResident,
    ExportJournal,
    ForkJournal,
    Hello,
    InspectModel,
    JournalStats,
    Load,
    LookAtResident,
    MoveResidentJournal,
    OperationStatus,
    ProbeDial,
    ProbeListen,
    ReadLog,
    Release,
    Reserve,
    ResignKeeper,
    RestartBridge,
    SetOperatorHold,
    StartDrain,
    Subscribe,
    TestReplica,
    UncordonHost,
    Unload,
    VerifyJournal,
)
from backend.contract.endpoints import Outer
from backend.contract.entities import Canary, Result
from backend.contract.envelopes import MAJOR, MINOR, command_type, decode_command, payload_digest
from backend.contract.events import Answered, Refused, Reported, Subscribed, Welcome
from backend.contract.frames import FrameError, tree_of
from backend.contract.reports import HostReport
from backend.engines.driver import EngineMissing, ModelUnreadable, Proven
from backend.engines.registry import driver_for
from backend.versions import RINGTOP_VERSION

if TYPE_CHECKING:
    from backend.agent.daemon import AgentDaemon

HELLO_SECONDS = 5.0
LOOK_SECONDS = 1.0
"""The longest that a hello waits for what engines' own agents say at this moment."""
UNABLE = (ModelUnreadable, EngineMissing, TimeoutError, OSError, ValueError)
"""What a question may end with, in words for who asked."""
DURABLE = (
    Reserve,
    Release,
    Load,
    Unload,
    StartDrain,
    ChangeDrain,
    SetOperatorHold,
    EndOperatorHold,
    ClaimKeeper,
    ResignKeeper,
    EndResident,
    BeginResident,
    MoveResidentJournal,
    RestartBridge,
    CordonHost,
    UncordonHost,
    AdoptForeign,
)


class Desk:
    """Reads frames of every connection. Durable commands go to the core, questions are answered here."""

    def __init__(self, agent: AgentDaemon) -> None:
        self._agent = agent
        self._tasks: set[asyncio.Task[None]] = set()

    async def greet(self, connection: Connection, ws: ServerConnection) -> bool:
        """Hello, welcome, report. False: refused, and the console was told why."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                text = await ws.recv(decode=True)
            envelope, command = decode_command(text)
        except TimeoutError:
            await self._refuse_now(connection, ws, "?", "E_HELLO", f"no hello within {HELLO_SECONDS:.0f} s")
            return False
        except FrameError as error:
            await self._refuse_now(connection, ws, "?", "E_INVALID", str(error))
            return False
        if not isinstance(command, Hello):
            words = f"the first frame is {command_type(command)}, not hello"
            await self._refuse_now(connection, ws, command.op_id, "E_HELLO", words)
            return False
        if command.host != self._agent.host:
            words = f"this agent is {self._agent.host}; the console expected {command.host}. Correct the context."
            await self._refuse_now(connection, ws, command.op_id, "E_HOST", words, host=self._agent.host)
            return False
        connection.who, connection.console = command.who, command.console
        connection.read_only = command.read_only or command.major != MAJOR
        if isinstance(envelope.source, Outer):
            connection.channel = envelope.source
        await self._agent.look(patience=LOOK_SECONDS)
        self._supersede(connection)
        self._welcome(connection, command)
        return True

    def _supersede(self, connection: Connection) -> None:
        """A new hello of the same console closes its old connection before the report is cut."""
        for other in list(self._agent.connections.values()):
            if other.console == connection.console:
                other.abort()

    def _welcome(self, connection: Connection, hello: Hello) -> None:
        agent, journal = self._agent, self._agent.journal
        durable = journal.snapshot()  # a decision that waits for the disk comes to the console as a record behind it
        connection.say(
            Welcome(
                host=agent.host,
                agent_epoch=agent.agent_epoch,
                journal_id=journal.journal_id,
                journal_epoch=journal.journal_epoch,
                head_seq=durable.seq,
                major=MAJOR,
                minor=MINOR,
                agent_version=RINGTOP_VERSION,
                read_only=connection.read_only,
                asked_unix_ms=hello.sent_unix_ms,
                answered_unix_ms=now().unix_ms,
            ),
            hello.op_id,
        )
        report = HostReport(
            host=agent.host,
            agent_epoch=agent.agent_epoch,
            journal_id=journal.journal_id,
            journal_epoch=journal.journal_epoch,
            seq=durable.seq,
            oldest_seq=durable.oldest_seq,
            revision=durable.revision,
            facts=agent.inventory.facts,
            entities=durable.entities,
            measurements=tuple(agent.measurements.values()),
            present=agent.present(),
        )
        connection.say(Reported(report=report), hello.op_id)
        connection.minor = hello.minor if hello.major == MAJOR else 0
        connection.reported(report, journal)

    async def serve(self, connection: Connection, ws: ServerConnection, sender: asyncio.Task[None]) -> None:
        """Read frames until the connection ends."""
        receiving = asyncio.ensure_future(self._receive(connection, ws))
        try:
            done, _ = await asyncio.wait({receiving, sender}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _receive(self, connection: Connection, ws: ServerConnection) -> None:
        async for text in ws:
            if not isinstance(text, str):
                connection.say(Refused(op_id="?", code="E_INVALID", words="frames are text, not bytes"), "?")
                continue
            try:
                _, command = decode_command(text)
            except FrameError as error:
                connection.say(Refused(op_id=_op_id_of(text), code="E_INVALID", words=str(error)), _op_id_of(text))
                continue
            self._take(connection, command)

    def _take(self, connection: Connection, command: AnyCommand) -> None:
        if isinstance(command, DURABLE):
            if connection.read_only:
                words = f"{command_type(command)} is a write; this connection is read-only"
                connection.say(Refused(op_id=command.op_id, code="E_READ_ONLY", words=words), command.op_id)
                return
            inventory, entities = self._agent.inventory, self._agent.core.entities
            capacity, digest = inventory.capacity(entities), payload_digest(command)
            found = inventory.foreign_now(command.pid, entities) if isinstance(command, AdoptForeign) else None
            self._agent.dispatch(CommandArrived(connection.number, command, digest, capacity, found))
        elif isinstance(command, Subscribe):
            self._subscribe(connection, command)
        elif isinstance(command, ForkJournal) and (words := _why_not_fork(connection, command)):
            connection.say(Refused(op_id=command.op_id, code="E_FORK", words=words), command.op_id)
        elif isinstance(command, Hello):
            words = "hello is said once per connection"
            connection.say(Refused(op_id=command.op_id, code="E_HELLO", words=words), command.op_id)
        else:
            task = asyncio.get_running_loop().create_task(self._answer(connection, command))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _subscribe(self, connection: Connection, command: Subscribe) -> None:
        journal = self._agent.journal
        if command.cursor is None:
            # What came behind the report is part of the stream, however short a tail was asked for.
            start = max(journal.oldest_seq - 1, min(journal.head_seq - command.tail, connection.report_seq), 0)
            connection.say(Subscribed(outcome="ok", from_seq=start), command.op_id)
            connection.stream_from(start)
            return
        try:
            outcome = journal.resolve(command.cursor)
        except ValueError as error:
            connection.say(Refused(op_id=command.op_id, code="E_INVALID", words=str(error)), command.op_id)
            return
        except JournalDamaged:
            # Whether that place is in this log cannot be told any more: its holder begins again with a report.
            outcome = CursorOutcome(outcome="gone", oldest=journal.head_seq + 1, journal_epoch=journal.journal_epoch)
        connection.say(
            Subscribed(
                outcome=outcome.outcome,
                from_seq=outcome.from_seq,
                oldest=outcome.oldest,
                journal_epoch=outcome.journal_epoch,
            ),
            command.op_id,
        )
        if outcome.outcome == "ok":
            connection.stream_from(outcome.from_seq)

    # Questions

    async def _answer(self, connection: Connection, command: AnyCommand) -> None:
        try:
            result = await self._result(command)
        except (*UNABLE, JournalDamaged, JournalWriteFailed) as error:
            words = str(error) or type(error).__name__
            result = Result(status="failed", resource_state="unknown", first_error=words)
        except Exception as error:  # noqa: BLE001  whoever asked hears that there is no answer, instead of waiting
            sys.stderr.write(f"{command_type(command)} could not be answered:\n{traceback.format_exc()}")
            words = (
                f"a fault of ringtop's agent on {self._agent.host}: {type(error).__name__}: {error}. The traceback is "
                "in its log; everything else goes on"
            )
            result = Result(status="failed", resource_state="unknown", first_error=words)
        connection.say(Answered(op_id=command.op_id, command=command_type(command), result=result), command.op_id)
        if isinstance(command, ForkJournal) and result.status == "succeeded":
            # The history that the consoles follow has ended: each says hello anew and gets a whole report.
            for each in self._agent.connections.values():
                each.leave("the journal was forked")

    async def _result(self, command: AnyCommand) -> Result:
        if isinstance(command, InspectModel):
            return await self._inspect(command)
        if isinstance(command, Check):
            return await self._check(command)
        if isinstance(command, ProbeListen):
            words = await ports.listen_for_nonce(command.address, command.port, command.nonce, command.seconds)
            return _said({"heard": words is None, "words": words or "heard"})
        if isinstance(command, ProbeDial):
            words = await ports.dial_nonce(command.address, command.port, command.nonce, command.seconds)
            return _said({"answered": words is None, "words": words or "answered"})
        if isinstance(command, OperationStatus):
            known = command.asked in self._agent.core.entities.operations
            durable = self._agent.journal.entities.operations.get(command.asked)
            result = tree_of(durable.result) if durable is not None and durable.result is not None else None
            return _said({"known": known, "result": result})
        if isinstance(command, TestReplica):
            return await self._test(command)
        if isinstance(command, ReadLog):
            return await self._read_log(command)
        if isinstance(command, LookAtResident):
            return _said(tree_of(await self._agent.tending.look(command)))
        if isinstance(command, VerifyJournal):
            return _said(await journal_answers.verified(self._agent.journal))
        if isinstance(command, JournalStats):
            return _said(journal_answers.statistics(self._agent.journal))
        if isinstance(command, ExportJournal):
            return _said(await journal_answers.exported(self._agent.journal, command.after, command.limit))
        if isinstance(command, ForkJournal):
            return _said({"words": await self._agent.fork(command.by)})
        raise TypeError(f"{type(command).__name__} is no question")

    async def _inspect(self, command: InspectModel) -> Result:
        path = resolve_model(command.path, self._agent.config.model_roots)
        driver = self._agent.inventory.drivers.get("llamacpp") or driver_for("llamacpp", None)
        return _said({"model": tree_of(await driver.inspect(path))})

    async def _check(self, command: Check) -> Result:
        agent = self._agent
        await agent.inventory.measure(agent.core.entities)
        findings = await check_plan(
            command.plan,
            agent.inventory.facts,
            agent.core.entities,
            agent.inventory.drivers,
            agent.config.model_roots,
            agent.journal.health,
        )
        return _said({"findings": [tree_of(finding) for finding in findings]})

    async def _test(self, command: TestReplica) -> Result:
        shard = self._agent.core.entities.shards.get(command.node_id)
        if shard is None or not shard.endpoint:
            known = ", ".join(sorted(self._agent.core.entities.shards)) or "none"
            raise ValueError(f"{command.node_id} serves nothing on {self._agent.host}; shards here: {known}")
        driver = self._agent.inventory.drivers.get(shard.engine)
        if driver is None:
            raise ValueError(f"{command.node_id} is {shard.engine}, which this agent follows and cannot prompt")
        answer = await driver.complete(shard.endpoint, command.prompt, command.max_tokens, command.seconds)
        if shard.canary is None and answer.tokens:  # an adopted ring, which nobody here has proven yet
            canary = Canary(True, answer.seconds, now().unix_ms, "a prompt by hand crossed every rank")
            seen = Proven(canary, shard.endpoint, shard.buffers)
            self._agent.dispatch(EngineSaw(shard.node_id, shard.load_generation, seen))
        return _said({"text": answer.text, "seconds": answer.seconds, "tokens": answer.tokens})

    async def _read_log(self, command: ReadLog) -> Result:
        try:
            return _said(await read_shard_log(self._agent, command))
        except NoEarlierRun as error:
            return Result(status="rejected", resource_state="absent", first_error=str(error))

    async def _refuse_now(
        self, connection: Connection, ws: ServerConnection, op_id: str, code: str, words: str, host: str = ""
    ) -> None:
        await connection.send_now(Refused(op_id=op_id, code=code, words=words, host=host), op_id)
        await ws.close(1008, words[:100])


def _why_not_fork(connection: Connection, command: ForkJournal) -> str:
    """Why this fork is not even begun, in words; empty when it may be."""
    if connection.read_only:
        return "journal.fork is a write; this connection is read-only"
    if not connection.is_local:
        return "a journal is forked by the host's own user over the agent's socket (unix: or ssh://), never over TCP"
    if not command.accept_loss:
        return "a fork gives up what cannot be read of the journal: say --accept-loss when that is meant"
    return ""


def _said(value: dict[str, Any]) -> Result:
    return Result(status="succeeded", resource_state="present", value=value)


def _op_id_of(text: str) -> str:
    """The op_id of a frame that was refused, as far as it can be read."""
    try:
        tree = msgspec.json.decode(text)
        op_id = tree["body"]["op_id"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return "?"
    return op_id[:128] if isinstance(op_id, str) and op_id else "?"
