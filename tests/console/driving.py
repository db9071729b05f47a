"""How tests drive the application: keys in, the visible screen as text out, waiting for what must come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from textual.pilot import Pilot

from console.app import ConsoleApp
from console.theming import choose_palette
from tests.console.stand_in import StandInDoor

PATIENCE = 20.0
SIZES = ((80, 24), (120, 40), (200, 50))


class Driver:
    """One running application over a stand-in door."""

    def __init__(self, app: ConsoleApp, pilot: Pilot[None], door: StandInDoor) -> None:
        self.app = app
        self.pilot = pilot
        self.door = door

    def text(self) -> str:
        """What stands on the screen."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)

    async def until(self, true: Callable[[], bool], what: str) -> None:
        """Wait for something that must come."""
        deadline = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < deadline, f"{what} did not come; the screen says\n{self.text()}"
            await self.pilot.pause(0.02)

    async def see(self, words: str) -> None:
        """Wait until these words stand on the screen."""
        await self.until(lambda: words in self.text(), repr(words))

    async def gone(self, words: str) -> None:
        """Wait until these words do not stand there any more."""
        await self.until(lambda: words not in self.text(), f"the end of {words!r}")

    async def press(self, *keys: str) -> None:
        """Press keys, a deaf dialog left time to open its ears."""
        for key in keys:
            if getattr(self.app.screen, "is_deaf", False):
                await self.until(lambda: not getattr(self.app.screen, "is_deaf", False), "the end of deafness")
            await self.pilot.press(key)

    async def type(self, text: str) -> None:
        """Type a text, key by key."""
        for each in text:
            await self.pilot.press({" ": "space", "-": "minus", ":": "colon", "!": "exclamation_mark"}.get(each, each))


@asynccontextmanager
async def running(
    door: StandInDoor, size: tuple[int, int] = (80, 24), *, is_ascii: bool = False, theme: str | None = None
) -> AsyncIterator[Driver]:
    """The application, headless, with its first state on the screen."""
    app = ConsoleApp(door, choose_palette(theme, plain=False)[0], is_ascii=is_ascii)  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        driver = Driver(app, pilot, door)
        await driver.until(lambda: app.state is not None, "the first state")
        await asyncio.sleep(0)
        await pilot.pause()
        yield driver
