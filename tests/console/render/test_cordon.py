"""What the console and the command line say of a cordon."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import msgspec

from backend.api import Cordon, HostView, UnixMs
from backend.contract.entities import Entities
from backend.contract.states import HostState
from console.commands.facts import host_facts
from console.render.cells import Look, line_text
from console.render.cordon import cordon_lines, effect_words, replica_words, replicas_on
from console.render.hosts import host_page, host_table
from tests.console import worlds as w

LOOK = Look(zone=UTC, now=w.NOW, now_ms=w.NOW_MS)


def cordoned(**changes: Any) -> HostView:
    cordon = Cordon(by="alice@ops-1", why="fan", at_unix_ms=UnixMs(w.NOW_MS - 3 * 3_600_000), left_ms=14_400_000)
    return msgspec.structs.replace(w.host(**changes), entities=Entities(cordon=cordon))


def row(view: HostView) -> str:
    return line_text(host_table(w.fleet(hosts={view.host: view}), LOOK).rows[0].cells)


def test_a_cordoned_host_says_so_in_its_state_with_who_since_when_and_why() -> None:
    said = row(cordoned())
    assert "cordoned" in said
    assert "cordoned by alice@ops-1 2 h ago, until 13:04: fan" in said
    assert "cordoned" not in row(w.host())
    page = [line_text(each) for each in host_page(w.fleet(hosts={w.host().host: cordoned()}), "gpu-a", LOOK)]
    assert "cordoned" in page[0]
    assert "alice@ops-1" in page[1]


def test_a_silent_host_is_unreachable_first_and_its_cordon_is_still_said() -> None:
    said = row(cordoned(state=HostState.UNREACHABLE))
    assert "unreachable" in said
    assert "cordoned by alice@ops-1" in said


def test_the_facts_of_a_host_have_its_cordon_or_null() -> None:
    cordon = host_facts(cordoned())["cordon"]
    assert (cordon["by"], cordon["why"]) == ("alice@ops-1", "fan")
    assert cordon["until_unix_ms"] == cordon["at_unix_ms"] + 14_400_000
    assert host_facts(w.host())["cordon"] is None


def test_the_dialog_counts_what_runs_there_and_what_goes_with_it_elsewhere() -> None:
    state = w.fleet(w.replica())
    (view,) = replicas_on(state, "gpu-a")
    assert replica_words(view, "gpu-a") == "tiny-1: 2 ranks on gpu-a, 1 elsewhere, 2 requests in flight"
    assert replicas_on(state, "gpu-z") == []
    unknown = msgspec.structs.replace(view, in_flight=None)
    assert replica_words(unknown, "gpu-b").endswith(
        "1 rank on gpu-b, 2 elsewhere, an unknown number of requests in flight"
    )
    lines = "\n".join(line_text(each) for each in cordon_lines(state, w.host(), LOOK, 80))
    assert "1 replica with a rank there" in lines


def test_the_effect_is_said_for_what_the_choice_would_do() -> None:
    assert effect_words(w.host(), None).startswith("No new shards on gpu-a until it is uncordoned")
    assert "for that time" in effect_words(w.host(), 60.0)
    assert effect_words(cordoned(), None).startswith("Uncordon: gpu-a takes new shards again")
