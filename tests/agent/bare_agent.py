"""A whole agent without its sockets, on a disk that the test can hold up and make fail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from backend.agent.config import AgentConfig
from backend.agent.core.state import CommandArrived
from backend.agent.daemon import AgentDaemon
from backend.agent.facts import host_facts
from backend.contract.commands import Command, Hello, Reserve
from backend.contract.envelopes import payload_digest
from backend.contract.events import Event, Reported
from backend.contract.reports import HostReport
from backend.contract.words import HostId, OpId, Port, UnixMs
from tests.agent.core.world import World
from tests.agent.journal.worlds import WAIT_SECONDS, TroubledDisk, open_journal
from tests.factories import make_plan


class Heard:
    """In the place of a connection: what a console would be sent."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.read_only = False
        self.minor = 0

    def say(self, event: Event, correlation: str) -> None:
        self.events.append(event)

    def reported(self, report: object, journal: object) -> None:
        """What was said is among the events."""


class BareAgent:
    """The daemon with its real journal, fed by hand."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.disk = TroubledDisk()
        self.journal = open_journal(folder / "journal", disk=self.disk)
        config = AgentConfig(
            host=HostId("host-a"), state=str(folder), socket=str(folder / "s"), **{"engines": {}, **settings}
        )
        self.daemon = AgentDaemon(config, self.journal)
        self.daemon.inventory.facts = host_facts(
            host=config.host,
            agent_version="1",
            devices=World().capacity().devices,
            engines=(),
            ports=(Port(18_000), Port(18_999)),
            advertise="127.0.0.1",
            model_roots=(),
            journal="ok",
            refuses_loads="",
            now=UnixMs(1),
        )

    def command(self, command: Command) -> None:
        self.daemon.dispatch(CommandArrived(1, command, payload_digest(command), World().capacity()))

    def reserve(self, n: int) -> None:
        plan = make_plan(f"tiny-{n}", first_port=18_000 + 8 * n, memory=10)
        self.command(Reserve(op_id=OpId(f"r{n}"), plan=plan, by="alice", seconds=60.0))

    def report(self) -> HostReport:
        """What a console would be told that says hello at this moment."""
        heard = Heard()
        hello = Hello(
            op_id=OpId("h"), host=HostId("host-a"), console="c", who="w", connection_generation=1, major=1, minor=0
        )
        self.daemon.desk._welcome(heard, hello)  # type: ignore[arg-type]  # all that the welcome needs of a connection
        (reported,) = [event for event in heard.events if isinstance(event, Reported)]
        return reported.report

    async def settled(self) -> None:
        """Until the core has heard of everything that the journal took or refused."""
        async with asyncio.timeout(WAIT_SECONDS):
            while self.daemon.core.awaiting or self.daemon.recording.failed:
                await asyncio.sleep(0.005)
                self.daemon.recording.resume()

    async def close(self) -> None:
        """End its tasks and its journal."""
        self.disk.go_on.set()
        await self.daemon.runs.close()
        await self.journal.close()
