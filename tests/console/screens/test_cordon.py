"""The cordon dialog: what runs there first, Cancel in focus, and the revision that was shown is what is confirmed."""

from __future__ import annotations

import msgspec
import pytest

from backend.api import Cordon, CordonRequest, UncordonRequest, UnixMs
from backend.contract.entities import Entities
from tests.console import worlds as w
from tests.console.driving import SIZES, running
from tests.console.stand_in import StandInDoor

SEEN = msgspec.structs.replace(w.host(), revision=41)


def a_door(*, cordoned: bool = False) -> StandInDoor:
    cordon = Cordon(by="bob@ops-2", why="fan", at_unix_ms=UnixMs(w.NOW_MS))
    view = msgspec.structs.replace(SEEN, entities=Entities(cordon=cordon)) if cordoned else SEEN
    return StandInDoor(w.fleet(w.replica(), hosts={view.host: view}), None)


@pytest.mark.parametrize("size", SIZES)
async def test_the_dialog_stands_on_every_size_and_cancel_is_in_focus(size: tuple[int, int]) -> None:
    door = a_door()
    async with running(door, size) as console:
        await console.press("colon")
        await console.type("cordon gpu-a")
        await console.press("enter")
        await console.see("1 replica with a rank there")
        await console.see("tiny-1: 2 ranks on gpu-a, 1 elsewhere")
        await console.see("What runs there runs on.")
        await console.see("[esc Cancel]")
        await console.press("enter")
        await console.gone("What runs there runs on.")
    assert door.submitted == []


async def test_c_on_a_host_cordons_it_for_a_time_and_with_a_reason() -> None:
    door = a_door()
    async with running(door, (120, 40)) as console:
        await console.press("h")
        await console.press("C")
        await console.see("What runs there runs on.")
        await console.press("tab")
        await console.type("2x")
        await console.type("h")
        await console.press("enter")
        await console.type("fan")
        await console.press("enter")
        await console.press("y")
        await console.until(lambda: bool(door.submitted), "the request")
    assert door.submitted == [CordonRequest(host="gpu-a", seconds=7200.0, why="fan", revision=41)]


async def test_a_time_that_is_none_cannot_be_confirmed() -> None:
    door = a_door()
    async with running(door, (120, 40)) as console:
        await console.press("h", "C")
        await console.press("tab")
        await console.type("hh")
        await console.see("The time must be like 90s")
        await console.press("enter", "enter")
        await console.press("y")
        await console.press("escape")
        await console.gone("The time must be like 90s")
    assert door.submitted == []


async def test_c_on_a_cordoned_host_takes_the_cordon_back() -> None:
    door = a_door(cordoned=True)
    async with running(door, (120, 40)) as console:
        await console.press("h", "C")
        await console.see("cordoned by bob@ops-2")
        await console.see("Uncordon: gpu-a takes new shards again")
        await console.press("y")
        await console.until(lambda: bool(door.submitted), "the request")
    assert door.submitted == [UncordonRequest(host="gpu-a", revision=41)]


async def test_without_a_host_and_for_one_that_is_not_there_it_says_why_not() -> None:
    door = a_door()
    async with running(door, (120, 40)) as console:
        await console.press("C")
        await console.see("no host is selected")
        await console.press("colon")
        await console.type("uncordon gpu-a")
        await console.press("enter")
        await console.see("gpu-a is not cordoned")
        await console.press("colon")
        await console.type("cordon gpu-z")
        await console.press("enter")
        await console.see("there is no host 'gpu-z'; known: gpu-a")
