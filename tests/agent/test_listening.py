"""What an agent needs to start: nothing but a socket is removed, and what stands in the way is said in one line."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.agent.listening import SocketTaken, listen_unix, make_room


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short name, as a unix socket's path is short."""
    folder = Path(tempfile.mkdtemp(prefix="rt", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def serve(place: Path, at: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """An agent that cannot start, to its end."""
    config = place / "agent.toml"
    config.write_text(f'host = "host-a"\nstate = "{place / "state"}"\nsocket = "{at}"\n[engines]\n')
    command = [sys.executable, "-I", "-m", "backend.agent", "serve", "--config", str(config), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_file_in_the_place_of_the_socket_is_left_alone(place: Path) -> None:
    notes = place / "notes"
    notes.write_text("mine")
    done = serve(place, notes)
    assert (done.returncode, notes.read_text()) == (2, "mine")
    assert done.stderr == (
        f"ringtop-agent: {notes} is a file and no socket, and is left as it is. Name another socket in agent.toml.\n"
    )


def test_a_folder_that_cannot_be_made_is_said_in_one_line(place: Path) -> None:
    (place / "file").write_text("")
    done = serve(place, place / "file" / "s")
    assert done.returncode == 2
    assert done.stderr.startswith(f"ringtop-agent: {place}/file/s cannot be listened at: ")
    assert done.stderr.count("\n") == 1


def test_a_state_folder_that_cannot_be_had_is_said_in_one_line(place: Path) -> None:
    (place / "state").write_text("")
    done = serve(place, place / "s")
    assert done.returncode == 2
    assert done.stderr == (
        f"ringtop-agent: the state folder {place}/state can be neither written nor read: Not a directory "
        f"({place}/state/journal/lock). Look at its disk and owner, or name another one as state in agent.toml.\n"
    )


def test_a_loopback_port_that_is_taken_is_said_in_one_line(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        done = serve(place, place / "s", "--loopback-port", str(port))
    assert done.returncode == 2
    assert done.stderr == (
        f"ringtop-agent: 127.0.0.1:{port} cannot be listened at: Address already in use. Give another "
        "--loopback-port.\n"
    )


async def test_a_socket_that_nobody_listens_at_any_more_makes_room(place: Path) -> None:
    path = place / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = await listen_unix(lambda ws: ws.wait_closed(), str(path), lambda: 0)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(SocketTaken, match=f"process {os.getpid()} answers at"):
        make_room(str(path))
    server.close()
    await server.wait_closed()


def test_a_bridge_whose_agent_is_cut_off_ends_without_a_word(place: Path) -> None:
    path = place / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        command = [sys.executable, "-I", "-m", "backend.agent", "connect", "--socket", str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as bridge:
            agent, _ = listener.accept()
            assert bridge.stdin is not None
            bridge.stdin.write(b"unread")
            bridge.stdin.flush()
            assert agent.recv(1, socket.MSG_PEEK) == b"u"
            agent.close()  # with bytes that it never read: a reset for the other side
            _, said = bridge.communicate(timeout=60)
            assert (bridge.returncode, said) == (0, b"")
