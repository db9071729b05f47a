"""What the console says of the keeper and of what people hold."""

from __future__ import annotations

from datetime import UTC

import msgspec
import pytest

from backend.api import FleetState, HostId, HostView, KeeperLease, OperatorHold, Presence, UnixMs
from backend.contract.entities import Entities, operator_hold_key
from console.render.bars import header_line
from console.render.cells import Look, line_text
from console.render.hosts import host_page
from tests.console import worlds as w

LOOK = Look(zone=UTC, now=w.NOW, now_ms=w.NOW_MS)


def lease(who: str = "alice@ops-1", ended: str = "") -> KeeperLease:
    return KeeperLease(
        keeper_epoch=3, who=who, console=f"keeper-{who}", seconds=30.0, at_unix_ms=UnixMs(w.NOW_MS), ended=ended
    )


def fleet_of(*leases: KeeperLease | None, hold: OperatorHold | None = None) -> FleetState:
    hosts: dict[HostId, HostView] = {}
    held = {} if hold is None else {operator_hold_key(hold.scope, hold.subject): hold}
    for number, each in enumerate(leases):
        name = HostId(f"host-{number}")
        hosts[name] = msgspec.structs.replace(
            w.host(), host=name, entities=Entities(keeper=each, operator_holds=held), present=()
        )
    return w.fleet(hosts=hosts)


def header(state: FleetState, width: int = 80) -> str:
    return line_text(header_line(state, LOOK, width))


def test_the_header_names_the_keeper_that_a_majority_knows() -> None:
    assert "kept by alice@ops-1" in header(fleet_of(lease(), lease(), None))


@pytest.mark.parametrize(
    "leases",
    [
        (lease(), None),
        (None, None),
        (lease(ended="over"), lease(ended="over")),
        (lease(), lease("bob@ops-2")),
    ],
)
def test_the_header_names_nobody_where_no_majority_has_one_lease(leases: tuple[KeeperLease | None, ...]) -> None:
    assert "kept by" not in header(fleet_of(*leases))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_long_name_is_cut_before_it_pushes_the_clock_away(width: int) -> None:
    plain, kept = header(fleet_of(None), width), header(fleet_of(lease("x" * 200)), width)
    assert len(kept) <= max(width, len(plain))
    assert kept.endswith(plain[-6:])


def test_the_page_of_a_host_says_who_keeps_what_is_held_and_who_else_is_here() -> None:
    hold = OperatorHold(
        subject="tiny-1",
        scope="replica",
        kind="down",
        by="alice",
        why="bad weights",
        at_unix_ms=UnixMs(w.NOW_MS),
        left_ms=60_000,
    )
    state = fleet_of(lease(), hold=hold)
    view = state.hosts[HostId("host-0")]
    other = Presence(who="bob", console="console-9", since_unix_ms=UnixMs(w.NOW_MS))
    view = msgspec.structs.replace(view, present=(other,))
    page = [line_text(each) for each in host_page(w.fleet(hosts={view.host: view}), view.host, LOOK)]
    assert any(line.startswith("kept by alice@ops-1, keeper_epoch 3, since ") for line in page)
    (held,) = [line for line in page if line.startswith("down")]
    assert held.startswith("down  replica tiny-1 by alice until ")
    assert held.endswith(": bad weights")
    assert "also here: bob (console-9), just now" in page
