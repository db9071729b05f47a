"""What a report says is of one moment: a console that carries on from it by the records behind it is never wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend.agent.config import AgentConfig
from backend.agent.core.state import CommandArrived
from backend.agent.daemon import AgentDaemon
from backend.agent.facts import host_facts
from backend.contract.commands import Command, Hello, Reserve
from backend.contract.entities import Entities, fold, moves_revision
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

    def told(self, facts: object) -> None:
        """The facts are no part of this."""


class Agent:
    """A whole agent without its sockets, on a disk that the test can hold up and make fail."""

    def __init__(self, folder: Path) -> None:
        self.disk = TroubledDisk()
        self.journal = open_journal(folder / "journal", disk=self.disk)
        config = AgentConfig(host=HostId("host-a"), state=str(folder), socket=str(folder / "s"), engines={})
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

    def carried_on(self, report: HostReport) -> tuple[Entities, int]:
        """Entities and revision as a console has them that folds everything behind the report."""
        entities, revision = report.entities, report.revision
        for record in self.journal.read(report.seq, 1000):
            entities, revision = fold(entities, record), revision + moves_revision(record.change)
        return entities, revision

    async def settled(self) -> None:
        """Until the core has heard of everything that the journal took or refused."""
        async with asyncio.timeout(WAIT_SECONDS):
            while self.daemon.core.awaiting or self.daemon.recording.failed:
                await asyncio.sleep(0.005)
                self.daemon.recording.resume()


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.disk.go_on.set()
    await made.daemon.runs.close()
    await made.journal.close()


async def test_a_decision_that_the_disk_does_not_have_yet_is_counted_once(agent: Agent) -> None:
    agent.disk.go_on.clear()
    agent.reserve(1)
    report = agent.report()
    assert (report.seq, set(report.entities.reservations)) == (0, set())
    agent.disk.go_on.set()
    await agent.settled()
    entities, revision = agent.carried_on(report)
    assert (entities, revision) == (agent.daemon.core.entities, agent.daemon.core.revision)


async def test_a_decision_that_the_disk_has_and_the_agent_did_not_hear_of_is_not_missed(agent: Agent) -> None:
    agent.reserve(1)
    deadline = time.monotonic() + WAIT_SECONDS
    while agent.journal.head_seq == 0:  # the loop stands still: the writer's thread goes on
        assert time.monotonic() < deadline
        time.sleep(0.001)  # noqa: ASYNC251
    report = agent.report()
    await agent.settled()
    entities, revision = agent.carried_on(report)
    assert (entities, revision) == (agent.daemon.core.entities, agent.daemon.core.revision)
    assert set(entities.reservations) == {"r1"}


async def test_a_decision_that_was_never_written_leaves_the_revision_where_consoles_have_it(agent: Agent) -> None:
    report = agent.report()
    agent.disk.failing_writes = 1
    agent.reserve(1)
    await agent.settled()
    assert agent.daemon.core.entities.reservations == {}
    agent.reserve(2)
    await agent.settled()
    assert agent.carried_on(report) == (agent.daemon.core.entities, agent.daemon.core.revision)
    assert agent.report().revision == agent.daemon.core.revision == 1
