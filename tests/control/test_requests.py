"""Requests that nobody can fulfil end in words: whatever is asked, the backend goes on."""

from __future__ import annotations

from typing import Any

import pytest

from backend.api import (
    AskJournal,
    ChangeDrainRequest,
    CordonRequest,
    HoldSubject,
    LogRequest,
    MakePlan,
    PlanRecovery,
    Request,
    StartDrainRequest,
    SubmitRefused,
    TestRequest,
)
from backend.contract.commands import ChangeDrain
from backend.contract.entities import Result
from backend.contract.words import NodeId
from backend.control.requests import ClaimKeeping
from tests.control.factories import REPLICA
from tests.control.stand_in_agent import rejected, wait_for
from tests.control.test_backend import Console, console, unstarted, world
from tests.control.test_operations import World

__all__ = ["console", "unstarted", "world"]

NAN, ENDLESS = float("nan"), float("inf")
YEAR = "expected more than 0 and at most 31622400 seconds"


async def serving(world: World, console: Console) -> None:
    """A whole replica runs, and the console has seen all of it."""
    await world.serving()
    await wait_for(lambda: (r := console.backend.state().replicas.get(REPLICA)) is not None and r.ranks_ready == 3)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (CordonRequest(host="host-a", seconds=1e12), f"seconds is 1e+12; {YEAR}"),
        (CordonRequest(host="host-a", seconds=NAN), f"seconds is nan; {YEAR}"),
        (HoldSubject(subject="tiny", kind="down", seconds=-3), f"seconds is -3; {YEAR}"),
        (LogRequest(node_id="tiny-1/0", limit=-5), "limit is -5, outside 0..2^64-1"),
        (LogRequest(node_id="tiny-1/0", offset=-(2**70)), "offset without its sign is 1180591620717411303424, outside"),
        (AskJournal(host="host-a", question="export", after=-1), "after is -1, outside 0..2^64-1"),
        (
            ClaimKeeping(keeper_epoch=1, console="c", who="w", seconds=9e9),
            "seconds is 9000000000; expected more than 0",
        ),
        (TestRequest(replica=REPLICA, max_tokens=-1), "max_tokens is -1, outside 1..2^64-1"),
        (StartDrainRequest(replica=REPLICA, deadline_seconds=NAN), f"the deadline is nan; {YEAR}"),
        (StartDrainRequest(replica=REPLICA, deadline_seconds=ENDLESS), f"the deadline is inf; {YEAR}"),
        (PlanRecovery(host="host-a", deadline_seconds=0), f"the deadline is 0; {YEAR}"),
        (CordonRequest(host="host-aa"), "there is no host 'host-aa'; known: host-a, host-b. Did you mean host-a?"),
        (TestRequest(replica=REPLICA, prompt="x" * (1 << 20)), "characters, and an agent takes at most 1048576"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Request) else "",
)
async def test_what_no_agent_could_be_told_is_refused_and_the_backend_goes_on(
    world: World, console: Console, request_: Request, words: str
) -> None:
    await serving(world, console)
    answer = await console.answer(request_)
    assert (answer.exit_code, words in answer.words) == (2, True), answer.words
    assert (await console.answer(TestRequest(replica=REPLICA))).exit_code == 0


async def test_text_that_is_no_unicode_is_not_taken(console: Console) -> None:
    with pytest.raises(SubmitRefused, match=r"HoldSubject holds text that is no Unicode, at 'a\\udcff', so nothing"):
        console.backend.submit(HoldSubject(subject="tiny", kind="down", why="a\udcff"))


async def test_a_change_of_a_drain_that_one_host_refuses_is_told_with_who_took_it(
    world: World, console: Console
) -> None:
    await serving(world, console)
    drain = await console.answer(StartDrainRequest(replica=REPLICA, deadline_seconds=60.0))
    await wait_for(lambda: len(_open_drains(console)) == 2)
    world.a.rules["drain.change"] = lambda command: rejected("E_STATE: tiny-1 is not draining on host-a")
    answer = await console.answer(ChangeDrainRequest(replica=REPLICA, action="cancel"))
    assert answer.exit_code == 2
    assert answer.words.startswith("cancel was taken by host-b; not by host-a: host-a: E_STATE: tiny-1 is not draining")
    assert len(world.b.commands(ChangeDrain)) == 1, "the host behind the one that refused is asked too"
    await world.a.end_shard(NodeId("tiny-1/0"), "stopped", "exit 0")
    assert await console.ended(drain.words) is not None


def _open_drains(console: Console) -> list[Any]:
    return [host for host in console.backend.state().hosts.values() if REPLICA in host.entities.drains]


async def test_an_answer_that_cannot_be_read_is_said_with_its_field_and_is_no_fault(
    world: World, console: Console
) -> None:
    unreadable = Result(status="succeeded", resource_state="present", value={"model": {"path": 5}})
    for agent in (world.a, world.b):
        agent.rules["model.inspect"] = lambda command: unreadable
    answer = await console.answer(MakePlan(target="tiny:two-host"))
    assert answer.exit_code == 2
    assert "host-a: its answer to model.inspect: Expected `str`, got `int` - at `$.path`" in answer.words
    assert "Install one release of ringtop on both sides" in answer.words
