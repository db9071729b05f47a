"""Pause, hold down and resume: what each does stands in its dialog, and nothing is held by a slip."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.api import (
    Answer,
    FleetState,
    HoldSubject,
    HostId,
    OperatorHold,
    Request,
    ResumeSubject,
    StartUnload,
    UnixMs,
)
from backend.contract.entities import Entities, operator_hold_key
from tests.console import worlds as w
from tests.console.driving import SIZES, running
from tests.console.stand_in import StandInDoor

LARGE = (120, 40)


def hold(subject: str = "tiny-1", **changes: Any) -> OperatorHold:
    values = {
        "scope": "replica",
        "kind": "paused",
        "by": "bob",
        "why": "a new disk",
        "at_unix_ms": UnixMs(5),
        **changes,
    }
    return OperatorHold(subject=subject, **values)


def held(*holds: OperatorHold) -> FleetState:
    kept = Entities(operator_holds={operator_hold_key(each.scope, each.subject): each for each in holds})
    return w.fleet(w.replica(), hosts={HostId("gpu-a"): w.host(entities=kept)})


def a_door(state: FleetState | None = None, code: int = 0, words: str = "is held at 2 of 2 hosts") -> StandInDoor:
    def answer(request: Request) -> Answer | None:
        if isinstance(request, HoldSubject | ResumeSubject):
            return w.answer("", type(request).__name__, exit_code=code, words=words)
        return None

    return StandInDoor(state or w.fleet(w.replica()), answer)


@pytest.mark.parametrize("size", SIZES)
async def test_what_a_pause_does_and_does_not_stands_on_every_size(size: tuple[int, int]) -> None:
    async with running(a_door(), size) as console:
        await console.press("P")
        await console.see("pause tiny-1")
        for words in ("for how long", "neither loads, drains nor", "goes on serving", "[esc Cancel]", "y Pause"):
            await console.see(words)


async def test_a_pause_is_written_with_its_time_and_reason_and_a_time_that_is_none_is_refused() -> None:
    door = a_door()
    async with running(door, LARGE) as console:
        await console.press("P")
        await console.see("pause tiny-1")
        await console.press("tab")
        await console.type("2hh")
        await console.see("The time must be like 90s")
        await console.press("backspace", "enter")
        await console.see("alone for 2 h: it")
        await console.type("a new disk")
        await console.press("enter", "y")
        await console.until(lambda: bool(door.submitted), "the request")
        assert door.submitted == [HoldSubject(subject="tiny-1", kind="paused", seconds=7200.0, why="a new disk")]
        await console.see("is held at 2 of 2 hosts")
        await console.gone("pause tiny-1")


async def test_a_refusal_of_the_agents_stays_in_the_dialog() -> None:
    door = a_door(code=4, words="paused at 1 of 3 hosts. That is no majority, and a keeper may miss it: try again.")
    async with running(door, LARGE) as console:
        await console.press("P")
        await console.see("pause tiny-1")
        await console.press("y")
        await console.see("That is no majority")
        await console.see("pause tiny-1")


async def test_holding_down_says_what_it_cuts_and_wants_the_name_typed() -> None:
    door = a_door()
    async with running(door, LARGE) as console:
        await console.press("X")
        await console.see("HOLD DOWN tiny-1")
        await console.see("This cuts 2 requests. D drains instead.")
        await console.press("y", "enter")
        await console.see("tiny-1")
        assert door.submitted == []


async def test_what_is_held_down_is_unloaded_once_the_agents_hold_it() -> None:
    door = a_door()
    async with running(door, LARGE) as console:
        await console.press("X")
        await console.see("HOLD DOWN tiny-1")
        await console.press("tab", "tab", "tab")
        await console.type("tiny-")
        await console.press("enter")
        assert door.submitted == []
        await console.type("1")
        await console.see("Hold down (enter in the name)")
        await console.press("enter")
        await console.until(lambda: len(door.submitted) == 2, "both requests")
        assert door.submitted == [
            HoldSubject(subject="tiny-1", kind="down"),
            StartUnload(replica=w.replica().id, why="tiny-1 is held down"),
        ]


async def test_nothing_is_unloaded_when_the_agents_do_not_hold_it() -> None:
    door = a_door(code=4, words="no majority")
    async with running(door, LARGE) as console:
        await console.press("X")
        await console.see("HOLD DOWN tiny-1")
        await console.press("tab", "tab", "tab")
        await console.type("tiny-1")
        await console.press("enter")
        await console.see("no majority")
        assert [type(each) for each in door.submitted] == [HoldSubject]


async def test_a_model_is_held_by_its_name_and_a_name_that_nobody_knows_is_said_at_once() -> None:
    door = a_door()
    async with running(door, LARGE) as console:
        await console.press("colon")
        await console.type("down tiny")
        await console.press("enter")
        await console.see("HOLD DOWN tiny")
        await console.see("model tiny, 1 replica of it")
        await console.press("escape")
        await console.gone("HOLD DOWN")
        await console.press("colon")
        await console.type("pause tony")
        await console.press("enter")
        await console.see("there is no replica and no model 'tony'; known: tiny, tiny-1")
        assert door.submitted == []


async def test_what_is_held_is_shown_with_who_and_until_when_and_y_releases_the_one_under_the_cursor() -> None:
    state = held(hold(), hold("other", scope="model", kind="down", by="carol", why=""))
    door = a_door(state, words="nothing holds tiny-1 any more")
    async with running(door, LARGE) as console:
        await console.press("E")
        for words in ("resume: what people hold", "carol", "it is resumed", "a new disk", "Resume tiny-1"):
            await console.see(words)
        await console.press("k")
        await console.see("Resume other")
        await console.press("j", "y")
        await console.until(lambda: bool(door.submitted), "the request")
        assert door.submitted == [ResumeSubject(subject="tiny-1")]
        await console.see("nothing holds tiny-1 any more")


async def test_what_is_held_stands_in_its_row_with_who_did_it_until_it_is_released() -> None:
    door = a_door(held(hold("tiny", scope="model", kind="down")))
    async with running(door, LARGE) as console:
        await console.see("down by bob")
        door.put(held(hold()))
        await console.see("paused by bob")
        door.put(held())
        await console.gone("paused by bob")


async def test_with_nothing_held_there_is_nothing_to_resume_and_a_name_that_is_free_is_said() -> None:
    async with running(a_door(), LARGE) as console:
        await console.press("E")
        await console.see("nothing is paused, held down or quarantined")
    async with running(a_door(held(hold())), LARGE) as console:
        await console.press("colon")
        await console.type("resume tiny-2")
        await console.press("enter")
        await console.see("nothing holds tiny-2; held: tiny-1")


async def test_a_second_hold_says_that_it_replaces_the_first() -> None:
    async with running(a_door(held(hold())), LARGE) as console:
        await console.press("P")
        await console.see("It is paused already, by bob until it is resumed: a new disk. This replaces that.")


async def test_a_read_only_console_holds_nothing() -> None:
    state = msgspec.structs.replace(held(hold()), read_only=True)
    door = a_door(state)
    async with running(door, LARGE) as console:
        for key in ("P", "X", "E"):
            await console.press(key)
            await console.see("is read-only")
        assert door.submitted == []
