"""How a link gets a websocket: what is refused before it is dialled, and the system's ssh."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import sys
from pathlib import Path

import pytest

from backend.contract.words import AgentAddress
from backend.control import transports
from backend.control.link_ends import LinkSettings
from backend.control.link_events import LinkDown, LinkUp
from backend.control.transports import CannotConnect, check_socket, connect
from tests.control.stand_in_agent import StandInAgent, agents, wait_for
from tests.control.test_link import Watched, running

STAND_IN_SSH = f"""#!{sys.executable}
import os, selectors, socket, sys
open({{record!r}}, "a").write(repr(sys.argv[1:]) + "\\n")
if {{words!r}}:
    sys.stderr.write("Warning: added to the list of known hosts.\\n" + {{words!r}} + "\\n")
    sys.exit(255)
agent = socket.socket(socket.AF_UNIX)
agent.connect({{path!r}})
with selectors.DefaultSelector() as selector:
    selector.register(0, selectors.EVENT_READ)
    selector.register(agent, selectors.EVENT_READ)
    try:
        while True:
            for key, _ in selector.select():
                data = os.read(key.fd, 65536)
                if not data and key.fileobj == 0:
                    sys.exit(0)
                if not data:
                    raise ConnectionError
                agent.sendall(data) if key.fileobj == 0 else os.write(1, data)
    except ConnectionError:
        sys.stderr.write("Connection to gpu-b closed.\\n")
        sys.exit(255)
"""


def put_ssh(place: Path, monkeypatch: pytest.MonkeyPatch, socket_path: Path, words: str = "") -> Path:
    """A stand-in for the system's ssh, first on the path; returns where it writes down how it was called."""
    folder = place / "bin"
    folder.mkdir(exist_ok=True)
    record = place / "calls"
    script = folder / "ssh"
    script.write_text(STAND_IN_SSH.format(record=str(record), words=words, path=str(socket_path)))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return record


def a_socket(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    return listening


async def refused(address: str) -> str:
    with pytest.raises(CannotConnect) as caught:
        async with connect(AgentAddress(address), 2.0):
            pass
    return str(caught.value)


def test_a_socket_that_others_could_have_put_there_is_refused(place: Path) -> None:
    with a_socket(place / "a.sock"):
        check_socket(place / "a.sock")
        place.chmod(0o777)
        with pytest.raises(CannotConnect, match=r"mode 0777.*others can write"):
            check_socket(place / "a.sock")
        place.chmod(0o1777)
        with pytest.raises(CannotConnect, match="mode 1777"):
            check_socket(place / "a.sock")
        assert stat.S_IMODE(place.stat().st_mode) == 0o1777


def test_a_path_beyond_the_kernels_limit_is_refused_with_both_numbers(place: Path) -> None:
    path = place / ("x" * (107 - len(str(place))))
    with pytest.raises(CannotConnect, match=r"has 108 bytes, a unix socket's has at most 107"):
        check_socket(path)


async def test_what_is_no_agent_is_said_in_words(place: Path) -> None:
    assert "there is no such socket. Start ringtop-agent there." in await refused(f"unix:{place}/none.sock")
    (place / "file").write_text("")
    assert "is no socket" in await refused(f"unix:{place}/file")
    with a_socket(place / "dead.sock"):
        assert "no agent listens on it" in await refused(f"unix:{place}/dead.sock")
    for address in ("wss://gpu-a:9000", "wss://gpu-a", "wss://gpu-a/", "wss://gpu-a:9000/x"):
        assert f"{address}: this ringtop does not dial TLS addresses. Write ssh://gpu-a in its" in await refused(
            address
        )
    assert "expected unix:PATH" in await refused("gpu-a")


async def test_a_listener_that_says_nothing_is_given_up(place: Path) -> None:
    with a_socket(place / "mute.sock") as listening:
        listening.listen()
        assert "no answer to the handshake within 2 s" in await refused(f"unix:{place}/mute.sock")


@pytest.mark.parametrize("target", ["-oProxyCommand=x", "a b", "user@", "a;b", "-l@host", ""])
async def test_a_host_that_ssh_would_take_as_an_option_is_refused(target: str) -> None:
    assert "expected ssh://[user@]host" in await refused(f"ssh://{target}")


async def test_a_link_through_ssh_is_a_link(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = StandInAgent("gpu-b", place / "b.sock")
    record = put_ssh(place, monkeypatch, agent.socket)
    watched = Watched(agent)
    watched.link.address = AgentAddress("ssh://ops@gpu-b")
    async with agents(agent), running(watched):
        await wait_for(lambda: watched.of(LinkUp))
        called = record.read_text()
        assert called == "['-T', '-o', 'BatchMode=yes', 'ops@gpu-b', 'ringtop-agent', 'connect']\n"
        agent.connections[0].transport.abort()
        await wait_for(lambda: watched.of(LinkDown))
        assert watched.of(LinkDown)[0].words.startswith("ssh: Connection to gpu-b closed; next try")
        await wait_for(lambda: len(watched.of(LinkUp)) == 2)


async def test_the_last_line_of_ssh_is_why_a_host_is_unreachable(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_ssh(place, monkeypatch, place / "b.sock", words="ssh: connect to host gpu-b port 22: Connection timed out")
    watched = Watched(StandInAgent("gpu-b", place / "b.sock"), settings=LinkSettings(floor=30.0))
    watched.link.address = AgentAddress("ssh://gpu-b")
    async with running(watched):
        await wait_for(lambda: watched.of(LinkDown))
    words = watched.of(LinkDown)[0].words
    assert words.startswith("ssh: connect to host gpu-b port 22: Connection timed out; next try")


@pytest.mark.parametrize(("life", "patience", "code"), [("pass", 30.0, 0), ("import time; time.sleep(600)", 0.1, -15)])
async def test_an_ssh_that_leaves_by_itself_gets_no_signal_and_one_that_stays_does(
    life: str, patience: float, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transports, "_LEAVE_SECONDS", patience)
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", life)
    await transports._end(process)
    assert process.returncode == code
    assert not caplog.records, "asyncio complains when somebody else has collected a child"
