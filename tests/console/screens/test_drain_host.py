"""Draining a host from the console: the ranks that go with it elsewhere are counted, its name and count are typed."""

from __future__ import annotations

import msgspec

from backend.api import Answer, Cordon, CordonRequest, Request, StartDrainRequest, UnixMs
from backend.contract.entities import Entities
from tests.console import worlds as w
from tests.console.driving import Driver, running
from tests.console.stand_in import StandInDoor

SEEN = msgspec.structs.replace(w.host(), revision=41)


def a_door(*names: str, cordoned: bool = False, refused: bool = False) -> StandInDoor:
    def answer(request: Request) -> Answer | None:
        if not isinstance(request, CordonRequest):
            return None
        words = "gpu-a: E_FENCED: expected was revision 41" if refused else ""
        return w.answer("", exit_code=2 if refused else 0, words=words)

    cordon = Cordon(by="bob@ops-2", why="fan", at_unix_ms=UnixMs(w.NOW_MS))
    view = msgspec.structs.replace(SEEN, entities=Entities(cordon=cordon)) if cordoned else SEEN
    return StandInDoor(w.fleet(*(w.replica(name) for name in names), hosts={view.host: view}), answer)


async def open_dialog(console: Driver) -> None:
    await console.press("h", "C")
    await console.see("drain the host")
    await console.press("d")
    await console.see("DRAIN HOST gpu-a")
    await console.press("tab", "tab")


def drained(door: StandInDoor) -> list[str]:
    return [each.replica for each in door.submitted if isinstance(each, StartDrainRequest)]


async def test_two_replicas_want_the_name_and_their_count_and_drain_once_the_cordon_stands() -> None:
    door = a_door("tiny-1", "tiny-2")
    async with running(door, (120, 40)) as console:
        await open_dialog(console)
        await console.see("tiny-2: 2 ranks on gpu-a, 1 elsewhere")
        await console.see("To confirm, type gpu-a 2.")
        await console.type("gpu-a")
        await console.press("enter")
        assert door.submitted == []
        await console.press("shift+tab")
        await console.type(" 2")
        await console.see("enter in the field")
        await console.press("enter")
        await console.until(lambda: len(drained(door)) == 2, "both drains")
    assert door.submitted[0] == CordonRequest(host="gpu-a", why="gpu-a is drained", revision=41)
    assert drained(door) == ["tiny-1", "tiny-2"]


async def test_a_cordon_that_stands_is_left_as_it_is() -> None:
    door = a_door("tiny-1", cordoned=True)
    async with running(door, (120, 40)) as console:
        await open_dialog(console)
        await console.see("cordoned by bob@ops-2")
        await console.type("gpu-a")
        await console.press("enter")
        await console.until(lambda: drained(door) == ["tiny-1"], "the drain")
    assert not [each for each in door.submitted if isinstance(each, CordonRequest)]


async def test_a_refused_cordon_drains_nothing_and_says_so() -> None:
    door = a_door("tiny-1", refused=True)
    async with running(door, (120, 40)) as console:
        await open_dialog(console)
        await console.type("gpu-a")
        await console.press("enter")
        await console.until(lambda: bool(door.submitted), "the cordon")
        await console.press("escape")
        await console.see("nothing is drained")
    assert drained(door) == []
