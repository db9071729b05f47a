"""What a report says is of one moment: a console that carries on from it by the records behind it is never wrong."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backend.contract.entities import Entities, fold, moves_revision
from backend.contract.reports import HostReport
from tests.agent.bare_agent import BareAgent
from tests.agent.journal.worlds import WAIT_SECONDS


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[BareAgent]:
    made = BareAgent(tmp_path)
    yield made
    await made.close()


def carried_on(agent: BareAgent, report: HostReport) -> tuple[Entities, int]:
    """Entities and revision as a console has them that folds everything behind the report."""
    entities, revision = report.entities, report.revision
    for record in agent.journal.read(report.seq, 1000):
        entities, revision = fold(entities, record), revision + moves_revision(record.change)
    return entities, revision


async def test_a_decision_that_the_disk_does_not_have_yet_is_counted_once(agent: BareAgent) -> None:
    agent.disk.go_on.clear()
    agent.reserve(1)
    report = agent.report()
    assert (report.seq, set(report.entities.reservations)) == (0, set())
    agent.disk.go_on.set()
    await agent.settled()
    entities, revision = carried_on(agent, report)
    assert (entities, revision) == (agent.daemon.core.entities, agent.daemon.core.revision)


async def test_a_decision_that_the_disk_has_and_the_agent_did_not_hear_of_is_not_missed(agent: BareAgent) -> None:
    agent.reserve(1)
    deadline = time.monotonic() + WAIT_SECONDS
    while agent.journal.head_seq == 0:  # the loop stands still: the writer's thread goes on
        assert time.monotonic() < deadline
        time.sleep(0.001)  # noqa: ASYNC251
    report = agent.report()
    await agent.settled()
    entities, revision = carried_on(agent, report)
    assert (entities, revision) == (agent.daemon.core.entities, agent.daemon.core.revision)
    assert set(entities.reservations) == {"r1"}


async def test_a_decision_that_was_never_written_leaves_the_revision_where_consoles_have_it(agent: BareAgent) -> None:
    report = agent.report()
    agent.disk.failing_writes = 1
    agent.reserve(1)
    await agent.settled()
    assert agent.daemon.core.entities.reservations == {}
    agent.reserve(2)
    await agent.settled()
    assert carried_on(agent, report) == (agent.daemon.core.entities, agent.daemon.core.revision)
    assert agent.report().revision == agent.daemon.core.revision == 1
