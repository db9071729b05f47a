"""The reload dialog: which way it goes stands in the plan, and the replica's name is typed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backend.api import Answer, PlanReload, Request, StartReload
from tests.console import worlds as w
from tests.console.driving import SIZES, running
from tests.console.stand_in import StandInDoor

BESIDE = {
    "mode": "replacement first",
    "reason": "there is room beside it",
    "replica": "tiny-1",
    "load_generation": 1_764_412_800_123,
    "leave": "drain",
    "endpoint": "http://10.0.0.1:18000",
    "plan_of": "last",
}
IN_PLACE = {**BESIDE, "mode": "in place", "reason": "there is no room beside it: memory.short gpu-a"}


def a_door(value: dict[str, Any], *, refused: bool = False) -> StandInDoor:
    def answer(request: Request) -> Answer | None:
        if not isinstance(request, PlanReload):
            return None
        plan = w.plan(refused=refused)
        return w.answer("", plan=plan, value={**value, "plan_of": request.plan_of}, exit_code=2 if refused else 0)

    return StandInDoor(w.fleet(w.replica()), answer)


@pytest.mark.parametrize("size", SIZES)
async def test_the_order_of_what_happens_and_what_a_failure_leaves_stand_on_every_size(size: tuple[int, int]) -> None:
    async with running(a_door(BESIDE), size) as console:
        await console.press("R")
        await console.see("replacement first: there is room beside it")
        for words in ("By the profile of its load record.", "1. Load ", "2. Drain tiny-1 for at most 2 min"):
            await console.see(words)
        await console.see("is left as it is")


async def test_the_whole_name_must_be_typed_and_exactly_this_plan_is_started() -> None:
    door = a_door(BESIDE)
    async with running(door, (120, 40)) as console:
        await console.press("R")
        await console.see("Reload, once the name is typed")
        await console.press("y", "tab")
        await console.type("tiny-")
        await console.press("enter")
        assert not [each for each in door.submitted if isinstance(each, StartReload)]
        await console.type("1")
        await console.see("Reload (enter in the name)")
        await console.press("enter")
        await console.until(lambda: isinstance(door.submitted[-1], StartReload), "the request")
    started = door.submitted[-1]
    assert isinstance(started, StartReload)
    assert (started.replica, started.load_generation) == ("tiny-1", BESIDE["load_generation"])
    assert started.confirmed == started.plan.digest


async def test_in_place_says_that_there_is_a_gap_and_p_plans_by_the_present_catalog() -> None:
    door = a_door(IN_PLACE)
    async with running(door, (120, 40)) as console:
        await console.press("R")
        await console.see("1. Drain tiny-1")
        await console.see("serves nobody")
        await console.press("p")
        await console.see("By the catalog's present profile.")
        assert [each.plan_of for each in door.submitted if isinstance(each, PlanReload)] == ["last", "now"]


async def test_a_refused_plan_cannot_be_started_by_any_name() -> None:
    door = a_door(IN_PLACE, refused=True)
    async with running(door, (120, 40)) as console:
        await console.press("R")
        await console.see("Reload (refused)")
        await console.press("tab")
        await console.type("tiny-1")
        await console.press("enter")
        assert not [each for each in door.submitted if isinstance(each, StartReload)]


async def test_r_on_the_drift_screen_reloads_its_replica_by_the_present_catalog() -> None:
    drift = msgspec.structs.replace(w.drift(), id="generation:tiny-1/3", subject="tiny-1/3")
    door = a_door({**BESIDE})
    door.put(msgspec.structs.replace(door.current, drifts=(drift,)))
    async with running(door, (120, 40)) as console:
        await console.press("v")
        await console.see("reload tiny-1")
        await console.press("R")
        await console.see("By the catalog's present profile.")
        assert door.submitted == [PlanReload(replica=w.replica().id, plan_of="now")]
