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

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from backend.agent.config import AgentConfig
from backend.agent.connections import Connection
from backend.agent.core import initial, step
from backend.agent.core.state import (
    Append,
    CoreEvent,
    Disconnected,
    EngineSaw,
    Follow,
    JournalFailed,
    Now,
    ProveGone,
    Send,
    Spawn,
    Started,
    StopEngine,
    Synced,
    Ticked,
)
from backend.agent.desk import Desk
from backend.agent.engine_runs import EngineRuns
from backend.agent.inventory import Inventory
from backend.agent.journal import Appended, Journal, JournalDamaged, JournalLocked, JournalWriteFailed, SystemClock
from backend.agent.listening import listen_loopback, listen_unix
from backend.contract.entities import Entities, LoadRecord, Shard, fold
from backend.contract.events import Accepted, Answered, Refused
from backend.contract.reports import Measurement, Presence
from backend.contract.states import shard_state
from backend.contract.words import NodeId, UnixMs
from backend.versions import RINGTOP_VERSION

TICK_SECONDS = 0.5
FACTS_SECONDS = 5.0


class AgentRefused(Exception):
    """The agent cannot start; the message says who or what stands in the way, and what to do."""


def run_agent(config: AgentConfig, loopback_port: int | None = None) -> int:
    """Run one agent until TERM or INT. Returns 0. Raises AgentRefused."""
    return asyncio.run(_run(config, loopback_port))


async def _run(config: AgentConfig, loopback_port: int | None) -> int:
    try:
        journal = Journal.open(Path(config.state) / "journal", host=config.host, clock=SystemClock())
    except (JournalLocked, JournalDamaged, JournalWriteFailed) as error:
        raise AgentRefused(str(error)) from error
    agent = AgentDaemon(config, journal)
    try:
        await agent.run(loopback_port)
    finally:
        await journal.close()
    return 0


def now() -> Now:
    """This moment on both clocks."""
    return Now(unix_ms=UnixMs(time.time_ns() // 1_000_000), mono=time.monotonic())


class AgentDaemon:
    """One agent: feeds the core, carries out its effects in order, and serves consoles."""

    def __init__(self, config: AgentConfig, journal: Journal) -> None:
        self.config = config
        self.host = config.host
        self.journal = journal
        self.agent_epoch = uuid4().hex
        entities = Entities()
        for record in journal.replay():
            entities = fold(entities, record)
        self.durable = entities
        self.core = initial(self.host, self.agent_epoch, entities, now())
        self.inventory = Inventory(config, journal)
        self.measurements: dict[NodeId, Measurement] = {}
        self.connections: dict[int, Connection] = {}
        self.desk = Desk(self)
        self._numbers = 0
        self._durable_tasks: set[asyncio.Task[None]] = set()
        self.runs = EngineRuns(
            Path(config.state) / "runs",
            config.model_roots,
            self.inventory.drivers,
            self.dispatch,
            self.find,
            self._may_canary,
        )

    # The core

    def dispatch(self, event: CoreEvent) -> None:
        """Give the core one event and carry out what it says, in order."""
        if isinstance(event, EngineSaw) and isinstance(event.seen, Measurement):
            self._measured(event.seen)
        self.core, effects = step(self.core, event, now())
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: object) -> None:
        if isinstance(effect, Append):
            self._append(effect)
        elif isinstance(effect, Send):
            connection = self.connections.get(effect.conn)
            if connection is not None:
                event = effect.event
                op_id = event.op_id if isinstance(event, Accepted | Answered | Refused) else "?"
                connection.say(event, op_id)
        elif isinstance(effect, Spawn):
            self.runs.spawn(effect)
        elif isinstance(effect, Follow):
            self.runs.follow(effect)
        elif isinstance(effect, StopEngine):
            self.runs.stop(effect)
        elif isinstance(effect, ProveGone):
            self.runs.prove_gone(effect)
        else:
            raise TypeError(f"{type(effect).__name__} is no effect")

    def _append(self, effect: Append) -> None:
        try:
            appended = self.journal.append(effect.records)
        except JournalWriteFailed as error:
            self.dispatch(JournalFailed(str(error)))
            return
        task = asyncio.get_running_loop().create_task(self._when_durable(effect.token, appended))
        self._durable_tasks.add(task)
        task.add_done_callback(self._durable_tasks.discard)

    async def _when_durable(self, token: int, appended: Appended) -> None:
        try:
            await appended.durable
        except JournalWriteFailed as error:
            self.dispatch(JournalFailed(str(error)))
            return
        for record in appended.records:
            self.durable = fold(self.durable, record)
            for node_id in record.change.drop_shards if record.change else ():
                self.measurements.pop(node_id, None)
        self.dispatch(Synced(token))
        for connection in self.connections.values():
            connection.wake()

    def find(self, node_id: NodeId) -> tuple[Shard, LoadRecord] | None:
        """A shard and the load it came from."""
        shard = self.core.entities.shards.get(node_id)
        record = self.core.entities.loads.get(shard.op_id) if shard is not None else None
        return None if shard is None or record is None else (shard, record)

    def _may_canary(self, shard: Shard) -> bool:
        drain = self.core.entities.drains.get(shard.replica)
        return drain is None or bool(drain.outcome)

    def _measured(self, measurement: Measurement) -> None:
        self.measurements[measurement.node_id] = measurement
        for connection in self.connections.values():
            connection.measured({measurement.node_id: measurement})

    # Life

    async def run(self, loopback_port: int | None) -> None:
        """Discover, then serve: no command is taken before what ran is known."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await self.inventory.measure(self.core.entities)
        self.dispatch(Started(RINGTOP_VERSION))
        self._resume()
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

    def _resume(self) -> None:
        for shard in list(self.core.entities.shards.values()):
            state = shard_state(shard.state)
            if state is None or not state.is_terminal:
                self.runs.resume(shard)
        for hold in list(self.core.entities.holds.values()):
            self.runs.prove_gone(ProveGone(hold.node_id, hold.load_generation))

    async def _tick(self) -> None:
        last_facts = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.dispatch(Ticked())
            if self.connections and time.monotonic() - last_facts >= FACTS_SECONDS:
                last_facts = time.monotonic()
                if await self.inventory.measure(self.core.entities):
                    for connection in self.connections.values():
                        connection.measured({}, self.inventory.facts)

    # Connections

    async def _connected(self, ws: ServerConnection) -> None:
        raw = ws.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 131_072)
        self._numbers += 1
        connection = Connection(self._numbers, ws, self.host, self.journal, lambda: now().unix_ms)
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
