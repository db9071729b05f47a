"""What still waits has looked again and again: the looks are counted, not the seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from backend.agent import proofs


class Looks:
    """Counts every look of every proof of this process."""

    def __init__(self, whole: Callable[[float], AsyncIterator[None]]) -> None:
        self._whole = whole
        self._begun = asyncio.Event()
        self.made = 0

    async def counted(self, first: float) -> AsyncIterator[None]:
        async for _ in self._whole(first):
            self.made += 1
            self._begun.set()
            yield

    async def several(self, count: int = 3) -> None:
        """Return when this many more looks were begun, so that all but the last are over."""
        wanted = self.made + count + 1
        async with asyncio.timeout(40):
            while self.made < wanted:
                self._begun.clear()
                await self._begun.wait()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """The looks that are made in this test."""
    made = Looks(proofs._looks)
    monkeypatch.setattr(proofs, "_looks", made.counted)
    return made
