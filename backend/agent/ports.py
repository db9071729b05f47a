"""Ports of this host: who listens, what can be bound, and whether one host reaches another at an address."""

from __future__ import annotations

import asyncio
import errno
import hmac
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

PROC = Path("/proc")

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
REQUEST_DUMP = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP: every socket that fits, not one."""
NLMSG_ERROR, NLMSG_DONE = 2, 3
TCP_LISTEN = 10
DIAG_SECONDS = 2.0

GREETING = b"ringtop-probe 1 "
"""How a probe's listener begins, so that a dial never sends a byte to somebody else's server. Whom it listens for
follows, so that a dial that reaches another host can name it."""
HEARD = b"heard "
LINE_LIMIT = 512
PEER_SECONDS = 2.0
"""How long one dial may take to say its nonce; a scanner that says nothing holds nothing up."""
DIAL_PAUSE_SECONDS = 0.002
"""The first pause after a refused dial; it doubles up to ``LONGEST_DIAL_PAUSE_SECONDS``."""
LONGEST_DIAL_PAUSE_SECONDS = 0.05
STRANGER_LIMIT = 16
"""Dials with a wrong nonce that a listener bears before it gives up."""


def listening_ports(low: int, high: int) -> frozenset[int]:
    """TCP ports from ``low`` to ``high``, inclusive, with a listener at any address of this network namespace.

    Asked of the kernel by sock_diag, which takes well under a millisecond; a kernel that refuses it is read by
    /proc/net/tcp, which takes 4 to 24 ms where its table is large.
    """
    try:
        ports = {port for family in (socket.AF_INET, socket.AF_INET6) for port in _diag_listeners(family)}
    except OSError:
        ports = set(_proc_listeners())  # a kernel without tcp_diag, or a sandbox that forbids netlink
    return frozenset(port for port in ports if low <= port <= high)


def _diag_listeners(family: int) -> Iterator[int]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(DIAG_SECONDS)
        body = struct.pack("=BBBBI48x", family, socket.IPPROTO_TCP, 0, 0, 1 << TCP_LISTEN)
        kernel.send(struct.pack("=IHHII", 16 + len(body), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + body)
        while True:
            reply = kernel.recv(1 << 16)
            offset = 0
            while offset + 16 <= len(reply):
                length, kind = struct.unpack_from("=IH", reply, offset)
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR or length < 16:
                    raise OSError(errno.EPROTO, "sock_diag refused the dump")
                yield int.from_bytes(reply[offset + 20 : offset + 22], "big")
                offset += (length + 3) & ~3


def _proc_listeners(proc: Path = PROC) -> Iterator[int]:
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "net" / name).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue  # IPv6 is switched off
        for line in lines:
            fields = line.split()
            if int(fields[3], 16) == TCP_LISTEN:
                yield int(fields[1].rpartition(":")[2], 16)


def can_bind(address: str, port: int) -> str | None:
    """None when an engine could listen there now, else what stands against it.

    Binds and listens as the engines do (SO_REUSEADDR: connections in TIME_WAIT do not count) and closes at once.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except OSError as unknown:
        return f"{address} is no address of this host: {unknown.strerror}"
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
            probe.listen(1)
        except OSError as refused:
            return _bind_words(address, port, refused)
    return None


def _bind_words(address: str, port: int, refused: OSError) -> str:
    if refused.errno == errno.EADDRINUSE:
        return f"port {port} at {address} is in use by another process"
    if refused.errno == errno.EADDRNOTAVAIL:
        return f"{address} is no address of this host, so nothing can listen there. Check advertise in agent.toml"
    if refused.errno == errno.EACCES:
        return f"port {port} at {address} may only be bound by root"
    return f"port {port} at {address} cannot be bound: {_reason(refused)}"


def _reason(refused: OSError) -> str:
    """The system's words; asyncio replaces them with its own, and a name that does not resolve has none."""
    if refused.errno is not None and refused.errno > 0:
        return os.strerror(refused.errno)
    return refused.strerror or str(refused)


def ephemeral_range(proc: Path = PROC) -> tuple[int, int] | None:
    """The ports, inclusive, that the kernel gives to outgoing connections: an engine's port among them may be taken.

    None where they cannot be read: no descriptor is left for it, or a sandbox hides them.
    """
    try:
        low, high = (proc / "sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        return None
    return int(low), int(high)


async def listen_for_nonce(
    address: str, port: int, nonce: str, seconds: float, listening: Callable[[], None] | None = None
) -> str | None:
    """Listen for one dial that carries ``nonce`` and answer it; None when it came, else what went wrong.

    ``listening`` is called once the port is bound. A dial with another nonce is closed without an answer. The port is
    free again when this returns.
    """
    heard: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    strangers = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal strangers
        try:
            is_right = await asyncio.wait_for(_exchange(reader, writer, nonce), PEER_SECONDS)
        except (OSError, ValueError, TimeoutError):
            is_right = False  # hung up, said too much or said nothing: a stranger, counted below
        finally:
            writer.close()
        strangers += not is_right
        if is_right and not heard.done():
            heard.set_result(None)
        elif strangers >= STRANGER_LIMIT and not heard.done():
            heard.set_result(f"{strangers} dials to {address}:{port} carried another nonce; the last one was not ours")

    try:
        server = await asyncio.start_server(answer, address, port, limit=LINE_LIMIT, reuse_address=True)
    except OSError as refused:
        return _bind_words(address, port, refused)
    try:
        if listening is not None:
            listening()
        return await asyncio.wait_for(heard, seconds)
    except TimeoutError:
        turned_away = f"; {strangers} with another nonce were turned away" if strangers else ""
        return f"nobody dialled {address}:{port} with the nonce within {seconds:g} s{turned_away}"
    finally:
        server.close()


def _label(nonce: str) -> str:
    """What a nonce may tell a stranger: everything before its last dash, such as the host and rank that it is for."""
    return nonce.rpartition("-")[0]


def _greeting(nonce: str) -> bytes:
    return GREETING + _label(nonce).encode() + b"\n"


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, nonce: str) -> bool:
    writer.write(_greeting(nonce))
    await writer.drain()
    said = (await reader.readline()).strip()
    if not hmac.compare_digest(said, nonce.encode()):
        return False
    writer.write(HEARD + said + b"\n")
    await writer.drain()
    return True


async def dial_nonce(address: str, port: int, nonce: str, seconds: float) -> str | None:
    """Dial a listener of ``listen_for_nonce`` and prove that it is ours; None when proven, else what went wrong.

    A refused connection is tried again until ``seconds`` are over, as the listener may not be up yet. Nothing is
    sent to a server that does not greet as a probe does.
    """
    last, pause = "no answer", DIAL_PAUSE_SECONDS
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await _dial_once(address, port, nonce)
                except OSError as refused:
                    last = _reason(refused)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_DIAL_PAUSE_SECONDS)
    except TimeoutError:
        return f"{address}:{port} was not reached within {seconds:g} s: {last}"


async def _dial_once(address: str, port: int, nonce: str) -> str | None:
    reader, writer = await asyncio.open_connection(address, port, limit=LINE_LIMIT)
    try:
        greeting = await reader.readline()
        if not greeting.startswith(GREETING):
            return f"{address}:{port} is another server, not the probe's listener: it did not greet as one"
        if greeting != _greeting(nonce):
            there = greeting.removeprefix(GREETING).strip().decode(errors="replace") or "a probe without a name"
            return f"{address}:{port} is the listener of {there}, and {_label(nonce)} was expected there"
        writer.write(nonce.encode() + b"\n")
        await writer.drain()
        if await reader.readline() == HEARD + nonce.encode() + b"\n":
            return None
        return f"{address}:{port} is the listener of another probe: it did not answer nonce {nonce}"
    except ValueError:
        return f"{address}:{port} is another server, not the probe's listener: it sent a line over {LINE_LIMIT} bytes"
    finally:
        writer.close()
