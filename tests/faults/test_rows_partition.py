"""Row 33 as it is: two hosts in network namespaces of their own, and the wire between them cut while a ring serves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.fleet import until
from tests.faults.stand import FaultFleet, assert_quiet

pytestmark = [pytest.mark.engine, pytest.mark.thorough, pytest.mark.timeout(300)]

CUT_SECONDS = 120.0
"""A canary comes every 30 s and is given up after 10; what names the wire comes with the next look."""


class Wire:
    """A namespace for host-b, and the wire from here to it. Needs the right to make both."""

    def __init__(self) -> None:
        self.name = f"rt{os.getpid()}"
        net = f"10.79.{os.getpid() % 250}"
        self.here, self.there = f"{net}.1", f"{net}.2"
        self._ends = f"{self.name}a", f"{self.name}b"

    def lay(self) -> None:
        """Make it. Raises CalledProcessError, FileNotFoundError."""
        _ip("netns", "add", self.name)
        _ip("link", "add", self._ends[0], "type", "veth", "peer", "name", self._ends[1], "netns", self.name)
        _ip("addr", "add", f"{self.here}/30", "dev", self._ends[0])
        _ip("link", "set", self._ends[0], "up")
        _ip("-n", self.name, "addr", "add", f"{self.there}/30", "dev", self._ends[1])
        _ip("-n", self.name, "link", "set", "lo", "up")
        self.heal()

    def cut(self) -> None:
        """Nothing passes any more, and nobody is told."""
        _ip("-n", self.name, "link", "set", self._ends[1], "down")

    def heal(self) -> None:
        """It passes again."""
        _ip("-n", self.name, "link", "set", self._ends[1], "up")

    def take_up(self) -> None:
        """Remove it, and its end here with it."""
        with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError):
            _ip("netns", "del", self.name)


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    try:
        made.lay()
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        made.take_up()
        pytest.skip(f"no network namespace can be made here: {error}")
    yield made
    made.take_up()


@pytest.fixture
def fleet(wire: Wire, make_fleet: Callable[..., FaultFleet]) -> FaultFleet:
    made = make_fleet()
    made.write_agent("host-a", 0, extra=f'advertise = "{wire.here}"')
    made.write_agent("host-b", 1, extra=f'advertise = "{wire.there}"')
    made.start("host-a")
    with open(made.home / "host-b.log", "ab") as log:
        made.agents["host-b"] = subprocess.Popen(
            [
                *("ip", "netns", "exec", wire.name, sys.executable, "-I", "-m", "backend.agent", "serve"),
                *("--config", str(made.home / "host-b.toml")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until("the socket of host-b", made.socket("host-b").exists)
    return made


@pytest.mark.faults("the wire between leader and worker is cut: said, nobody is killed; healed, one owner serves on")
async def test_e33_partition_between_two_hosts(fleet: FaultFleet, wire: Wire) -> None:
    fleet.load("tiny:two-host")
    pids = fleet.engine_pids()
    assert len(pids) == 3
    wire.cut()
    said = until("words on the cut", lambda: _trouble(fleet), CUT_SECONDS)
    assert "canary" in said, said
    assert fleet.engine_pids() == pids, "somebody was killed because a wire was cut"
    wire.heal()
    until("a ring that serves again", lambda: _serves(fleet), CUT_SECONDS)
    assert fleet.engine_pids() == pids
    owners = [each["id"] for each in fleet.json("ls", "replicas")]
    assert owners == ["tiny-1"]
    await assert_quiet(fleet)
    assert fleet.run("unload", "tiny-1", "--yes").returncode == 0
    assert fleet.engine_pids() == set()


def _trouble(fleet: FaultFleet) -> str:
    """What the host of the leader says of its ring; empty while all is well."""
    shown = fleet.json("ls", "hosts")
    ill = [ill for host in shown for ill in host["illnesses"] if ill["kind"] == "unresponsive"]
    return str(ill[0]["words"]) if ill else ""


def _serves(fleet: FaultFleet) -> bool:
    replica = fleet.replica()
    return replica is not None and replica["state"] == "ready" and not _trouble(fleet)
