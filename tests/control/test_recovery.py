"""The plan of a recovery: every step with its condition, what speaks against it, and what it stands on."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.contract.entities import KeeperLease
from backend.contract.reports import DeviceFacts, HostFacts, ResidentNode
from backend.contract.residents import Commands, FolderCount, ResidentLook, StageProcess
from backend.contract.words import HostId, LoadGeneration, OpId, UnixMs
from backend.control.ledger import HALTED, Operation, Step, create, ledger_path, read_operation, reopen
from backend.control.operations.settle import conclude
from backend.control.recovery_document import (
    STEPS,
    RecoveryPlan,
    RecoveryUnreadable,
    read_recovery,
    recovery_moved,
    sealed_recovery,
    write_recovery,
)
from backend.control.recovery_plan import make_recovery
from backend.control.views import FleetState
from console.render.cells import Look, line_text
from console.render.recovery import recovery_lines
from tests.console.worlds import GENERATION, NOW_MS, bound, fleet, host, replica, shard, shard_view
from tests.console.worlds import NOW as MONOTONIC

GIB = 1 << 30
LOOK = Look(zone=UTC, now=MONOTONIC, now_ms=NOW_MS)
NOW = UnixMs(1_764_412_900_000)
A = HostId("gpu-a")


def a_look(**changes: Any) -> ResidentLook:
    given: dict[str, Any] = {
        "engine": "p4",
        "address": "tcp://10.0.0.7:4201",
        "port": 4201,
        "looked_unix_ms": NOW,
        "pid": 4711,
        "life": "4711:81234",
        "user": "p4",
        "is_listening": True,
        "nodes": (ResidentNode(name="big-1/0", generation=GENERATION, phase="loaded", is_ours=True),),
        "sockets": 201,
        "unique": 200,
        "hidden": 196,
        "processes": (StageProcess("4720:81300", "p4_staged_server"),),
        "journal": FolderCount(folder="/var/lib/p4/journal", files=26_510, bytes=8_100_123, admissions=9),
        "restart": "its journal holds 9 admitted requests",
        "commands": Commands(end="systemctl stop p4.service", begin="systemctl start p4.service"),
        "devices": (
            DeviceFacts(name="CPU", uuid="cpu", kind="cpu", total=64 * GIB, free=40 * GIB),
            DeviceFacts(name="CUDA0", uuid="u0", kind="gpu", total=24 * GIB, free=2 * GIB),
        ),
        "memory_available": 40 * GIB,
    }
    return ResidentLook(**{**given, **changes})


def well(name: str, journal: str = "ok") -> HostFacts:
    """What a host says of itself, and of its own agent's journal."""
    facts = host(name).facts
    assert facts is not None
    return msgspec.structs.replace(facts, journal=journal)


def a_world() -> FleetState:
    """One p4 replica over two hosts; its head is on the host to recover, on a GPU."""
    ranks = tuple(
        shard("big-1", rank, name, engine="p4", device="CUDA0", bound=bound(20 * GIB, GIB), world_size=2)
        for rank, name in enumerate(("gpu-a", "gpu-b"))
    )
    views = tuple(msgspec.structs.replace(shard_view(each.rank), shard=each) for each in ranks)
    state = fleet(replica("big-1", shards=views, in_flight=3, plan=None))
    hosts = {
        HostId(each.host): msgspec.structs.replace(
            host(each.host, facts=well(each.host)),
            entities=msgspec.structs.replace(host().entities, shards={each.node_id: each}),
        )
        for each in ranks
    }
    return msgspec.structs.replace(state, hosts=hosts)


def planned(look: ResidentLook | None = None, **options: Any) -> RecoveryPlan:
    state = a_world()
    given: dict[str, Any] = {"leave": "cut", "deadline_seconds": 120.0}
    return make_recovery(state, state.hosts[A], look or a_look(), NOW, **{**given, **options})


def test_every_step_says_what_by_whom_its_condition_and_its_proof() -> None:
    plan = planned()
    assert tuple(step.name for step in plan.steps) == STEPS
    assert all(step.what and step.condition and step.proof for step in plan.steps)
    steps = {step.name: step for step in plan.steps}
    assert steps["leave"].value == "in flight: 3"
    assert (steps["end"].by, steps["end"].command) == ("a person", "systemctl stop p4.service")
    assert "never KILL" in steps["end"].what
    assert "/var/lib/p4/journal.aside-1764412900000" in steps["census"].what
    assert "nothing is deleted" in steps["census"].what
    assert steps["census"].value == "26510 files, 8100123 bytes, 9 admitted requests"
    assert steps["census"].condition == "approved with --move-journal --why TEXT"
    (floor,) = plan.floors
    assert floor.free == 2 * GIB
    assert 20 * GIB < floor.floor < 24 * GIB, "what its stages took has to be back"
    assert not plan.is_refused


def test_of_an_agent_that_does_not_run_nothing_is_waited_for() -> None:
    """It was started again and its census refused it: its stages ended with its former life."""
    plan = planned(a_look(life="", pid=None, is_listening=False, nodes=(), processes=()), leave="drain")
    assert not plan.is_refused
    (floor,) = plan.floors
    assert (floor.taken, floor.floor) == (0, floor.free - (256 << 20))
    steps = {step.name: step for step in plan.steps}
    assert steps["leave"].what == "big-1: its stages ended with the p4 agent, which does not run"
    assert steps["end"].by == "ringtop", "there is nothing to end"


def test_what_agent_toml_may_do_is_ours_and_an_empty_census_moves_nothing() -> None:
    commands = Commands(end="/bin/stop", begin="/bin/start", end_is_ours=True, begin_is_ours=True)
    plan = planned(a_look(commands=commands, restart=""))
    steps = {step.name: step for step in plan.steps}
    assert {steps[name].by for name in ("end", "begin", "census")} == {"ringtop"}
    assert not plan.moves_journal
    assert "nothing has to be moved" in steps["census"].what


@pytest.mark.parametrize(
    ("look", "options", "id", "refuses"),
    [
        (a_look(life="", pid=None), {}, "recovery.unseen", True),
        (a_look(journal=FolderCount(words="nobody says where it is")), {}, "recovery.no_journal", True),
        (
            a_look(nodes=(ResidentNode(name="theirs", generation=7, phase="loaded"),)),
            {"leave": "drain"},
            "recovery.foreign",
            True,
        ),
        (a_look(), {}, "recovery.not_ours", False),
        (
            a_look(),
            {"keeper": KeeperLease(keeper_epoch=1, who="bob", console="k", seconds=60.0, at_unix_ms=NOW)},
            "recovery.keeper",
            False,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_speaks_against_it_is_said_before_anything_is_touched(
    look: ResidentLook, options: dict[str, Any], id: str, refuses: bool
) -> None:
    (found,) = [finding for finding in planned(look, **options).findings if finding.id == id]
    assert found.is_refusal is refuses
    assert found.remedy


def test_our_own_journal_must_take_records() -> None:
    state = a_world()
    ill = well(A, "read-only: segment 3 is damaged")
    view = msgspec.structs.replace(state.hosts[A], facts=ill)
    plan = make_recovery(state, view, a_look(), NOW, leave="cut", deadline_seconds=120.0)
    assert [finding.found for finding in plan.findings if finding.is_refusal] == ["read-only: segment 3 is damaged"]


def test_another_life_of_the_agent_makes_it_another_plan_and_a_count_does_not() -> None:
    plan = planned()
    grown = FolderCount(folder="/var/lib/p4/journal", files=26_600, bytes=9_000_000, admissions=10)
    assert recovery_moved(plan, planned(a_look(journal=grown, sockets=210))) == ()
    moved = recovery_moved(plan, planned(a_look(life="5000:99999")))
    assert moved == ("the p4 agent was 4711:81234, and is 5000:99999",)


def test_a_plan_that_was_edited_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_recovery(planned(), path)
    assert read_recovery(path) == planned()
    path.write_text(path.read_text().replace("/var/lib/p4/journal.aside", "/tmp/elsewhere"))
    with pytest.raises(RecoveryUnreadable, match="it was edited"):
        read_recovery(path)
    assert sealed_recovery(planned()).digest == planned().digest


def test_people_are_shown_the_baselines_and_every_value() -> None:
    text = "\n".join(line_text(each) for each in recovery_lines(planned(), LOOK, 100))
    for words in (
        "p4 agent 4711:81234 of p4",
        "201, 200 sockets, 196 hidden",
        "26510 files",
        "device memory free CUDA0 2",
    ):
        assert words in text, text
    for name in STEPS:
        assert f" {name}" in text


def test_what_halts_is_ownerless_with_its_code_until_somebody_resumes_it(tmp_path: Path) -> None:
    operation = Operation(
        op_id=OpId("recovery-1-ab"),
        kind="recovery",
        subject="gpu-a",
        by="alice",
        context="prod",
        load_generation=LoadGeneration(1),
        targets=(),
        options={},
        started_unix_ms=NOW,
    )
    writer = create(tmp_path, operation)
    writer.append(Step(at_unix_ms=NOW, target="end", what="proven", words="gone"))
    writer.append(Step(at_unix_ms=NOW, target="gpu-a", what=HALTED, words="stopped at port", exit_code=5))
    writer.close()
    path = ledger_path(tmp_path, operation.op_id)
    view = read_operation(path)
    assert (view.state, view.exit_code, view.words) == ("ownerless", 5, "stopped at port")
    settled = conclude(view, fleet())
    assert (settled.code, settled.words) == (5, "the recovery of gpu-a was left after end")
    again = reopen(tmp_path, operation.op_id)
    again.append(Step(at_unix_ms=NOW, target="gpu-a", what="connect", words="connecting"))
    assert read_operation(path).exit_code is None
    again.close()
