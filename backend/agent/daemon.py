"""The agent's shell: sockets, journal and engines around the pure core. Short and dull on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from pathlib import Path
from uuid import uuid4

from msgspec.structs import replace
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from backend.agent.break_glass import drop_note, read_notes
from backend.agent.clock import now
from backend.agent.config import AgentConfig
from backend.agent.connections import Connection
from backend.agent.core import initial, step
from backend.agent.core.state import (
    Adopted,
    Append,
    CommandArrived,
    CoreEvent,
    Disconnected,
    Discovered,
    DropNote,
    EngineSaw,
    Follow,
    GlassBroken,
    HealthSeen,
    JournalFailed,
    JournalNoticed,
    ProveGone,
    Send,
    Spawn,
    Started,
    StopEngine,
    Tend,
    Ticked,
)
from backend.agent.descriptors import DescriptorReserve
from backend.agent.desk import Desk
from backend.agent.engine_runs import EngineRuns
from backend.agent.inventory import Inventory, discovered
from backend.agent.journal import DamagedJournal, Journal, JournalLocked
from backend.agent.journal_home import NoJournal, accept_unknown, fork_damaged, open_journal, set_aside, unknown_runs
from backend.agent.listening import SocketTaken, listen_loopback, listen_unix, make_room
from backend.agent.recording import NotStorable, Recording, words_of
from backend.agent.tending import Tending
from backend.contract.entities import JournalRecord, LoadRecord, Shard
from backend.contract.events import Accepted, Answered, Refused
from backend.contract.reports import Measurement, Presence
from backend.contract.states import shard_state
from backend.contract.words import NodeId, UnixMs
from backend.failpoints import failpoint
from backend.versions import RINGTOP_VERSION

TICK_SECONDS = 0.5
FACTS_SECONDS = 5.0
LOOK_SECONDS = 1.0
TIDY_SECONDS = 5.0
RETELL_SECONDS = 4.0
"""How often a console is told a measurement that did not change: it calls one old that is older than 15 s."""


class AgentRefused(Exception):
    """The agent cannot start; the message says who or what stands in the way, and what to do."""


def run_agent(config: AgentConfig, loopback_port: int | None = None) -> int:
    """Run one agent until TERM or INT. Returns 0. Raises AgentRefused."""
    return asyncio.run(_run(config, loopback_port))


async def _run(config: AgentConfig, loopback_port: int | None) -> int:
    try:
        journal = open_journal(config)
    except (JournalLocked, NoJournal) as error:
        raise AgentRefused(str(error)) from error
    agent: AgentDaemon | None = None
    try:
        make_room(config.socket)  # before anything of this host is touched
        agent = AgentDaemon(config, journal)
        await agent.run(loopback_port)
    except SocketTaken as error:
        raise AgentRefused(str(error)) from error
    finally:
        await (journal if agent is None else agent.journal).close()
    return 0


def _forked_record(by: str, words: str) -> JournalRecord:
    return JournalRecord(kind="journal.forked", words=words, at_unix_ms=now().unix_ms, level="alarm", by=by)


class AgentDaemon:
    """One agent: feeds the core, carries out its effects in order, and serves consoles."""

    def __init__(self, config: AgentConfig, journal: Journal | DamagedJournal) -> None:
        self.config = config
        self.host = config.host
        self.journal = journal
        self.agent_epoch = uuid4().hex
        self.core = initial(self.host, self.agent_epoch, journal.entities, now())
        self.recording = Recording(journal, self.dispatch, self._written, self._wake, self._broke)
        self.inventory = Inventory(config, journal)
        self.tending = Tending(self.inventory.drivers, self.dispatch)
        self.measurements: dict[NodeId, Measurement] = {}
        self._told: dict[NodeId, tuple[Measurement, float]] = {}
        self.connections: dict[int, Connection] = {}
        self.desk = Desk(self)
        self.reserve = DescriptorReserve()
        self._numbers = 0
        self._forking = asyncio.Lock()
        self.runs = EngineRuns(
            Path(config.state) / "runs",
            config.model_roots,
            self.inventory.drivers,
            self.dispatch,
            self.find,
            self._may_canary,
            self._is_watched,
            self._is_draining,
            self._was_drained,
        )

    # The core

    def dispatch(self, event: CoreEvent) -> None:
        """Give the core one event and carry out what it says, in order."""
        if isinstance(event, EngineSaw) and isinstance(event.seen, Measurement):
            self._measured(event.seen)
        if self.recording.keeps(event):
            if self.recording.is_over:
                self._show(event)
            return
        before = self.core
        try:
            self.core, effects = step(self.core, event, now())
            for effect in effects:
                self._perform(effect, event)
        except BaseException as error:
            if isinstance(error, NotStorable) and isinstance(event, CommandArrived):
                self.core = before  # nothing of it was queued, and what it decided waits for its records
                words = f"E_INVALID: nothing was done: {error}. Shorten what it carries."
                refused = Refused(op_id=event.command.op_id, code="E_INVALID", words=words)
                self._perform(Send(event.conn, refused), event)
                return
            # Half carried out, the core and the disk no longer agree: only a new life on the journal sets that right.
            self.runs.report_fault(error)
            raise

    def _perform(self, effect: object, cause: CoreEvent) -> None:
        if isinstance(effect, Append):
            self.recording.append(effect, cause)
        elif isinstance(effect, Send):
            connection = self.connections.get(effect.conn)
            if connection is not None:
                event = effect.event
                op_id = event.op_id if isinstance(event, Accepted | Answered | Refused) else "?"
                failpoint("agent.before_send")
                connection.say(event, op_id)
        elif isinstance(effect, Spawn):
            failpoint("agent.before_spawn")
            self.runs.spawn(effect)
        elif isinstance(effect, Follow):
            self.runs.follow(effect)
        elif isinstance(effect, StopEngine):
            self.runs.stop(effect)
        elif isinstance(effect, Tend):
            failpoint("recovery.before_tend")
            self.tending.begin(effect)
        elif isinstance(effect, DropNote):
            drop_note(Path(self.config.state), effect.note)
        elif isinstance(effect, ProveGone):
            self.runs.prove_gone(effect)
        else:
            raise TypeError(f"{type(effect).__name__} is no effect")

    def _written(self, records: tuple[JournalRecord, ...]) -> None:
        for record in records:
            for node_id in record.change.drop_shards if record.change else ():
                self.measurements.pop(node_id, None)
                self._told.pop(node_id, None)
        failpoint("agent.after_sync")

    def _wake(self) -> None:
        for connection in self.connections.values():
            connection.wake()

    def _broke(self, error: BaseException) -> None:
        self.runs.report_fault(error)

    def _show(self, event: CoreEvent) -> None:
        """Show what cannot be recorded beside what is measured; engines are followed, and nothing is done to them."""
        if isinstance(event, Adopted):
            self.runs.follow(Follow(event.node_id, event.generation, True))
        node_id, words = getattr(event, "node_id", None), words_of(event)
        if node_id is not None and words:
            before = self.measurements.get(node_id)
            words = f"not recorded: {words}"
            at = now().unix_ms
            fresh = Measurement(node_id=node_id, observed_unix_ms=at, words=words)
            shown = fresh if before is None else replace(before, words=words, observed_unix_ms=at)
            self._measured(shown)

    def find(self, node_id: NodeId) -> tuple[Shard, LoadRecord] | None:
        """A shard and the load it came from."""
        shard = self.core.entities.shards.get(node_id)
        record = self.core.entities.loads.get(shard.op_id) if shard is not None else None
        return None if shard is None or record is None else (shard, record)

    def _may_canary(self, shard: Shard) -> bool:
        drain = self.core.entities.drains.get(shard.replica)
        return drain is None or bool(drain.outcome)

    def _is_draining(self, shard: Shard) -> bool:
        """A drain of it is open, and this agent may act: without a journal engines are left alone."""
        return not self.core.journal_failed and not self._may_canary(shard)

    def _was_drained(self, shard: Shard) -> bool:
        """A drain of this generation was begun here, and may have ended since."""
        drain = self.core.entities.drains.get(shard.replica)
        return drain is not None and drain.load_generation == shard.load_generation

    def _is_watched(self) -> bool:
        """A console is there, or a drain, which ends by what is measured."""
        is_draining = any(not drain.outcome for drain in self.core.entities.drains.values())
        return bool(self.connections) or is_draining

    def _measured(self, measurement: Measurement) -> None:
        self.measurements[measurement.node_id] = measurement
        told, at = self._told.get(measurement.node_id, (None, 0.0))
        still, now_at = replace(measurement, observed_unix_ms=UnixMs(0)), time.monotonic()
        if told == still and now_at - at < RETELL_SECONDS:
            return
        self._told[measurement.node_id] = still, now_at
        for connection in self.connections.values():
            connection.measured({measurement.node_id: measurement})

    # Life

    async def run(self, loopback_port: int | None) -> None:
        """Discover, then serve: no command is taken before what ran is known."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        self.reserve.install(loop)
        await self.inventory.measure(self.core.entities)
        self._begin()
        servers = [await listen_unix(self._connected, self.config.socket, lambda: len(self.connections))]
        if loopback_port is not None:
            servers.append(await listen_loopback(self._connected, loopback_port, lambda: len(self.connections)))
        work: list[asyncio.Task[None]] = [loop.create_task(self._tick()), loop.create_task(self.runs.watch_faults())]
        stopping: asyncio.Task[object] = loop.create_task(stop.wait())
        try:
            await asyncio.wait({*work, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in work:
                if task.done():
                    task.result()
        finally:
            for task in work:
                task.cancel()
            stopping.cancel()
            for server in servers:
                server.close()
            await self.runs.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.config.socket)

    def _begin(self) -> None:
        """Take the host over as it is found. With a journal that is only read, engines are followed for display."""
        if self.journal.is_read_only:
            self.dispatch(JournalFailed(self.journal.health))
        else:
            self.dispatch(Started(RINGTOP_VERSION))
            for name, note in read_notes(Path(self.config.state)).items():
                self.dispatch(GlassBroken(name, note.words, note.by))
            self.dispatch(HealthSeen(self.inventory.health.illnesses))
        self._resume()

    async def fork(self, by: str) -> str:
        """Accept what the journal has lost, and go on with a new epoch; returns its words.

        One at a time: who asked second finds nothing to accept. Raises ValueError then, JournalWriteFailed and OSError
        when it cannot be written.
        """
        async with self._forking:
            return await self._fork(by)

    async def _fork(self, by: str) -> str:
        journal = self.journal
        if isinstance(journal, Journal) and journal.damage:
            self.journal = journal = await set_aside(self.config, journal)
        if isinstance(journal, Journal):
            unknown = await asyncio.to_thread(unknown_runs, self.config, journal.entities)
            if journal.fenced:
                raise ValueError(f"E_STATE: {journal.fenced}")
            if not unknown:
                raise ValueError(f"E_STATE: the journal of {self.host} is sound; there is no loss to accept.")
            words = f"{by} accepted that {unknown} They are foreign from here on and left alone."
            await journal.append([_forked_record(by, words)]).durable
            await asyncio.to_thread(accept_unknown, self.config, journal.entities, by)
            await self.inventory.measure(self.core.entities)
            return words
        forked, opened = await asyncio.to_thread(fork_damaged, self.config, journal, by)
        await asyncio.to_thread(accept_unknown, self.config, opened.entities, by)
        held = self.recording.held()
        self.journal, self.agent_epoch = opened, uuid4().hex
        self.core = initial(self.host, self.agent_epoch, opened.entities, now())
        self.recording = Recording(opened, self.dispatch, self._written, self._wake, self._broke)
        self.measurements, self._told = {}, {}
        self.inventory.use(opened)
        self._begin()
        for event in held:
            self.dispatch(event)
        await self.inventory.measure(self.core.entities)
        return f"journal_epoch {forked.journal_epoch} begins. {forked.words}"

    def _resume(self) -> None:
        for shard in list(self.core.entities.shards.values()):
            state = shard_state(shard.state)
            if self.journal.is_read_only and not shard.is_begun:
                continue  # to look for it is to give its start up, which is a decision
            if state is None or not state.is_terminal:
                self.runs.resume(shard)
        for hold in list(self.core.entities.holds.values()):
            self.runs.prove_gone(ProveGone(hold))

    async def _tick(self) -> None:
        last_facts = last_look = last_tidy = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.recording.resume()
            for notice in self.journal.take_notices():
                self.dispatch(JournalNoticed(notice.kind, notice.level, notice.words))
            self.dispatch(Ticked())
            if time.monotonic() - last_look >= LOOK_SECONDS:
                last_look = time.monotonic()
                await self.look(is_watched=bool(self.connections))
            if time.monotonic() - last_tidy >= TIDY_SECONDS:
                last_tidy = time.monotonic()
                self.runs.tidy(self.core.entities)
            if self.connections and time.monotonic() - last_facts >= FACTS_SECONDS:
                last_facts = time.monotonic()
                if await self.inventory.measure(self.core.entities):
                    for connection in self.connections.values():
                        connection.measured({}, self.inventory.facts)

    async def look(self, *, is_watched: bool = True, patience: float = 0.0) -> None:
        """Look at the host's health; what changed is journaled, and said to every console."""
        if await self.inventory.look(self.core.entities, is_watched=is_watched, patience=patience):
            for connection in self.connections.values():
                connection.measured({}, self.inventory.facts)
        if self.inventory.health.illnesses != self.core.illnesses:
            self.dispatch(HealthSeen(self.inventory.health.illnesses))
        for shard, load in discovered(self.inventory.facts, self.core.entities, now().unix_ms):
            self.dispatch(Discovered(shard, load))

    # Connections

    async def _connected(self, ws: ServerConnection) -> None:
        raw = ws.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 131_072)
        self._numbers += 1
        connection = Connection(self._numbers, ws, self.host, lambda: now().unix_ms)
        sender: asyncio.Task[None] | None = None
        try:
            if not await self.desk.greet(connection, ws):
                return
            self.connections[connection.number] = connection
            self._announce()
            sender = asyncio.get_running_loop().create_task(connection.send_loop())
            await self.desk.serve(connection, ws, sender)
        except ConnectionClosed:
            # The console left, or was cut off by the send deadline: its operations run on.
            return
        finally:
            if sender is not None:
                sender.cancel()
                await asyncio.gather(sender, return_exceptions=True)
            if self.connections.pop(connection.number, None) is not None:
                self.dispatch(Disconnected(connection.number))
                self._announce()

    def present(self) -> tuple[Presence, ...]:
        """Who is connected now."""
        return tuple(Presence(c.who, c.console, c.since) for c in self.connections.values())

    def _announce(self) -> None:
        present = self.present()
        for connection in self.connections.values():
            connection.measured({}, None, present)
