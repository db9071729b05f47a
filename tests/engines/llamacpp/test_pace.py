"""When a drive looks again."""

from __future__ import annotations

import asyncio

import pytest

from backend.engines.llamacpp.pace import beat, next_look


@pytest.mark.parametrize(("waited", "pause"), [(0.0, 0.002), (0.016, 0.002), (0.16, 0.01), (0.8, 0.05), (900.0, 0.05)])
def test_what_comes_soon_is_seen_soon_and_a_long_wait_costs_few_looks(waited: float, pause: float) -> None:
    assert next_look(waited, 0.05) == pytest.approx(pause)


def test_a_ceiling_below_the_soonest_look_is_kept() -> None:
    assert next_look(5.0, 0.001) == 0.001


async def test_looks_of_one_agent_fall_on_one_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, due = asyncio.get_running_loop(), []

    async def keep(pause: float) -> None:
        due.append(loop.time() + pause)

    with monkeypatch.context() as still:
        still.setattr(asyncio, "sleep", keep)
        for now in (100.03, 100.033, 100.199):
            still.setattr(loop, "time", lambda now=now: now)
            await beat(0.2)
    assert due == pytest.approx([100.2, 100.2, 100.2])
