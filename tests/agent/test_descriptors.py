"""An agent out of file descriptors refuses a console in words, and goes on with what it has."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import resource
import socket
from collections.abc import Iterator

import pytest

from backend.contract.commands import OperationStatus
from backend.contract.events import Measured
from backend.contract.words import OpId
from tests.agent.wire import RawConsole
from tests.e2e.fleet import Fleet, until
from tests.ports import claim_block


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with contextlib.closing(Fleet(claim_block())) as made:
        made.start("host-a")
        yield made


def ask(fleet: Fleet) -> bytes:
    """One handshake by hand; what the agent answered, empty while it does not."""
    with socket.socket(socket.AF_UNIX) as console:
        console.settimeout(3.0)
        console.connect(str(fleet.socket("host-a")))
        with contextlib.suppress(BrokenPipeError):  # it was answered before it asked
            console.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with contextlib.suppress(TimeoutError, ConnectionError):
            return console.recv(4096)
    return b""


def ask_starved(fleet: Fleet) -> bytes:
    """The same, with no number left for the agent: a question of its own may have given one back since the last try."""
    pid = fleet.agents["host-a"].pid
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    lowest_free = next(number for number in itertools.count() if number not in used)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))
    return ask(fleet)


@pytest.mark.faults("file descriptors exhausted: accept refuses in words, journal and open consoles go on")
async def test_without_descriptors_a_console_is_refused_and_the_others_are_served(fleet: Fleet) -> None:
    console = await RawConsole.open(fleet.socket("host-a"), "host-a")
    await console.hello()
    pid = fleet.agents["host-a"].pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert await asyncio.to_thread(until, "a refusal", lambda: b"no file descriptor left" in ask_starved(fleet))
    status = await console.ask(OperationStatus(op_id=OpId("s"), asked=OpId("x")))
    assert status.result.value == {"known": False, "result": None}
    facts = None
    while facts is None or "descriptors low" not in {ill.kind for ill in facts.illnesses}:
        facts = (await console.hear(Measured)).facts or facts
    # What asked another engine of this machine at that moment may have given its own back since.
    assert re.search(r"\b[0-4] of \d+ file descriptors", facts.refuses_loads)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert await asyncio.to_thread(until, "an answer to its handshake", lambda: b"403 Forbidden" in ask(fleet))
    other = await RawConsole.open(fleet.socket("host-a"), "host-a", "other")
    assert (await other.hello()).facts.illnesses
    await other.close()
    await console.close()
