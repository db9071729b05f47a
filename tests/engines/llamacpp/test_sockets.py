"""The kernel's own word on real sockets."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from backend.engines.llamacpp.sockets import (
    CLOSE_WAIT,
    ESTABLISHED,
    LISTEN,
    FourTuple,
    SocketDiag,
    SocketSeen,
    has_ended,
    resident_bytes,
    socket_inodes,
)


class Pair:
    """A listener, one client and the server's end of it."""

    def __init__(self, family: socket.AddressFamily, address: str) -> None:
        self.listener = socket.create_server((address, 0), family=family)
        self.port: int = self.listener.getsockname()[1]
        self.client = socket.create_connection((address, self.port))
        self.server, _ = self.listener.accept()
        host, port, *_ = self.client.getsockname()
        self.ends = FourTuple(host, port, address, self.port)

    def close(self) -> None:
        for one in (self.client, self.server, self.listener):
            one.close()


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["ipv4", "ipv6"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    family, address = request.param
    if family == socket.AF_INET6 and not has_ipv6_loopback():
        pytest.skip("this machine has no IPv6 loopback")
    made = Pair(family, address)
    yield made
    made.close()


@pytest.fixture
def diag() -> Iterator[SocketDiag]:
    with SocketDiag() as opened:
        yield opened


def has_ipv6_loopback() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def seen(diag: SocketDiag, ends: FourTuple) -> SocketSeen:
    found = diag.look(ends)
    assert found is not None
    return found


def wait_state(diag: SocketDiag, ends: FourTuple, state: int | None) -> None:
    end = time.monotonic() + 20
    while ((found := diag.look(ends)) and found.state) != state:
        assert time.monotonic() < end, f"{ends.words} is {found}"
        time.sleep(0.005)


def test_a_connection_is_found_by_its_ends_with_its_owner(diag: SocketDiag, pair: Pair) -> None:
    found = seen(diag, pair.ends)
    assert (found.state, found.ends) == (ESTABLISHED, pair.ends)
    assert found.inode == os.fstat(pair.client.fileno()).st_ino
    assert found.inode in (socket_inodes(os.getpid()) or ())


def test_a_dump_is_filtered_by_port_and_state(diag: SocketDiag, pair: Pair) -> None:
    assert [one.ends for one in diag.dump(ESTABLISHED, remote_port=pair.port)] == [pair.ends]
    (server_end,) = diag.dump(ESTABLISHED, local_port=pair.port)
    assert server_end.ends.remote_port == pair.ends.local_port
    (listening,) = diag.dump(LISTEN, local_port=pair.port)
    assert listening.inode == os.fstat(pair.listener.fileno()).st_ino
    assert diag.dump(CLOSE_WAIT, local_port=pair.port) == ()


def test_a_client_that_waits_in_the_queue_has_no_owner_yet(diag: SocketDiag, pair: Pair) -> None:
    with socket.create_connection(pair.listener.getsockname()[:2]):
        inodes = sorted(bool(one.inode) for one in diag.dump(ESTABLISHED, local_port=pair.port))
    assert inodes == [False, True]


def test_the_other_end_that_closes_leaves_close_wait(diag: SocketDiag, pair: Pair) -> None:
    pair.server.close()
    wait_state(diag, pair.ends, CLOSE_WAIT)


def test_a_reset_connection_is_gone_and_the_listener_is_not_taken_for_it(diag: SocketDiag, pair: Pair) -> None:
    server_ends = FourTuple(pair.ends.remote, pair.port, pair.ends.local, pair.ends.local_port)
    assert seen(diag, server_ends).state == ESTABLISHED
    pair.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    pair.client.close()
    wait_state(diag, server_ends, None)
    assert diag.dump(LISTEN, local_port=pair.port)


def test_the_side_that_owes_an_answer_is_known(diag: SocketDiag, pair: Pair) -> None:
    pair.client.sendall(b"first")
    assert seen(diag, pair.ends).waits_for_other_end, "it never said anything"
    pair.server.sendall(b"answer")
    pair.client.recv(16)
    assert not seen(diag, pair.ends).waits_for_other_end
    end = time.monotonic() + 20
    while not seen(diag, pair.ends).waits_for_other_end:
        assert time.monotonic() < end
        pair.client.sendall(b"again")
        time.sleep(0.02)
    assert seen(diag, pair.ends).received_bytes == len(b"answer")


def test_what_was_sent_before_the_last_answer_owes_nothing() -> None:
    idle = SocketSeen(FourTuple("a", 1, "b", 2), ESTABLISHED, 0, 9, 500, 500, 10)
    assert not idle.waits_for_other_end
    assert msgspec.structs.replace(idle, sent_ms=400).waits_for_other_end
    assert not msgspec.structs.replace(idle, sent_ms=None).waits_for_other_end


def test_ends_that_do_not_exist_are_none(diag: SocketDiag) -> None:
    assert diag.look(FourTuple("127.0.0.1", 1, "127.0.0.1", 2)) is None


def test_a_zombie_has_ended_and_has_neither_sockets_nor_memory() -> None:
    process = subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not has_ended(process.pid)
        assert (resident_bytes(process.pid) or 0) > 0
        process.kill()
        end = time.monotonic() + 20
        while not has_ended(process.pid):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert not socket_inodes(process.pid)
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()
    assert has_ended(process.pid)
    assert resident_bytes(process.pid) is None


def test_a_process_that_cannot_be_looked_at_is_unknown_and_not_gone() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        seen = has_ended(os.getpid()), resident_bytes(os.getpid())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert seen == (False, None)
