"""Every failpoint of the agent, killed, failed and delayed while a real worker is loaded and unloaded.

Whatever happens at whichever step: each command ends in one result, the engine was started at most once, nothing that
a console was shown is lost, nothing is left behind, and then nothing more changes.
"""

from __future__ import annotations

import signal

import pytest

from backend.contract.commands import Command
from backend.contract.entities import JournalRecord, Result
from backend.control.link_ends import AnswerUnknown, Refusal
from backend.failpoints import NAMES
from tests.faults.stand import (
    WORKER,
    Asker,
    FaultFleet,
    Keeper,
    assert_quiet,
    eventually,
    journal_of,
    load,
    report_of,
    reserve,
    running,
    spawned_of,
    unload,
    worker_plan,
)

pytestmark = [pytest.mark.engine, pytest.mark.timeout(100)]

NTH = {
    "journal.before_write": 3,
    "journal.after_write_before_sync": 3,
    "journal.after_sync_before_ack": 3,
    "journal.before_head": 1,
    "journal.after_head": 1,
    "agent.after_sync": 3,
    "agent.before_spawn": 1,
    "agent.before_send": 2,
    "agent.after_send": 5,
    "supervisor.before_shim": 1,
    "supervisor.after_shim": 1,
    "supervisor.after_spawn_record": 1,
    "supervisor.before_exit_read": 1,
    "runs.before_resume": 1,
    "runs.before_stop": 1,
    "runs.before_prove": 1,
}
"""At which pass each point acts: the third batch of a journal is the intent of the load."""
NOTHING_STARTED = ("journal.before_write", "agent.after_sync", "agent.before_spawn", "supervisor.before_shim")
ONE_RUNS = ("supervisor.after_spawn_record", "runs.before_resume", "runs.before_stop")


@pytest.mark.parametrize("point", NTH)
@pytest.mark.faults("the agent is killed at this point: its next life finishes what was promised, once")
async def test_kill_at(fleet: FaultFleet, point: str) -> None:
    keeper = await _through_a_life(fleet, point, "kill")
    code, left = keeper.deaths[0]
    assert code == -signal.SIGKILL
    if point in NOTHING_STARTED:
        assert left == set(), "an engine ran before its intent was carried out"
    if point in ONE_RUNS:
        assert len(left) == 1, "the engine did not outlive its agent"


@pytest.mark.thorough
@pytest.mark.parametrize("point", NTH)
@pytest.mark.faults("a system call fails at this point: it is said, nothing goes on quietly, a restart sets it right")
async def test_failure_at(fleet: FaultFleet, point: str) -> None:
    keeper = await _through_a_life(fleet, point, "raise")
    said = fleet.log_of("host-a") + str([r.words for r in await journal_of(fleet)])
    assert f"failpoint {point}" in said or keeper.deaths, "the failure was swallowed"


@pytest.mark.thorough
@pytest.mark.parametrize("point", NTH)
@pytest.mark.faults("the agent stands still at this point: it is late and nothing else")
async def test_delay_at(fleet: FaultFleet, point: str) -> None:
    keeper = await _through_a_life(fleet, point, "delay:0.3")
    assert keeper.deaths == []


def test_no_point_of_the_agent_is_left_out() -> None:
    elsewhere = {name for name in NAMES if name.startswith(("ledger.", "operation.", "link.", "recovery."))}
    assert set(NAMES) - elsewhere - set(NTH) == {"journal.before_rotation", "journal.after_rotation"}


async def _through_a_life(fleet: FaultFleet, point: str, act: str) -> Keeper:
    """Reserve, load, unload, with one fault at ``point``; returns who kept the agent running."""
    rule = f"{point}={act}@{NTH[point]}"
    asker, keeper = Asker(fleet), Keeper(fleet)
    if point == "runs.before_resume":
        fleet.start_armed("host-a", "")
    else:
        fleet.start_armed("host-a", rule)
    plan = worker_plan(fleet)
    async with running(asker, keeper):
        assert (await _ask(fleet, asker, reserve(plan), rule)).status == "succeeded"
        loaded = await _ask(fleet, asker, load(plan), rule)
        if point == "runs.before_resume":
            await _restart_armed(fleet, keeper, rule)
        if point.endswith("_head"):
            await eventually(f"the head file's turn at {point}", lambda: fleet.acted(point))
        await _settled_load(fleet, asker, loaded)
        gone = await _ask(fleet, asker, unload(plan), rule)
        assert (gone.status, gone.resource_state) == ("succeeded", "absent"), gone
        await eventually("the end of every engine", lambda: not fleet.engine_pids())
        assert fleet.acted(point), f"{point} was never hit"
        await eventually("a living agent", lambda: fleet.agents["host-a"].poll() is None)
        await _nothing_left(fleet)
        records = await journal_of(fleet)
        _nothing_lost(asker, records)
        assert len({r.change.shard.identity for r in spawned_of(records) if r.change and r.change.shard}) <= 1
        again = await asker.ask(load(plan))
        assert again == loaded, "the same command had another result the second time"
        await assert_quiet(fleet)
    return keeper


async def _ask(fleet: FaultFleet, asker: Asker, command: Command, rule: str) -> Result:
    """Ask; when a failed journal takes or answers nothing any more, do what it says: restart the agent, ask again."""
    if "raise" not in rule:
        return await asker.ask(command)
    try:
        return await asker.ask(command, 4.0)
    except (Refusal, AnswerUnknown):
        fleet.agents["host-a"].terminate()
        return await asker.ask(command)


async def _restart_armed(fleet: FaultFleet, keeper: Keeper, rule: str) -> None:
    agent = fleet.agents.pop("host-a")
    agent.kill()
    agent.wait()
    fleet.start_armed("host-a", rule, listening=False)
    await eventually("the restart", lambda: fleet.acted("runs.before_resume"))


async def _settled_load(fleet: FaultFleet, asker: Asker, loaded: Result) -> None:
    """A load that succeeded has its engine; one that failed has none."""
    if loaded.status == "succeeded":
        await eventually("the engine", lambda: len(fleet.engine_pids()) == 1)
    else:
        assert loaded.resource_state == "absent", loaded
        assert not fleet.engine_pids(), f"the load failed ({loaded.first_error}) and its engine runs"


async def _nothing_left(fleet: FaultFleet) -> None:
    report = await report_of(fleet)
    left = report.entities
    assert (dict(left.holds), dict(left.reservations)) == ({}, {})
    shard = left.shards.get(WORKER)
    assert shard is None or shard.state in ("failed", "stopped")


def _nothing_lost(asker: Asker, records: list[JournalRecord]) -> None:
    """The journal is one unbroken sequence, and holds everything that a console was ever shown of it."""
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    kept = {record.seq: record for record in records}
    lost = [seq for seq, record in asker.records.items() if kept.get(seq) != record]
    assert lost == [], f"records {lost} were shown and are not there any more"
