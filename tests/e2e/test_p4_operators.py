"""What operators of p4 rings lack: what stages print, which of them spin while idle, and how fast a journal grows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from backend.engines.p4.stage_words import INHERIT
from tests.e2e.fleet import until
from tests.e2e.p4_fleet import P4_CATALOG, SOUND, P4Fleet
from tests.p4.ring import simulated_ring, stage_binary
from tests.ports import claim_block

pytestmark = [pytest.mark.e2e, pytest.mark.thorough]

ACTIVE = P4_CATALOG.replace("options = { store = 192 }", 'options = { store = 192, wait_policy = "active" }')


@pytest.fixture
def fleets(tmp_path: Path) -> Iterator[Any]:
    """Start fleets beside simulated p4 agents that launch their stages as processes; they end with the test."""
    with ExitStack() as stack:

        def start(catalog: str, environment: dict[str, str], **facts: Any) -> P4Fleet:
            switches = {**SOUND, "stage_processes": True}
            ring = stack.enter_context(simulated_ring(tmp_path, 2, environment=environment, **switches))
            fleet = P4Fleet(claim_block(), ring, catalog)
            stack.callback(fleet.close)
            program = stage_binary(tmp_path, **{**SOUND, **facts})
            for name in ("host-a", "host-b"):
                fleet.binary(name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
            fleet.start()
            return fleet

        yield start


def resident(fleet: P4Fleet) -> dict[str, Any]:
    """What is known of the p4 agent of host-a."""
    engines = fleet.json("ls", "hosts")[0]["engines"]
    found: dict[str, Any] = next(engine["resident"] for engine in engines if engine["engine"] == "p4")
    return found


@pytest.mark.faults("stages that spin while idle are named with what they take, their wait policy and what to do")
def test_stages_that_spin_while_idle_are_an_illness_of_their_host(fleets: Any) -> None:
    fleet = fleets(ACTIVE, {}, spin_threads=1)
    fleet.load("step:short")
    told = until("the spinning", lambda: _spins(fleet))
    assert "OMP_WAIT_POLICY is not set; PASSIVE lets them sleep" in told
    assert "wait_policy = 'active' out of its profile" in told
    processes = {each["node_id"]: each for each in resident(fleet)["processes"]}
    assert processes.keys() == {"step-1/0", "step-1/1"}
    assert fleet.replica("step-1")["state"] == "ready", "nothing is stopped for it"
    said = fleet.run("logs", "step-1/0")
    assert said.returncode != 0
    assert f"was started without {INHERIT}" in said.stdout + said.stderr
    assert "standard error in a file" in said.stdout + said.stderr


def _spins(fleet: P4Fleet) -> str:
    ill = [ill["words"] for ill in fleet.json("ls", "hosts")[0]["illnesses"] if ill["kind"] == "p4 spinning"]
    return str(ill[0]) if ill else ""


def test_what_stages_print_is_shown_and_the_journals_growth_is_a_figure(fleets: Any) -> None:
    fleet = fleets(P4_CATALOG, {INHERIT: "1"}, spin_threads=1)
    fleet.load("step:short")
    assert "READY port=" in fleet.json("logs", "step-1/0")["text"]
    fleet.json("test", "step-1", "--max-tokens", "4")
    grown = until("its growth", lambda: _grown(fleet, 6))
    assert grown["files_per_1000_tokens"] > 0
    idle = until("idle stages", lambda: _idle(fleet))
    assert idle == [(0.0, "PASSIVE")] * 2
    assert resident(fleet)["stderr_file"] == str(fleet.ring[0].log)
    assert not _spins(fleet)


def _grown(fleet: P4Fleet, tokens: int) -> dict[str, Any] | None:
    growth = resident(fleet)["growth"]
    return growth if growth and growth["tokens"] == tokens and growth["files"] else None


def _idle(fleet: P4Fleet) -> list[tuple[float, str]] | None:
    processes = resident(fleet)["processes"]
    known = [(each["idle_cores"], each["wait_policy"]) for each in processes if each["idle_cores"] is not None]
    return known if len(known) == 2 else None


@pytest.mark.faults("a stage that ends while it loads: its own complaint stands in the refusal of the load")
def test_a_stage_that_ends_while_it_loads_is_quoted(fleets: Any) -> None:
    fleet = fleets(P4_CATALOG, {INHERIT: "1"})
    fleet.binary("host-a").write_text('#!/bin/sh\necho "ggml: cannot allocate 9 GiB on CPU" >&2\nexit 5\n')
    done = fleet.run("load", "step:short", "--yes")
    said = done.stdout + done.stderr
    assert done.returncode == 5, said
    assert "ggml: cannot allocate 9 GiB on CPU" in said
