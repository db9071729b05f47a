"""The drift screen: counts, both values, and an acknowledgement with a note, a person and an end."""

from __future__ import annotations

import msgspec
import pytest

from backend.api import AcknowledgeDrift, Acknowledgement, CheckModels, Drift, FleetState, ReopenDrift
from backend.contract.words import UnixMs
from tests.console import worlds as w
from tests.console.driving import SIZES, running
from tests.console.stand_in import StandInDoor

BOUND = msgspec.structs.replace(
    w.drift(),
    id="result-bound:glm-2/3",
    subject="glm-2/3",
    what="result bound",
    one_source="derived",
    one="3 696 012",
    other_source="READY",
    other="59 136 012",
    consequence="n_batch is 2048 in the running stage and 128 in the profile.",
    severity="warn",
)


def known(drift: Drift) -> Drift:
    acknowledged = Acknowledgement(
        drift=drift.id,
        note="until the fan is changed",
        by="alice",
        at_unix_ms=UnixMs(w.NOW_MS),
        until_unix_ms=UnixMs(w.NOW_MS + 3_600_000),
        version="",
    )
    return msgspec.structs.replace(drift, acknowledged=acknowledged)


def a_fleet(*drifts: Drift) -> FleetState:
    return msgspec.structs.replace(w.busy_fleet(), drifts=drifts)


@pytest.mark.parametrize("size", SIZES)
async def test_both_values_the_consequence_and_the_remedy_stand_on_every_size(size: tuple[int, int]) -> None:
    async with running(StandInDoor(a_fleet(w.drift(), known(BOUND))), size) as console:
        await console.press("v")
        for words in ("1 open   1 acknowledged", "checked", "load record 1764412800123", "registered at gpu-b 1"):
            await console.see(words)
        for words in ("every later session hangs", "Load again with one number", "derived 3 696 012"):
            await console.see(words)
        await console.see("until the fan is changed")
        await console.see("Not known of gpu-c")


async def test_the_header_counts_open_drifts_only() -> None:
    async with running(StandInDoor(a_fleet(w.drift(), known(BOUND)))) as console:
        await console.see("1 drift  ")
        console.door.put(a_fleet(known(w.drift()), known(BOUND)))
        await console.gone("1 drift  ")


async def test_k_acknowledges_the_drift_under_the_cursor_once_there_is_a_note() -> None:
    async with running(StandInDoor(a_fleet(w.drift(), BOUND))) as console:
        await console.press("v")
        await console.see(">≠ step37-1/3")
        await console.press("down")
        await console.see(">≠ glm-2/3")
        await console.press("k")
        await console.see("acknowledge result-bound:glm-2/3")
        await console.see("Write why")
        await console.press("tab", "tab", "y")
        assert console.door.submitted == []
        await console.press("tab")
        await console.type("known")
        await console.see("It leaves the header's count")
        await console.press("tab", "tab", "y")
        await console.until(lambda: bool(console.door.submitted), "the request")
        assert console.door.submitted == [AcknowledgeDrift(drift="result-bound:glm-2/3", note="known", seconds=3600.0)]


async def test_a_refused_acknowledgement_stays_in_its_dialog() -> None:
    door = StandInDoor(a_fleet(w.drift()), lambda request: w.answer("", exit_code=2, words="the disk is full"))
    async with running(door) as console:
        await console.press("v", "k", "n")
        await console.type("ow known")
        await console.press("tab", "tab", "y")
        await console.see("the disk is full")
        await console.see("acknowledge generation:step37-1/3")


async def test_an_acknowledged_drift_can_be_opened_again_and_files_be_read_again() -> None:
    async with running(StandInDoor(a_fleet(known(BOUND)))) as console:
        await console.press("v")
        await console.see("o open again")
        await console.press("o", "c")
        await console.until(lambda: len(console.door.submitted) == 2, "both requests")
        assert console.door.submitted == [ReopenDrift(drift=BOUND.id), CheckModels()]


async def test_in_a_read_only_context_nothing_can_be_acknowledged() -> None:
    state = msgspec.structs.replace(a_fleet(w.drift()), read_only=True)
    async with running(StandInDoor(state)) as console:
        await console.press("v")
        await console.see("step37-1/3")
        assert "k acknowledge" not in console.text()
        await console.press("k")
        await console.pilot.pause(0.1)
        assert "note" not in console.text().splitlines()[-1]
        assert console.door.submitted == []


async def test_a_drift_far_down_is_scrolled_into_sight_and_one_that_ends_gives_the_cursor_to_the_first() -> None:
    many = tuple(msgspec.structs.replace(BOUND, id=f"result-bound:glm-2/{n}", subject=f"glm-2/{n}") for n in range(9))
    async with running(StandInDoor(a_fleet(*many))) as console:
        await console.press("v", "end")
        await console.see(">≠ glm-2/8")
        console.door.put(a_fleet(*many[:8]))
        await console.see(">≠ glm-2/0")
