"""Foreign engines on the adoption screen: listed, and adopted behind a confirmation that says who they are."""

from __future__ import annotations

import time

import msgspec
import pytest

from backend.api import (
    AdoptForeignRequest,
    Answer,
    FleetState,
    ForeignProcess,
    HostId,
    ModelView,
    PlanForeign,
)
from backend.contract.plans import Profile
from backend.contract.words import Port, UnixMs
from backend.planning.catalog import ModelEntry
from backend.planning.fleet import FleetFacts
from backend.planning.foreign import plan_adoption
from tests.console import worlds as w
from tests.console.driving import SIZES, running
from tests.console.stand_in import StandInDoor
from tests.planning.worlds import a_host

PROFILES = {"alone": Profile(ranks=1), "ring": Profile(ranks=2)}
STRANGER = ForeignProcess(
    pid=4711,
    program="llama-server",
    started_unix_ms=UnixMs(time.time_ns() // 1_000_000),
    user="bob",
    ports=(Port(8080),),
    model="/models/tiny.gguf",
    memory=2 << 30,
    start_ticks=81_234,
    boot_id="boot-1",
    engine="llamacpp",
    role="leader",
    ranks=1,
    devices=("CPU",),
    address="127.0.0.1",
    answers="ready",
    served=("tiny",),
)


def a_fleet(*, read_only: bool = False) -> FleetState:
    facts = w.host("gpu-a").facts
    assert facts is not None
    hosts = {HostId("gpu-a"): w.host("gpu-a", facts=msgspec.structs.replace(facts, foreign=(STRANGER,)))}
    models = {"tiny": ModelView("tiny", (), "llamacpp", "tiny.gguf", PROFILES)}
    return w.fleet(hosts=hosts, models=models, read_only=read_only)


def plans(process: ForeignProcess = STRANGER) -> StandInDoor:
    """A door behind which adoptions are planned as the backend does."""

    def answer(request: object) -> Answer | None:
        if not isinstance(request, PlanForeign):
            return w.answer("", "AdoptForeignRequest", words="pid 4711 of gpu-a is tiny-1 now")
        report, entry = a_host("gpu-a"), ModelEntry(name="tiny", path="tiny.gguf", profiles=PROFILES)
        name = request.target.partition(":")[2]
        plan = plan_adoption(
            process, report, FleetFacts(reports=(report,)), entry, name, PROFILES[name], now_unix_ms=UnixMs(w.NOW_MS)
        )
        code = 2 if plan.is_refused else 0
        value = {"process": msgspec.to_builtins(process)}
        return w.answer("", "PlanForeign", plan=plan, value=value, exit_code=code)

    return StandInDoor(a_fleet(), answer)


@pytest.mark.parametrize("size", SIZES[::2])
async def test_foreign_engines_are_listed_with_who_they_are_and_what_they_serve(size: tuple[int, int]) -> None:
    async with running(StandInDoor(a_fleet()), size) as console:
        await console.press("A")
        for words in ("foreign llama-server on gpu-a", "pid 4711 of bob", "port 8080", "/models/tiny.gguf", "2.0G"):
            await console.see(words)
        await console.see("a adopt this one")


@pytest.mark.parametrize("size", SIZES[:1])
async def test_it_is_adopted_behind_a_confirmation_that_names_who_it_is(size: tuple[int, int]) -> None:
    async with running(plans(), size) as console:
        await console.press("A", "a")
        await console.see("adopt gpu-a:4711: as which model")
        await console.press("enter")
        await console.see("ADOPT gpu-a:4711 as tiny:alone")
        for words in ("becomes tiny-1", "pid 4711", "(ticks 81234)", "port 8080", "2.0G on CPU", "as equal"):
            await console.see(words)
        await console.press("tab")
        await console.type("it runs")
        await console.press("enter")
        assert [type(each) for each in console.door.submitted] == [PlanForeign]
        await console.press("y")
        await console.until(lambda: len(console.door.submitted) == 2, "the request")
        request = console.door.submitted[1]
        assert isinstance(request, AdoptForeignRequest)
        assert (request.process.pid, request.process.start_ticks, request.why) == (4711, 81_234, "it runs")
        assert request.confirmed == request.plan.digest
        await console.see("is tiny-1 now")


async def test_what_does_not_match_cannot_be_confirmed_and_escape_adopts_nothing() -> None:
    async with running(plans(), (120, 40)) as console:
        await console.press("A", "a")
        await console.see("as which model")
        await console.press("down", "enter")
        await console.see("ADOPT gpu-a:4711 as tiny:ring")
        await console.see("ranks = 2 of tiny:ring")
        await console.press("y", "escape")
        await console.gone("ADOPT gpu-a:4711")
        assert [type(each) for each in console.door.submitted] == [PlanForeign]


async def test_a_pid_that_is_another_process_by_now_cannot_be_confirmed() -> None:
    async with running(plans(msgspec.structs.replace(STRANGER, start_ticks=9)), (120, 40)) as console:
        await console.press("A", "a")
        await console.see("as which model")
        await console.press("enter")
        await console.see("is another process by now")
        await console.press("y", "escape")
        assert [type(each) for each in console.door.submitted] == [PlanForeign]


async def test_in_a_read_only_context_nothing_can_be_adopted() -> None:
    async with running(StandInDoor(a_fleet(read_only=True)), (120, 40)) as console:
        await console.press("A")
        await console.see("foreign llama-server on gpu-a")
        assert "a adopt this one" not in console.text()
        await console.press("a")
        await console.pilot.pause(0.1)
        assert "as which model" not in console.text()
