"""The recovery screen: which host, what is lost and kept, a confirmation that no slip makes, and what it refuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.api import (
    Answer,
    FleetState,
    HostState,
    OperationView,
    OpId,
    PlanRecovery,
    Request,
    ResumeOperation,
    StartRecovery,
)
from backend.contract.words import HostId, LoadGeneration, ReplicaId
from backend.control.recovery_document import STEPS, RecoveryPlan
from backend.control.recovery_plan import make_recovery
from backend.control.views import OperationStep
from tests.console import worlds as w
from tests.console.driving import SIZES, Driver, running
from tests.console.recovery_worlds import MADE, A, a_look, a_world
from tests.console.stand_in import StandInDoor

STALE = "the plan no longer holds: the p4 agent was 4711:81234, and is 5000:99999. Nothing was touched."


def a_fleet() -> FleetState:
    """The ring of the recovery's world, loaded from here."""
    state = a_world()
    view = state.replicas[ReplicaId("big-1")]
    loaded = msgspec.structs.replace(view, plan=msgspec.structs.replace(w.plan(), engine="p4"))
    return msgspec.structs.replace(state, replicas={view.id: loaded})


def with_operation(state: FleetState, operation: OperationView) -> FleetState:
    return msgspec.structs.replace(state, operations={operation.id: operation})


class RecoveryDoor(StandInDoor):
    """Not a backend: plans by the real rules from the look it was given, and starts what it is told to."""

    def __init__(self, state: FleetState | None = None, *, starts: Answer | None = None, **look: Any) -> None:
        super().__init__(state if state is not None else a_fleet(), self._made)
        self.look = a_look(**look)
        self.starts = starts if starts is not None else w.answer("", "StartRecovery")
        self.waits = False

    def _made(self, request: Request) -> Answer | None:
        if isinstance(request, StartRecovery):
            begun = msgspec.structs.replace(self.starts, words=self.starts.words or f"op-{100 + len(self.submitted)}")
            return None if self.waits else begun
        if not isinstance(request, PlanRecovery):
            return w.answer("")
        return w.answer("", "PlanRecovery", value={"recovery": self.plan_for(request)})

    def plan_for(self, request: PlanRecovery) -> RecoveryPlan:
        return make_recovery(
            self.current,
            self.current.hosts[A],
            self.look,
            MADE,
            leave=request.leave,
            deadline_seconds=request.deadline_seconds,
        )

    @property
    def started(self) -> list[StartRecovery]:
        return [each for each in self.submitted if isinstance(each, StartRecovery)]

    @property
    def planned(self) -> list[PlanRecovery]:
        return [each for each in self.submitted if isinstance(each, PlanRecovery)]


async def open_plan(console: Driver) -> None:
    """The ring is selected: M, the first of its two hosts, its plan."""
    await console.press("M")
    await console.see("the p4 agent of which host?")
    await console.press("enter")
    await console.see("recovery of gpu-a")


async def fill_in(console: Driver, name: str = "gpu-a") -> None:
    """From Cancel: past the deadline, approve the move, say why, type the name."""
    await console.press("tab", "tab", "tab", "space", "tab")
    await console.type("slots")
    await console.press("tab")
    await console.type(name)


@pytest.mark.parametrize("size", SIZES)
async def test_what_is_lost_and_kept_stands_first_and_every_step_is_there(size: tuple[int, int]) -> None:
    async with running(RecoveryDoor(), size) as console:
        await open_plan(console)
        first = console.text()
        assert "every stage on gpu-a ends: big-1/0 at generation" in first
        seen = first
        while "more lines below" in console.text():
            await console.press("space")
            seen += console.text()
        for words in ("nothing is deleted", "generation greater than", "baselines", "TERM the p4 agent", "is now"):
            assert words in seen, words
        assert all(f" {name}" in seen for name in STEPS)
        assert seen.index("lost") < seen.index("kept") < seen.index("baselines") < seen.index("steps")


@pytest.mark.thorough
@pytest.mark.refusals("no slip of a key starts a recovery")
async def test_no_slip_of_a_key_starts_it() -> None:
    door = RecoveryDoor()
    async with running(door, (120, 40)) as console:
        await open_plan(console)
        for key in ("y", "Y", "R", "M", "r", "D", "right", "enter"):
            await console.press(key)
        assert door.started == []
        await console.press("enter", "M", "enter", "enter")  # Cancel had the keys
        assert door.started == []


async def test_the_move_the_reason_and_the_whole_name_are_needed_and_exactly_this_plan_is_started() -> None:
    door = RecoveryDoor()
    async with running(door, (120, 40)) as console:
        await open_plan(console)
        await console.see("Recover, once its move is approved")
        await console.press("tab", "tab", "tab", "space")
        await console.see("Recover, once why is said")
        await console.press("tab")
        await console.type("slots")
        await console.see("Recover, once gpu-a is typed")
        await console.press("enter")  # behind the reason: only on to the name
        await console.type("gpu-b")
        await console.press("enter")
        assert door.started == []
        await console.press("backspace")
        await console.type("a")
        await console.see("Recover (enter in the name)")
        await console.press("enter", "enter")
        await console.until(lambda: bool(door.started), "the request")
    (request,) = door.started
    assert request.confirmed == request.plan.digest
    assert (request.plan.host, request.plan.leave, request.move_journal, request.why) == (
        "gpu-a",
        "drain",
        True,
        "slots",
    )


async def test_it_is_followed_to_its_end_in_the_words_of_its_ledger() -> None:
    door = RecoveryDoor()
    async with running(door, (120, 40)) as console:
        await open_plan(console)
        await fill_in(console)
        await console.press("enter")
        await console.see("Waiting for its first step.")
        op_id = f"op-{100 + len(door.submitted)}"
        steps = (OperationStep(MADE, "end", "proven", "4711:81234 is gone; no orphan"),)
        running_one = w.operation(op_id, kind="recovery", subject="gpu-a", steps=steps)
        door.put(with_operation(door.current, running_one))
        await console.see("4711:81234 is gone; no orphan")
        words = "the p4 agent of gpu-a is recovered: big-1 answered with 16 tokens in 0.1 s"
        door.put(
            with_operation(door.current, msgspec.structs.replace(running_one, state="succeeded", words=words)),
        )
        await console.see(words)


async def test_a_plan_gone_stale_is_refused_with_both_values_and_the_next_wants_the_name_again() -> None:
    door = RecoveryDoor(starts=w.answer("", "StartRecovery", exit_code=2, words=STALE))
    async with running(door, (120, 40)) as console:
        await open_plan(console)
        await fill_in(console)
        await console.press("enter")
        await console.see("the p4 agent was 4711:81234, and is 5000:99999")
        door.look = a_look(life="5000:99999")
        await console.press("p")
        await console.see("p4 agent 5000:99999")
        await console.see("Recover, once gpu-a is typed")
        await console.press("enter", "y")
        assert len(door.started) == 1


@pytest.mark.thorough
@pytest.mark.refusals("a plan of a recovery whose replica was loaded again meanwhile is confirmed by no name")
async def test_another_generation_while_it_is_read_is_said_with_both_values_and_cannot_be_confirmed() -> None:
    door = RecoveryDoor()
    async with running(door, (120, 40)) as console:
        await open_plan(console)
        await fill_in(console)
        await console.see("Recover (enter in the name)")
        (view,) = door.current.replicas.values()
        later = msgspec.structs.replace(view, load_generation=LoadGeneration(w.GENERATION + 7))
        door.put(msgspec.structs.replace(door.current, replicas={view.id: later}))
        await console.see(f"big-1 was generation {w.GENERATION}, and is generation {w.GENERATION + 7}")
        await console.press("enter")
        await console.see("Recover (refused)")
        assert door.started == []


@pytest.mark.thorough
@pytest.mark.refusals("a name typed for one plan of a recovery confirms no other")
async def test_drain_or_cut_and_another_deadline_make_another_plan_and_take_the_typed_name_away() -> None:
    door = RecoveryDoor()
    async with running(door, (120, 40)) as console:
        await open_plan(console)
        await fill_in(console)
        await console.press("tab", "tab", "space")
        await console.see("what is in flight is cut (3 now)")
        await console.see("Recover, once gpu-a is typed")
        await console.press("space")
        await console.see("it is drained first (3 in flight now)")
        await console.press("tab", "end", *["backspace"] * 4)
        await console.type("90")
        await console.see("Recover, once planned for that time (p)")
        await console.press("enter")
        await console.see("takes over 1 min 30 s")
    assert [(each.leave, each.deadline_seconds) for each in door.planned] == [
        ("drain", 120.0),
        ("cut", 120.0),
        ("drain", 120.0),
        ("drain", 90.0),
    ]


@pytest.mark.thorough
@pytest.mark.refusals("a plan of a recovery that something speaks against is started by no name")
async def test_a_plan_that_something_speaks_against_is_started_by_no_name() -> None:
    door = RecoveryDoor(life="", pid=None)
    async with running(door, (120, 40)) as console:
        await open_plan(console)
        await console.see("refuse recovery.unseen gpu-a: it is another user's")
        await console.see("Recover (refused)")
        await fill_in(console)
        await console.press("enter")
        assert door.started == []


async def test_leaving_before_the_answer_leaves_nothing_open_and_what_came_is_said() -> None:
    door = RecoveryDoor()
    door.waits = True
    async with running(door, (120, 40)) as console:
        await open_plan(console)
        await fill_in(console)
        await console.press("enter")
        await console.see("Confirmed. The host is measured once more")
        await console.press("shift+tab", "enter")  # in the name again: what was sent is not sent twice
        assert len(door.started) == 1
        await console.press("escape")
        await console.gone("Confirmed.")
        assert len(door.started) == 1
        op_id = OpId(f"op-{100 + len(door.submitted)}")
        door.answer(msgspec.structs.replace(door.starts, op_id=op_id))
        await console.see(f"the recovery of gpu-a has begun: {op_id}; o follows it")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (w.fleet(w.replica()), "tiny-1 runs on llamacpp; only the agent of a p4 ring is recovered"),
        (w.fleet(), "no replica or host is selected"),
    ],
    ids=["another engine", "nothing there"],
)
async def test_a_replica_without_a_p4_agent_says_why_not(state: FleetState, words: str) -> None:
    door = RecoveryDoor(state)
    async with running(door, (120, 40)) as console:
        await console.press("M")
        await console.see(f"recover is not possible: {words}")
    assert door.submitted == []


async def test_a_silent_host_and_one_without_p4_say_why_not() -> None:
    state = a_fleet()
    silent = msgspec.structs.replace(state.hosts[A], state=HostState.UNREACHABLE, words="timed out")
    without = w.host("gpu-b")
    door = RecoveryDoor(msgspec.structs.replace(state, hosts={A: silent, HostId("gpu-b"): without}))
    async with running(door, (160, 40)) as console:
        await console.press("M")
        await console.see("recover is not possible: gpu-a is unreachable: timed out; it must be live")
        await console.press("colon")
        await console.type("recover gpu-b")
        await console.press("enter")
        await console.see("gpu-b has no p4 agent; expected [engines.p4]")
    assert door.submitted == []


async def test_behind_the_command_stands_a_host_or_a_replica_and_any_other_name_is_said_to_be_neither() -> None:
    door = RecoveryDoor()
    async with running(door, (120, 40)) as console:
        await console.press("colon")
        await console.type("recover nobody")
        await console.press("enter")
        await console.see("recover is not possible: there is no host and no replica nobody here")
        assert door.submitted == []
        await console.press("colon")
        await console.type("recover big-1")
        await console.press("enter")
        await console.see("recover big-1: the p4 agent of which host?")


async def test_one_silent_host_is_shown_with_the_reason_beside_the_one_that_can() -> None:
    state = a_fleet()
    gone = msgspec.structs.replace(state.hosts[HostId("gpu-b")], state=HostState.LOST, words="")
    door = RecoveryDoor(msgspec.structs.replace(state, hosts={A: state.hosts[A], gone.host: gone}))
    async with running(door) as console:
        await console.press("M")
        await console.see("201 of 256 sockets")
        await console.press("j")
        await console.see("Not possible: gpu-b is lost; it must be live")
        await console.press("enter", "i")
        assert door.submitted == []


async def test_while_something_runs_on_the_ring_it_says_what_and_a_recovery_is_followed() -> None:
    busy = with_operation(a_fleet(), w.operation("load-7", subject="big-1"))
    door = RecoveryDoor(busy)
    async with running(door, (120, 40)) as console:
        await console.press("M")
        await console.see("recover is not possible: load load-7 of big-1 by alice@desk is running")
        door.put(with_operation(a_fleet(), w.operation("recovery-7", kind="recovery", subject="gpu-a")))
        await console.press("colon")
        await console.type("recover gpu-a")
        await console.press("enter")
        await console.see("recovery gpu-a")
        await console.see("recovery-7")
    assert door.submitted == []


@pytest.mark.thorough
@pytest.mark.refusals("an approval to move a journal without a reason is none")
async def test_one_that_stopped_is_resumed_with_an_approval_only_when_a_reason_is_said() -> None:
    stopped = w.operation(
        "recovery-7", "ownerless", kind="recovery", subject="gpu-a", words="stopped at census: Nobody"
    )
    door = RecoveryDoor(with_operation(a_fleet(), stopped))
    async with running(door, (120, 40)) as console:
        await console.press("colon")
        await console.type("recover gpu-a")
        await console.press("enter", "R")
        await console.see("resume recovery-7")
        await console.press("tab", "space")
        await console.see("Resume, once why is said")
        await console.press("y")
        assert door.submitted == []
        await console.press("tab")
        await console.type("census")
        await console.press("enter", "y")
        await console.until(lambda: bool(door.submitted), "the request")
    assert door.submitted == [ResumeOperation(operation=OpId("recovery-7"), move_journal=True, why="census")]
