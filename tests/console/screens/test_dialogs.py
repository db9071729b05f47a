"""What every dialog keeps: its choices in sight, the keys that work now, and an end when nothing comes."""

from __future__ import annotations

import pytest
from textual.events import Key

from backend.api import LogRequest, MakePlan, PlanReload, Request, StartDrainRequest
from backend.control.views import Answer
from console.screens.dialog import Dialog
from console.screens.main import MainScreen
from console.widgets.fields import Choices
from tests.console import worlds as w
from tests.console.driving import Driver, running
from tests.console.stand_in import StandInDoor

CROWD = [w.replica(f"tiny-{number}") for number in range(10, 40)]


def bottom(console: Driver) -> str:
    return console.text().splitlines()[-1].strip()


async def test_choices_stay_in_sight_below_a_body_that_is_longer_than_the_screen_and_it_scrolls() -> None:
    async with running(StandInDoor(w.fleet(*CROWD))) as console:
        await console.press("h", "tab", "C", "d")
        await console.see("DRAIN HOST")
        await console.see("more lines below: j or space")
        assert "[esc Cancel]   Drain 30 replicas" in console.text()
        assert "To confirm, type" not in console.text()
        await console.press("G")
        await console.see("To confirm, type gpu-a 30.")
        await console.gone("more lines below")
        await console.press("g", "tab", "tab")
        await console.see("tab, type it")
        assert "Drain 30 replicas" in console.text()


async def test_a_smaller_terminal_leaves_the_choices_in_sight_too() -> None:
    async with running(StandInDoor(w.fleet(*CROWD)), (120, 50)) as console:
        await console.press("h", "C")
        await console.see("[esc Cancel]")
        for size in ((80, 24), (60, 12), (40, 9)):
            await console.pilot.resize_terminal(*size)
            await console.see("[esc Cancel]")
            await console.see("more lines below")


async def test_the_line_at_the_bottom_names_only_what_works_in_this_dialog() -> None:
    async with running(StandInDoor(w.busy_fleet())) as console:
        shown = {"q": "esc closes", "U": "tab fields  esc closes", "question_mark": "j k move  esc closes"}
        for key, keys in shown.items():
            await console.press(key)
            await console.until(lambda keys=keys: bottom(console) == keys, keys)  # type: ignore[misc]
            await console.press("escape")
            await console.until(lambda: isinstance(console.app.screen, MainScreen), "the main screen")


def pressed_twice(console: Driver, choice: str) -> None:
    """Both keys are on their way before the dialog sees the first."""
    dialog = console.app.screen
    assert isinstance(dialog, Dialog)
    taken = next(each for each in dialog.choices.choices if each.id == choice)
    for _ in range(2):
        dialog.choices.post_message(Choices.Taken(taken))


async def test_a_dialog_that_is_closed_twice_closes_nothing_else() -> None:
    async with running(StandInDoor(w.fleet(w.replica()))) as console:
        for key in ("r", "q", "D", "o"):
            await console.press(key)
            await console.until(lambda: isinstance(console.app.screen, Dialog), "the dialog")
            pressed_twice(console, "cancel")
            await console.until(lambda: not isinstance(console.app.screen, Dialog), "its end")
            await console.see("TOK/S")
            assert isinstance(console.app.screen, MainScreen)
        await console.press("r")
        await console.see("ring tiny-1")
        page = console.app.screen
        assert isinstance(page, Dialog)
        for _ in range(2):
            page.choices.post_message(Key("escape", None))
        await console.see("TOK/S")
        await console.pilot.pause()
        assert isinstance(console.app.screen, MainScreen)


async def test_what_is_confirmed_twice_is_done_once() -> None:
    door = StandInDoor(w.fleet(w.replica()))
    async with running(door) as console:
        await console.press("D")
        await console.see("[esc Cancel]")
        pressed_twice(console, "drain")
        await console.see("draining tiny-1")
        await console.pilot.pause()
        assert [type(each) for each in door.submitted] == [StartDrainRequest]


@pytest.mark.parametrize(("keys", "request_"), [(("L", "enter"), MakePlan), (("R",), PlanReload)])
async def test_a_plan_that_was_not_even_asked_for_is_not_waited_for(
    keys: tuple[str, ...], request_: type[Request]
) -> None:
    door = StandInDoor(w.fleet(w.replica()))
    async with running(door) as console:
        door.refuses_with = "the backend has not answered since 3 s, so nothing was sent"
        await console.press(*keys)
        await console.see("nothing was sent")
        await console.until(lambda: not isinstance(console.app.screen, Dialog), f"the end of the wait for {request_}")
        assert "Planning" not in console.text()


async def test_a_log_that_was_asked_for_comes_into_sight() -> None:
    lines = "\n".join(f"line {number}" for number in range(90))

    def answer(request: Request) -> Answer | None:
        return w.answer("", value={"text": lines}) if isinstance(request, LogRequest) else None

    async with running(StandInDoor(w.fleet(w.replica()), answer)) as console:
        await console.press("tab", "enter")
        await console.see("shard tiny-1/0")
        await console.press("l")
        await console.see("line 89")


async def test_the_data_timer_may_fire_while_the_application_ends() -> None:
    async with running(StandInDoor(w.fleet(w.replica()))) as console:
        await console.app.screen.remove_children()
        console.app._second -= 1
        console.app.tick()
    console.app._second -= 1
    console.app.tick()


async def test_a_dialog_that_gets_no_parts_because_the_application_ends_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(StandInDoor(w.fleet(w.replica()))) as console:
        monkeypatch.setattr(Dialog, "compose", lambda self: iter(()))
        await console.pilot.press("D")
        await console.pilot.pause()
        dialog = console.app.screen
        assert isinstance(dialog, Dialog)
        assert not dialog.stands
        console.door.put(w.fleet(w.replica("tiny-2")))
        await console.pilot.pause()
