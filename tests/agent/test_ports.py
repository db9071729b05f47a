"""Ports: what the kernel says of listeners, what can be bound, and the proof that one host reaches another."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.agent import ports

SECONDS = 30.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def test_a_listener_is_seen_within_its_range_only(listener: socket.socket) -> None:
    port = port_of(listener)
    assert port in ports.listening_ports(port, port)
    assert port not in ports.listening_ports(1, port - 1)
    assert port not in ports.listening_ports(port + 1, 65_535)


def test_a_closed_listener_is_gone_at_once(listener: socket.socket) -> None:
    port = port_of(listener)
    listener.close()
    assert ports.listening_ports(port, port) == frozenset()


def test_a_connection_is_no_listener(listener: socket.socket) -> None:
    with socket.create_connection(listener.getsockname()) as client:
        own = int(client.getsockname()[1])
        assert own not in ports.listening_ports(own, own)


def test_a_listener_of_the_other_family_is_seen() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this host has no IPv6")
    with server:
        assert port_of(server) in ports.listening_ports(1, 65_535)


def test_a_kernel_that_refuses_the_dump_is_read_by_its_table(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "SOCK_DIAG_BY_FAMILY", 9_999)
    assert port_of(listener) in ports.listening_ports(1, 65_535)


def test_many_listeners_are_all_seen() -> None:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(200)]
    try:
        assert {port_of(server) for server in servers} <= ports.listening_ports(1, 65_535)
    finally:
        for server in servers:
            server.close()


def test_a_free_port_can_be_bound_and_is_free_afterwards() -> None:
    port = free_port()
    assert ports.can_bind("127.0.0.1", port) is None
    assert ports.can_bind("127.0.0.1", port) is None


def test_a_taken_port_is_named(listener: socket.socket) -> None:
    port = port_of(listener)
    assert ports.can_bind("127.0.0.1", port) == f"port {port} at 127.0.0.1 is in use by another process"


def test_an_address_of_another_host_is_named() -> None:
    words = ports.can_bind("203.0.113.7", free_port())
    assert words is not None
    assert "203.0.113.7 is no address of this host" in words


def test_a_connection_in_time_wait_does_not_count(listener: socket.socket) -> None:
    port = port_of(listener)
    client = socket.create_connection(listener.getsockname())
    served, _ = listener.accept()
    served.close()
    client.close()
    listener.close()
    assert ports.can_bind("127.0.0.1", port) is None


def test_the_kernels_own_range_is_read_and_one_that_is_hidden_is_unknown(tmp_path: Path) -> None:
    said = ports.ephemeral_range()
    assert said is not None
    assert f"{said[0]}\t{said[1]}" == Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().strip()
    assert ports.ephemeral_range(tmp_path) is None


async def test_the_right_nonce_proves_the_address() -> None:
    port = free_port()
    heard = asyncio.create_task(ports.listen_for_nonce("127.0.0.1", port, "n-1", SECONDS))
    assert await ports.dial_nonce("127.0.0.1", port, "n-1", SECONDS) is None
    assert await heard is None
    assert ports.can_bind("127.0.0.1", port) is None


async def test_a_dial_waits_for_its_listener() -> None:
    port = free_port()
    dial = asyncio.create_task(ports.dial_nonce("127.0.0.1", port, "n-1", SECONDS))
    with pytest.raises(ConnectionRefusedError):  # the dial has had its chance as well
        await asyncio.open_connection("127.0.0.1", port)
    assert await ports.listen_for_nonce("127.0.0.1", port, "n-1", SECONDS) is None
    assert await dial is None


async def test_a_wrong_nonce_gets_no_answer_and_does_not_end_the_probe() -> None:
    port, up = free_port(), asyncio.Event()
    heard = asyncio.create_task(ports.listen_for_nonce("127.0.0.1", port, "n-1", SECONDS, up.set))
    await up.wait()
    words = await ports.dial_nonce("127.0.0.1", port, "n-2", SECONDS)
    assert words == f"127.0.0.1:{port} is the listener of another probe: it did not answer nonce n-2"
    words = await ports.dial_nonce("127.0.0.1", port, "host-b rank 2-ff", SECONDS)
    assert words == f"127.0.0.1:{port} is the listener of n, and host-b rank 2 was expected there"
    assert not heard.done()
    assert await ports.dial_nonce("127.0.0.1", port, "n-1", SECONDS) is None
    assert await heard is None


async def test_many_strangers_end_the_probe() -> None:
    port, up = free_port(), asyncio.Event()
    heard = asyncio.create_task(ports.listen_for_nonce("127.0.0.1", port, "n-1", SECONDS, up.set))
    await up.wait()
    for _ in range(ports.STRANGER_LIMIT):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x" * 4096 + b"\n")
        writer.close()
    words = await heard
    assert words is not None
    assert "carried another nonce" in words


async def test_a_silent_scanner_holds_nothing_up() -> None:
    port, up = free_port(), asyncio.Event()
    heard = asyncio.create_task(ports.listen_for_nonce("127.0.0.1", port, "n-1", SECONDS, up.set))
    await up.wait()
    _, silent = await asyncio.open_connection("127.0.0.1", port)
    assert await ports.dial_nonce("127.0.0.1", port, "n-1", SECONDS) is None
    assert await heard is None
    silent.close()


async def test_nobody_dials_and_nobody_listens_is_said_with_the_seconds() -> None:
    port = free_port()
    words = await ports.listen_for_nonce("127.0.0.1", port, "n-1", 0.1)
    assert words == f"nobody dialled 127.0.0.1:{port} with the nonce within 0.1 s"
    words = await ports.dial_nonce("127.0.0.1", port, "n-1", 0.2)
    assert words is not None
    assert words == f"127.0.0.1:{port} was not reached within 0.2 s: Connection refused"


async def test_a_taken_address_is_named_instead_of_listened_on(listener: socket.socket) -> None:
    port = port_of(listener)
    words = await ports.listen_for_nonce("127.0.0.1", port, "n-1", SECONDS)
    assert words == f"port {port} at 127.0.0.1 is in use by another process"


async def test_another_server_is_told_apart_and_sent_nothing() -> None:
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 something else\n")
        got.set_result(await reader.read())
        writer.close()

    server = await asyncio.start_server(engine, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        words = await ports.dial_nonce("127.0.0.1", port, "n-1", SECONDS)
        assert words is not None
        assert "is another server" in words
        assert await got == b""


async def test_a_probe_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    port = free_port()
    heard = asyncio.create_task(ports.listen_for_nonce("127.0.0.1", port, "n-1", SECONDS))
    assert await ports.dial_nonce("127.0.0.1", port, "n-1", SECONDS) is None
    await heard
    async with asyncio.timeout(SECONDS):
        while len(os.listdir("/proc/self/fd")) > before:  # noqa: ASYNC110 a descriptor has no event
            await asyncio.sleep(0.005)
