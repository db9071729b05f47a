"""A p4 ring is recovered from the console by keyboard, in a real pseudo-terminal, after wrong keys and kills."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backend.control.recovery_document import RecoveryPlan, read_recovery
from tests.e2e.fleet import until
from tests.e2e.p4_recovery_fleet import RecoverableFleet, recoverable_fleet
from tests.e2e.terminal import Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(300)]

ENTER, ESCAPE, TAB, BACK = "\r", "\x1b", "\t", "\x1b[Z"
WHY = "slots spent"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[RecoverableFleet]:
    with recoverable_fleet(tmp_path) as made:
        made.load("step:ring")
        yield made


@pytest.fixture
def consoles(fleet: RecoverableFleet) -> Iterator[Any]:
    """Open consoles of any size; each is ended with the test."""
    opened: list[Terminal] = []

    def open_one(columns: int = 80, rows: int = 24) -> Terminal:
        opened.append(Terminal(fleet.command(), fleet.env(), columns, rows))
        opened[-1].wait_for(lambda text: "2/2 hosts" in text and "step-1" in text)
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def open_plan(console: Terminal, host: str) -> None:
    """By the action's name, for one host; the dialog is deaf while it opens."""
    console.press(":", *f"recover {host}", ENTER)
    console.wait_for(f"RECOVER {host}   plan ")
    console.read(0.5)


def fill_in(console: Terminal, host: str, why: str = "", *, approves: bool = False) -> None:
    """From Cancel, which stands behind all fields, backwards: the name, why, the approval; and back into the name."""
    console.press(BACK, *host)
    console.press(BACK, *why)
    console.press(BACK, " " if approves else "")
    console.press(TAB, TAB)


def operations(fleet: RecoverableFleet) -> list[dict[str, Any]]:
    return [dict(each) for each in fleet.json("ls", "operations")]


def deeds(fleet: RecoverableFleet, host: str) -> list[str]:
    """What the agent's own journal has of things done to its p4 agent."""
    records = (msgspec.json.decode(line) for line in fleet.run("journal", "export", host).stdout.splitlines())
    return [each["kind"] for each in records if each["kind"].startswith("resident.")]


def folded(text: str) -> str:
    """The words on a screen, however they were broken over its lines."""
    return " ".join(text.replace("┃", " ").split())


def see_whole_document(console: Terminal, plan: RecoveryPlan) -> None:
    """The dialog has every step that the command prints, its condition, what is now and its proof."""
    shown = folded(console.text())
    for step in plan.steps:
        for words in (step.what, step.condition, step.proof, step.command):
            if plan.aside not in words:
                assert folded(words) in shown, words
    for words in (
        "every stage on host-a ends: step-1/0 at generation",
        "nothing is deleted",
        "generation greater than",
    ):
        assert words in shown, words


def revive(fleet: RecoverableFleet, host: str) -> None:
    """Somebody ends its p4 agent and starts it again meanwhile."""
    fleet.sim(host).end()
    subprocess.run([str(fleet.home / f"start-{host}")], check=True)
    fleet.again(host)


@pytest.mark.faults(
    "the recovery screen: wrong keys, kills and a stale plan leave nothing; then it is followed to its end"
)
def test_a_ring_is_recovered_by_keyboard(fleet: RecoverableFleet, consoles: Any) -> None:
    plan = read_recovery(fleet.plan("host-a"))
    before = operations(fleet)
    pid = fleet.sim("host-a").pid

    tall = consoles(112, 130)
    open_plan(tall, "host-a")
    see_whole_document(tall, plan)
    fill_in(tall, "host-a", WHY)
    tall.wait_for("Recover, once its move is approved")
    tall.press(ENTER)
    tall.kill(signal.SIGKILL)
    tall.wait_end()
    assert operations(fleet) == before
    assert deeds(fleet, "host-a") == []
    assert fleet.sim("host-a").pid == pid

    console = consoles()
    console.press("M")
    console.wait_for("the p4 agent of which host?")
    console.press("j", "y", "R", ESCAPE)
    console.wait_gone("the p4 agent of which host?")
    console.press("m", "y")
    open_plan(console, "host-b")
    console.press("y", "Y", "M", "R", "D", ENTER)  # the last takes what is marked, which is Cancel
    console.wait_gone("RECOVER host-b")
    assert operations(fleet) == before

    open_plan(console, "host-b")
    life = fleet.json("p4", "recover", "host-b", "--plan", code=1)["look"]["life"]
    revive(fleet, "host-b")
    until("its next life", lambda: fleet.json("p4", "recover", "host-b", "--plan", code=1)["look"]["life"] != life)
    console.press(BACK, *"host-b")
    console.wait_for("Recover (enter in the name)")
    console.press(ENTER)
    refused = folded(console.wait_for("no longer holds"))
    assert f"the p4 agent was {life}, and is " in refused
    assert "Nothing was touched" in refused
    assert [each for each in operations(fleet) if each["kind"] == "recovery"] == []
    console.press(ESCAPE)
    console.wait_gone("no longer holds")

    recover_host_a(fleet, console, consoles)


def recover_host_a(fleet: RecoverableFleet, console: Terminal, consoles: Any) -> None:
    """Confirm it, kill the console on the way, and follow it to its end in another."""
    open_plan(console, "host-a")
    console.press(TAB, " ")  # cut: its ring serves nothing any more
    console.wait_for(lambda text: "what is in flight is cut" in folded(text))
    console.press(BACK)
    fill_in(console, "host-a", WHY, approves=True)
    console.wait_for("Recover (enter in the name)")
    console.press(ENTER)
    console.wait_for("proven")
    console.kill(signal.SIGKILL)
    console.wait_end()

    def ours() -> dict[str, Any] | None:
        return next((each for each in operations(fleet) if each["kind"] == "recovery"), None)

    op_id = until("the recovery", ours)["id"]
    again = consoles()
    again.press(":", *f"operations {op_id}", ENTER)
    again.wait_for("the p4 agent of host-a is recovered: step-1 answered with 16 tokens", seconds=150)
    shown = fleet.json("op", "show", op_id)
    assert shown["state"] == "succeeded"
    assert "recovered: step-1 answered with 16 tokens" in shown["words"]
    after = fleet.replica("step-1")
    assert after is not None
    assert after["state"] == "ready"
    recoveries = [each for each in operations(fleet) if each["kind"] == "recovery"]
    assert [each["id"] for each in recoveries] == [op_id]
