"""Asks the kernel about TCP sockets by ``sock_diag`` (Linux, no privilege): 8 us a look; ``/proc/net/tcp`` takes 4 ms.

llama.cpp sets no keepalive on its RPC sockets, so an idle one tells only of an end that was closed: CLOSE_WAIT, or
gone. In use, retransmissions tell of a cut network and "sent since it last spoke" names the side that does not answer.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import re
import socket
import struct
from types import TracebackType

import msgspec

ESTABLISHED, TIME_WAIT, CLOSE_WAIT, LISTEN = 1, 6, 8, 10

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_HEADER = struct.Struct("<IHHII")
_ASK = struct.Struct("<BBBBI")
_PORTS = struct.Struct(">HH")
_MESSAGE_BYTES = 72
_TCP_INFO = 2
_NO_ROUND_TRIP = 0xFFFFFFFF
"""What the kernel says for the least round trip before it has measured one."""
_LINK = re.compile(r"^socket:\[(\d+)\]$")
_PATIENCE_SECONDS = 1.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class FourTuple(msgspec.Struct, frozen=True):
    """Both ends of one connection, as numeric addresses and ports."""

    local: str
    local_port: int
    remote: str
    remote_port: int

    @property
    def words(self) -> str:
        """As people write it: from -> to."""
        return f"{self.local}:{self.local_port} -> {self.remote}:{self.remote_port}"


class SocketSeen(msgspec.Struct, frozen=True):
    """One TCP socket at one moment. ``inode`` is 0 once no process owns it.

    ``sent_ms`` and ``received_ms`` say how long ago data last went out and came in, ``received_bytes`` how many came in
    since it was connected, ``round_trip_us`` the shortest round trip of the last minutes in microseconds; None when the
    kernel does not tell.
    """

    ends: FourTuple
    state: int
    retransmits: int
    inode: int
    sent_ms: int | None
    received_ms: int | None
    received_bytes: int | None
    round_trip_us: int | None = None

    @property
    def waits_for_other_end(self) -> bool:
        """Data went out after the other end last sent any, or it never sent any.

        Where both fell into one tick of the kernel's clock (4 ms on many) nobody can say which came last: then it does
        not count as waiting, and a rank that hangs there is not named, only that nothing gets on.
        """
        if self.received_bytes == 0:
            return True
        return self.sent_ms is not None and self.received_ms is not None and self.sent_ms < self.received_ms


class SocketDiag:
    """One netlink socket for looking at TCP sockets. Blocking, for microseconds; use as a context manager."""

    def __init__(self) -> None:
        self._netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
        self._netlink.settimeout(_PATIENCE_SECONDS)
        self._sequence = 0

    def __enter__(self) -> SocketDiag:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._netlink.close()

    def look(self, ends: FourTuple) -> SocketSeen | None:
        """The socket with exactly these ends on this host, or None when there is none. Raises OSError.

        The kernel answers with the listening socket of that port when the connection is gone: that is none as well.
        """
        family = _family(ends.local)
        ports = (ends.local_port, ends.remote_port)
        self._ask(_REQUEST, family, 0xFFFFFFFF, ports, _packed(ends.local), _packed(ends.remote))
        found = self._answers(is_dump=False)
        return found[0] if found and found[0].ends == ends else None

    def dump(self, *states: int, local_port: int = 0, remote_port: int = 0) -> tuple[SocketSeen, ...]:
        """Every socket in one of these states, IPv4 and IPv6. The kernel filters by port (0: any). Raises OSError."""
        mask = sum(1 << state for state in states)
        found: list[SocketSeen] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            self._ask(_REQUEST | _DUMP, family, mask, (local_port, remote_port), bytes(16), bytes(16))
            found += self._answers(is_dump=True)
        return tuple(found)

    def _ask(self, flags: int, family: int, states: int, ports: tuple[int, int], local: bytes, remote: bytes) -> None:
        """Send one request."""
        self._sequence += 1
        ask = _ASK.pack(family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), 0, states)
        ends = _PORTS.pack(*ports) + local + remote + bytes(4) + b"\xff" * 8
        body = ask + ends
        header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, flags, self._sequence, 0)
        self._netlink.send(header + body)

    def _answers(self, *, is_dump: bool) -> list[SocketSeen]:
        """Everything that the kernel answers to the last request."""
        found: list[SocketSeen] = []
        while True:
            data = self._netlink.recv(1 << 17)
            at = 0
            while at + _HEADER.size <= len(data):
                length, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
                body = data[at + _HEADER.size : at + length]
                at += max((length + 3) & ~3, _HEADER.size)
                if sequence != self._sequence:  # the rest of an answer that was given up
                    continue
                if kind == _DONE:
                    return found
                if kind == _ERROR:
                    return found + _refused(body)
                found.append(_read_message(body))
                if not is_dump:
                    return found


def _refused(body: bytes) -> list[SocketSeen]:
    """An error of the kernel: no such socket is an empty answer, everything else is raised."""
    (code,) = struct.unpack_from("<i", body)
    if code in (0, -errno.ENOENT):
        return []
    raise OSError(-code, f"sock_diag: {os.strerror(-code)}")


def _family(address: str) -> int:
    """The address family of a numeric address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


@functools.lru_cache(maxsize=1024)
def _packed(address: str) -> bytes:
    """A numeric address in the 16 bytes of a request."""
    return ipaddress.ip_address(address).packed.ljust(16, b"\0")


@functools.lru_cache(maxsize=1024)
def _address(family: int, packed: bytes) -> str:
    """A numeric address from the 16 bytes of an answer."""
    return str(ipaddress.ip_address(packed[:4] if family == socket.AF_INET else packed))


def _read_message(body: bytes) -> SocketSeen:
    """One ``inet_diag_msg`` with its attributes."""
    family, state, _, retransmits = struct.unpack_from("<BBBB", body)
    local_port, remote_port = _PORTS.unpack_from(body, 4)
    (inode,) = struct.unpack_from("<I", body, 68)
    ends = FourTuple(_address(family, body[8:24]), local_port, _address(family, body[24:40]), remote_port)
    return SocketSeen(ends, state, retransmits, inode, *_read_tcp_info(body))


def _read_tcp_info(body: bytes) -> tuple[int | None, int | None, int | None, int | None]:
    """Milliseconds since data last went out and came in, bytes received and least round trip, from ``tcp_info``."""
    at = _MESSAGE_BYTES
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("<HH", body, at)
        if kind == _TCP_INFO and length >= 4 + 56:
            (sent,), (received,) = (struct.unpack_from("<I", body, at + 4 + offset) for offset in (44, 52))
            has_bytes = length >= 4 + 136  # kernels before 4.1 end earlier
            received_bytes = struct.unpack_from("<Q", body, at + 4 + 128)[0] if has_bytes else None
            has_least = length >= 4 + 152  # kernels before 4.6 end earlier
            least = struct.unpack_from("<I", body, at + 4 + 148)[0] if has_least else _NO_ROUND_TRIP
            return sent, received, received_bytes, None if least == _NO_ROUND_TRIP else least
        at += max((length + 3) & ~3, 4)
    return None, None, None, None


def socket_inodes(pid: int) -> frozenset[int] | None:
    """Inodes of the sockets that a process has open; empty when it is gone, None when the kernel will not show them.

    That is so for a process of another user, and for any process in the last moment of its life.
    """
    found = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            match = _open_socket(f"/proc/{pid}/fd/{name}")
            if match:
                found.add(int(match[1]))
    except (FileNotFoundError, ProcessLookupError):
        return frozenset()
    except PermissionError:
        return frozenset() if has_ended(pid) else None
    return frozenset(found)


def _open_socket(link: str) -> re.Match[str] | None:
    """The match of one descriptor's link when it is a socket; None also when it was closed since the listing."""
    try:
        return _LINK.match(os.readlink(link))
    except FileNotFoundError:
        return None


def has_ended(pid: int) -> bool:
    """Whether a process is gone; a zombie is gone, and one that cannot be looked at now is not."""
    try:
        stat = _read_proc(f"/proc/{pid}/stat")
    except OSError:  # no descriptor is free, or it is not shown to this user
        return False
    return stat is None or stat.rpartition(b")")[2].split()[0] in (b"Z", b"X")


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process in bytes; None when it is gone, or cannot be looked at now."""
    try:
        pages = _read_proc(f"/proc/{pid}/statm")
    except OSError:
        return None
    return None if pages is None else int(pages.split()[1]) * _PAGE_BYTES


def _read_proc(path: str) -> bytes | None:
    """A small file of /proc, None when its process is gone. Python's file objects would cost thrice as much.

    Raises OSError when it cannot be looked at, which says nothing of the process.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        return os.read(fd, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
