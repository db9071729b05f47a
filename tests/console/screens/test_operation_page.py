"""One operation on the screen: its end in sight, and what can be done when nobody runs it."""

from __future__ import annotations

from typing import Any

import pytest

from backend.api import (
    FleetState,
    OperationStep,
    OperationView,
    OpId,
    ReplicaState,
    Request,
    ResumeOperation,
    RollBackOperation,
    SettleOperation,
    Target,
)
from backend.contract.states import HostState
from backend.contract.words import HostId, NodeGeneration, NodeId, UnixMs
from tests.console import worlds as w
from tests.console.driving import running
from tests.console.stand_in import StandInDoor

TARGETS = tuple(
    Target(
        host=HostId("gpu-a"),
        node_id=NodeId(f"tiny-1/{rank}"),
        rank=rank,
        node_generation=NodeGeneration(w.GENERATION),
        adapter_kind="llamacpp",
    )
    for rank in range(3)
)


def steps(count: int) -> tuple[OperationStep, ...]:
    return tuple(OperationStep(UnixMs(w.NOW_MS + n), "tiny-1/1", "loading", f"step {n:03}") for n in range(count))


def an_operation(state: str = "running", count: int = 60, **changes: Any) -> OperationView:
    return w.operation("op-1", state, steps=steps(count), targets=TARGETS, **changes)


def a_fleet(operation: OperationView) -> FleetState:
    return w.fleet(w.replica("tiny-1", ReplicaState.LOADING), operations={OpId("op-1"): operation})


async def test_the_last_step_is_in_sight_and_stays_so_while_steps_come() -> None:
    async with running(StandInDoor(a_fleet(an_operation()))) as console:
        await console.press("o", "enter")
        await console.see("step 059")
        await console.see("load tiny-1  running")
        console.door.put(a_fleet(an_operation(count=61)))
        await console.see("step 060")
        console.door.put(a_fleet(an_operation("succeeded", 62, words="tiny-1 is ready")))
        await console.see("step 061")
        await console.see("tiny-1 is ready")


async def test_it_stands_still_where_somebody_scrolled_to_and_follows_again_at_the_end() -> None:
    async with running(StandInDoor(a_fleet(an_operation()))) as console:
        await console.press("o", "enter")
        await console.see("step 059")
        await console.press("g")
        await console.see("step 000")
        console.door.put(a_fleet(an_operation(count=70)))
        await console.pilot.pause(0.3)
        assert "step 000" in console.text()
        await console.press("G")
        await console.see("step 069")
        console.door.put(a_fleet(an_operation(count=71)))
        await console.see("step 070")


@pytest.mark.parametrize(
    ("key", "words", "request_"),
    [
        ("R", "goes on from its last step", ResumeOperation(operation=OpId("op-1"))),
        ("B", "that this load started: 3 of 3 are live now", RollBackOperation(operation=OpId("op-1"))),
        ("S", "closed by what the fleet says", SettleOperation(operation=OpId("op-1"))),
    ],
)
async def test_an_operation_without_an_owner_is_taken_up_only_when_that_is_confirmed(
    key: str, words: str, request_: Request
) -> None:
    answered = w.answer("", words="nothing of tiny-1 runs", value={"lines": ["rank 0 on gpu-a: not there"]})
    door = StandInDoor(a_fleet(an_operation("ownerless")), lambda request: answered)
    async with running(door) as console:
        await console.press("o", "enter")
        await console.see("Its process is gone")
        await console.press(key)
        await console.see(words)
        assert door.submitted == []
        await console.press("escape", key, "y")
        await console.until(lambda: bool(door.submitted), "the request")
        assert door.submitted == [request_]
        if key == "S":
            await console.see("rank 0 on gpu-a: not there")
            await console.see("Settled: nothing of tiny-1 runs")


async def test_an_unload_without_an_owner_is_not_offered_to_be_taken_back() -> None:
    async with running(StandInDoor(a_fleet(an_operation("ownerless", kind="unload")))) as console:
        await console.press("o", "enter")
        await console.see("S settle")
        assert "roll back" not in console.text()


async def test_an_operation_that_somebody_else_took_meanwhile_is_no_longer_offered() -> None:
    async with running(StandInDoor(a_fleet(an_operation("ownerless")))) as console:
        await console.press("o", "enter")
        await console.see("S settle")
        await console.press("S")
        await console.see("closed by what the fleet says")
        console.door.put(a_fleet(an_operation("running")))
        await console.see("It is running: nothing is left to do here.")
        await console.press("y")
        await console.pilot.pause(0.1)
        assert console.door.submitted == []


async def test_the_hosts_panel_is_painted_when_it_is_shown_before_any_fact_came() -> None:
    silent = w.host("gpu-a", HostState.CONNECTING, words="connecting", facts=None, reported_at=0.0)
    state = w.fleet(w.replica(), hosts={HostId("gpu-a"): silent})
    async with running(StandInDoor(state)) as console:
        await console.see("── tiny-1 ─")
        await console.press("h")
        await console.see("── hosts ─")
        await console.see("HOST   STATE")


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ((HostState.UNREACHABLE, HostState.LOST), "unreachable 2/2"),
        ((HostState.CONNECTING, HostState.UNREACHABLE), "connecting, unreachable 1/2"),
        ((HostState.CONNECTING, HostState.CONNECTING), "connecting   "),
        ((HostState.LIVE, HostState.UNREACHABLE), "live   "),
    ],
)
async def test_the_header_says_how_many_hosts_do_not_answer(states: tuple[HostState, ...], words: str) -> None:
    hosts = {HostId(f"gpu-{n}"): w.host(f"gpu-{n}", state, words="") for n, state in enumerate(states)}
    async with running(StandInDoor(w.fleet(hosts=hosts))) as console:
        await console.until(lambda: words in console.text().splitlines()[0], words)
