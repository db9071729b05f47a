"""The plan of a recovery: every step with its condition, what speaks against it, and what it stands on."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.contract.entities import KeeperLease
from backend.contract.reports import ResidentNode
from backend.contract.residents import Commands, FolderCount, ResidentLook
from backend.contract.words import HostId, LoadGeneration, NodeGeneration, NodeId, OpId
from backend.control.fleet_facts import target_of
from backend.control.ledger import HALTED, Operation, Step, create, ledger_path, reopen
from backend.control.ledger_views import read_operation
from backend.control.operations.settle import conclude
from backend.control.recoveries import in_the_way
from backend.control.recovery_document import (
    STEPS,
    RecoveryUnreadable,
    read_recovery,
    recovery_moved,
    sealed_recovery,
    write_recovery,
)
from backend.control.recovery_plan import make_recovery
from console.render.cells import Look, line_text
from console.render.recovery import lost_words, mismatch_words, recovery_lines
from tests.console.recovery_worlds import MADE as NOW
from tests.console.recovery_worlds import A, a_look, a_world, planned, well
from tests.console.worlds import GENERATION, NOW_MS, fleet, operation
from tests.console.worlds import NOW as MONOTONIC

GIB = 1 << 30
LOOK = Look(zone=UTC, now=MONOTONIC, now_ms=NOW_MS)


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


def test_what_is_lost_and_what_is_kept_stand_last_for_a_command_and_first_on_a_screen() -> None:
    theirs = ResidentNode(name="theirs", generation=7, phase="loaded")
    plan = planned(a_look(nodes=(*a_look().nodes, theirs)))
    for stakes_first in (False, True):
        lines = [line_text(each) for each in recovery_lines(plan, LOOK, 400, stakes_first=stakes_first)]
        assert (lines.index(" lost") < lines.index(" steps")) is stakes_first
        text = "\n".join(lines)
        for words in (
            f"every stage on gpu-a ends: big-1/0 at generation {GENERATION}, theirs at generation 7",
            "big-1: what is in flight is cut (3 now); then it serves nobody, and its stages on gpu-b are unloaded",
            "big-1 was loaded by somebody else, who has to load it again",
            "of others, who have to load them again: theirs",
            "the journal /var/lib/p4/journal, 26510 files, 8100123 bytes: moved to /var/lib/p4/journal.aside-",
        ):
            assert words in text, words


def test_a_drain_says_what_happens_when_its_time_does_not_do() -> None:
    (_, words, *_) = lost_words(planned(leave="drain"))
    assert words.startswith(
        "big-1: it is drained first (3 in flight now), and nothing is ended if that takes over 2 min;"
    )


def test_a_stage_under_another_number_than_its_load_is_said_with_both() -> None:
    assert mismatch_words(planned()) == []
    plan = planned(a_look(nodes=(ResidentNode(name="big-1/0", generation=1, phase="loaded", is_ours=True),)))
    assert mismatch_words(plan) == [f"node big-1/0 is at generation 1, and the load of big-1 is {GENERATION}"]


def test_two_recoveries_under_one_ring_are_in_each_others_way_and_what_has_ended_is_in_nobodys() -> None:
    stage = target_of(HostId("gpu-b"), NodeId("big-1/1"), 1, NodeGeneration(GENERATION), "p4")
    other = operation("recovery-7", kind="recovery", subject="gpu-a", targets=(stage,))
    assert in_the_way([other], "gpu-b", {"big-1"}) is other
    assert in_the_way([other], "gpu-c", {"small-1"}) is None
    assert in_the_way([operation("load-7", subject="big-1")], "gpu-b", {"big-1"}) is not None
    assert in_the_way([msgspec.structs.replace(other, state="succeeded")], "gpu-b", {"big-1"}) is None


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
